"""What handlers take and give: the injected objects, the payload's envelope, replies and destinations."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, get_origin, overload

import msgspec

from ruststream_core.abc import PublishOptions
from ruststream_core.errors import ConfigError
from ruststream_core.params._headers import HeaderFields
from ruststream_core.wire import NO_HEADERS, HeaderPairs, Headers

__all__ = [
    "Context",
    "Destination",
    "HeadersLike",
    "Message",
    "MessageInfo",
    "Publisher",
    "Reply",
    "Seeker",
    "To",
    "message",
    "message_info",
]

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=type)


class _DataclassLike(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _AttrsLike(Protocol):
    __attrs_attrs__: ClassVar[Any]


HeadersLike: TypeAlias = "Mapping[str, Any] | HeaderPairs | msgspec.Struct | _DataclassLike | _AttrsLike"
"""Headers as a service writes them: a mapping, pairs (a name may repeat), or a Struct, dataclass or attrs object."""


class _Named(msgspec.Struct, frozen=True):
    name: str


class To(_Named, frozen=True, kw_only=True):
    """A destination that is more than a name: on another broker, or with the transport's own options.

    Args:
        name: subject, topic or queue; may hold placeholders that the value's fields fill.
        broker: the name the app knows the broker by; None is the route's own.
        options: the transport's `PublishOptions`.

    Raises:
        ConfigError: the name is empty.
    """

    broker: str | None = None
    options: PublishOptions | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError('To(""): a destination needs a name')


Destination: TypeAlias = "str | To | type"
"""Where something goes: a name, `To(...)`, or a class with `@message`."""


class _Facts(msgspec.Struct):
    """What a delivery would tell, for messages and contexts that somebody builds by hand."""

    name: str
    headers: Headers
    key: bytes | None
    attempt: int | None
    position: Any


class Message(Generic[T]):
    """A payload with what came around it. Handlers take `Message[Order]` in place of `Order`.

    Headers and position are read from the transport only when they are asked for. Build one by hand to call a
    handler in a test.
    """

    __slots__ = ("_at", "value")

    def __init__(
        self,
        value: T,
        name: str = "",
        headers: Headers | Mapping[str, str | bytes] = NO_HEADERS,
        key: bytes | None = None,
        attempt: int | None = None,
        position: Any = None,
    ) -> None:
        self.value = value
        self._at: Any = _Facts(name, _as_headers(headers), key, attempt, position)

    def __repr__(self) -> str:
        return f"Message({self.value!r}, name={self.name!r}, key={self.key!r})"

    @property
    def name(self) -> str:
        """The subject, topic or queue that it came on."""
        name: str = self._at.name
        return name

    @property
    def headers(self) -> Headers:
        """Header fields, repeated ones included."""
        headers: Headers = self._at.headers
        return headers

    @property
    def key(self) -> bytes | None:
        """The message's key, where the transport has such a thing."""
        key: bytes | None = self._at.key
        return key

    @property
    def attempt(self) -> int | None:
        """Which delivery of this message it is, from 1; None for an answer or a message that was not delivered."""
        attempt: int | None = self._at.attempt
        return attempt

    @property
    def position(self) -> Any:
        """What `Seeker.seek` takes to deliver this message again; None where the transport has no positions."""
        return self._at.position


class _Valued(msgspec.Struct, Generic[T]):
    value: T


class Reply(_Valued[T], Generic[T], kw_only=True):
    """A reply that says more than its value.

    Args:
        value: what is encoded and published.
        to: in place of the route's `reply=`; the delivery's own reply address still comes first.
        headers: header fields of the reply.
        key: what orders and partitions it, where the transport has keys.
    """

    to: Destination | None = None
    headers: HeadersLike | None = None
    key: str | bytes | None = None


