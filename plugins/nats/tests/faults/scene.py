"""What the scenarios share: a service that writes into a ledger, a producer that knows what was confirmed, figures."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from ruststream_core import App, Context, FromPath
from ruststream_core.app import Running
from ruststream_core.errors import PublishError
from ruststream_core_nats import JetStream, JetStreamPublish, NATSBroker

from .ledger import Ledger

__all__ = [
    "DEADLINE",
    "JOBS",
    "STREAM",
    "WINDOW",
    "Begin",
    "Figures",
    "Job",
    "Producer",
    "Rounds",
    "all_handled",
    "all_settled",
    "api",
    "apis",
    "back",
    "balanced",
    "broker",
    "load_seconds",
    "producing",
    "received",
    "service",
    "source",
    "under_load",
    "until",
    "write_figures",
]

STREAM: Final = "LOAD"
WINDOW: Final = 32
"""Most deliveries in one process: what a crash may bring a second time."""
DEADLINE: Final = 60.0
"""Seconds after which nobody waits any longer. Generous: it tells hanging from slow, on a busy machine too."""
JOBS: Final = 200
"""Messages of one round; the fault comes when a quarter of them is handled."""
_RETRIED: Final = 0.02
"""Seconds between attempts of the producer."""


class Job(msgspec.Struct):
    """A message of the load."""

    number: int


async def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Return as soon as something holds.

    Raises:
        AssertionError: it does not within `seconds`.
    """
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.005)


def broker(url: str, **options: Any) -> NATSBroker:
    """A broker that finds its server again quickly."""
    return NATSBroker(url, **{"reconnect_wait": 0.5, "connect_timeout": 1.0, "request_timeout": 2.0, **options})


def source(**options: Any) -> JetStream:
    """The consumer of the load, with a lease that is short enough to see it end."""
    settings = {"stream": STREAM, "durable": "worker", "ack_wait": 1.0, "window": WINDOW, "heartbeat": 0.5, **options}
    return JetStream("load.{kind}", create=True, **settings)


def service(
    line: NATSBroker, ledger: Ledger, *, of: JetStream | None = None, workers: int = 8, work: float = 0.001, **app: Any
) -> App:
    """A service whose one route takes `work` seconds for each message and then writes it down."""
    made = App("faults", broker=line, **{"drain": 20.0, **app})

    @made.subscriber(of or source(), workers=workers, name="load")
    async def handle(job: Job, ctx: Context, kind: Annotated[str, FromPath]) -> None:
        await asyncio.sleep(work)
        ledger.write(job.number, ctx.attempt)

    return made


class Producer:
    """Publishes until the stream has confirmed: every number in `confirmed` is the stream's to keep."""

    def __init__(self, publisher: Running) -> None:
        self._publisher = publisher
        self._numbers = itertools.count(1)
        self.confirmed: set[int] = set()
        self.errors: Counter[str] = Counter()

    async def publish(self, count: int, senders: int = 4, pause: float = 0.006) -> None:
        """So many new messages, side by side, `pause` seconds between two of one sender: a load, not a burst."""
        numbers = iter([next(self._numbers) for _ in range(count)])

        async def send() -> None:
            for number in numbers:
                await self._one(number)
                await asyncio.sleep(pause)

        async with asyncio.timeout(2 * DEADLINE), asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(send())

    async def _one(self, number: int) -> None:
        # The id lets the stream recognise what it has stored without being able to say so.
        options = JetStreamPublish(msg_id=f"job-{number}", timeout=1.0)
        while number not in self.confirmed:
            try:
                await self._publisher.publish(Job(number), to="load.job", options=options)
            except PublishError as exc:
                self.errors[type(exc.__cause__ or exc).__name__] += 1
                await asyncio.sleep(_RETRIED)
            else:
                self.confirmed.add(number)


@asynccontextmanager
async def producing(url: str, **options: Any) -> AsyncIterator[Producer]:
    """A producer on a connection of its own."""
    async with App("producer", broker=broker(url, **options)).start() as running:
        yield Producer(running)


