"""The parts of a stream file as bytes: header, message, beacon. Unsigned big-endian integers throughout."""

from __future__ import annotations

import re
import struct
from typing import Final

import msgspec

from ruststream_core_file._format._crc import crc16
from ruststream_core_file.errors import NotAStreamFile

__all__ = [
    "DEFAULT_INTERVAL",
    "EOS",
    "HEADER_SIZE",
    "HEADER_START",
    "HEADS",
    "INTERNAL_KEY",
    "LATEST",
    "LEAST_INTERVAL",
    "LONGEST_KEY",
    "MARK",
    "SIZE_LIMIT",
    "SMALLEST_MESSAGE",
    "BadBeacon",
    "Beacon",
    "Header",
    "Marker",
    "Record",
    "check_header",
    "key_error",
    "markers_per_beacon",
    "message_bytes",
]

MARK: Final = 0x0D
"""Ends header and message, begins and ends a beacon."""
HEADER_SIZE: Final = 128
HEADER_START: Final = b"Ss\x01"
"""What every file begins with."""
LEAST_INTERVAL: Final = 128
DEFAULT_INTERVAL: Final = 1024 * 1024
SIZE_LIMIT: Final = 16 * 1024**3
"""Most bytes of a file where nobody says otherwise."""
LONGEST_KEY: Final = 249
LONGEST_NAME: Final = 111
LATEST: Final = 253_402_300_799_999
"""The greatest timestamp, the last millisecond of the year 9999: what the original can hold."""
INTERNAL_KEY: Final = "SEA_STREAMER_INTERNAL"
"""The key of what concerns the file, not its readers."""
EOS: Final = b"EOS"
"""Payload of the message that ends a stream."""
SMALLEST_MESSAGE: Final = 32
"""Bytes of a message with an empty key and an empty payload."""

_KEY: Final = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_HEADER_START: Final = struct.Struct(">2sBB")
_HEADER_END: Final = struct.Struct(">QI")
_BEACON_START: Final = struct.Struct(">BIB")
_MARKER: Final = struct.Struct(">QQQH")
_TAIL: Final = struct.Struct(">HB")

HEADS: Final = tuple(
    (head.unpack_from, head.pack, head.size) for head in (struct.Struct(f">{1 + key}sQQQI") for key in range(256))
)
"""For each length of a key: what reads and writes the part before the payload, and its size."""


