"""Pydantic's types. This module alone imports pydantic, and is imported only when an annotation or value needs it.

Pydantic's reader is more lenient than its `strict` says: it accepts NaN, takes 1e999 as infinity and reads a Decimal
through a float. So every document is parsed by msgspec first, which refuses those, at a fraction of the cost.
What `strict` leaves is that an Enum or Literal of numbers also takes their equals, such as `true` for 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from ruststream_core.codecs._annotations import describe
from ruststream_core.codecs._contract import Decoder
from ruststream_core.codecs._refusal import InvalidPayload, pydantic_refusal
from ruststream_core.codecs._walk import find, has_null, non_finite
from ruststream_core.errors import ConfigError

__all__ = ["json_decoder", "msgpack_decoder", "python_decoder"]

# What MessagePack's binary types begin with. Other bytes may look the same: they only cause a walk.
_BINARY_MARKS = (b"\xc4", b"\xc5", b"\xc6")

_read_msgpack = msgspec.msgpack.Decoder().decode
_write_json = msgspec.json.Encoder().encode


def json_decoder(annotation: Any, *, strict: bool) -> Decoder:
    """A decoder of JSON.

    Raises:
        ConfigError: pydantic cannot build a schema for the annotation.
    """
    adapter = _adapter(annotation, "json")
    names, kinds = _facts(adapter.core_schema)
    syntax = msgspec.json.Decoder(float_hook=_exact_float) if "decimal" in kinds else msgspec.json.Decoder()
    check, validate = syntax.decode, adapter.validate_json
    mode = True if strict else None

    def decode(payload: bytes) -> Any:
        check(payload)
        try:
            return validate(payload, strict=mode)
        except ValidationError as exc:
            raise pydantic_refusal(exc, names) from exc

    return decode


def msgpack_decoder(annotation: Any, *, strict: bool) -> Decoder:
    """A decoder of MessagePack that holds the JSON form of the type.

    Pydantic's strict mode for Python objects would refuse datetimes, UUIDs and enums, which arrive as text, and its
    lax mode takes numbers from text. So the document is written as JSON and read as such: the rules are the same.

    Raises:
        ConfigError: pydantic cannot build a schema for the annotation.
    """
    adapter = _adapter(annotation, "msgpack")
    names, _ = _facts(adapter.core_schema)
    validate = adapter.validate_json
    mode = True if strict else None

    def decode(payload: bytes) -> Any:
        document = _as_json(payload)
        try:
            return validate(document, strict=mode)
        except ValidationError as exc:
            raise pydantic_refusal(exc, names) from exc

    return decode


def python_decoder(annotation: Any) -> Any:
    """A validator of a value that is already there, for text and bytes with pydantic's constraints.

    Raises:
        ConfigError: pydantic cannot build a schema for the annotation.
    """
    return _adapter(annotation, "text").validate_python


def _adapter(annotation: Any, codec: str) -> TypeAdapter[Any]:
    remedy = "a type that msgspec reads cannot stand beside pydantic's; make all of them pydantic models or dataclasses"
    try:
        adapter = TypeAdapter(annotation)
        complete = adapter.pydantic_complete
    except Exception as exc:
        reason = str(exc).partition("\n")[0]
        raise ConfigError(
            f"the {codec} codec cannot decode {describe(annotation)} with pydantic: {reason} ({remedy})"
        ) from exc
    if not complete:
        raise ConfigError(
            f"the {codec} codec cannot decode {describe(annotation)}: a name in the model is not defined; "
            f"call its model_rebuild() before the route is mounted"
        )
    return adapter


def _as_json(payload: bytes) -> bytes:
    value = _read_msgpack(payload)
    if any(mark in payload for mark in _BINARY_MARKS):
        path = find(value, lambda item: isinstance(item, (bytes, msgspec.msgpack.Ext)), keys=False)
        if path is not None:
            raise InvalidPayload("a binary value, which pydantic's JSON form does not have; send text", path)
    document = _write_json(value)
    if has_null(document) and (path := non_finite(value, keys=False)) is not None:
        raise InvalidPayload("NaN or infinity", path)
    return document


def _exact_float(text: str) -> float:
    """The float of a JSON number, if pydantic, which makes a Decimal of the float, loses no digit by that."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("Number out of range")
    if Decimal(text) != Decimal(repr(number)):
        raise InvalidPayload("a number with more digits than pydantic reads exactly; send it as text")
    return number


def _facts(schema: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The words that may be shown in a path (names of fields, aliases, tags), and the kinds of the schema's nodes."""
    names: set[str] = set()
    kinds: set[str] = set()
    for node in _schema_nodes(schema):
        if isinstance(kind := node.get("type"), str):
            kinds.add(kind)
        names.update(_names_of(node))
    return frozenset(names | kinds), frozenset(kinds)


def _names_of(node: dict[str, Any]) -> Iterator[str]:
    for table in (node.get("fields"), node.get("choices")):
        if isinstance(table, dict):
            yield from (name for name in table if isinstance(name, str))
        elif isinstance(table, list):
            yield from (field["name"] for field in table if isinstance(field, dict) and "name" in field)
    alias = node.get("validation_alias")
    for part in alias if isinstance(alias, list) else [alias]:
        yield from (word for word in (part if isinstance(part, list) else [part]) if isinstance(word, str))
    if isinstance(cls := node.get("cls"), type):
        yield cls.__name__


def _schema_nodes(schema: Any) -> Iterator[dict[str, Any]]:
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(child for key, child in node.items() if key not in ("metadata", "config", "serialization"))
        elif isinstance(node, (list, tuple)):
            pending.extend(node)
