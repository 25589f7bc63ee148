"""What the suite has to know about a transport that the contract does not say."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ruststream_core.abc import Broker, Features, Source, Subscription
from ruststream_core.kit import VirtualClock
from ruststream_core.wire import Delivery, Outgoing

__all__ = ["Target"]

TURNS: Final = 10
"""Turns of the loop that an in-process transport gets after each timer."""


def _same(name: str) -> str:
    return name


def _unique() -> str:
    return f"check-{uuid.uuid4().hex[:12]}"


@dataclass(kw_only=True)
class Target:
    """One kind of source of one transport, on its stand-in or on a real server.

    Only `make_broker` is needed. Each of the hooks further down makes more checks possible; a check whose hook is
    missing says so in the report.

    Args:
        make_broker: a broker, as a service would configure it. All of them reach the same server; an in-process one
            is made once per check.
        label: how reports call this target.
        source: the source to check, for a fresh name.
        destination: the name to publish to, so that `source(name)` receives it.
        new_name: a name that was never used before. It becomes the source's name.
        prepare: creates on the server what `source(name)` reads, before anything else touches it.
        features: what the source is expected to declare, where a difference shall be an error.
        group_of_one: whether two subscriptions of `source(name)` cannot be open at once.
        lease: seconds that the broker lends a delivery, where it does. Keep it short, the checks outlast it.
        pass_time: lets that many seconds of the transport's time pass; on a stand-in it moves the virtual clock.
        lose: makes a delivery in hand lost, by whatever means the transport has.
        outage: breaks every connection and makes the broker reachable again, its data kept.
        terminate: ends `source(name)` for good, so that no reconnecting can help.
        unreachable: a broker that is configured like the others and cannot be reached.
        unsendable: a message to that destination that `send` must refuse.
        dead_letter: where dropped messages of `source(name)` can be read.
        pattern: from a fresh name, a source with a placeholder `{x}` and a destination in which it is `one`.
        secrets: what must never be shown: the passwords and tokens of `make_broker`.
        quiet: seconds without a message after which none is expected any more.
        scale: lengthens or shortens every deadline.
        differences: the checks that this target is known to fail, each with the reason.
    """

    make_broker: Callable[[], Broker[Any]]
    label: str = "transport"
    source: Callable[[str], str | Source] = _same
    destination: Callable[[str], str] = _same
    new_name: Callable[[], str] = _unique
    prepare: Callable[[str], Awaitable[None]] | None = None
    features: Features | None = None
    group_of_one: bool = False
    lease: float | None = None
    pass_time: Callable[[float], Awaitable[None]] = asyncio.sleep
    lose: Callable[[Subscription, Delivery], Awaitable[None]] | None = None
    outage: Callable[[], Awaitable[None]] | None = None
    terminate: Callable[[str], Awaitable[None]] | None = None
    unreachable: Callable[[], Broker[Any]] | None = None
    unsendable: Callable[[str], Outgoing] | None = None
    dead_letter: Callable[[str], str | Source] | None = None
    pattern: Callable[[str], tuple[str | Source, str]] | None = None
    secrets: Sequence[str] = ()
    quiet: float = 0.2
    scale: float = 1.0
    differences: Mapping[str, str] = field(default_factory=dict)

    def declared(self) -> Features:
        """What the broker says that this source can do."""
        broker = self.make_broker()
        return broker.features(broker.source(self.source(self.new_name())))

    @classmethod
    def in_process(cls, make_broker: Callable[[], Broker[Any]], **options: Any) -> Self:
        """A target on the stand-ins of these brokers, its time on a virtual clock: no check waits for a timer.

        Args:
            make_broker: the broker whose `stand_in` is checked.
            options: the other fields of a target, `quiet` and `scale` among them.
        """
        clock = VirtualClock()

        async def pass_time(seconds: float) -> None:
            until = clock.time() + seconds
            await _turns()
            while clock.step(until):
                await _turns()

        return cls(
            make_broker=lambda: make_broker().stand_in(clock), **{"quiet": 0.02, "pass_time": pass_time, **options}
        )


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
