"""The service's own processes end or are killed under load: what they had in hand is somebody else's then."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ruststream_core.testing.servers import NatsServer

from .ledger import Ledger
from .scene import DEADLINE, WINDOW, Begin, Rounds, all_handled, all_settled, back, producing, under_load, until

MODULE = """
import asyncio, os
from pathlib import Path
import msgspec
from ledger import Ledger
from ruststream_core import App, Context
from ruststream_core_nats import JetStream, NATSBroker

ledger = Ledger(Path(os.environ["LEDGER"]))
app = App("faults", broker=NATSBroker(os.environ["SERVER"]), drain=20)

class Job(msgspec.Struct):
    number: int

@app.after_startup
async def ready() -> None:
    ledger.begin()

@app.subscriber(
    JetStream("load.*", stream="LOAD", durable="worker", ack_wait=1.0, window=32, heartbeat=0.5, create=True), workers=8
)
async def load(job: Job, ctx: Context) -> None:
    await asyncio.sleep(0.001)
    ledger.write(job.number, ctx.attempt)
"""
PROCESSES = 2


class Service:
    """`ruststream run --workers 2` and its workers, all of which are gone when the test is over."""

    def __init__(self, folder: Path, server: NatsServer, ledger: Ledger) -> None:
        self._folder, self._server, self._ledger = folder, server, ledger
        self._began = 0.0
        self.supervisor: subprocess.Popen[bytes] | None = None
        (folder / "faulty.py").write_text(MODULE)

    async def start(self) -> float:
        """Returns when each process listens; the moment at which it was begun."""
        self._began = time.monotonic()
        command = [sys.executable, "-m", "ruststream_core", "run", "faulty:app", "--workers", str(PROCESSES)]
        own = [str(self._folder), str(Path(__file__).parent)]
        path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "LEDGER": str(self._ledger.path), "SERVER": self._server.url}
        with (self._folder / "log").open("ab") as log:
            self.supervisor = subprocess.Popen(command, cwd=self._folder, env=environment, stderr=log)
        await until(lambda: len(self.workers()) == PROCESSES, "the processes are ready")
        return self._began

    def workers(self) -> list[int]:
        """The processes of this start that became ready, those included that were started again."""
        return self._ledger.processes(self._began)

    async def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGTERM)
        return await self._ended()

    async def kill(self) -> None:
        """SIGKILL to each of its processes. The supervisor first, so that it starts no other."""
        assert self.supervisor is not None
        self.supervisor.kill()
        for pid in self.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._ended()

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    async def _ended(self) -> int:
        assert self.supervisor is not None
        return await asyncio.to_thread(self.supervisor.wait, DEADLINE)


@asynccontextmanager
async def running(folder: Path, server: NatsServer, ledger: Ledger) -> AsyncIterator[Service]:
    service = Service(folder, server, ledger)
    try:
        yield service
    finally:
        if service.supervisor is not None and service.supervisor.poll() is None:
            await service.kill()


async def test_stopped_under_load(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin, tmp_path: Path
) -> None:
    """Each deployment would lose messages or do some twice."""
    row = figures("service, 2 processes: SIGTERM, started again")
    server = own_server()
    async with running(tmp_path, server, ledger) as service:
        began = await service.start()
        async with producing(server.url) as producer:
            for _ in rounds:
                load = await under_load(ledger, producer)
                assert await service.stop() == 0, service.log()
                began = await service.start()
                row.back.append(await back(ledger, began))
                await all_handled(ledger, producer, load)
                row.rounds += 1
            await all_settled(server.url)
            assert await service.stop() == 0, service.log()
    row.add(ledger, producer.confirmed)
    row.note = "back at work includes the start of the interpreters"
    assert (row.lost, row.duplicates) == (0, 0)


async def test_killed_under_load(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin, tmp_path: Path
) -> None:
    """What a crashed process had in hand would be lost, or done twice by more than what it had in hand."""
    row = figures("service, 2 processes: SIGKILL of one, of all in turn")
    server = own_server()
    async with running(tmp_path, server, ledger) as service:
        await service.start()
        async with producing(server.url) as producer:
            for number in rounds:
                load = await under_load(ledger, producer)
                moment = time.monotonic()
                if number % 3 == 2:
                    await service.kill()
                    await service.start()
                else:
                    known = len(service.workers())
                    os.kill(service.workers()[-1], signal.SIGKILL)
                    await until(lambda: len(service.workers()) > known, "another worker is started")  # noqa: B023
                row.back.append(await back(ledger, moment))
                await all_handled(ledger, producer, load)
                row.rounds += 1
            await all_settled(server.url)
            assert await service.stop() == 0, service.log()
    row.add(ledger, producer.confirmed)
    row.note = "back at work counts from the kill"
    assert row.at_most(twice=PROCESSES * WINDOW * row.rounds), row
