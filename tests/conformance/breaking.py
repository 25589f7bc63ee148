"""How a sound transport is broken in one place: a mixin over its broker, connection, subscription, sender or
deliveries, and the checks that must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ruststream_core.abc import Broker, Connection, Sender, Subscription
from ruststream_core.conformance import Target
from ruststream_core.memory import MemoryBroker
from ruststream_core.wire import Delivery
from tests.conformance.leasing import LeaseBroker
from tests.conformance.targets import PASSWORD, lease, queue

__all__ = [
    "ALL_MUTANTS",
    "Broken",
    "BrokenBroker",
    "BrokenConnection",
    "BrokenDelivery",
    "BrokenSender",
    "BrokenSubscription",
    "mutant",
]

ALL_MUTANTS: list[tuple[type[Broken], str, Callable[..., Target]]] = []


class Broken:
    """Base of every mixin."""

    __slots__ = ()
    __test__: ClassVar[bool] = False


class BrokenBroker(Broken, Broker[Any]):
    """Mixed into the broker's class."""


class BrokenConnection(Broken, Connection[Any]):
    """Becomes the class of each connection."""


class BrokenSubscription(Broken, Subscription):
    """Becomes the class of each subscription."""


class BrokenSender(Broken, Sender):
    """Becomes the class of each sender."""


class BrokenDelivery(Delivery, Broken):
    """Stands in front of each delivery."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    payload = property(lambda self: self.inner.payload)
    name = property(lambda self: self.inner.name)
    headers = property(lambda self: self.inner.headers)
    key = property(lambda self: self.inner.key)
    lane = property(lambda self: self.inner.lane)
    attempt = property(lambda self: self.inner.attempt)
    reply_to = property(lambda self: self.inner.reply_to)
    lost = property(lambda self: self.inner.lost)

    @property
    def home(self) -> Any:
        return self.inner.home

    def settle(self, verdict: Any) -> Any:
        return self.inner.settle(verdict)

    def transport(self, field: str) -> object:
        return self.inner.transport(field)


def mutant(*caught_by: str, on: Callable[..., Target] = queue) -> Callable[[type[Any]], type[Any]]:
    """Enter a mixin into the table: each of these checks must fail on it."""

    def enter(mixin: type[Any]) -> type[Any]:
        ALL_MUTANTS.extend((mixin, check, on) for check in caught_by)
        return mixin

    return enter


def become(thing: Any, mixin: type[Broken], wanted: type[Broken], *lists: list[Any]) -> Any:
    """The same object under another class, where the mixin is for such things; in these lists too."""
    if not issubclass(mixin, wanted):
        return thing
    kind: Any = type(mixin.__name__, (mixin, type(thing)), {})
    other = kind.__new__(kind)
    other.__dict__ = thing.__dict__
    for each in lists:
        each[:] = [other if item is thing else item for item in each]
    return other


def broken(mixin: type[Broken], on: Callable[..., Target]) -> Target:
    """The target with its transport broken."""
    base: type[Any] = LeaseBroker if on is lease else MemoryBroker
    bases = (mixin, _Breaking, base) if issubclass(mixin, BrokenBroker) else (_Breaking, base)
    kind: Any = type(f"{mixin.__name__}Broker", bases, {"mixin": mixin})
    make = (lambda: kind(PASSWORD)) if on is lease else kind
    return on(make, scale=0.01, quiet=0.01)


class _Breaking(Broker[Any]):
    """Breaks what a broker makes."""

    mixin: type[Any]

    def stand_in(self, clock: Any) -> Any:
        kind: Any = type(self)
        return kind(getattr(self, "_password", "memory"), clock=clock)

    async def connect(self) -> Any:
        connection: Any = await super().connect()  # type: ignore[safe-super]
        mixin = self.mixin
        subscribe, sender = type(connection).subscribe, type(connection).sender

        async def broken_subscribe(this: Any, *args: Any) -> Any:
            made = await subscribe(this, *args)
            lists = (made._feed.members, made._store.subscriptions, this._subscriptions, getattr(this, "leased", []))
            subscription = become(made, mixin, BrokenSubscription, *lists)
            if issubclass(mixin, BrokenDelivery):
                subscription.__class__ = type("Fronting", (_Fronting, type(subscription)), {"mixin": mixin})
            return subscription

        async def broken_sender(this: Any, *args: Any) -> Any:
            return become(await sender(this, *args), mixin, BrokenSender)

        methods = {"subscribe": broken_subscribe, "sender": broken_sender}
        connection.__class__ = type("Connection", (type(connection),), methods)
        return become(connection, mixin, BrokenConnection, getattr(self, "connections", []))


class _Fronting(Subscription):
    """Hands out deliveries with something in front."""

    mixin: type[Any]

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Any]:
        chunk = await super().receive(limit, linger)  # type: ignore[safe-super]
        return [self.mixin(delivery) for delivery in chunk]


def soon(callback: Callable[[], object]) -> asyncio.Future[None]:
    """A future for something that happens at the loop's next turn."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def run() -> None:
        if not done.cancelled():
            callback()
            done.set_result(None)

    asyncio.get_running_loop().call_soon(run)
    return done
