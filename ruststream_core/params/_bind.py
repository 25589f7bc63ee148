"""A handler's signature meets a running route: everything becomes one callable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ruststream_core.params._compose import CONTEXT, PAYLOAD, Argument, Arguments, Made, written
from ruststream_core.params._factories import Factory, collect, key_of, resolve
from ruststream_core.params._live import Live, Received
from ruststream_core.params._markers import Depends
from ruststream_core.params._parameters import Parameter
from ruststream_core.params._readers import source_of
from ruststream_core.params._run import Step, with_context, with_factories
from ruststream_core.params._threads import RunSync, awaited, bounced, driven, threaded, threaded_generator
from ruststream_core.params._types import Context, Publisher, Seeker

if TYPE_CHECKING:
    from ruststream_core.abc import Unit
    from ruststream_core.params._signature import HandlerSpec
    from ruststream_core.wire import Delivery, Headers, Template

__all__ = ["Bound", "Services", "bind"]

Call = Callable[[Any, Any], Awaitable[Any]]
"""Takes a delivery (in a batch: all of them) and the decoded payload."""


def _count(delivery: Delivery) -> int:
    return delivery.attempt or 1


class Services(msgspec.Struct, kw_only=True, eq=False):
    """What the runtime provides to one route."""

    route: str
    decode: Callable[[bytes], Any]
    decode_with_headers: Callable[[bytes, Headers], Any] | None = None
    """Used in place of `decode`, for a codec that goes by the content type."""
    state: object = None
    """What the lifespan yielded."""
    template: Template | None = None
    """The source's name with its placeholders."""
    publisher: Publisher = msgspec.field(default_factory=Publisher)
    out: Mapping[str, Publisher] = msgspec.field(default_factory=dict)
    seeker: Seeker | None = None
    unit: Callable[[Delivery], Unit] | None = None
    """The delivery's open transaction; of a batch it is asked for the first delivery."""
    position: Callable[[Delivery], Any] | None = None
    overrides: Mapping[Callable[..., Any], Callable[..., Any]] = msgspec.field(default_factory=dict)
    """Factories that tests put in the place of others, nested ones included."""
    run_sync: RunSync = asyncio.to_thread
    attempt: Callable[[Delivery], int] = _count
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """What a test puts around the handler itself: it sees the arguments and must return what the handler does."""


