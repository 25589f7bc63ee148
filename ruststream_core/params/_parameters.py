"""Parameters of handlers and factories: what each one asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from ruststream_core.abc import Marker
from ruststream_core.errors import ConfigError
from ruststream_core.params._annotations import Names
from ruststream_core.params._callables import Callee
from ruststream_core.params._convert import without_none
from ruststream_core.params._foreign import foreign
from ruststream_core.params._markers import Depends, FromState, Out, Transaction
from ruststream_core.params._types import Context, Publisher, Seeker

__all__ = ["EMPTY", "Parameter", "per_message", "read_parameters"]

EMPTY: Final[Any] = inspect.Parameter.empty
_INJECTED: Final = (Context, Publisher, Seeker)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Parameter(msgspec.Struct, frozen=True):
    """One parameter, less what partials have bound."""

    name: str
    hint: Any
    """The annotation without its marker; `EMPTY` where there is none."""
    claim: Marker | type | None
    """The marker, or the injected type; None where nothing claims the parameter."""
    default: Any
    keyword_only: bool

    @property
    def required(self) -> bool:
        """Whether a call without it fails."""
        return self.default is EMPTY


def read_parameters(callee: Callee, scope: Mapping[str, Any] | None) -> tuple[Parameter, ...]:
    """The parameters in order, with their annotations evaluated.

    Raises:
        ConfigError: variadic, a marker in the wrong place, a foreign marker, an annotation that cannot be evaluated.
    """
    names = Names(callee, scope)
    return tuple(_read(parameter, callee.where, names) for parameter in callee.parameters)


def per_message(claim: Marker | type | None) -> bool:
    """Whether it belongs to one message, so that a batch has none."""
    return claim is Context or (
        isinstance(claim, Marker) and not isinstance(claim, Depends | FromState | Out | Transaction)
    )


def _read(parameter: inspect.Parameter, where: str, names: Names) -> Parameter:
    name = parameter.name
    what = f"parameter {name!r}"
    if parameter.kind in _VARIADIC:
        raise ConfigError(
            f"{where}: {parameter} has no annotation per value and cannot be filled; name the parameters one by one "
            "(a decorator keeps those of the function it wraps with functools.wraps)"
        )
    _refuse_default(parameter, where)
    hint, claim = EMPTY, None
    if parameter.annotation is not EMPTY:
        hint, claim = _claim(names.resolve(parameter.annotation, what), f"{what} of {where}", name)
    return Parameter(name, hint, claim, parameter.default, parameter.kind is inspect.Parameter.KEYWORD_ONLY)


def _refuse_default(parameter: inspect.Parameter, where: str) -> None:
    default = parameter.default
    if default is EMPTY:
        return
    if isinstance(default, Marker) or (isinstance(default, type) and issubclass(default, Marker)):
        kind = "T" if parameter.annotation is EMPTY else inspect.formatannotation(parameter.annotation)
        marker = default.__name__ if isinstance(default, type) else repr(default)
        raise ConfigError(
            f"parameter {parameter.name!r} of {where} has a marker as its default; "
            f"write {parameter.name}: Annotated[{kind}, {marker}]"
        )
    if whose := foreign(default):
        raise ConfigError(f"parameter {parameter.name!r} of {where}: {whose}")


def _claim(hint: Any, what: str, name: str) -> tuple[Any, Marker | type | None]:
    base: Any = hint
    extras: list[Any] = []
    if get_origin(hint) is Annotated:
        base, *extras = get_args(hint)
    for thing in (*extras, *_parts(base)):
        if whose := foreign(thing):
            raise ConfigError(f"{what}: {whose}")
    if any(map(_is_marker, _metadata_below(base))):
        raise ConfigError(f"{what}: the marker goes outermost, as in Annotated[T | None, ...], not {hint!r}")
    markers = [_marker(extra, what) for extra in extras if _is_marker(extra)]
    if len(markers) > 1:
        raise ConfigError(f"{what} has {len(markers)} markers, {markers}; keep one")
    if markers:
        return _marked(base, [extra for extra in extras if not _is_marker(extra)], markers[0], what)
    return hint, _injected(base, what, name)


def _marked(base: Any, extras: list[Any], marker: Marker, what: str) -> tuple[Any, Marker]:
    if isinstance(marker, Out) and base is not Publisher:
        raise ConfigError(f"{what}: {marker} gives a Publisher, write Annotated[Publisher, {marker}]")
    return (Annotated[(base, *extras)] if extras else base), marker


def _injected(base: Any, what: str, name: str) -> type | None:
    kind = without_none(base)
    if not isinstance(kind, type) or not issubclass(kind, _INJECTED):
        return None
    if kind not in _INJECTED:
        raise ConfigError(
            f"{what}: {kind.__name__} is not what a handler gets; ask for {kind.__mro__[1].__name__}, "
            f"or mark it: {name}: Annotated[{kind.__name__}, Depends(...)]"
        )
    return kind


def _is_marker(thing: Any) -> bool:
    return isinstance(thing, Marker) or (isinstance(thing, type) and issubclass(thing, Marker))


def _marker(thing: Any, what: str) -> Marker:
    if isinstance(thing, Marker):
        return thing
    try:
        marker: Marker = thing()
    except TypeError as error:
        raise ConfigError(f"{what}: {thing.__name__} needs an argument, write {thing.__name__}(...)") from error
    return marker


def _parts(hint: Any) -> Iterator[Any]:
    """The type itself, or the members of a union."""
    yield from get_args(hint) if without_none(hint) is not hint else (get_origin(hint) or hint,)


def _metadata_below(hint: Any) -> Iterator[Any]:
    for part in get_args(hint):
        if get_origin(part) is Annotated:
            yield from get_args(part)[1:]
