"""A handler's signature, read once: which parameter is the payload, and what the rest of the wiring must provide."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

import msgspec

from ruststream_core.errors import ConfigError
from ruststream_core.params._annotations import Names
from ruststream_core.params._bind import bind
from ruststream_core.params._callables import Callee
from ruststream_core.params._convert import without_none
from ruststream_core.params._factories import Factory, collect
from ruststream_core.params._markers import FromPath, FromState, Out, Transaction
from ruststream_core.params._parameters import EMPTY, Parameter, per_message, read_parameters
from ruststream_core.params._returns import reply_type
from ruststream_core.params._types import Context, Message, Reply, Seeker, To
from ruststream_core.settlement import Outcome
from ruststream_core.wire import Delivery, Headers

if TYPE_CHECKING:
    from ruststream_core.params._bind import Bound, Services

__all__ = ["HandlerSpec", "inspect_handler"]


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything that a handler's signature says."""

    name: str
    """The qualified name, for logs and as the default name of the route."""
    payload_type: Any
    """T of `T`, `Message[T]`, `list[T]` or `list[Message[T]]`."""
    reply_type: Any | None
    """The return annotation less None, outcomes and `Reply[...]`; None where it returns nothing, Any where it is
    silent."""
    returns_nothing: bool
    batch: bool
    is_sync: bool
    """Whether it runs in the thread pool."""
    path_fields: tuple[str, ...]
    """Placeholders that `FromPath` parameters read, those of factories included."""
    out_slots: tuple[str, ...]
    transactional: bool
    wants_seeker: bool
    wants_position: bool
    """Whether it gets messages, which can tell their position."""
    wants_state: bool
    callee: Callee
    payload: Parameter
    wrapped: bool
    """Whether the payload arrives as `Message`."""
    parameters: tuple[Parameter, ...]
    factories: Mapping[Hashable, Factory] = msgspec.field(default_factory=dict)

    def bind(self, services: Services) -> Bound:
        """Compose the handler with what the runtime provides.

        Raises:
            ConfigError: something it asks for is not there; names the parameter and the remedy.
        """
        return bind(self, services)


def inspect_handler(fn: Callable[..., Any], *, batch: bool, scope: Mapping[str, Any] | None = None) -> HandlerSpec:
    """Read a handler's signature.

    Args:
        fn: a function, method, partial or callable object, async or not.
        batch: whether it takes a list of payloads.
        scope: the names of the frame that decorates it, for annotations that its module does not know.

    Raises:
        ConfigError: it cannot be a handler; names the handler, the parameter and the remedy.
    """
    callee = _handler(fn)
    parameters = read_parameters(callee, scope)
    payload = _payload(parameters, callee.where)
    factories = collect(parameters, callee.where, scope=scope)
    _refuse_in_batch(parameters, factories, callee.where, batch=batch)
    kind, wrapped = _payload_type(payload, callee.where, batch=batch)
    returns = callee.returns
    if returns is not EMPTY:
        returns = Names(callee, scope).resolve(returns, "the return value")
    reply = reply_type(returns, callee.where, batch=batch)
    claims = [p.claim for p in _everything(parameters, factories)]
    return HandlerSpec(
        name=callee.name,
        payload_type=kind,
        reply_type=reply,
        returns_nothing=reply is None,
        batch=batch,
        is_sync=not callee.is_async,
        path_fields=_once(
            p.claim.name or p.name for p in _everything(parameters, factories) if isinstance(p.claim, FromPath)
        ),
        out_slots=_once(claim.slot for claim in claims if isinstance(claim, Out)),
        transactional=any(isinstance(claim, Transaction) for claim in claims),
        wants_seeker=Seeker in claims,
        wants_position=wrapped,
        wants_state=any(isinstance(claim, FromState) for claim in claims),
        callee=callee,
        payload=payload,
        wrapped=wrapped,
        parameters=parameters,
        factories=factories,
    )


