"""Messages and contexts as a running route builds them: over the delivery, read when asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ruststream_core.params._types import Context, Message

if TYPE_CHECKING:
    from ruststream_core.params._bind import Services

__all__ = ["Later", "Live", "Received", "Undecodable"]

T = TypeVar("T")


class Undecodable(Exception):
    """What came cannot be what the handler's annotations ask for. The handler has not run.

    Carries the reason as `cause` and as `__cause__`: a decoder's own exception, or the DecodeError of a header or
    placeholder.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class Later(msgspec.Struct):
    """A handler's result together with what `ctx.after_ack` registered."""

    value: Any
    """What the handler returned, or the `Ack` or `Skip` that it raised."""
    callbacks: Sequence[Callable[[], Awaitable[object]]]
    """To be awaited in order once the ack has settled."""


class Received(Message[T]):
    """A message of a running route."""

    __slots__ = ("_services",)

    def __init__(self, value: T, at: Any, services: Services) -> None:
        self.value = value
        self._at = at
        self._services = services

    @property
    def attempt(self) -> int | None:
        return self._services.attempt(self._at)

    @property
    def position(self) -> Any:
        position = self._services.position
        return None if position is None else position(self._at)


class Live(Context):
    """The context of a running handler, and the frame in which its factories leave what they made."""

    __slots__ = ("_values",)

    _values: list[Any]

    def __init__(self, at: Any, services: Services) -> None:
        self._at = at
        self._route = services
        self._later = None

    @property
    def route(self) -> str:
        route: str = self._route.route
        return route

    @property
    def attempt(self) -> int:
        attempt: int = self._route.attempt(self._at)
        return attempt
