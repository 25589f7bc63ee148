"""What lies behind a callable: its name, its signature, whether it is async, and what cannot be a handler."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ruststream_core.errors import ConfigError

__all__ = ["Callee", "describe"]


def _layers(fn: Any) -> Iterator[Any]:
    """The callable and everything it delegates to: partials, bound methods, `__call__`, `__wrapped__`."""
    seen: set[int] = set()
    while fn is not None and id(fn) not in seen:
        seen.add(id(fn))
        yield fn
        fn = _inner(fn)


def _inner(fn: Any) -> Any:
    if isinstance(fn, functools.partial):
        return fn.func
    if inspect.ismethod(fn):
        return fn.__func__
    method = getattr(fn, "__partialmethod__", None) or getattr(fn, "_partialmethod", None)
    if method is not None:
        return method.func
    wrapped = getattr(fn, "__wrapped__", None)
    if wrapped is not None or inspect.isroutine(fn) or inspect.isclass(fn):
        return wrapped
    return _call_method(fn)


def describe(fn: Any) -> str:
    """The name under which people know a callable."""
    for layer in _layers(fn):
        if not isinstance(layer, functools.partial):
            return str(getattr(layer, "__qualname__", None) or type(layer).__qualname__)
    return repr(fn)


class Callee:
    """A handler or a factory, looked at once.

    Raises:
        ConfigError: it cannot be called, or has no signature.
    """

    __slots__ = ("fn", "globals", "is_async", "is_generator", "name", "outer_async", "parameters", "returns", "where")

    def __init__(self, fn: Any, role: str) -> None:
        self.fn: Callable[..., Any] = fn
        self.name = describe(fn)
        self.where = f"{role} {self.name!r}"
        _refuse_descriptor(fn, self.where)
        layers = tuple(_layers(fn))
        callee = _called(fn)
        self.outer_async = inspect.iscoroutinefunction(callee)
        self.is_async = any(inspect.iscoroutinefunction(layer) for layer in layers)
        self.is_generator = not self.outer_async and any(map(_is_generator, layers))
        if role == "handler" or self.is_async:
            _refuse_remembered(layers, self.where)
        signature = _signature(fn, self.where)
        bound = {name for layer in layers if isinstance(layer, functools.partial) for name in layer.keywords}
        self.parameters = tuple(p for p in signature.parameters.values() if p.name not in bound)
        self.returns = signature.return_annotation
        owner = _annotated_layer(layers)
        self.globals: dict[str, Any] = getattr(owner, "__globals__", {})

    @property
    def innermost(self) -> Any:
        """The function whose annotations the signature shows."""
        return _annotated_layer(tuple(_layers(self.fn)))


def _annotated_layer(layers: tuple[Any, ...]) -> Any:
    functions = [layer for layer in layers if hasattr(layer, "__globals__")]
    if functions:
        return functions[-1]
    cls = layers[-1]
    return getattr(cls, "__init__", None) if inspect.isclass(cls) else None


def _called(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or inspect.isclass(fn) or inspect.iscoroutinefunction(fn):
        return fn
    return _call_method(fn)


def _call_method(fn: Any) -> Any:
    return getattr(type(fn), "__call__", None)  # noqa: B004  the method itself is wanted, to look into it


def _is_generator(fn: Any) -> bool:
    return inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def _refuse_descriptor(fn: Any, where: str) -> None:
    if isinstance(fn, classmethod | functools.partialmethod | property):
        raise ConfigError(
            f"{where} is a bare {type(fn).__name__}, which has no object to be called on: "
            "take it from its class or an instance (Handlers.placed, Handlers().placed), or use Router.of(...)"
        )
    if not callable(fn):
        raise ConfigError(f"{where}: a {type(fn).__name__} cannot be called; give a function")


def _refuse_remembered(layers: tuple[Any, ...], where: str) -> None:
    if any(hasattr(layer, "cache_info") and hasattr(layer, "cache_clear") for layer in layers):
        raise ConfigError(
            f"{where} remembers its results (lru_cache): a call equal to an earlier one would not run, "
            "and a coroutine cannot be awaited twice. Cache a function that it calls instead"
        )


def _signature(fn: Any, where: str) -> inspect.Signature:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(
            f"{where} has no readable signature ({error}): wrap it in a function with annotations"
        ) from error
