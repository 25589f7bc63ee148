"""Headers inside a payload, where a format has no place for them: the envelopes `rs1:` and `rs2:`.

A message without headers stands as it is. Otherwise the payload becomes a prefix and the base64 of a block of headers
with its length before it, and the real payload behind. `rs1` holds lines of text, `rs2` names and values with their
lengths, for whatever text lines cannot hold.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from ruststream_core.wire import NO_HEADERS, Headers

__all__ = ["fits_line", "open_envelope", "seal"]

Pairs: TypeAlias = Sequence[tuple[str, str | bytes]]

_LENGTH: Final = struct.Struct(">I")
_TEXT: Final = b"rs1:"
_BINARY: Final = b"rs2:"
_PREFIXES: Final = (_TEXT, _BINARY)
# What Unicode calls white space. `str.strip` would also take U+001C to U+001F, which other readers keep.
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def seal(headers: Headers, payload: bytes, *, line: bool = False) -> bytes:
    """A payload that carries its headers.

    Args:
        headers: any; none at all leaves the payload as it is, where that cannot be mistaken.
        payload: any bytes.
        line: the result must fit into one line of text.

    Raises:
        ValueError: a header's name is no text.
    """
    if not headers and not payload.startswith(_PREFIXES) and not (line and not fits_line(payload)):
        return payload
    pairs = [(name.encode(), _raw(value)) for name, value in headers.raw()]
    block = _text_block(pairs)
    prefix = _TEXT
    if block is None:
        prefix = _BINARY
        block = b"".join(_LENGTH.pack(len(part)) + part for pair in pairs for part in pair)
    return prefix + binascii.b2a_base64(_LENGTH.pack(len(block)) + block + payload, newline=False)


def fits_line(payload: bytes) -> bool:
    """Whether a payload survives as the rest of a line of text."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return False
    return "\n" not in text and text.strip(_SPACE) == text


def _raw(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _text_block(pairs: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    if any(b":" in name or not (_plain(name) and _plain(value)) for name, value in pairs):
        return None
    return b"".join(name + b": " + value + b"\n" for name, value in pairs)


def _plain(raw: bytes) -> bool:
    return b"\r" not in raw and fits_line(raw)


def open_envelope(sealed: bytes) -> tuple[Headers, bytes]:
    """The headers and the payload. Whatever is no envelope is a payload without headers."""
    if not sealed.startswith(_PREFIXES):
        return NO_HEADERS, sealed
    try:
        return _open(sealed)
    except (binascii.Error, struct.error, ValueError):
        return NO_HEADERS, sealed


def _open(sealed: bytes) -> tuple[Headers, bytes]:
    inner = binascii.a2b_base64(sealed[4:])
    # The decoder passes over what does not belong; only what encodes to the same text is an envelope.
    if binascii.b2a_base64(inner, newline=False) != sealed[4:]:
        raise ValueError("not canonical base64")
    (length,) = _LENGTH.unpack_from(inner)
    block, payload = inner[4 : 4 + length], inner[4 + length :]
    if len(block) != length:
        raise ValueError("shorter than it says")
    pairs = _text_pairs(block) if sealed.startswith(_TEXT) else _binary_pairs(block)
    return Headers(pairs), payload


def _text_pairs(block: bytes) -> Pairs:
    split = (line.partition(":") for line in block.decode().split("\n"))
    return [(name.strip(_SPACE), value.strip(_SPACE)) for name, colon, value in split if colon]


def _binary_pairs(block: bytes) -> Pairs:
    parts = []
    at = 0
    while at < len(block):
        (length,) = _LENGTH.unpack_from(block, at)
        part = block[at + 4 : at + 4 + length]
        if len(part) != length:
            raise ValueError("shorter than it says")
        parts.append(part)
        at += 4 + length
    if len(parts) % 2:
        raise ValueError("a name without a value")
    return [(name.decode(), value) for name, value in zip(parts[::2], parts[1::2], strict=True)]
