"""Refusing, when a route is mounted, what msgspec builds a decoder for that would then fail on every message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_origin

from msgspec import inspect

from ruststream_core.codecs._annotations import describe, is_pydantic_class
from ruststream_core.errors import ConfigError

__all__ = ["check", "refused"]

_NOT_JSON_KEYS = (inspect.BoolType, inspect.NoneType, inspect.CollectionType, inspect.TupleType)


def refused(annotation: Any, codec: str, reason: str) -> ConfigError:
    """The error of a type that a codec cannot decode."""
    return ConfigError(f"the {codec} codec cannot decode {describe(annotation)}: {reason}")


def check(annotation: Any, codec: str, *, hooked: bool) -> None:
    """Look at every type that msgspec would meet while it decodes.

    Args:
        annotation: what the handler asks for.
        codec: the codec's name, `json` or `msgpack`.
        hooked: the codec has a `dec_hook`, which makes unknown types its own affair.

    Raises:
        ConfigError: names the field, its type and the remedy.
    """
    try:
        info = inspect.type_info(annotation)
    except Exception as exc:
        raise refused(annotation, codec, str(exc)) from exc
    for where, node in _nodes(info):
        if (reason := _fault(node, codec, hooked=hooked)) is not None:
            raise refused(annotation, codec, f"{where.lstrip('.') or 'it'} {reason}")


def _fault(node: inspect.Type, codec: str, *, hooked: bool) -> str | None:
    cls = getattr(node, "cls", None)
    cls = get_origin(cls) or cls  # a generic record is described by its alias
    unknown = isinstance(node, inspect.CustomType)
    if cls is not None and is_pydantic_class(cls) and not (unknown and hooked):
        return (
            f"is pydantic's {cls.__name__} inside a type that msgspec reads; make the outer type a pydantic model, "
            f"or {cls.__name__} a msgspec.Struct or dataclass"
        )
    if unknown and not hooked:
        remedy = "Any" if cls is object else "a Struct, a dataclass or a builtin type, or give the codec a dec_hook"
        return f"is {describe(cls)}, which msgspec does not know; use {remedy}"
    if codec == "json" and isinstance(node, inspect.DictType) and isinstance(node.key_type, _NOT_JSON_KEYS):
        return "has keys that a JSON object cannot have; use text or numbers as keys, or msgpack as the codec"
    return None


def _nodes(info: inspect.Type) -> Iterator[tuple[str, inspect.Type]]:
    """Every node with the fields that lead to it, once: descriptions of recursive types are cyclic."""
    seen: set[int] = set()
    pending = [("", info)]
    while pending:
        where, node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield where, node
            pending.extend(_below(where, node))


def _below(where: str, node: Any) -> Iterator[tuple[str, inspect.Type]]:
    for field in getattr(node, "fields", ()):
        yield f"{where}.{field.name}", field.type
    for name in ("item_type", "key_type", "value_type", "type"):
        if (child := getattr(node, name, None)) is not None:
            yield where, child
    for child in (*getattr(node, "item_types", ()), *getattr(node, "types", ())):
        yield where, child