class Record(msgspec.Struct, gc=False):
    """One message as it stands in a file."""

    key: str
    """The stream key."""
    shard: int
    sequence: int
    timestamp: int
    """Milliseconds since the Unix epoch."""
    payload: bytes
    start: int
    """Offset of its first byte in the file."""
    end: int
    """Offset behind its last byte."""

    @property
    def checksum(self) -> int:
        """CRC-16/CDMA2000 of the payload."""
        return crc16(self.payload)

    @property
    def ends_stream(self) -> bool:
        """Whether it is the end-of-stream message."""
        return self.key == INTERNAL_KEY and self.payload == EOS


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first 128 bytes of a file."""

    file_name: str
    """Base name of the file when it was created."""
    created_at: int
    """Milliseconds since the Unix epoch."""
    beacon_interval: int = DEFAULT_INTERVAL
    """Bytes from one beacon to the next."""
    padded: bool = True
    """Whether the unused bytes are as they should be. The original does not look."""

    def encode(self) -> bytes:
        """The header as bytes.

        Raises:
            NotAStreamFile: the name is longer than 111 bytes, or the interval is under 128.
        """
        name = self.file_name.encode()
        if len(name) > LONGEST_NAME:
            raise NotAStreamFile(f"{self.file_name!r}: a stream file's name has at most {LONGEST_NAME} bytes")
        if self.beacon_interval < LEAST_INTERVAL:
            raise NotAStreamFile(f"a beacon interval of {self.beacon_interval}: at least {LEAST_INTERVAL} is needed")
        start = _HEADER_START.pack(b"Ss", 1, len(name)) + name + _HEADER_END.pack(self.created_at, self.beacon_interval)
        return start.ljust(HEADER_SIZE - 1, b"\0") + bytes([MARK])

    @classmethod
    def decode(cls, raw: bytes, where: str = "the file") -> Header:
        """Read the first 128 bytes.

        Raises:
            NotAStreamFile: too short, another format, another version, or an interval under 128.
        """
        if raw and not raw.startswith(b"Ss"):
            raise NotAStreamFile(f"{where} is no stream file: it begins with {raw[:2]!r} instead of b'Ss'")
        if len(raw) < HEADER_SIZE:
            raise NotAStreamFile(f"{where} has {len(raw)} bytes, a stream file begins with {HEADER_SIZE}")
        _, version, length = _HEADER_START.unpack_from(raw)
        if version != 1:
            raise NotAStreamFile(f"{where} is a stream file of version {version}; version 1 can be read")
        if length > LONGEST_NAME:
            raise NotAStreamFile(f"{where}: its header holds a name of {length} bytes, {LONGEST_NAME} is the most")
        created_at, interval = _HEADER_END.unpack_from(raw, 4 + length)
        if interval < LEAST_INTERVAL:
            raise NotAStreamFile(f"{where} has a beacon interval of {interval}; at least {LEAST_INTERVAL} can be read")
        rest = raw[4 + length + _HEADER_END.size : HEADER_SIZE]
        return cls(
            file_name=raw[4 : 4 + length].decode(errors="replace"),
            created_at=created_at,
            beacon_interval=interval,
            padded=not any(rest[:-1]) and rest[-1] == MARK,
        )


def check_header(raw: bytes, where: object) -> None:
    """Look at the first bytes of a file, 128 at most. The beginning of a header is good: somebody is writing it.

    Raises:
        NotAStreamFile: they can never become a header.
    """
    if len(raw) >= HEADER_SIZE or not HEADER_START.startswith(raw[: len(HEADER_START)]):
        Header.decode(raw, str(where))


class Marker(msgspec.Struct, frozen=True):
    """What a beacon says of one stream: the highest sequence and timestamp so far, and the running checksum."""

    key: str
    shard: int
    sequence: int
    timestamp: int
    running: int


class BadBeacon(ValueError):
    """The bytes at a boundary are no beacon."""


class Beacon(msgspec.Struct, frozen=True):
    """What stands at every multiple of the interval."""

    remaining: int
    """Bytes of the message that it cuts that are still to come, beacons not counted."""
    markers: tuple[Marker, ...]
    framed: bool = True
    """Whether both marks are right; where one is not, the rest still made sense."""

    def encode(self) -> bytes:
        """The beacon as bytes."""
        parts = [_BEACON_START.pack(MARK, self.remaining, len(self.markers))]
        for marker in self.markers:
            key = marker.key.encode()
            parts += (
                bytes([len(key)]),
                key,
                _MARKER.pack(marker.shard, marker.sequence, marker.timestamp, marker.running),
            )
        parts.append(bytes([MARK]))
        return b"".join(parts)

    @classmethod
    def decode(cls, raw: bytes | bytearray, at: int, interval: int) -> tuple[Beacon, int] | None:
        """Read the beacon that begins at index `at`.

        Returns:
            The beacon and the index behind it, or None where `raw` ends before it does.

        Raises:
            BadBeacon: no beacon of a file with that interval looks so.
        """
        if len(raw) - at < _BEACON_START.size:
            return None
        first, remaining, count = _BEACON_START.unpack_from(raw, at)
        if count > markers_per_beacon(interval):
            raise BadBeacon(f"{count} markers, {markers_per_beacon(interval)} is the most")
        pos = at + _BEACON_START.size
        markers = []
        for _ in range(count):
            if pos >= len(raw) or len(raw) < pos + 1 + raw[pos] + _MARKER.size:
                return None
            length = raw[pos]
            if (wrong := key_error(name := bytes(raw[pos + 1 : pos + 1 + length]))) is not None:
                raise BadBeacon(f"a marker's key {wrong}")
            shard, sequence, timestamp, running = _MARKER.unpack_from(raw, pos + 1 + length)
            if timestamp > LATEST:
                raise BadBeacon("a marker's timestamp is out of range")
            markers.append(Marker(name.decode(), shard, sequence, timestamp, running))
            pos += 1 + length + _MARKER.size
        if pos >= len(raw):
            return None
        marks = (first == MARK) + (raw[pos] == MARK)
        if not marks:
            raise BadBeacon("neither of its marks is there")
        return cls(remaining, tuple(markers), marks == 2), pos + 1


def markers_per_beacon(interval: int) -> int:
    """How many streams one beacon may describe."""
    return min(255, (interval - 7) // 282) // 2


def key_error(key: bytes) -> str | None:
    """What is wrong with a stream key, or None. An empty one is tolerated: the original writes it."""
    if len(key) > LONGEST_KEY:
        return f"has {len(key)} bytes, {LONGEST_KEY} is the most"
    try:
        text = key.decode("ascii")
    except UnicodeDecodeError:
        return "is not ASCII"
    return None if _KEY.fullmatch(text) else f"{text!r} holds characters outside A-Z a-z 0-9 . _ -"


def message_bytes(prefix: bytes, shard: int, sequence: int, timestamp: int, payload: bytes) -> tuple[bytes, int]:
    """A message as bytes, and its checksum. `prefix` is the key with its length before it."""
    crc = crc16(payload)
    head = HEADS[prefix[0]][1](prefix, shard, sequence, timestamp, len(payload))
    return b"".join((head, payload, _TAIL.pack(crc, MARK))), crc
