"""From messages to the bytes of a file, without I/O: where beacons fall and what they say."""

from __future__ import annotations

from bisect import insort
from typing import Final

import msgspec

from ruststream_core_file._format._crc import CRC_START, crc16
from ruststream_core_file._format._layout import (
    HEADER_SIZE,
    LATEST,
    Beacon,
    Header,
    Marker,
    key_error,
    markers_per_beacon,
    message_bytes,
)

__all__ = ["Composer", "StreamState"]

Stream = tuple[str, int]

LARGEST: Final = 2**32 - 1
"""Bytes of the largest payload."""


class StreamState(msgspec.Struct):
    """What a beacon says of one key and shard."""

    sequence: int
    timestamp: int
    running: int = CRC_START
    """The checksum register, fed with the two checksum bytes of each message that this writer wrote."""


class Composer:
    """Writes what the original would write.

    Args:
        interval: the beacon interval.
        offset: where in the file the first byte goes.
    """

    def __init__(self, interval: int, offset: int = 0) -> None:
        self.interval = interval
        self.offset = offset
        self.states: dict[Stream, StreamState] = {}
        self._order: list[Stream] = []
        self._most = markers_per_beacon(interval)
        self._shown = 0
        self._prefixes: dict[str, bytes] = {}

    def begin(self, header: Header) -> bytes:
        """The header, and the beacon that follows it at once where the interval is 128."""
        out = bytearray(header.encode())
        self.offset = HEADER_SIZE
        self.realign(out)
        return bytes(out)

    def realign(self, out: bytearray) -> None:
        """Write an empty beacon where one is due before the first message."""
        if self.offset % self.interval == 0:
            self._put(out, Beacon(0, ()).encode())

    def seed(self, key: str, shard: int, state: StreamState) -> None:
        """Go on from what an earlier writer left of a stream."""
        if (key, shard) not in self.states:
            insort(self._order, (key, shard))
        self.states[key, shard] = state

    def add(self, out: bytearray, key: str, shard: int, sequence: int, timestamp: int, payload: bytes) -> None:
        """Append one message, and every beacon that is due.

        Raises:
            ValueError: the key, the timestamp or the size cannot be written; nothing was.
        """
        prefix = self._prefixes.get(key) or self._prefix(key)
        if not 0 <= timestamp <= LATEST:
            raise ValueError(f"timestamp {timestamp}: 0 to {LATEST} milliseconds can be written")
        if len(payload) > LARGEST:
            raise ValueError(f"a payload of {len(payload)} bytes: {LARGEST} is the most")
        raw, crc = message_bytes(prefix, shard, sequence, timestamp, payload)
        self._note((key, shard), sequence, timestamp, crc)
        room = self.interval - self.offset % self.interval
        if len(raw) < room:
            self._put(out, raw)
        else:
            self._cut(out, raw, room)

    def end_after(self, key: str, payload: bytes) -> int:
        """The offset behind that message, were it added: with its beacons, as large as they may become."""
        size = 32 + len(key) + len(payload)
        room = self.interval - self.offset % self.interval
        if size < room:
            return self.offset + size
        longest = max(len(key), *map(len, self._prefixes)) if self._prefixes else len(key)
        beacon = 7 + min(self._most, len(self._order) + 1) * (27 + longest)
        behind = size - room
        return self.offset + size + beacon * (1 + behind // (self.interval - beacon))

    def _prefix(self, key: str) -> bytes:
        raw = key.encode()
        if (wrong := key_error(raw)) is not None:
            raise ValueError(f"stream key {wrong}")
        prefix = self._prefixes[key] = bytes([len(raw)]) + raw
        return prefix

    def _note(self, stream: Stream, sequence: int, timestamp: int, crc: int) -> None:
        state = self.states.get(stream)
        if state is None:
            self.seed(*stream, state := StreamState(sequence, timestamp))
        state.sequence = max(state.sequence, sequence)
        state.timestamp = max(state.timestamp, timestamp)
        state.running = crc16(crc.to_bytes(2), state.running)

    def _put(self, out: bytearray, raw: bytes) -> None:
        out += raw
        self.offset += len(raw)

    def _cut(self, out: bytearray, raw: bytes, room: int) -> None:
        """Write a message that reaches a boundary, with a beacon at each."""
        pos = 0
        while pos < len(raw):
            piece = raw[pos : pos + room]
            self._put(out, piece)
            pos += len(piece)
            if self.offset % self.interval == 0:
                self._put(out, Beacon(len(raw) - pos, self._markers()).encode())
            room = self.interval - self.offset % self.interval

    def _markers(self) -> tuple[Marker, ...]:
        streams = len(self._order)
        taken = min(streams, self._most)
        first = self._shown % streams
        self._shown += taken
        chosen = (self._order * 2)[first : first + taken] if taken else ()
        return tuple(self._marker(stream) for stream in chosen)

    def _marker(self, stream: Stream) -> Marker:
        state = self.states[stream]
        return Marker(stream[0], stream[1], state.sequence, state.timestamp, state.running)
