"""A handler's signature meets a running route: everything becomes one callable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ruststream_core.params._compose import PAYLOAD, Argument, Constant, compose, compose_factory
from ruststream_core.params._factories import Factory, collect, key_of, resolve
from ruststream_core.params._live import Live, Received, Undecodable
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


@dataclass(slots=True, kw_only=True)
class Services:
    """What the runtime provides to one route."""

    route: str
    decode: Callable[[bytes], Any]
    decode_with_headers: Callable[[bytes, Headers], Any] | None = None
    """Used in place of `decode`, for a codec that goes by the content type."""
    state: object = None
    """What the lifespan yielded."""
    template: Template | None = None
    """The source's name with its placeholders."""
    publisher: Publisher = field(default_factory=Publisher)
    out: Mapping[str, Publisher] = field(default_factory=dict)
    seeker: Seeker | None = None
    unit: Callable[[Delivery], Unit] | None = None
    """The delivery's open transaction; of a batch it is asked for the first delivery."""
    position: Callable[[Delivery], Any] | None = None
    overrides: Mapping[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)
    """Factories that tests put in the place of others, nested ones included."""
    run_sync: RunSync = asyncio.to_thread
    attempt: Callable[[Delivery], int] = _count
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """What a test puts around the handler itself: it sees the arguments and must return what the handler does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
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
    decode = _decoder(services)
    invoke = _Wiring(spec, services).invoke()
    if spec.batch:
        batch = _batch(invoke, services) if spec.wrapped else invoke
        return Bound(
            decode=decode,
            call=lambda delivery: batch([delivery], [decode(delivery)]),
            call_value=lambda delivery, value: batch([delivery], [value]),
            call_batch=batch,
            plain=None,
        )
    value_call = _wrapping(invoke, services) if spec.wrapped else invoke
    plain = None
    if len(spec.parameters) == 1 and not spec.payload.keyword_only and not spec.wrapped:
        plain = (services.decode, _target(spec, services))
    fused = plain is not None and services.decode_with_headers is None
    return Bound(
        decode=decode,
        call=_fused(*plain) if fused and plain else _decoding(decode, value_call),
        call_value=value_call,
        call_batch=None,
        plain=plain if fused else None,
    )


def _decoder(services: Services) -> Callable[[Delivery], Any]:
    by_payload, by_headers = services.decode, services.decode_with_headers

    def decode(delivery: Delivery) -> Any:
        try:
            return by_payload(delivery.payload)
        except Exception as error:
            raise Undecodable(error) from error

    def decode_with_headers(delivery: Delivery) -> Any:
        try:
            assert by_headers is not None  # noqa: S101
            return by_headers(delivery.payload, delivery.headers)
        except Exception as error:
            raise Undecodable(error) from error

    return decode if by_headers is None else decode_with_headers


def _fused(decode: Callable[[bytes], Any], handler: Callable[[Any], Awaitable[Any]]) -> Any:
    def call(delivery: Delivery) -> Awaitable[Any]:
        try:
            value = decode(delivery.payload)
        except Exception as error:
            raise Undecodable(error) from error
        return handler(value)

    return call


def _decoding(decode: Callable[[Delivery], Any], handle: Call) -> Callable[[Delivery], Awaitable[Any]]:
    return lambda delivery: handle(delivery, decode(delivery))


def _wrapping(handle: Call, services: Services) -> Call:
    return lambda delivery, value: handle(delivery, Received(value, delivery, services))


def _batch(handle: Call, services: Services) -> Call:
    def call(deliveries: Sequence[Delivery], values: list[Any]) -> Awaitable[Any]:
        messages = [Received(value, at, services) for value, at in zip(values, deliveries, strict=True)]
        return handle(deliveries, messages)

    return call


def _target(spec: HandlerSpec, services: Services) -> Callable[..., Awaitable[Any]]:
    """The handler as something whose every call can be awaited."""
    callee = spec.callee
    fn = callee.fn if services.around is None else services.around(callee.fn)
    if callee.outer_async:
        return fn
    return threaded(fn, services.run_sync) if spec.is_sync else awaited(fn)


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
        self._framed = bool(factories) or any(parameter.claim is Context for parameter in spec.parameters)
        self._one_thread = spec.is_sync and bool(factories) and not any(_is_async(factory) for factory in factories)

    def invoke(self) -> Call:
        """What takes a delivery and the payload as the handler wants it, and can be awaited."""
        spec, services = self._spec, self._services
        target = bounced(spec.callee.fn) if self._one_thread else _target(spec, services)
        invoke = compose(target, self._arguments(spec.parameters, spec.callee.where))
        if not self._framed:
            return invoke
        run: Call = with_context(invoke)
        if self._factories:
            run = with_factories(invoke, tuple(map(self._step, self._factories.values())))
        if self._one_thread:
            run = driven(run, services.run_sync)  # type: ignore[arg-type]
        return lambda delivery, value: run(Live(delivery, services), value)

    def _arguments(self, parameters: tuple[Parameter, ...], where: str) -> list[Argument]:
        return [Argument(p.name, p.keyword_only, self._source(p, where)) for p in parameters]

    def _source(self, parameter: Parameter, where: str) -> Any:
        claim = parameter.claim
        if parameter is self._spec.payload:
            return PAYLOAD
        if claim is Context:
            return _itself
        if isinstance(claim, Depends):
            fn = resolve(claim, self._services.overrides)
            return partial(_value, list(self._factories).index(key_of(fn)))
        source = source_of(parameter, self._services, where)
        return source if isinstance(source, Constant) or not self._framed else partial(_at, source)

    def _step(self, factory: Factory) -> Step:
        callee = factory.callee
        fn, run_sync = callee.fn, self._services.run_sync
        if self._one_thread:
            fn = fn if callee.is_generator else bounced(fn)
        elif self._spec.is_sync and not _is_async(factory):
            fn = threaded_generator(fn, run_sync) if callee.is_generator else threaded(fn, run_sync)
        return compose_factory(fn, self._arguments(factory.parameters, callee.where)), callee.is_generator


def _is_async(factory: Factory) -> bool:
    return factory.callee.is_async or inspect.isasyncgenfunction(factory.callee.innermost)


def _itself(frame: Live) -> Live:
    return frame


def _value(index: int, frame: Live) -> Any:
    return frame._values[index]  # noqa: SLF001


def _at(read: Callable[[Any], Any], frame: Live) -> Any:
    return read(frame._at)  # noqa: SLF001
