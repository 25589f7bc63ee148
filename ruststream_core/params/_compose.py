"""Calls composed once: a function, the payload's place, and what reads every other argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ruststream_core.params._live import Undecodable

__all__ = ["PAYLOAD", "Argument", "Constant", "compose", "compose_factory"]

Invoke = Callable[[Any, Any], Any]
"""Takes the subject that readers read (a delivery, or the frame of a handler with factories) and the payload."""


class Constant(msgspec.Struct, frozen=True):
    """An argument that is the same for every message."""

    value: Any


PAYLOAD: Final = Constant("the payload")


class Argument(msgspec.Struct, frozen=True):
    """One parameter and what fills it: `PAYLOAD`, a constant, or a reader of the subject."""

    name: str
    keyword_only: bool
    source: Any


def compose(fn: Callable[..., Any], arguments: Sequence[Argument]) -> Invoke:
    """`invoke(subject, payload)`, in the cheapest form that the signature allows.

    What a reader raises becomes `Undecodable`; what `fn` raises passes.
    """
    first, *rest = arguments
    if first.source is PAYLOAD and not any(argument.keyword_only for argument in arguments):
        sources = [argument.source for argument in rest]
        if all(isinstance(source, Constant) for source in sources):
            return _constants(fn, tuple(source.value for source in sources))
        if len(sources) == 1:
            return _one(fn, sources[0])
        return _payload_first(fn, tuple(map(_reader, sources)))
    return _any(fn, arguments)


def compose_factory(fn: Callable[..., Any], arguments: Sequence[Argument]) -> Callable[[Any], Any]:
    """`make(subject)`: the same for a function that takes no payload."""
    if not arguments:
        return lambda _: fn()
    invoke = _any(fn, arguments)
    return lambda subject: invoke(subject, None)


def _constants(fn: Callable[..., Any], values: tuple[Any, ...]) -> Invoke:
    if not values:
        return lambda _, payload: fn(payload)
    return lambda _, payload: fn(payload, *values)


def _one(fn: Callable[..., Any], read: Callable[[Any], Any]) -> Invoke:
    def invoke(subject: Any, payload: Any) -> Any:
        try:
            value = read(subject)
        except Exception as error:
            raise Undecodable(error) from error
        return fn(payload, value)

    return invoke


def _payload_first(fn: Callable[..., Any], readers: tuple[Callable[[Any], Any], ...]) -> Invoke:
    def invoke(subject: Any, payload: Any) -> Any:
        try:
            values = [read(subject) for read in readers]
        except Exception as error:
            raise Undecodable(error) from error
        return fn(payload, *values)

    return invoke


def _any(fn: Callable[..., Any], arguments: Sequence[Argument]) -> Invoke:
    """Any order of parameters, keyword-only ones included."""
    readers = tuple(_reader(argument.source) for argument in arguments if not argument.keyword_only)
    named = tuple((argument.name, _reader(argument.source)) for argument in arguments if argument.keyword_only)
    hole = next((i for i, a in enumerate(arguments) if a.source is PAYLOAD and not a.keyword_only), None)
    named_hole = next((a.name for a in arguments if a.source is PAYLOAD and a.keyword_only), None)

    def invoke(subject: Any, payload: Any) -> Any:
        try:
            values = [read(subject) for read in readers]
            keywords = {name: read(subject) for name, read in named}
        except Exception as error:
            raise Undecodable(error) from error
        if hole is not None:
            values[hole] = payload
        elif named_hole is not None:
            keywords[named_hole] = payload
        return fn(*values, **keywords)

    return invoke


def _reader(source: Any) -> Callable[[Any], Any]:
    if isinstance(source, Constant):
        value = source.value
        return lambda _: value
    read: Callable[[Any], Any] = source
    return read
