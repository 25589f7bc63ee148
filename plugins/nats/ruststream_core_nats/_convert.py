"""Between the core's messages and the bytes on a NATS connection: subjects, headers, acknowledgement addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ruststream_core.errors import PublishError
from ruststream_core.wire import NO_HEADERS, Headers

__all__ = [
    "AckAddress",
    "as_text",
    "encode_headers",
    "nanoseconds",
    "parse_headers",
    "publish_subject",
    "status_of",
    "subject_fault",
]

LONGEST: Final = 2000
"""Bytes of a subject: with a reply subject and the sizes it has to fit into the server's control line of 4096."""

_VERSION: Final = b"NATS/1.0"
_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")
_RESERVED: Final = ("$JS.", "$SYS.")
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


# ------------------------------------------------------------------------------------------------------ subjects


def subject_fault(subject: str, *, wildcards: bool) -> str | None:
    """What is wrong with a subject, as the end of a sentence; None for a sound one.

    The server would answer some of these by closing the connection, and a blank would make the rest of the subject
    a reply address.
    """
    if not subject:
        return "is empty"
    if _BLANK.search(subject):
        return "has white space or control characters in it"
    if len(subject.encode("utf-8", "surrogatepass")) > LONGEST:
        return f"is longer than {LONGEST} bytes"
    if subject.startswith(_RESERVED):
        return "is reserved for the server's own interfaces"
    try:
        subject.encode()
    except UnicodeEncodeError:
        return "is no valid Unicode text"
    return _tokens_fault(subject.split("."), wildcards=wildcards)


def _tokens_fault(tokens: Sequence[str], *, wildcards: bool) -> str | None:
    for index, token in enumerate(tokens):
        if not token:
            return "has an empty token: two dots in a row, or a dot at an end"
        if "*" not in token and ">" not in token:
            continue
        if not wildcards:
            return "has a wildcard in it, a message needs a plain subject"
        if token not in ("*", ">"):
            return f"has a wildcard inside the token {token!r}: a wildcard stands alone between dots"
        if token == ">" and index != len(tokens) - 1:  # noqa: S105  a wildcard
            return "has '>' before its end"
    return None


def publish_subject(subject: str) -> bytes:
    """The bytes of a subject that a message can be published to.

    Raises:
        PublishError: it is not one; names the subject.
    """
    if (fault := subject_fault(subject, wildcards=False)) is not None:
        raise PublishError(f"subject {subject!r} {fault}")
    return subject.encode()


# ------------------------------------------------------------------------------------------------------- headers


def encode_headers(headers: Headers) -> bytes:
    """The header block of a message.

    Raises:
        PublishError: a name or value cannot be kept as it is; names the header.
    """
    lines = [_VERSION]
    for name, value in headers.raw():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise PublishError(f"header name {name!r} is not one: letters, digits and !#$%&'*+-.^_`|~ are accepted")
        lines.append(b"%b: %b" % (name.encode(), _value(name, value)))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _value(name: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as exc:
            raise PublishError(f"header {name!r}: its value is no valid Unicode text") from exc
    elif isinstance(value, bytes):
        raw = value
    else:
        raise PublishError(f"header {name!r}: a value is text or bytes, not {type(value).__name__}")
    if b"\r" in raw or b"\n" in raw:
        raise PublishError(f"header {name!r}: NATS cannot carry a line break in a value")
    # Every NATS client trims what it receives, so such a value would arrive as another.
    if raw[:1] in (b" ", b"\t") or raw[-1:] in (b" ", b"\t"):
        raise PublishError(f"header {name!r}: NATS clients trim blanks around a value, take them off")
    return raw


def parse_headers(block: bytes) -> Headers:
    """The header fields of a received block, in order; without its status line."""
    if not block:
        return NO_HEADERS
    pairs: list[tuple[str, str | bytes]] = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name.decode("latin-1"), _text_or_bytes(value.strip(b" \t"))))
    return Headers(pairs)


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def status_of(block: bytes) -> tuple[int, str]:
    """The status of a message that the server itself wrote, such as (408, "Request Timeout"); (0, "") for others."""
    line = block[len(_VERSION) : block.find(b"\r\n")].strip()
    code, _, text = line.partition(b" ")
    return (int(code), text.decode("latin-1").strip()) if code.isdigit() else (0, "")


def as_text(raw: bytes) -> str:
    """Bytes of a subject or a name as text; what is not UTF-8 is shown escaped."""
    return raw.decode("utf-8", "backslashreplace")


# --------------------------------------------------------------------------------------------------- JetStream


class AckAddress(msgspec.Struct, frozen=True):
    """What the address for acknowledgements tells about a JetStream message."""

    stream: str
    consumer: str
    delivered: int
    """How often it was delivered, this time included."""
    stream_sequence: int
    consumer_sequence: int
    timestamp: int
    """When the stream took it, in nanoseconds since 1970."""
    pending: int
    """Messages that wait behind it for this consumer."""

    @classmethod
    def parse(cls, address: bytes) -> AckAddress | None:
        """Read an address; None where it is not one.

        Two forms exist: `$JS.ACK.stream.consumer…` with 9 tokens, and one with domain and account before the
        stream, of 11 tokens or more.
        """
        tokens = address.split(b".")
        if len(tokens) < 9 or tokens[0] != b"$JS" or tokens[1] != b"ACK":
            return None
        stream, consumer, *numbers = tokens[2:9] if len(tokens) == 9 else tokens[4:11]
        try:
            delivered, in_stream, in_consumer, at, pending = map(int, numbers)
        except ValueError:
            return None
        return cls(as_text(stream), as_text(consumer), delivered, in_stream, in_consumer, at, pending)


def nanoseconds(seconds: float) -> int:
    """A duration as the server's interfaces write it."""
    return round(seconds * 1_000_000_000)
