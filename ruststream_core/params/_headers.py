"""Headers to and from the objects that services describe them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_origin

import msgspec
from msgspec import inspect as shapes

from ruststream_core.errors import ConfigError, DecodeError, EncodeError
from ruststream_core.wire import NO_HEADERS, Headers

__all__ = ["Absent", "HeaderFields", "raw_headers", "write_headers"]


class Absent(DecodeError, KeyError):
    """A header or field that a parameter asks for is not there. Its default steps in where it has one."""

    def __str__(self) -> str:
        return str(self.args[0])


class HeaderFields:
    """A type whose fields are headers: a Struct, dataclass, attrs class or TypedDict.

    A field's header is its encoded name (`rename=` is respected), else that name with dashes for underscores. A field
    of a list type takes every header of the name, one of `bytes` takes the value as it came.

    Raises:
        ConfigError: the type is none of these.
    """

    __slots__ = ("_kind", "_readers", "required")

    def __init__(self, kind: Any, where: str) -> None:
        try:
            shape = shapes.type_info(kind)
        except (TypeError, NameError) as error:
            raise ConfigError(f"{where}: {error}") from error
        if not isinstance(shape, shapes.StructType | shapes.DataclassType | shapes.TypedDictType):
            raise ConfigError(f"{where}: headers are a Struct, dataclass, attrs class or TypedDict, not {kind!r}")
        self._kind = kind
        self.required = any(field.required for field in shape.fields)
        self._readers = tuple((field.encode_name, *_reader(field)) for field in shape.fields)

    def read(self, headers: Headers) -> Any:
        """The object that these headers make.

        Raises:
            Absent: the type requires headers and not one of its headers is there.
            msgspec.ValidationError: a header is missing or not what its field asks for.
        """
        found: dict[str, Any] = {}
        for field, names, get in self._readers:
            for name in names:
                if name in headers:
                    found[field] = get(headers, name)
                    break
        if not found and self.required:
            raise Absent(f"none of the headers {', '.join(names[-1] for _, names, _ in self._readers)} is there")
        return msgspec.convert(found, self._kind, strict=False)


def _reader(field: shapes.Field) -> tuple[tuple[str, ...], Callable[[Headers, str], Any]]:
    name = field.encode_name
    kinds = set(_kinds(field.type))
    get: Callable[[Headers, str], Any] = Headers.__getitem__
    if kinds & {shapes.ListType, shapes.SetType, shapes.FrozenSetType, shapes.VarTupleType, shapes.CollectionType}:
        get = Headers.get_all
    elif shapes.BytesType in kinds:
        get = Headers.get_bytes
    return tuple(dict.fromkeys((name, name.replace("_", "-")))), get


def _kinds(shape: shapes.Type) -> Iterator[type]:
    if isinstance(shape, shapes.Metadata):
        yield from _kinds(shape.type)
    elif isinstance(shape, shapes.UnionType):
        for part in shape.types:
            yield from _kinds(part)
    else:
        yield type(shape)


def raw_headers(kind: Any) -> Callable[[Headers], Any] | None:
    """For an annotation that wants the headers themselves, not a type made of them."""
    owner = get_origin(kind) or kind
    if owner in (Headers, Mapping):
        return _same
    return dict if owner is dict else None


def _same(headers: Headers) -> Headers:
    return headers


def write_headers(headers: Any) -> Headers:
    """Headers in the form of the wire, from any `HeadersLike`.

    `str` and `bytes` are kept; bool, int, float, UUID, Decimal, Enum, dates and times become text; None is left out; a
    list or tuple in an object's field repeats the header. A Struct's `rename=` is respected.

    Raises:
        EncodeError: a name is no text, or a value cannot be a header; names the header.
    """
    if headers is None:
        return NO_HEADERS
    if isinstance(headers, Headers):
        return headers
    fields: list[tuple[str, str | bytes]] = []
    for name, value in _pairs(headers):
        if not isinstance(name, str) or not name:
            raise EncodeError(f"header {name!r}: a name is text of at least one character")
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None and one is not msgspec.UNSET:
                fields.append((name, one if isinstance(one, str | bytes) else _text(name, one)))  # noqa: PERF401
    return Headers(fields)


def _pairs(headers: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(headers, Mapping):
        return headers.items()
    kind = type(headers)
    if isinstance(headers, msgspec.Struct) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__attrs_attrs__"):
        return _fields(headers)
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise EncodeError(
            f"headers cannot be {type(headers).__name__}: use a mapping, pairs, or a Struct, dataclass or attrs object"
        )
    pairs = list(headers)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise EncodeError("headers given as a sequence are pairs of a name and a value")
    return pairs


def _fields(record: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(record, msgspec.Struct):
        names = zip(record.__struct_encode_fields__, record.__struct_fields__, strict=True)
        return [(header, getattr(record, field)) for header, field in names]
    return [(field.name, getattr(record, field.name)) for field in _declared(type(record))]


def _declared(kind: type) -> Iterable[Any]:
    if hasattr(kind, "__dataclass_fields__"):
        from dataclasses import fields  # noqa: PLC0415  only where a service uses them

        return fields(kind)
    declared: Iterable[Any] = kind.__attrs_attrs__  # type: ignore[attr-defined]
    return declared


def _text(name: str, value: object) -> str | bytes:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        plain = None if isinstance(value, bytearray | memoryview) else msgspec.to_builtins(value)
    except (TypeError, ValueError, OverflowError):
        plain = None
    if isinstance(plain, bool | int | float | str):
        return plain if isinstance(plain, str) else str(plain)
    raise EncodeError(f"header {name!r}: {type(value).__name__} cannot be a header value; give text or bytes")
