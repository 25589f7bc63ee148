"""Reading a payload annotation without importing the libraries that it may come from."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

__all__ = [
    "admits_none",
    "describe",
    "field_hints",
    "is_pydantic_class",
    "is_pydantic_metadata",
    "members",
    "metadata_of",
    "selects_pydantic",
    "strip",
]

_PYDANTIC = frozenset({"annotated_types", "pydantic", "pydantic_core", "pydantic_extra_types"})
_CONTAINERS = frozenset({"builtins", "collections", "collections.abc", "typing"})
_RECORD_MARKS = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "__total__", "_fields")


def describe(annotation: Any) -> str:
    """The annotation as its author would write it, for messages."""
    return annotation.__qualname__ if type(annotation) is type else str(annotation).replace("typing.", "")


def strip(annotation: Any) -> Any:
    """The type inside `Annotated`, `NewType` and `type` aliases."""
    while (inner := _inner(annotation)) is not None:
        annotation = inner
    return annotation


def metadata_of(annotation: Any) -> list[Any]:
    """What `Annotated` adds, through `NewType` and `type` aliases."""
    found: list[Any] = []
    while (inner := _inner(annotation)) is not None:
        if get_origin(annotation) is Annotated:
            found += annotation.__metadata__
        annotation = inner
    return found


def _inner(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return annotation.__origin__
    if hasattr(annotation, "__supertype__"):
        return annotation.__supertype__
    # `type X = ...` by its class's name: typing has it from 3.12, typing_extensions for those before.
    return annotation.__value__ if type(annotation).__name__ == "TypeAliasType" else None


def members(annotation: Any) -> list[Any]:
    """The members of a union, nested ones included; of any other annotation, itself."""
    core = strip(annotation)
    if get_origin(core) in (Union, types.UnionType):
        return [member for arg in get_args(core) for member in members(arg)]
    return [annotation]


def admits_none(annotation: Any) -> bool:
    """Whether None is a value of the annotation."""
    cores = [strip(member) for member in members(annotation)]
    return any(
        core is None or core is type(None) or core is Any or (get_origin(core) is Literal and None in get_args(core))
        for core in cores
    )


def selects_pydantic(annotation: Any) -> bool:
    """Whether pydantic reads it: a model, dataclass, type or constraint of pydantic's at the annotation's top.

    The top is what is reached through unions, `Annotated`, aliases and builtin containers, not through fields.
    """
    if any(is_pydantic_metadata(item) for item in metadata_of(annotation)):
        return True
    core = strip(annotation)
    origin = get_origin(core)
    if origin is None:
        return isinstance(core, type) and is_pydantic_class(core)
    if origin is Literal:
        return False
    if origin in (Union, types.UnionType) or getattr(origin, "__module__", "") in _CONTAINERS:
        return any(selects_pydantic(arg) for arg in get_args(core))
    return isinstance(origin, type) and is_pydantic_class(origin)


def is_pydantic_class(cls: type) -> bool:
    """Whether pydantic made or knows the class: by its marks and its ancestors' modules, without importing it."""
    return (
        "__pydantic_validator__" in cls.__dict__
        or hasattr(cls, "__get_pydantic_core_schema__")
        or any(base.__module__.partition(".")[0] in _PYDANTIC for base in cls.__mro__)
    )


def is_pydantic_metadata(item: object) -> bool:
    """Whether something in `Annotated` is a constraint that only pydantic applies."""
    return type(item).__module__.partition(".")[0] in _PYDANTIC


def field_hints(cls: Any) -> Iterator[tuple[str, Any]]:
    """Name and annotation of each field of a record class; nothing for other classes and unresolvable names."""
    if not isinstance(cls, type) or not (any(hasattr(cls, mark) for mark in _RECORD_MARKS) or is_pydantic_class(cls)):
        return
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):  # a local name: the codec resolves it or says so, this is only advice
        return
    for name, hint in hints.items():
        if not name.startswith("__") and get_origin(hint) is not typing.ClassVar:
            yield name, hint
