"""What stands around every handler and every publish: functions composed once, when the app starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from ruststream_core.wire import Delivery, Outgoing

__all__ = ["BatchHandle", "Handle", "Middleware", "Send", "compose", "compose_batch", "compose_publish"]

Handle: TypeAlias = Callable[[Delivery], Awaitable[object]]
"""One delivery through decoder and handler: returns a value, an outcome or None, or raises."""
BatchHandle: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[object]]
"""The same for a batch, whose elements are decoded already."""
Send: TypeAlias = Callable[[Outgoing], Awaitable[None]]
"""One message out: returns when the broker has accepted it, or raises PublishError."""


class Middleware:
    """Override what is needed; a method left as it is costs nothing per message.

    Each method is called once per route or broker at start-up with the next inner callable and returns what runs
    in its place. The first of `app.use(...)` is the outermost; a router's stand inside those of the app.
    """

    def consume(self, call: Handle, route: str) -> Handle:
        """Around the handler of `route`; settlement and reply come after it."""
        return call

    def consume_batch(self, call: BatchHandle, route: str) -> BatchHandle:
        """Around a batch handler of `route`."""
        return call

    def publish(self, send: Send, broker: str) -> Send:
        """Around every message that leaves to `broker`: publishes, replies, copies and dead letters."""
        return send


def compose(middleware: Iterable[Middleware], call: Handle, route: str) -> Handle:
    """`call` inside all of `middleware`, the first outermost."""
    for layer in reversed(list(middleware)):
        call = layer.consume(call, route)
    return call


def compose_batch(middleware: Iterable[Middleware], call: BatchHandle, route: str) -> BatchHandle:
    """`call` of a batch inside all of `middleware`, the first outermost."""
    for layer in reversed(list(middleware)):
        call = layer.consume_batch(call, route)
    return call


def compose_publish(middleware: Iterable[Middleware], send: Send, broker: str) -> Send:
    """`send` inside all of `middleware`, the first outermost. The same object where none of them publishes."""
    for layer in reversed(list(middleware)):
        send = layer.publish(send, broker)
    return send
