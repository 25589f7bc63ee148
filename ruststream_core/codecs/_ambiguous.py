"""Unions whose member a payload does not decide by itself."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import types
import uuid
from collections import abc
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Literal, Union, get_args, get_origin

from ruststream_core.codecs._annotations import describe, field_hints, members, metadata_of, strip

__all__ = ["ambiguities"]

_ANYTHING = frozenset({"null", "bool", "int", "float", "text", "array", "object"})
_NUMBER = frozenset({"int", "float"})
_TEXT = frozenset({"text"})
_ARRAY = frozenset({"array"})
_OBJECT = frozenset({"object"})

# What each builtin may look like in a document. An int is an exact match for `int`, so `int | float` is decided.
_KINDS: dict[Any, frozenset[str]] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    bool: frozenset({"bool"}),
    int: frozenset({"int"}),
    float: frozenset({"float"}),
    str: _TEXT,
    decimal.Decimal: _NUMBER | _TEXT,
    **dict.fromkeys((bytes, bytearray, uuid.UUID, dt.datetime, dt.date, dt.time, dt.timedelta), _TEXT),
    **dict.fromkeys((list, tuple, set, frozenset), _ARRAY),
}


def ambiguities(annotation: Any) -> list[str]:
    """Name each union, at any depth, of which two members may look the same in a document.

    A route logs them once when it is mounted. Msgspec refuses most of them; pydantic decides by rules of its own.

    Returns:
        Sentences for a log, each with the field, the members and a remedy; empty where every payload decides.
    """
    return [
        f"{where.lstrip('.') or 'the payload'}: {describe(first)} and {describe(second)} can look the same in a "
        f"message; {_remedy(first, second)}"
        for where, union in _unions(annotation)
        for first, second in combinations(members(union), 2)
        if _kinds(first) & _kinds(second) and not _told_apart(union, first, second)
    ]


def _remedy(first: Any, second: Any) -> str:
    if _is_record(first) and _is_record(second):
        return "tag them: msgspec.Struct(tag=...), or Literal fields of one name in pydantic models"
    return "annotate the one that is meant, or a record with a field for each"


def _unions(annotation: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    pending = [("", annotation)]
    while pending:
        where, node = pending.pop()
        core = strip(node)
        origin = get_origin(core)
        if origin in (Union, types.UnionType):
            yield where, node
        if origin is not Literal:
            pending.extend((where, arg) for arg in get_args(core))
        cls = origin or core
        if id(cls) not in seen:
            seen.add(id(cls))
            pending.extend((f"{where}.{name}", hint) for name, hint in field_hints(cls))


def _kinds(member: Any) -> frozenset[str]:
    core = strip(member)
    origin = get_origin(core)
    if core is None or core is type(None):
        return frozenset({"null"})
    if origin is Literal:
        return frozenset().union(*(_KINDS.get(type(value), frozenset({"null"})) for value in get_args(core)))
    cls = origin or core
    if cls in _KINDS:
        return _KINDS[cls]
    if isinstance(cls, type) and issubclass(cls, enum.Enum):
        return frozenset().union(*(_KINDS.get(type(item.value), _ANYTHING) for item in cls))
    return _class_kinds(cls)


def _class_kinds(cls: Any) -> frozenset[str]:
    if getattr(getattr(cls, "__struct_config__", None), "array_like", False) or hasattr(cls, "_fields"):
        return _ARRAY
    if getattr(cls, "__pydantic_root_model__", False):
        return frozenset().union(*(_kinds(member) for member in members(dict(field_hints(cls)).get("root", Any))))
    if isinstance(cls, type):
        if issubclass(cls, (abc.Sequence, abc.Set)) and not issubclass(cls, str):
            return _ARRAY
        return next((_KINDS[base] for base in cls.__mro__ if base in _KINDS and base is not object), _OBJECT)
    return _OBJECT


def _is_record(member: Any) -> bool:
    return _kinds(member) == _OBJECT


def _told_apart(union: Any, first: Any, second: Any) -> bool:
    if any(getattr(item, "discriminator", None) is not None for item in metadata_of(union)):
        return True
    one, two = _tag(first), _tag(second)
    if one is not None and two is not None and one[0] == two[0] and one[1] != two[1]:
        return True
    left, right = _literals(first), _literals(second)
    return any(not left[name] & right[name] for name in left.keys() & right.keys())


def _tag(member: Any) -> tuple[Any, Any] | None:
    config = getattr(get_origin(strip(member)) or strip(member), "__struct_config__", None)
    return None if config is None or config.tag is None else (config.tag_field, config.tag)


def _literals(member: Any) -> dict[str, set[Any]]:
    """Fields that hold one of some constants, which tell records apart: name and constants. A Literal itself, too."""
    core = strip(member)
    if get_origin(core) is Literal:
        return {"": set(get_args(core))}
    hints = field_hints(get_origin(core) or core)
    return {name: set(get_args(strip(hint))) for name, hint in hints if get_origin(strip(hint)) is Literal}
