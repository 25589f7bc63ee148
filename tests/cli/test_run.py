"""`ruststream run` as a process: signals, several workers, one that is killed, another event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVICE = """
import asyncio, os
from ruststream_core import App, FailFast, RustStreamError

app = App("service", broker="memory:", drain=30)


def say(what):
    os.write(1, (what + "\\n").encode())


@app.subscriber("jobs")
async def work(body: bytes) -> None: ...


@app.after_startup
async def started() -> None:
    say(f"started {os.getpid()} {type(asyncio.get_running_loop()).__module__.split('.')[0]}")


@app.after_drain
async def drained() -> None:
    say(f"drained {os.getpid()}")


failing = App("failing", broker="memory:")
failing.include(app)


@failing.after_startup
async def fails() -> None:
    say(f"started {os.getpid()}")
    if not os.path.exists("one-failed"):
        open("one-failed", "w").close()
        raise RustStreamError("the licence ran out")


def wrong() -> App:
    say("loaded")
    app = App("wrong", broker="memory:")
    app.subscriber("x")(wrong)
    return app
"""


class Program:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        got = self.process.stdout.readline()
        assert got, self.log.read_text()
        return got.split()

    def logged(self, text: str) -> None:
        """Read its log until that is said."""
        with self.log.open() as stream:
            said = ""
            while text not in said:
                assert self.process.poll() is None, said
                said += stream.read()

    def end(self) -> tuple[int, list[list[str]]]:
        assert self.process.stdout is not None
        rest = [line.split() for line in self.process.stdout.read().splitlines()]
        return self.process.wait(60), rest


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Program]:
    (folder / "cli_runs.py").write_text(SERVICE)
    log = folder / "log.txt"
    command = [sys.executable, "-m", "ruststream_core", "run", *arguments]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield Program(process, log)
        finally:
            if process.poll() is None:
                process.terminate()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_0(number: signal.Signals, loop: str, tmp_path: Path) -> None:
    with running(tmp_path, "cli_runs:app", "--loop", loop) as program:
        said, pid, module = program.line()
        assert (said, int(pid), module) == ("started", program.process.pid, loop)
        program.process.send_signal(number)
        code, rest = program.end()
    assert code == 0
    assert rest == [["drained", pid]]
    assert "draining; once more releases at once" in program.log.read_text()


def test_several_workers_are_several_processes_and_all_drain(tmp_path: Path) -> None:
    with running(tmp_path, "cli_runs:app", "--workers", "2") as program:
        pids = {program.line()[1] for _ in range(2)}
        assert len(pids) == 2
        assert str(program.process.pid) not in pids
        program.process.send_signal(signal.SIGTERM)
        code, rest = program.end()
    assert code == 0
    assert {pid for _, pid in rest} == pids


def test_a_worker_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path, "cli_runs:app", "--workers", "2") as program:
        first, second = program.line()[1], program.line()[1]
        os.kill(int(first), signal.SIGKILL)
        third = program.line()[1]
        assert third not in (first, second)
        program.process.send_signal(signal.SIGTERM)
        code, rest = program.end()
    assert code == 0
    assert {pid for _, pid in rest} == {second, third}


def test_a_signal_while_a_worker_is_about_to_be_started_again_is_for_that_one_too(tmp_path: Path) -> None:
    """Started after the signal, it would run for ever and the supervisor with it."""
    with running(tmp_path, "cli_runs:app", "--workers", "2") as program:
        first, second = program.line()[1], program.line()[1]
        os.kill(int(first), signal.SIGKILL)
        program.logged("was killed by signal 9; starting another")
        program.process.send_signal(signal.SIGTERM)
        code, rest = program.end()
    assert rest == [["drained", second]]
    assert code == 0


def test_a_worker_that_fails_for_good_stops_the_others_and_is_the_exit_code(tmp_path: Path) -> None:
    with running(tmp_path, "cli_runs:failing", "--workers", "2") as program:
        code, _ = program.end()
    assert code == 1
    assert "stopping the others" in program.log.read_text()


def test_wrong_wiring_ends_at_once_with_2(tmp_path: Path) -> None:
    for arguments in ([], ["--workers", "2"]):
        with running(tmp_path, "cli_runs:wrong", *arguments) as program:
            code, rest = program.end()
        assert code == 2
        assert rest[0] == ["loaded"]
        assert "error: route 'wrong': " in program.log.read_text()


def test_reload_starts_again_when_a_file_changes(tmp_path: Path) -> None:
    """The one flag that is tried by hand or not at all."""
    source = tmp_path / "reloaded.py"
    text = 'from ruststream_core import App\nprint("loaded {}", flush=True)\napp = App("x", broker="memory:")\n'
    text += '@app.subscriber("a")\nasync def handle(body: bytes) -> None: ...\n'
    source.write_text(text.replace("{}", "first"))
    command = [sys.executable, "-m", "ruststream_core", "run", "reloaded:app", "--reload"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded first\n"
        assert process.stderr is not None
        # The app runs and the watcher watches when the route receives; then the file changes until that is noticed.
        while "receiving" not in process.stderr.readline():
            pass
        changed = threading.Event()
        changer = threading.Thread(target=_change_until, args=(source, text.replace("{}", "second"), changed))
        changer.start()
        assert process.stdout.readline() == "loaded second\n"
        changed.set()
        changer.join()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def _change_until(path: Path, text: str, seen: threading.Event) -> None:
    while not seen.wait(0.5):
        path.write_text(text)
