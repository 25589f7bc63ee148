"""The transports that the suite itself is tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ruststream_core.abc import Broker, Subscription
from ruststream_core.conformance import Target
from ruststream_core.memory import MemoryBroker, MemoryLog, MemoryQueue
from ruststream_core.wire import Delivery, Outgoing
from tests.conformance.leasing import LIFE, MOST, LeaseBroker

PASSWORD = "hunter2"

Make = Callable[[], Broker[Any]]


async def seek_away(subscription: Subscription, delivery: Delivery) -> None:
    """A log loses what is in hand when somebody seeks."""
    seekable: Any = subscription
    await seekable.seek(seekable.position(delivery))


def queue(make: Make = MemoryBroker, **options: Any) -> Target:
    """A queue of the in-memory transport."""
    return Target.in_process(
        make,
        label="queue",
        source=lambda name: MemoryQueue(name, dead_letter=f"{name}-dead"),
        dead_letter=lambda name: f"{name}-dead",
        pattern=lambda name: (f"{name}.{{x}}", f"{name}.one"),
        unsendable=lambda name: Outgoing(b"", f"{name}.*"),
        **options,
    )


def group(make: Make = MemoryBroker, **options: Any) -> Target:
    """A log with a group."""
    return _log(make, "log with a group", lambda name: MemoryLog(name, group="readers"), **options)


def reader(make: Make = MemoryBroker, **options: Any) -> Target:
    """A log that everybody reads from its beginning."""
    return _log(make, "log", MemoryLog, **options)


def late_reader(make: Make = MemoryBroker, **options: Any) -> Target:
    """A log that everybody reads from now on."""
    return _log(make, "log from its end", lambda name: MemoryLog(name, start="latest"), **options)


def _log(make: Make, label: str, source: Callable[[str], MemoryLog], **options: Any) -> Target:
    return Target.in_process(
        make,
        label=label,
        source=source,
        lose=seek_away,
        pattern=lambda name: (source(f"{name}.{{x}}"), f"{name}.one"),
        unsendable=lambda name: Outgoing(b"", f"{name}.*"),
        **options,
    )


def lease(make: Make = lambda: LeaseBroker(PASSWORD), **options: Any) -> Target:
    """The transport that lends."""
    brokers: list[Any] = []
    target = Target.in_process(
        make,
        label="leases",
        lease=LIFE,
        unreachable=lambda: down(make()),
        unsendable=lambda name: Outgoing(b"x" * (MOST + 1), name),
        secrets=[PASSWORD],
        **options,
    )
    inner = target.make_broker

    def make_broker() -> Any:
        brokers.append(inner())
        return brokers[-1]

    async def lose(subscription: Subscription, delivery: Delivery) -> None:
        leased: Any = subscription
        held: Any = delivery
        while hasattr(held, "inner"):
            held = held.inner
        leased.expire(held)

    async def outage() -> None:
        brokers[-1].outage()

    async def terminate(name: str) -> None:
        brokers[-1].terminate(name)

    target.make_broker = make_broker
    target.lose, target.outage, target.terminate = lose, outage, terminate
    return target


def down(broker: Any) -> Any:
    """The same broker, out of reach."""
    broker._down = True
    return broker


ALL = {"queue": queue, "group": group, "reader": reader, "late reader": late_reader, "lease": lease}
