"""Binding a codec to an annotation, and the rules for bodies that are no documents."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ruststream_core.codecs._annotations import (
    admits_none,
    is_pydantic_metadata,
    members,
    metadata_of,
    strip,
)
from ruststream_core.codecs._contract import Codec, Decoder, HeaderCodec, HeaderDecoder
from ruststream_core.errors import EncodeError, PluginError

__all__ = ["bind_decoder", "bind_header_decoder", "content_type_of", "encode_value", "needs_headers"]


def bind_decoder(codec: Codec, annotation: Any) -> Decoder:
    """Build what a route calls on every payload.

    The plain case is the codec's own decoder, with nothing around it. For `bytes` it is `bytes` itself, so that a
    caller may leave it out. Only where the annotation admits None does an empty body become None.

    Returns:
        A decoder. Any Exception that it raises means that the payload does not decode; its text and traceback may
        quote the payload, `describe_decode_error` does not.

    Raises:
        ConfigError: the codec cannot decode such a type; names the type and the remedy.
    """
    decode = _raw_decoder(annotation) or codec.decoder(annotation)
    if not admits_none(annotation):
        return decode

    def decode_or_none(payload: bytes) -> Any:
        return decode(payload) if payload else None

    return decode_or_none


def bind_header_decoder(codec: HeaderCodec, annotation: Any) -> HeaderDecoder:
    """Build what a route calls on every payload and its headers; only where `needs_headers` says so.

    Raises:
        ConfigError: see `bind_decoder`.
    """
    decode = codec.decoder_for_headers(annotation)
    if not admits_none(annotation):
        return decode
    return lambda payload, headers: decode(payload, headers) if payload else None


def needs_headers(codec: Codec, annotation: Any) -> bool:
    """Whether a route with this codec and annotation has to read each message's headers to decode it."""
    return isinstance(codec, HeaderCodec) and _raw_decoder(annotation) is None


def encode_value(codec: Codec, value: Any) -> bytes:
    """Write a value as a message's body: bytes and text verbatim, None as an empty body, all else by the codec.

    Raises:
        EncodeError: the value cannot be written without changing it; names the path inside the value.
        PluginError: a codec raised something else.
    """
    cls = type(value)
    if cls is bytes:
        return value  # type: ignore[no-any-return]  # exactly bytes
    if cls is str or value is None or cls is bytearray or cls is memoryview:
        return _encode_raw(value)
    try:
        return codec.encode(value)
    except EncodeError:
        raise
    except Exception as exc:
        raise PluginError(f"the codec {codec.name} failed on {cls.__name__}: {type(exc).__name__}") from exc


def content_type_of(codec: Codec, value: Any) -> str | None:
    """The media type of what `encode_value` returns; None where only the publisher knows it: bytes and no body."""
    if isinstance(value, (bytes, bytearray, memoryview)) or value is None:
        return None
    return "text/plain" if type(value) is str else codec.content_type


def _encode_raw(value: str | bytearray | memoryview | None) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, str):
        return bytes(value)
    try:
        return value.encode()
    except UnicodeEncodeError as exc:
        raise EncodeError(f"the text cannot be written as UTF-8: a lone surrogate at character {exc.start}") from exc


def _decode_text(payload: bytes) -> str:
    return payload.decode()


def _raw_decoder(annotation: Any) -> Decoder | None:
    """The decoder of an annotation that takes the codec out of the path, or None."""
    present = [member for member in members(annotation) if strip(member) not in (None, type(None))]
    if len(present) != 1 or (core := strip(present[0])) not in (bytes, str):
        return None
    decode: Decoder = bytes if core is bytes else _decode_text
    constraints = [*metadata_of(annotation), *metadata_of(present[0])]
    if any(is_pydantic_metadata(item) for item in constraints):
        from ruststream_core.codecs._pydantic import python_decoder  # noqa: PLC0415  imports pydantic

        return _then(decode, python_decoder(annotation))
    if any(isinstance(item, msgspec.Meta) for item in constraints):
        return _then(decode, partial(msgspec.convert, type=annotation))
    return decode


def _then(decode: Decoder, validate: Any) -> Decoder:
    return lambda payload: validate(decode(payload))
