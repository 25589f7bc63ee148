"""One message in hand. Settling it the usual way is a few integer operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from ruststream_core.errors import LeaseLost, SettleError
from ruststream_core.kit import Mark
from ruststream_core.settlement import ACK, Verdict
from ruststream_core.wire import Delivery, Headers

if TYPE_CHECKING:
    import asyncio

__all__ = ["CrashingDelivery", "Home", "LogDelivery", "MemoryDelivery"]


class Home(Protocol):
    """The subscription as its deliveries see it."""

    out: int
    """Deliveries in hand."""
    blocked: bool
    """A `receive` waits for room."""

    def wake(self) -> bool:
        """Let a waiting `receive` look again; False where none waits."""

    def end(self, delivery: MemoryDelivery, verdict: Verdict) -> None:
        """What a verdict causes beyond the room it makes."""

    def lose(self, delivery: MemoryDelivery, error: SettleError, verdict: Verdict | None = None) -> None:
        """Take a delivery away and bring its message back."""


class MemoryDelivery(msgspec.Struct, Delivery, gc=False, eq=False):
    """A message of a queue. Built when it is published, so that receiving it costs nothing more."""

    payload: bytes
    name: str
    headers: Headers
    key: bytes | None
    reply_to: str | None
    attempt: int | None
    order: int
    """Grows with every message of the broker; in a log it is the position."""
    lost: SettleError | None = None
    home: Home | None = None
    """None before it was handed out, and again once it is settled or lost."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} #{self.order}, {len(self.payload)} bytes>"

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `Delivery.settle`. Decided at once."""
        home = self.home
        if home is None:
            return None
        self.home = None
        home.out -= 1
        if home.blocked:
            home.wake()
        if verdict is not ACK:
            home.end(self, verdict)
        return None

    def transport(self, field: str) -> object:
        """`memory.order`: a number that grows with every message; in a log, its position."""
        if field == "memory.order":
            return self.order
        raise KeyError(field)


class LogDelivery(MemoryDelivery, gc=False, eq=False, kw_only=True):
    """A message of a log. Every verdict matters, an ack moves the group's position."""

    mark: Mark

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `Delivery.settle`. Decided at once."""
        home = self.home
        if home is None:
            return None
        self.home = None
        home.out -= 1
        if home.blocked:
            home.wake()
        home.end(self, verdict)
        return None


class CrashingDelivery(LogDelivery, gc=False, eq=False):
    """What the fault `crash_before_settle` makes of a delivery: its settlement never happens."""

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """Lost, whatever the verdict."""
        if self.home is not None:
            self.home.lose(self, LeaseLost("crash_before_settle was injected: the settlement is lost"), verdict)
        return None
