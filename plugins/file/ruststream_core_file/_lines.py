"""Messages as lines of text: `[timestamp | key | sequence] payload`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

__all__ = ["BROADCAST", "Line", "parse_line", "write_line"]

BROADCAST: Final = "broadcast"
"""The key of a line that names none."""

# Any part may be missing; a fourth number is the shard.
_META: Final = re.compile(
    rb"\["
    rb"\s*(?:(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?)Z?\s*(?:\|\s*(?=[^\]\s])|(?=\])))?"
    rb"(?:(?P<key>[A-Za-z0-9._-]{1,249})\s*(?:\|\s*(?P<sequence>\d{1,20})\s*(?:\|\s*(?P<shard>\d{1,20})\s*)?)?)?"
    rb"\]\s*(?=\S)"
)
_SPACE: Final = b" \t\r\n\v\f"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Line(msgspec.Struct, gc=False):
    """What a line says."""

    key: str
    """Empty where it names none."""
    payload: bytes
    sequence: int | None = None
    shard: int = 0
    timestamp: int | None = None
    """Milliseconds since the Unix epoch."""


def parse_line(line: bytes) -> Line | None:
    """Read a line without its end; None where nothing is on it.

    What does not begin with such a bracket is a payload as a whole, a JSON array above all: `[1, 2]`.
    """
    text = line.strip(_SPACE)
    if not text:
        return None
    found = _META.match(text) if text.startswith(b"[") else None
    if found is None or not (found["time"] or found["key"]):
        return Line("", text)
    try:
        timestamp = None if found["time"] is None else _milliseconds(found["time"].decode())
    except ValueError:
        return Line("", text)
    key, sequence, shard = found["key"], found["sequence"], found["shard"]
    return Line(
        "" if key is None else key.decode(),
        text[found.end() :],
        None if sequence is None else int(sequence),
        0 if shard is None else int(shard),
        timestamp,
    )


def _milliseconds(text: str) -> int:
    """Raises ValueError where there is no such day or hour."""
    whole, _, fraction = text.partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1) + int(fraction[:3].ljust(3, "0") or "0")


def write_line(key: str, sequence: int, timestamp: int, payload: bytes) -> bytes:
    """One line with its end."""
    moment = (_EPOCH + timedelta(milliseconds=timestamp)).strftime("%Y-%m-%dT%H:%M:%S")
    return b"[%s.%03d | %s | %d] %s\n" % (moment.encode(), timestamp % 1000, key.encode(), sequence, payload)
