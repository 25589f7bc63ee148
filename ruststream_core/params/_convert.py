"""Text to the type that an annotation asks for: placeholders and header values."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import inspect as shapes

from ruststream_core.errors import ConfigError

__all__ = ["admits_none", "converter", "without_none"]

_KEPT = 512
"""Conversions of one parameter that are remembered: names and header values repeat, and looking up is cheaper."""

_TEXT = (
    shapes.AnyType,
    shapes.StrType,
    shapes.IntType,
    shapes.FloatType,
    shapes.BoolType,
    shapes.BytesType,
    shapes.DecimalType,
    shapes.UUIDType,
    shapes.DateTimeType,
    shapes.DateType,
    shapes.TimeType,
    shapes.TimeDeltaType,
    shapes.EnumType,
    shapes.LiteralType,
)


def converter(hint: Any, where: str) -> Callable[[str], Any] | None:
    """What turns text into `hint`; None where text is what it asks for.

    Raises:
        ConfigError: text cannot become a `hint`.
    """
    if hint in (str, Any, object):
        return None
    if not _fits(hint):
        raise ConfigError(f"{where}: text cannot become {hint!r}; ask for str, int, UUID, an Enum or another scalar")
    convert = msgspec.convert

    @lru_cache(_KEPT)
    def read(text: str) -> Any:
        return convert(text, hint, strict=False)

    return read


def _fits(hint: Any) -> bool:
    try:
        shape = shapes.type_info(hint)
    except (TypeError, NameError):
        return False
    parts = shape.types if isinstance(shape, shapes.UnionType) else (shape,)
    return all(isinstance(part.type if isinstance(part, shapes.Metadata) else part, _TEXT) for part in parts)


def admits_none(hint: Any) -> bool:
    """Whether None is a value of that annotation."""
    if get_origin(hint) is Annotated:
        return admits_none(get_args(hint)[0])
    return hint in (Any, object, None, NoneType) or (_is_union(hint) and any(map(admits_none, get_args(hint))))


def without_none(hint: Any) -> Any:
    """The annotation less None: `int | None` becomes `int`."""
    if not _is_union(hint):
        return hint
    rest = tuple(part for part in get_args(hint) if part is not NoneType)
    return Union[rest] if rest else hint  # noqa: UP007  built from a tuple


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)
