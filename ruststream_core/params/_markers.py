"""The markers that say where a parameter's value comes from: `Annotated[T, FromPath]`, `Annotated[T, Out("audit")]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_origin

from ruststream_core.abc import Marker
from ruststream_core.params._convert import converter, without_none
from ruststream_core.params._headers import Absent, HeaderFields, raw_headers
from ruststream_core.wire import Delivery, Headers

__all__ = [
    "Depends",
    "FromHeader",
    "FromHeaders",
    "FromPath",
    "FromState",
    "FromTransport",
    "Out",
    "Transaction",
]

Read = Callable[[Delivery], Any]


class FromState(Marker):
    """What the app's `lifespan=` yielded: `Annotated[Resources, FromState]`."""

    def __repr__(self) -> str:
        return "FromState"


class FromHeaders(Marker):
    """The headers as one object: a Struct, dataclass, attrs class or TypedDict, or `Headers` themselves.

    A field's header is its encoded name (`rename=` is respected), else that name with dashes for underscores. What
    does not fit is a decode error.
    """

    def __repr__(self) -> str:
        return "FromHeaders"

    def bind(self, name: str, annotation: Any) -> Read:
        """A reader that builds the annotation from the delivery's headers."""
        kind = without_none(annotation)
        read = raw_headers(kind) or HeaderFields(kind, f"parameter {name!r}").read
        return lambda delivery: read(delivery.headers)


class FromHeader(Marker):
    """One header: `Annotated[str, FromHeader("x-tenant")]`, converted to the annotation.

    `bytes` takes the value as it came, a list every header of that name. Where it is missing, the parameter's default
    or an annotation that admits None steps in; else it is a decode error.

    Args:
        name: the header's name, in any case.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"FromHeader({self.name!r})"

    def bind(self, name: str, annotation: Any) -> Read:
        """A reader of that header."""
        header, hint = self.name, without_none(annotation)
        if hint is bytes:
            return _header(header, Headers.get_bytes)
        if get_origin(hint) is list or hint is list:
            return _header(header, _every(next(iter(get_args(hint)), str), name))
        convert = converter(hint, f"parameter {name!r}")
        return _text(header) if convert is None else _header(header, lambda headers, key: convert(headers[key]))


def _every(hint: Any, name: str) -> Callable[[Headers, str], list[Any]]:
    convert = converter(hint, f"parameter {name!r}")

    def read(headers: Headers, header: str) -> list[Any]:
        if not (values := headers.get_all(header)):
            raise KeyError(header)
        return values if convert is None else [convert(value) for value in values]

    return read


def _text(name: str) -> Read:
    """As `_header` for the most frequent case, without a call between."""

    def read(delivery: Delivery) -> str:
        try:
            return delivery.headers[name]
        except KeyError:
            raise Absent(f"the header {name!r} is missing") from None

    return read


def _header(name: str, get: Callable[[Headers, str], Any]) -> Read:
    def read(delivery: Delivery) -> Any:
        try:
            return get(delivery.headers, name)
        except KeyError:
            raise Absent(f"the header {name!r} is missing") from None

    return read


class FromPath(Marker):
    """A placeholder of the source's name: of `orders.{region}.placed`, `region: Annotated[str, FromPath]`.

    Args:
        name: the placeholder, where the parameter is called something else.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"FromPath({self.name!r})" if self.name else "FromPath"


class FromTransport(Marker):
    """A field that only the transport knows: `Annotated[int, FromTransport("nats.stream_sequence")]`, unconverted.

    Where the delivery has no such field, the parameter's default or an annotation that admits None steps in; else it is
    a decode error.

    Args:
        field: the field's name, as the transport documents it.
    """

    def __init__(self, field: str) -> None:
        self.field = field

    def __repr__(self) -> str:
        return f"FromTransport({self.field!r})"

    def bind(self, name: str, annotation: Any) -> Read:
        """A reader of that field."""
        field = self.field

        def read(delivery: Delivery) -> Any:
            try:
                return delivery.transport(field)
            except KeyError:
                raise Absent(
                    f"the transport has no {field!r}: give parameter {name!r} a default, or let it admit None"
                ) from None

        return read


class Depends(Marker):
    """What a factory makes, once per delivery (once per batch): `Annotated[Session, Depends(session)]`.

    The factory may be a function, an async function, a generator or an async generator, or a class. Its parameters may
    use markers, `Context`, `Publisher`, `Seeker` and further `Depends`, but not the payload. A plain one runs where its
    handler runs: on the loop for an async handler, so it must not block; in the thread pool for a plain `def`.

    A generator yields once. It is closed after the handler and before the reply and the settlement, the last opened
    first; an error in closing is the handler's failure. An exception of the handler and any outcome but Ack and Skip
    is thrown into it, so that a session rolls back; catching it there does not undo the outcome. A list of a batch's
    outcomes is not thrown.

    Args:
        factory: what makes the value.
    """

    def __init__(self, factory: Callable[..., Any]) -> None:
        self.factory = factory

    def __repr__(self) -> str:
        return f"Depends({getattr(self.factory, '__qualname__', self.factory)})"


class Out(Marker):
    """A publisher for one of the route's `out={slot: destination}`: `Annotated[Publisher, Out("audit")]`.

    Args:
        slot: a key of `out=`.
    """

    def __init__(self, slot: str) -> None:
        self.slot = slot

    def __repr__(self) -> str:
        return f"Out({self.slot!r})"


class Transaction(Marker):
    """The delivery's own transaction at the broker, as its client has it: `Annotated[AsyncConnection, Transaction]`.

    It commits together with the settlement. Refused at start-up where the transport has none.
    """

    def __repr__(self) -> str:
        return "Transaction"
