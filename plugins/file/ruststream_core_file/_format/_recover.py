"""What an earlier writer left in a file: where to append, and which sequence comes next."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator
from typing import Final, TypeAlias

import msgspec

from ruststream_core_file._format._layout import HEADER_SIZE, HEADS, BadBeacon, Beacon, Marker, Record
from ruststream_core_file._format._parser import Parser
from ruststream_core_file.errors import DamagedTail

__all__ = ["BLOCK", "Tail", "beacon_at", "find_tail", "last_marker", "last_messages", "records"]

BLOCK: Final = 256 * 1024

Found: TypeAlias = tuple[int, Marker]


class Tail(msgspec.Struct, frozen=True):
    """The end of what is whole."""

    end: int
    """Offset behind the last whole message and its beacon; an end-of-stream message does not count."""
    torn: int
    """Bytes behind `end` that make no message."""


def beacon_at(fd: int, index: int, interval: int) -> tuple[Beacon, int] | None:
    """The beacon of that number and the offset behind it; None where there is none that can be read."""
    at = index * interval
    try:
        found = Beacon.decode(os.pread(fd, min(interval, 256 * 282), at), 0, interval)
    except BadBeacon:
        return None
    return None if found is None else (found[0], at + found[1])


def records(fd: int, parser: Parser, end: int) -> Iterator[Record]:
    """Every message from where the parser stands up to `end`."""
    while parser.offset < end and not parser.ended:
        block = os.pread(fd, min(BLOCK, end - parser.offset), parser.offset)
        if not block:
            return
        yield from parser.feed(block)
        if parser.rewind is not None:
            parser.restart(parser.rewind, resync=True)


def find_tail(fd: int, size: int, interval: int, where: str) -> Tail:
    """Walk back, beacon by beacon, to the last whole message.

    Raises:
        DamagedTail: behind what is damaged stand messages that no beacon leads to.
    """
    for index in range(size // interval, 0, -1):
        if _may_start(fd, index, size, interval):
            tail = _tail_from(fd, index * interval, size, interval, where)
            if tail is not None:
                return tail
    return _tail_from(fd, 0, size, interval, where) or _behind(fd, HEADER_SIZE, size, interval)


def _may_start(fd: int, index: int, size: int, interval: int) -> bool:
    """Whether a whole message may stand behind that beacon, so that reading from there is worth while.

    Not where it cuts a message that was not written to its end, nor one that the beacon before cuts too: a message
    of a thousand intervals would be read a thousand times.
    """
    found = beacon_at(fd, index, interval)
    if found is None or found[1] + found[0].remaining > size:
        return False
    before = beacon_at(fd, index - 1, interval) if index > 1 and found[0].remaining else None
    return before is None or before[0].remaining <= index * interval - before[1]


def _tail_from(fd: int, start: int, size: int, interval: int, where: str) -> Tail | None:
    parser = Parser(interval, hidden=True)
    parser.restart(start or HEADER_SIZE, resync=start > 0)
    end: int | None = None if start else HEADER_SIZE
    keys = set()
    for record in records(fd, parser, size):
        if record.ends_stream:
            # Nothing needs to stand before it but a beacon that it follows at once.
            return Tail(record.start if end is None or end % interval == 0 else end, 0)
        end = record.end
        keys.add(record.key)
    if end is None:
        return None
    damaged = [damage.offset for damage in parser.damages if damage.offset >= end]
    if damaged and _stranded(fd, damaged[-1] + 1, size, keys):
        raise DamagedTail(
            f"{where}: the message at offset {damaged[-1]} is damaged and whole messages stand behind it; "
            "appending would cut them off. repair() copies what can be read"
        )
    return _behind(fd, end, size, interval)


def _behind(fd: int, end: int, size: int, interval: int) -> Tail:
    """The tail where `end` is the last message's end: a whole beacon that follows it is kept."""
    if end % interval == 0 and (found := beacon_at(fd, end // interval, interval)) is not None:
        end = found[1]
    return Tail(end, max(0, size - end))


def _stranded(fd: int, start: int, size: int, keys: Collection[str]) -> bool:
    """Whether a whole message of one of these keys stands anywhere behind `start`, uncut."""
    if start >= size:
        return False
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as raw:
        return any(_holds_message(raw, start, bytes([len(key)]) + key.encode()) for key in keys if key)


def _holds_message(raw: mmap.mmap, start: int, prefix: bytes) -> bool:
    head = HEADS[prefix[0]][2]
    at = raw.find(prefix, start)
    while at >= 0:
        end = at + head + int.from_bytes(raw[at + head - 4 : at + head]) + 3
        # No beacons are expected within: the interval is beyond any file.
        if end <= len(raw) and Parser(1 << 62, at).feed(raw[at:end]):
            return True
        at = raw.find(prefix, at + 1)
    return False


def last_messages(
    fd: int, start: int, end: int, interval: int, key: str | None = None
) -> dict[tuple[str, int], Record]:
    """Of each stream, or of those with that key, the message with the highest sequence, between two offsets.

    `start` is 0, or the offset of a beacon.
    """
    parser = Parser(interval, keys=None if key is None else (key,))
    parser.restart(start or HEADER_SIZE, resync=start > 0)
    found: dict[tuple[str, int], Record] = {}
    for record in records(fd, parser, end):
        stream = record.key, record.shard
        if stream not in found or found[stream].sequence < record.sequence:
            found[stream] = record
    return found


def last_marker(fd: int, end: int, interval: int, key: str, shard: int, *, below: int | None = None) -> Found | None:
    """The newest beacon that speaks of a stream, with `below` of those that give a lower sequence.

    Returns:
        The beacon's offset and what it says; None where no beacon speaks of the stream so: it may be anywhere.
    """
    for index in range(end // interval, 0, -1):
        found = beacon_at(fd, index, interval)
        for marker in found[0].markers if found is not None else ():
            if (marker.key, marker.shard) == (key, shard) and (below is None or marker.sequence < below):
                return index * interval, marker
    return None
