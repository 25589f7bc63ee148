"""Between columns and messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from ruststream_core.errors import PublishError
from ruststream_core.wire import NO_HEADERS, Headers

__all__ = [
    "headers_from_columns",
    "headers_from_json",
    "headers_to_json",
    "key_bytes",
    "key_value",
    "payload_bytes",
    "payload_value",
]

_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def payload_bytes(value: Any) -> bytes:
    """A body column as bytes: text is UTF-8, NULL is empty."""
    if isinstance(value, str):
        return value.encode()
    if value is None:
        return b""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return _encode(value)


def payload_value(payload: bytes, kind: Any, where: str) -> Any:
    """A body as its column takes it.

    Raises:
        PublishError: the column holds text, and the body is none.
    """
    if kind is not str:
        return bytes(payload)
    try:
        text = bytes(payload).decode()
    except UnicodeDecodeError as exc:
        raise PublishError(f"{where}: the column holds text and the payload is not UTF-8: make it bytes") from exc
    if "\0" in text:
        raise PublishError(f"{where}: the column holds text and the payload has a NUL: make it bytes")
    return text


def key_bytes(value: Any) -> bytes | None:
    """A partition key as the message's key."""
    if value is None or isinstance(value, bytes):
        return value
    return bytes(value) if isinstance(value, bytearray | memoryview) else str(value).encode()


def key_value(key: bytes | None, kind: Any, where: str) -> Any:
    """A message's key as its column takes it.

    Raises:
        PublishError: it is not of the column's type.
    """
    if key is None or kind is bytes:
        return key
    try:
        text = key.decode()
        if kind is int:
            return int(text)
        return UUID(text) if kind is UUID else text
    except ValueError as exc:
        raise PublishError(f"{where}: the key {key!r} is no {getattr(kind, '__name__', kind)}") from exc


def headers_from_json(value: Any) -> Headers:
    """A headers column: a JSON object; what is not text in it is shown as JSON."""
    if not value:
        return NO_HEADERS
    fields = value if isinstance(value, dict) else _decode_headers(value)
    return Headers([(name, v if isinstance(v, str) else _encode(v).decode()) for name, v in fields.items()])


def headers_from_columns(record: Any, others: tuple[tuple[str, int], ...]) -> Headers:
    """The service's own columns as headers; NULL is none."""
    pairs = [(name, record[at]) for name, at in others]
    return Headers(
        [(name, value if isinstance(value, str | bytes) else str(value)) for name, value in pairs if value is not None]
    )


def headers_to_json(headers: Headers, where: str) -> str:
    """Headers as a JSON object of strings.

    Raises:
        PublishError: a name occurs twice, or a name or value cannot be JSON text in every database; names the header.
    """
    fields: dict[str, str] = {}
    for name, value in headers.raw():
        text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        if name in fields:
            raise PublishError(f"{where}: the header {name!r} occurs twice, a JSON object holds it once")
        for part in (name, text):
            if "\0" in part or any("\ud800" <= char <= "\udfff" for char in part):
                raise PublishError(
                    f"{where}: the header {name!r} holds a NUL or is not UTF-8, which JSON columns refuse"
                )
        fields[name] = text
    return _encode(fields).decode()