def _handler(fn: Any) -> Callee:
    if isinstance(fn, type):
        raise ConfigError(
            f"handler {fn.__qualname__!r} is a class: calling it would build an object and run nothing; "
            "give an instance with __call__, or its methods with Router.of(instance)"
        )
    callee = Callee(fn, "handler")
    if callee.is_generator:
        raise ConfigError(
            f"{callee.where} is a generator, whose body would never run; "
            "return the reply, or take a Publisher and publish each value"
        )
    return callee


def _payload(parameters: tuple[Parameter, ...], where: str) -> Parameter:
    free = [p for p in parameters if p.claim is None]
    candidates = [p for p in free if p.required] or free
    if candidates and candidates[0].hint is EMPTY and candidates[0].name in ("self", "cls"):
        raise ConfigError(
            f"{where} is a method without its object: parameter {candidates[0].name!r} has no annotation; "
            "use Router.of(instance), or give the bound method"
        )
    if len(candidates) > 1:
        names = ", ".join(repr(p.name) for p in candidates)
        raise ConfigError(
            f"{where} has {len(candidates)} parameters that could be the payload: {names}; say where the others come "
            f'from, such as {candidates[-1].name}: Annotated[str, FromHeader("x-{candidates[-1].name}")]'
        )
    if not candidates:
        raise ConfigError(f"{where} takes no payload: add a parameter such as order: Order, or body: bytes")
    payload = candidates[0]
    if payload.hint is EMPTY:
        raise ConfigError(
            f"parameter {payload.name!r} of {where} has no annotation: say what the payload is, such as "
            f"{payload.name}: Order, or {payload.name}: bytes for the body as it came"
        )
    return payload


_NO_PAYLOAD: Final[tuple[tuple[type, str], ...]] = (
    (Delivery, "take Message[bytes]"),
    (Headers, "read Context.headers, or take Annotated[Headers, FromHeaders]"),
    (Reply, "a Reply is what a handler returns"),
    (To, "a destination is given to publish(to=...)"),
    (Outcome, "an outcome is what a handler returns or raises"),
)


def _payload_type(payload: Parameter, where: str, *, batch: bool) -> tuple[Any, bool]:
    what = f"parameter {payload.name!r} of {where}"
    hint = payload.hint
    if batch:
        if (get_origin(hint) or hint) not in (list, collections.abc.Sequence):
            raise ConfigError(f"{what}: a batch is list[T] or list[Message[T]], not {hint!r}")
        hint = next(iter(get_args(hint)), Any)
    elif get_origin(hint) is list and (get_origin(get_args(hint)[0]) or get_args(hint)[0]) is Message:
        raise ConfigError(f"{what}: list[Message[T]] is for batches; add batch=Batch(...) to the route")
    kind = without_none(hint)
    if (get_origin(kind) or kind) is Message:
        return next(iter(get_args(kind)), Any), True
    for refused, remedy in _NO_PAYLOAD:
        if isinstance(owner := get_origin(kind) or kind, type) and issubclass(owner, refused):
            raise ConfigError(f"{what}: {owner.__name__} is no payload; {remedy}")
    return hint, False


def _refuse_in_batch(
    parameters: tuple[Parameter, ...], factories: Mapping[Hashable, Factory], where: str, *, batch: bool
) -> None:
    for parameter in _everything(parameters, factories) if batch else ():
        if per_message(parameter.claim):
            claim = "Context" if parameter.claim is Context else repr(parameter.claim)
            raise ConfigError(
                f"parameter {parameter.name!r} of {where}: {claim} belongs to one message and a batch has many; "
                "take list[Message[T]] and read each message's name and headers"
            )


def _everything(parameters: tuple[Parameter, ...], factories: Mapping[Hashable, Factory]) -> Iterator[Parameter]:
    yield from parameters
    for factory in factories.values():
        yield from factory.parameters


def _once(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