class Publisher:
    """Publishes values. Handlers take one by its type; a running app and `TestApp` are publishers too."""

    def _through(self) -> Publisher:
        """The publisher that does the work, for one that only stands for it."""
        raise NotImplementedError

    async def publish(
        self,
        value: object,
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        key: str | bytes | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """Encode and send one value; returns when the broker confirmed it, where it confirms.

        Args:
            value: what to encode; `bytes` are sent as they are.
            to: the destination; may be left out for a type with `@message`.
            headers: header fields.
            key: what orders and partitions messages.
            options: the transport's own settings of this publish.

        Raises:
            ConfigError: no destination, or a placeholder of it that nothing fills; nothing was sent.
            EncodeError: the value or a header cannot be written; nothing was sent.
            PublishError: the broker did not accept it, or it is not known whether it did.
            Closed: before the start or after the end.
        """
        await self._through().publish(value, to=to, headers=headers, key=key, options=options)

    async def publish_many(
        self,
        values: Iterable[object],
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """Encode all values, then send them in order and wait for every confirmation.

        Raises:
            ConfigError: as in `publish`; nothing was sent.
            EncodeError: as in `publish`; nothing was sent.
            PublishError: `failed` maps the index of each value that was not accepted to its cause.
            Closed: before the start or after the end.
        """
        await self._through().publish_many(values, to=to, headers=headers, options=options)

    @overload
    async def request(
        self,
        value: object,
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        timeout: float,
        reply: type[T],
    ) -> T: ...
    @overload
    async def request(
        self, value: object, *, to: Destination | None = None, headers: HeadersLike | None = None, timeout: float
    ) -> Message[bytes]: ...
    async def request(
        self,
        value: object,
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        timeout: float,
        reply: type[Any] | None = None,
    ) -> Any:
        """Send one value and wait for the first answer.

        Args:
            value: what to encode.
            to: the destination; may be left out for a type with `@message`.
            headers: header fields.
            timeout: seconds to wait.
            reply: the type of the answer; without it the raw message is returned.

        Raises:
            TimeoutError: no answer in time.
            DecodeError: the answer is not a `reply`.
            Unsupported: the transport has no request/reply.
            ConfigError, EncodeError, PublishError, Closed: as in `publish`.
        """
        request: Any = self._through().request  # the overloads refuse `reply=None`, which says the same as none
        return await request(value, to=to, headers=headers, timeout=timeout, reply=reply)

    def transaction(self) -> AbstractAsyncContextManager[Publisher]:
        """Publish all or nothing: a publisher whose messages become visible when the block ends without an error.

        Raises:
            Unsupported: the transport has no transactions.
        """
        return self._through().transaction()


class Seeker:
    """Moves the route's subscription. Handlers take one by its type."""

    async def seek(self, position: Any) -> None:
        """Go on from `position`: a `Message.position`, or what the transport documents.

        Deliveries handed out or queued before are lost with `Superseded`, the running one included.

        Raises:
            ConfigError: not a position of this transport.
        """
        raise NotImplementedError


class Context:
    """The delivery at hand, without its payload. Handlers take one by its type; build one to call them in tests."""

    __slots__ = ("_at", "_later", "_route")

    def __init__(
        self,
        *,
        name: str = "",
        route: str = "",
        headers: Headers | Mapping[str, str | bytes] = NO_HEADERS,
        key: bytes | None = None,
        attempt: int = 1,
    ) -> None:
        self._at: Any = _Facts(name, _as_headers(headers), key, attempt, None)
        self._route: Any = route
        self._later: list[Callable[[], Awaitable[object]]] | None = None

    def __repr__(self) -> str:
        return f"Context(name={self.name!r}, route={self.route!r}, attempt={self.attempt})"

    @property
    def name(self) -> str:
        """The subject, topic or queue that the message came on."""
        name: str = self._at.name
        return name

    @property
    def route(self) -> str:
        """The route's name, as logs and metrics show it."""
        route: str = self._route
        return route

    @property
    def headers(self) -> Headers:
        """Header fields, repeated ones included."""
        headers: Headers = self._at.headers
        return headers

    @property
    def key(self) -> bytes | None:
        """The message's key, where the transport has such a thing."""
        key: bytes | None = self._at.key
        return key

    @property
    def attempt(self) -> int:
        """Which delivery of this message it is, from 1: by the broker's count, else by the copies', else by ours."""
        attempt: int = self._at.attempt
        return attempt

    def after_ack(self, fn: Callable[P, Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `fn(*args, **kwargs)` once the message is acked, and only then.

        At most once: a process that dies in between never runs it. Several run in the order of registration. At
        shutdown the running ones are waited for. Calls after the handler has returned are never run.
        """
        later = self._later
        if later is None:
            later = self._later = []
        later.append(functools.partial(fn, *args, **kwargs))


class MessageInfo(msgspec.Struct, frozen=True):
    """What `@message` said about a type."""

    name: str
    headers: Any = None
    """The type of its headers, or None."""


_INFO = "__ruststream_message__"


def message(name: str, *, headers: type | None = None) -> Callable[[C], C]:
    """Class decorator: where values of the type go, and come from, unless something else is said.

    Holds for the class itself, not for its subclasses.

    Args:
        name: subject, topic or queue; placeholders (`orders.{tenant}.placed`) are filled from the value's fields.
        headers: a Struct, dataclass, attrs class or TypedDict that describes the headers.

    Raises:
        ConfigError: the name is empty, or `headers` is none of these.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f'message({name!r}): write @message("orders.placed") above a class')
    if headers is not None:
        HeaderFields(headers, f"message({name!r}, headers=...)")

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise ConfigError(f"message({name!r}) decorates a class, not {cls!r}")
        setattr(cls, _INFO, MessageInfo(name, headers))
        return cls

    return decorate


def message_info(kind: Any) -> MessageInfo | None:
    """What `@message` said about that very type (`Page[int]` counts as `Page`), or None."""
    owner = get_origin(kind) or kind
    info: MessageInfo | None = vars(owner).get(_INFO) if isinstance(owner, type) else None
    return info


def _as_headers(headers: Headers | Mapping[str, str | bytes]) -> Headers:
    return headers if isinstance(headers, Headers) else Headers(headers)