async def apis(url: str, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls of JetStream's interface, one right after the other, on a connection of their own."""
    connection = await broker(url).connect()
    try:
        return [await connection._manager.call(call, body or None) for call, body in calls]
    finally:
        await connection.aclose(1.0)


async def api(url: str, call: str, **body: Any) -> dict[str, Any]:
    """One call, such as `api(url, "STREAM.DELETE.LOAD")`."""
    (answer,) = await apis(url, (call, body))
    return answer


# ---------------------------------------------------------------------------------------------- pieces of a round


async def under_load(ledger: Ledger, producer: Producer, jobs: int = JOBS) -> asyncio.Task[None]:
    """A producer at work, with the service in the middle of it."""
    before = len(ledger.entries())
    load = asyncio.create_task(producer.publish(jobs))
    await until(lambda: len(ledger.entries()) >= before + jobs // 4, "the load is under way")
    return load


async def all_handled(ledger: Ledger, producer: Producer, load: asyncio.Task[None]) -> None:
    """The end of a round."""
    await load
    await until(lambda: not ledger.missing(producer.confirmed), "all that the stream has taken is handled")


async def all_settled(url: str) -> None:
    """The stream's side of the same: nothing comes again after this, so that the duplicates are complete."""
    limit = time.monotonic() + DEADLINE
    while True:
        info = await api(url, f"CONSUMER.INFO.{STREAM}.worker")
        if not info["num_pending"] and not info["num_ack_pending"]:
            return
        assert time.monotonic() < limit, f"never settled: {info}"
        await asyncio.sleep(0.05)


async def back(ledger: Ledger, moment: float) -> float:
    """Seconds from a moment to the first message handled after it."""
    await until(lambda: ledger.first_after(moment) is not None, "the service is back at work")
    first = ledger.first_after(moment)
    assert first is not None
    return first - moment


def received(running: Running, route: str = "load") -> int:
    """Deliveries that the route had so far."""
    return running.statistics()[route]["received"]


def balanced(running: Running, route: str = "load") -> None:
    """Every delivery of the route is in one column of its books."""
    books = running.statistics()[route]
    ends = ("acked", "retried", "dropped", "dead_lettered", "skipped", "released", "lost", "discarded", "in_hand")
    assert books["received"] == sum(books[end] for end in ends)
    assert all(books[end] >= 0 for end in ends)


# ----------------------------------------------------------------------------------------------- rounds and figures


@dataclass
class Figures:
    """What one scenario came to."""

    scenario: str
    server: str
    rounds: int = 0
    published: int | None = None
    lost: int | None = None
    duplicates: int | None = None
    """None of these three where the scenario does not measure it: a 0 is always a count."""
    back: list[float] = field(default_factory=list)
    """Seconds from the end of each fault to the first message handled after it."""
    note: str = ""

    def add(self, ledger: Ledger, confirmed: set[int]) -> None:
        """The books of the whole scenario, from its ledger."""
        self.published = len(confirmed)
        self.lost = len(ledger.missing(confirmed))
        self.duplicates = len(ledger.again())

    def at_most(self, twice: int) -> bool:
        """Whether it was counted, and nothing was lost and no more than that came twice."""
        return self.lost == 0 and self.duplicates is not None and self.duplicates <= twice

    def row(self) -> dict[str, Any]:
        """As the file of figures has it."""
        back = sorted(self.back)
        times = {} if not back else {"back_median": round(statistics.median(back), 3), "back_most": round(back[-1], 3)}
        counts = {name: getattr(self, name) for name in ("rounds", "published", "lost", "duplicates")}
        return {"scenario": self.scenario, "server": self.server, **counts, **times, "note": self.note}


Begin: TypeAlias = Callable[[str], Figures]
"""Begins a row of the table."""


class Rounds:
    """So many rounds, or fewer where the seconds are over before: three at least."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self._seconds = seconds

    def __iter__(self) -> Iterator[int]:
        limit = time.monotonic() + self._seconds
        for number in range(self.count):
            if number >= 3 and time.monotonic() > limit:
                return
            yield number


def write_figures(path: Path, rows: Sequence[Figures]) -> None:
    """All of them as JSON, in the place of those of former runs of the same scenarios."""
    former = json.loads(path.read_text()) if path.exists() else []
    known = {(row["scenario"], row["server"]): row for row in former}
    known |= {(row.scenario, row.server): row.row() for row in rows}
    path.write_text(json.dumps(list(known.values()), indent=1) + "\n")


def load_seconds() -> float:
    """Seconds that one scenario has under load."""
    return float(os.environ.get("RUSTSTREAM_TEST_LOAD_SECONDS", "180"))
