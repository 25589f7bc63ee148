"""The factories behind `Depends`, in the order in which they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from ruststream_core.errors import ConfigError
from ruststream_core.params._callables import Callee
from ruststream_core.params._markers import Depends
from ruststream_core.params._parameters import Parameter, read_parameters

__all__ = ["Factory", "collect", "key_of", "resolve"]

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]

_CONTEXTLIB: Final = tuple(
    decorate(lambda: None).__code__  # type: ignore[arg-type, return-value]
    for decorate in (contextlib.contextmanager, contextlib.asynccontextmanager)
)


class Factory:
    """One factory, looked at once.

    Raises:
        ConfigError: it asks for something that no marker or injected type gives, the payload above all.
    """

    __slots__ = ("callee", "parameters")

    def __init__(self, fn: Callable[..., Any], scope: Mapping[str, Any] | None, handler: str) -> None:
        if getattr(fn, "__code__", None) in _CONTEXTLIB:  # the generator inside is all that is needed
            fn = fn.__wrapped__  # type: ignore[attr-defined]
        self.callee = Callee(fn, "Depends factory")
        self.callee.where += f" of {handler}"
        self.parameters: tuple[Parameter, ...] = read_parameters(self.callee, scope)
        for parameter in self.parameters:
            if parameter.claim is None and parameter.required:
                raise ConfigError(
                    f"parameter {parameter.name!r} of {self.callee.where} has no marker; factories take markers, "
                    "Context, Publisher, Seeker and further Depends, never the payload"
                )


def resolve(marker: Depends, overrides: Overrides) -> Callable[..., Any]:
    """The factory that runs: the marker's, or what a test put in its place."""
    try:
        return overrides.get(marker.factory, marker.factory)
    except TypeError:  # an unhashable callable object
        return marker.factory


def key_of(fn: Callable[..., Any]) -> Hashable:
    """What makes two factories the same one: equality where it can be hashed (bound methods), else identity."""
    try:
        hash(fn)
    except TypeError:
        return id(fn)
    return fn


def collect(
    parameters: tuple[Parameter, ...],
    handler: str,
    *,
    scope: Mapping[str, Any] | None = None,
    known: Mapping[Hashable, Factory] | None = None,
    overrides: Overrides | None = None,
) -> dict[Hashable, Factory]:
    """Every factory that these parameters need, each once, after those it needs itself.

    Raises:
        ConfigError: factories depend on each other in a circle, or one of them is wrong.
    """
    ordered: dict[Hashable, Factory] = {}

    def visit(marker: Depends, path: tuple[Callable[..., Any], ...]) -> None:
        fn = resolve(marker, overrides or {})
        key = key_of(fn)
        if key in ordered:
            return
        if any(key_of(one) == key for one in path):
            circle = " -> ".join(getattr(one, "__qualname__", repr(one)) for one in (*path, fn))
            raise ConfigError(f"{handler}: Depends factories need each other in a circle: {circle}")
        factory = (known or {}).get(key) or Factory(fn, scope, handler)
        for parameter in factory.parameters:
            if isinstance(parameter.claim, Depends):
                visit(parameter.claim, (*path, fn))
        ordered[key] = factory

    for parameter in parameters:
        if isinstance(parameter.claim, Depends):
            visit(parameter.claim, ())
    return ordered
