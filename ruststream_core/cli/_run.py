"""`ruststream run`: one process, several, or one that starts again when its code changes."""

from __future__ import annotations

import argparse
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from ruststream_core.app import App
from ruststream_core.cli._load import load_app, overrides
from ruststream_core.errors import ConfigError

__all__ = ["arguments", "execute"]

log = logging.getLogger("ruststream")

RESTART_AFTER: Final = 1.0
"""Seconds between the starts of a worker process that keeps dying."""
FATAL: Final = (1, 2)
"""Exit codes of a worker that another start would not mend: a terminal error, wrong wiring."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("app", help="module:app, or module:factory without arguments")
    parser.add_argument("--broker", action="append", default=[], metavar="NAME=URL", help="instead of the app's own")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--reload", action="store_true", help="start again when a Python file below here changes")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="event loop (asyncio)")
    parser.epilog = (
        "Exit codes: 0 drained, 1 a terminal error or FailFast, 2 usage or wiring, 3 the drain's deadline passed, "
        "128+n a second signal, or one during the start."
    )


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    if options.workers < 1:
        raise ConfigError(f"--workers {options.workers}: at least 1 is needed")
    if options.reload:
        return _reload(options)
    if options.workers > 1:
        return Supervisor(_command(options), options.workers).run()
    app = load_app(options.app)
    return _run_one(app, options)


def _run_one(app: App, options: argparse.Namespace) -> int:
    brokers = overrides(options.broker)
    if options.loop == "asyncio":
        return app.run(brokers=brokers)
    try:
        import uvloop  # noqa: PLC0415  only when asked for
    except ImportError as exc:
        raise ConfigError('--loop uvloop needs it: pip install "ruststream-core[uvloop]"') from exc
    return app.run(brokers=brokers, loop_factory=uvloop.new_event_loop)


def _command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "ruststream_core", "run", options.app, "--loop", options.loop]
    for pair in options.broker:
        command += ["--broker", pair]
    return command


class Supervisor:
    """Several processes of one app: signals go to all, one that is killed is started again.

    Exit code: the first of a worker that failed for good, else the greatest of all.
    """

    def __init__(self, command: list[str], count: int) -> None:
        self._command = command
        self._workers: list[subprocess.Popen[bytes]] = []
        self._started: dict[int, float] = {}
        self._count = count
        self._signals = 0

    def run(self) -> int:
        """Return when all workers have ended."""
        former = {number: signal.signal(number, self._forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for _ in range(self._count):
                self._start()
            return self._watch()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            for worker in self._workers:
                if worker.poll() is None:
                    worker.kill()
                    worker.wait()

    def _start(self) -> None:
        # A session of its own: Ctrl-C at the terminal reaches this process only, which passes it on once.
        worker = subprocess.Popen(self._command, start_new_session=True)
        self._workers.append(worker)
        self._started[worker.pid] = time.monotonic()
        log.info("worker process %d started", worker.pid)

    def _forward(self, number: int, _: object) -> None:
        self._signals += 1
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(number)

    def _watch(self) -> int:
        codes: list[int] = []
        while self._workers:
            ended = [worker for worker in self._workers if worker.poll() is not None]
            for worker in ended:
                self._workers.remove(worker)
                code = worker.returncode
                if self._signals == 0 and code < 0:
                    log.error("worker process %d was killed by signal %d; starting another", worker.pid, -code)
                    time.sleep(max(0.0, RESTART_AFTER - (time.monotonic() - self._started[worker.pid])))
                    if self._signals == 0:  # it may have come meanwhile
                        self._start()
                    continue
                codes.append(code if code >= 0 else 128 - code)
                if self._signals == 0 and code in FATAL:
                    log.error("worker process %d ended with %d; stopping the others", worker.pid, code)
                    self._forward(signal.SIGTERM, None)
            if not ended:
                time.sleep(0.05)
        fatal = [code for code in codes if code in FATAL]
        return fatal[0] if fatal else max(codes, default=0)


def _reload(options: argparse.Namespace) -> int:
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415  only when asked for
    except ImportError as exc:
        raise ConfigError('--reload needs watchfiles: pip install "ruststream-core[reload]"') from exc
    command = _command(options)
    while True:
        worker = subprocess.Popen(command, start_new_session=True)
        try:
            for changes in watch(Path.cwd(), watch_filter=PythonFilter(), raise_interrupt=True):
                log.info("%d files changed: starting again", len(changes))
                break
        except KeyboardInterrupt:
            return _stop(worker)
        _stop(worker)


def _stop(worker: subprocess.Popen[bytes]) -> int:
    worker.send_signal(signal.SIGTERM)
    code = worker.wait()
    return 0 if code == -signal.SIGTERM else code  # it had not come to take signals, and so to no message
