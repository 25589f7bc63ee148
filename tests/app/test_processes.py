"""GEN-12 and exit codes: whole processes, seen from outside. Each writes its ledger into a pipe, in order."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVICE = """
import asyncio, contextlib, json, logging, os, random, sys, threading
import msgspec
from ruststream_core import App, FailFast, by_key, lifecycle, workers
from ruststream_core.memory import MemoryLog

OPTIONS = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO)
lifecycle.CLEANUP = OPTIONS.get("cleanup", 5.0)


class Job(msgspec.Struct):
    id: int


def say(what):
    os.write(1, (what + "\\n").encode())


stop = workers.Crew.stop


def stopping(self):
    first = not self.stopping
    stop(self)
    if first:
        say("stopped")


workers.Crew.stop = stopping
app = App("service", broker="memory:", drain=OPTIONS.get("drain", 30))
source = MemoryLog("jobs", group="g") if OPTIONS.get("log") else "jobs"
shape = {"one": 1, "many": 20, "key": by_key(20, lambda job: job.id % 50)}[OPTIONS.get("workers", "many")]


async def work(job: Job) -> None:
    say(f"start {job.id}")
    await asyncio.sleep(random.random() / 100)
    say(f"end {job.id}")


async def stuck(job: Job) -> None:
    say(f"start {job.id}")
    try:
        await asyncio.Event().wait()
    finally:
        say("cancelled")


async def deaf(job: Job) -> None:
    say(f"start {job.id}")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


def blocked(job: Job) -> None:
    say(f"start {job.id}")
    threading.Event().wait()


async def exits(job: Job) -> None:
    raise SystemExit(7)


async def fails_fast(job: Job) -> None:
    raise FailFast("broken")


app.subscriber(source, workers=shape, name="work")(globals()[OPTIONS.get("handler", "work")])


@app.after_startup
async def feed() -> None:
    from ruststream_core.wire import Outgoing
    sender = await app.resolved.connect()
    sender = await sender.sender()
    for number in range(OPTIONS.get("count", 2000)):
        sender.send(Outgoing(b'{"id":%d}' % number, "jobs"))


from ruststream_core.memory import MemoryBroker
app.resolved = MemoryBroker()
sys.exit(app.run(brokers={"default": app.resolved}))
"""


class Service:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log
        self.ledger: list[str] = []

    def until(self, line: str, count: int = 1) -> None:
        """Read the ledger until so many lines begin like this."""
        assert self.process.stdout is not None
        while count:
            got = self.process.stdout.readline()
            assert got, self.log.read_text()
            self.ledger.append(got.strip())
            count -= got.startswith(line)

    def end(self) -> tuple[int, str]:
        """Exit code and what it logged; the rest of the ledger is read."""
        assert self.process.stdout is not None
        self.ledger += self.process.stdout.read().split("\n")[:-1]
        return self.process.wait(60), self.log.read_text()


@contextmanager
def service(script: Path, **options: object) -> Iterator[Service]:
    log = script.with_name("log.txt")
    command = [sys.executable, str(script), json.dumps(options)]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield Service(process, log)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("service") / "service.py"
    path.write_text(SERVICE)
    return path


def counts(logged: str) -> dict[str, int]:
    (line,) = re.findall(r"route work: (.*received.*)", logged)
    return {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", line)}


@pytest.mark.parametrize("workers", ["one", "many", "key"])
@pytest.mark.parametrize("log", [False, True], ids=["queue", "group"])
def test_a_signal_under_load_loses_nothing_and_starts_nothing(workers: str, log: bool, script: Path) -> None:
    """Thirty rounds over all forms: once the crew was stopped no handler starts, and every message is accounted for."""
    for turn in range(5):
        with service(script, workers=workers, log=log) as s:
            s.until("start", random.Random(f"{workers}{log}{turn}").randrange(1, 60))
            s.process.send_signal(random.choice([signal.SIGTERM, signal.SIGINT]))
            code, logged = s.end()
        assert code == 0, logged
        starts = [line for line in s.ledger if line.startswith("start")]
        ends = [line for line in s.ledger if line.startswith("end")]
        after = s.ledger[s.ledger.index("stopped") :]
        assert not [line for line in after if line.startswith("start")]
        assert len(starts) == len(set(starts)) == len(ends), "what began was finished, once"
        table = counts(logged)
        assert table["acked"] == len(ends)
        assert table["received"] == table["acked"] + table.get("released", 0)


def test_the_deadline_that_passes_is_exit_code_3(script: Path) -> None:
    with service(script, handler="stuck", drain=0.05, workers="one") as s:
        s.until("start")
        s.process.send_signal(signal.SIGTERM)
        code, logged = s.end()
    assert code == 3
    assert "cancelled" in s.ledger
    table = counts(logged)
    assert (table["acked"], table["received"]) == (0, table["released"])


def test_a_second_signal_releases_at_once_and_is_the_exit_code(script: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with service(script, handler="stuck", drain=3600) as s:
            s.until("start", 20)
            s.process.send_signal(number)
            s.until("stopped")
            s.process.send_signal(number)
            code, logged = s.end()
        assert code == 128 + number
        assert s.ledger.count("cancelled") == 20
        table = counts(logged)
        assert table["received"] == table["released"]


def test_a_thread_that_never_ends_does_not_hold_up_the_exit(script: Path) -> None:
    with service(script, handler="blocked", drain=0.05, cleanup=0.05, workers="many") as s:
        s.until("start", 20)
        s.process.send_signal(signal.SIGTERM)
        code, logged = s.end()
    assert code == 3
    table = counts(logged)
    assert table["received"] == table["released"]


def test_a_handler_that_ignores_its_cancellation_does_not_hold_up_the_exit(script: Path) -> None:
    with service(script, handler="deaf", drain=0.05, cleanup=0.05, workers="many") as s:
        s.until("start", 20)
        s.process.send_signal(signal.SIGTERM)
        code, logged = s.end()
    assert code == 3
    table = counts(logged)
    assert table["received"] == table["released"]
    assert "destroyed" not in logged


@pytest.mark.parametrize(("handler", "code"), [("exits", 7), ("fails_fast", 1)])
def test_handlers_that_end_the_process_choose_its_exit_code(handler: str, code: int, script: Path) -> None:
    with service(script, handler=handler) as s:
        ended, logged = s.end()
    assert ended == code, logged
    table = counts(logged)
    assert table["received"] == table["released"] + table["acked"]
    assert table["acked"] == 0


SIGNALLED_THREAD = """
import os, signal, threading, time
from ruststream_core import App

app = App("quiet", broker="memory:")

@app.subscriber("nothing")
async def nothing(body: bytes) -> None: ...

def signalled() -> None:
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(20)
    os._exit(9)

threading.Thread(target=signalled, daemon=True).start()
raise SystemExit(app.run())
"""


def test_a_signal_that_another_thread_receives_wakes_the_loop() -> None:
    """The system gives a signal to any thread; a loop that waits must not sleep on until something else happens."""
    done = subprocess.run([sys.executable, "-c", SIGNALLED_THREAD], check=False, timeout=60)
    assert done.returncode == 0