class Bound(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A handler, ready for messages. Every callable may raise what the handler raises."""

    decode: Callable[[Delivery], Any]
    """The payload's value, without its `Message`. Raises `Undecodable`."""
    call: Callable[[Delivery], Awaitable[Any]]
    """Decode and handle. Raises `Undecodable`, at the call or when awaited, before the handler runs."""
    call_value: Callable[[Delivery, Any], Awaitable[Any]]
    """Handle what is decoded already."""
    call_batch: Callable[[Sequence[Delivery], list[Any]], Awaitable[Any]] | None
    """For batch routes: handle decoded values in one call."""
    plain: tuple[Callable[[bytes], Any], Callable[[Any], Awaitable[Any]]] | None
    """Decoder and handler where `await handler(decoder(delivery.payload))` is all there is, to be inlined."""


def bind(spec: HandlerSpec, services: Services) -> Bound:
    """Compose a handler with what the runtime provides.

    Raises:
        ConfigError: something it asks for is not there.
    """
    wiring = _Wiring(spec, services)
    decode, call_value = wiring.decoder(), wiring.composed(decoding=False)
    if spec.batch:
        batch = _of_messages(call_value, services) if spec.wrapped else call_value
        return Bound(
            decode=decode,
            call=lambda delivery: batch([delivery], [decode(delivery)]),
            call_value=lambda delivery, value: batch([delivery], [value]),
            call_batch=batch,
            plain=None,
        )
    return Bound(
        decode=decode,
        call=wiring.composed(decoding=True),
        call_value=call_value,
        call_batch=None,
        plain=wiring.plain(),
    )


def _of_messages(handle: Call, services: Services) -> Call:
    def call(deliveries: Sequence[Delivery], values: list[Any]) -> Awaitable[Any]:
        messages = [Received(value, at, services) for value, at in zip(values, deliveries, strict=True)]
        return handle(deliveries, messages)

    return call


class _Wiring:
    """Puts one handler together; thrown away when that is done."""

    def __init__(self, spec: HandlerSpec, services: Services) -> None:
        self._spec = spec
        self._services = services
        self._factories: Mapping[Hashable, Factory] = spec.factories
        if services.overrides and spec.factories:
            self._factories = collect(
                spec.parameters, spec.callee.where, known=spec.factories, overrides=services.overrides
            )
        factories = self._factories.values()
        self._one_thread = spec.is_sync and bool(factories) and not any(_is_async(factory) for factory in factories)
        self._handler = self._target()
        self._arguments = self._read(spec.parameters, spec.callee.where)
        self._returns = self._ending()

    def decoder(self) -> Callable[[Delivery], Any]:
        """The payload's value of a delivery."""
        return written("delivery", reads=[self._decoding()], then=["return payload"], names=self._names())

    def composed(self, *, decoding: bool) -> Callable[..., Awaitable[Any]]:
        """What takes a delivery, and its value where it does not decode itself, and can be awaited."""
        reads = [*([self._decoding()] if decoding else ()), *([] if self._factories else self._arguments.reads)]
        wrapping = ["payload = Received(payload, delivery, services)"]
        then = [*(wrapping if self._spec.wrapped and not self._spec.batch else ()), *self._returns]
        return written(
            "delivery" if decoding else "delivery, payload",
            reads=reads,
            then=then,
            names={**self._names(), **self._arguments.names},
        )

    def plain(self) -> tuple[Callable[[bytes], Any], Callable[[Any], Awaitable[Any]]] | None:
        """See `Bound.plain`."""
        spec, services = self._spec, self._services
        alone = len(spec.parameters) == 1 and not spec.payload.keyword_only and not spec.wrapped
        return (services.decode, self._handler) if alone and services.decode_with_headers is None else None

    def _names(self) -> dict[str, Any]:
        services = self._services
        return {
            "decode": services.decode_with_headers or services.decode,
            "handler": self._handler,
            "Live": Live,
            "Received": Received,
            "services": services,
            "with_context": with_context,
        }

    def _decoding(self) -> str:
        with_headers = ", delivery.headers" if self._services.decode_with_headers else ""
        return f"payload = decode(delivery.payload{with_headers})"

    def _target(self) -> Callable[..., Awaitable[Any]]:
        """The handler as something whose every call can be awaited."""
        callee, services = self._spec.callee, self._services
        fn = callee.fn if services.around is None else services.around(callee.fn)
        if callee.outer_async:
            return fn
        if self._one_thread:
            return bounced(fn)
        return threaded(fn, services.run_sync) if self._spec.is_sync else awaited(fn)

    def _ending(self) -> list[str]:
        """The lines that call the handler: bare, with its context, or with its factories."""
        call = f"handler({self._arguments.call})"
        if self._factories:
            run = with_factories(self._framed(call, self._arguments), tuple(map(self._step, self._factories.values())))
            self._arguments.names["run"] = driven(run, self._services.run_sync) if self._one_thread else run
            return ["return run(Live(delivery, services), payload)"]
        if any(parameter.claim is Context for parameter in self._spec.parameters):
            return ["frame = Live(delivery, services)", f"return with_context({call}, frame)"]
        return [f"return {call}"]

    def _framed(self, call: str, arguments: Arguments) -> Callable[..., Any]:
        """The call inside a frame, after the factories that it takes values of."""
        return written(
            "frame, payload=None",
            opening=["delivery = frame._at", "values = frame._values"],
            reads=arguments.reads,
            then=[f"return {call}"],
            names={**arguments.names, "handler": self._handler},
        )

    def _step(self, factory: Factory) -> Step:
        callee, run_sync = factory.callee, self._services.run_sync
        fn = callee.fn
        if self._one_thread:
            fn = fn if callee.is_generator else bounced(fn)
        elif self._spec.is_sync and not _is_async(factory):
            fn = threaded_generator(fn, run_sync) if callee.is_generator else threaded(fn, run_sync)
        arguments = self._read(factory.parameters, callee.where)
        if not arguments.call:
            return lambda _: fn(), callee.is_generator
        arguments.names["make"] = fn
        return self._framed(f"make({arguments.call})", arguments), callee.is_generator

    def _read(self, parameters: tuple[Parameter, ...], where: str) -> Arguments:
        return Arguments(Argument(p.name, p.keyword_only, self._source(p, where)) for p in parameters)

    def _source(self, parameter: Parameter, where: str) -> Any:
        claim = parameter.claim
        if parameter is self._spec.payload:
            return PAYLOAD
        if claim is Context:
            return CONTEXT
        if isinstance(claim, Depends):
            fn = resolve(claim, self._services.overrides)
            return Made(list(self._factories).index(key_of(fn)))
        return source_of(parameter, self._services, where)


def _is_async(factory: Factory) -> bool:
    return factory.callee.is_async or inspect.isasyncgenfunction(factory.callee.innermost)
