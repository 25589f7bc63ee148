"""From blocks of a file to messages, without I/O.

Between two beacons whole messages are read in one tight loop; a message that a beacon cuts is put together piece by
piece. What does not check out is reported, and reading goes on behind the next beacon, by what it says of the message
that it cuts. One checksum per message covers its end mark too (`GOOD_TAIL`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

import msgspec

from ruststream_core_file._format._crc import GOOD_TAIL, crc16
from ruststream_core_file._format._layout import (
    EOS,
    HEADER_SIZE,
    HEADS,
    INTERNAL_KEY,
    LATEST,
    LONGEST_KEY,
    MARK,
    SIZE_LIMIT,
    SMALLEST_MESSAGE,
    BadBeacon,
    Beacon,
    Record,
    key_error,
)

__all__ = ["Damage", "Make", "Parser"]

Make: TypeAlias = Callable[[str, int, int, int, bytes, int, int], Any]
"""Builds a message: key, shard, sequence, timestamp, payload, offset of its first byte, offset behind its last."""

HIDDEN: Final = frozenset({INTERNAL_KEY, "ruststream-internal"})
"""Keys that concern the file or the adapter that wrote it; a reader gets them only when it asks for them."""


class Damage(msgspec.Struct, frozen=True):
    """Something in a file that is not as it was written."""

    offset: int
    """Where the damaged message or beacon begins."""
    reason: str


class _Bad(Exception):
    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.damage = Damage(offset, reason)


class Parser:
    """Reads consecutive blocks of one file.

    Args:
        interval: the file's beacon interval.
        offset: where the first block begins: at 128, at a message's start or end, or at a beacon.
        keys: the streams that are wanted; None for all but those that concern the file itself.
        hidden: give those too.
        make: what to build for each message.
        limit: no message reaches beyond this offset.
        beacons: is called with the offset of each beacon and the beacon.
    """

    def __init__(
        self,
        interval: int,
        offset: int = HEADER_SIZE,
        *,
        keys: Callable[[str], bool] | Collection[str] | None = None,
        hidden: bool = False,
        make: Make = Record,
        limit: int = SIZE_LIMIT,
        beacons: Callable[[int, Beacon], object] | None = None,
    ) -> None:
        self.interval = interval
        self.damages: list[Damage] = []
        """What was found; whoever reads it may empty it."""
        self.rewind: int | None = None
        """Set by `feed`: nothing more is taken until `restart(rewind, resync=True)` and the bytes from there."""
        self.ended = False
        """The end-of-stream message was met: what follows is not read."""
        self._make = make
        self._limit = limit
        self._beacons = beacons
        self._hidden = hidden
        self._wanted = keys.__contains__ if isinstance(keys, Collection) else keys
        self._known: dict[bytes, str] = {}
        self._unwanted: set[bytes] = set()
        self.restart(offset)

    def restart(self, offset: int, *, resync: bool = False) -> None:
        """Go on from another offset; with `resync`, from the first beacon at or behind it."""
        self.offset = offset
        self.rewind = None
        self.ended = False
        self._resync = resync
        self._mark = (offset, resync)
        self._skip = 0
        self._tail = b""
        self._drop()

    def _drop(self) -> None:
        """No message is under way."""
        self._carry = bytearray()
        self._carry_start = 0
        self._total: int | None = None
        self._claim: tuple[int, int] | None = None
        self._doubt: Damage | None = None

    @property
    def checkpoint(self) -> tuple[int, bool]:
        """What `restart` takes so that nothing is lost, and nothing given twice, if the bytes from there change."""
        if self._carry:
            return self._carry_start, False
        if self._resync or self._skip:
            return self._mark
        return self.offset - len(self._tail), False

    @property
    def torn(self) -> bool:
        """Whether the bytes given so far end inside a message or a beacon, or behind damage without a beacon."""
        return bool(self._carry or self._tail or self._skip or self._resync)

    # ------------------------------------------------------------------------------------------------- blocks

    def feed(self, data: bytes) -> list[Any]:
        """The messages that end in the next block, in order."""
        out: list[Any] = []
        buf = self._tail + data if self._tail else data
        base = self.offset - len(self._tail)
        self._tail = b""
        self.offset += len(data)
        interval, size, pos = self.interval, len(buf), 0
        while pos < size and not self.ended and self.rewind is None:
            past = (base + pos) % interval
            try:
                if past:
                    pos = self._segment(buf, pos, min(size, pos + interval - past), base, out)
                elif (behind := self._read_beacon(buf, pos, base + pos)) is not None:
                    pos = behind
                else:
                    self._tail = buf[pos:]
                    break
            except _Bad as bad:
                self._fail(bad.damage, base + pos)
        return out

    def _fail(self, damage: Damage, here: int) -> None:
        """Report, and look for the first beacon behind the damage: it may have been passed already."""
        self.damages.append(damage)
        self._drop()
        boundary = (damage.offset // self.interval + 1) * self.interval
        if boundary <= here:
            self.rewind = boundary
        else:
            self._resync = True
            self._mark = (damage.offset, False)

    def _segment(self, buf: bytes, pos: int, stop: int, base: int, out: list[Any]) -> int:
        """Read a stretch without beacons; where to go on."""
        if self._resync:
            return stop
        if self._skip:
            taken = min(self._skip, stop - pos)
            self._skip -= taken
            return pos + taken
        if self._carry:
            return self._go_on(buf, pos, stop, base, out)
        pos = self._messages(buf, pos, stop, base, out)
        if pos < stop and not self.ended:
            self._carry_start = base + pos
            self._carry += buf[pos:stop]
            self._check_start()
        return stop

    def _messages(self, buf: bytes, pos: int, stop: int, base: int, out: list[Any]) -> int:
        """The hot loop: whole messages up to `stop`. Returns where the first begins that is not whole."""
        heads, known, make, append, crc = HEADS, self._known.get, self._make, out.append, crc16
        last = stop - SMALLEST_MESSAGE
        while pos <= last:
            unpack, _, size = heads[buf[pos]]
            body = pos + size
            if body > stop:
                break
            prefix, shard, sequence, timestamp, size = unpack(buf, pos)
            end = body + size + 3
            if end > stop:
                break
            raw = buf[body:end]
            if crc(raw) != GOOD_TAIL or timestamp > LATEST:
                raise _Bad(base + pos, _why(prefix, timestamp, raw))
            key = known(prefix)
            if key is not None:
                append(make(key, shard, sequence, timestamp, raw[:-3], base + pos, base + end))
                pos = end
                continue
            key = self._other(base + pos, prefix, raw)
            if key is not None:
                append(make(key, shard, sequence, timestamp, raw[:-3], base + pos, base + end))
            pos = end
            if self.ended:
                break
        return pos

    def _other(self, at: int, prefix: bytes, raw: bytes) -> str | None:
        """What is not known as wanted: its key where it is, None where it is to be left out."""
        if prefix in self._unwanted:
            return None
        if (wrong := key_error(prefix[1:])) is not None:
            raise _Bad(at, f"its key {wrong}")
        key = prefix[1:].decode()
        if key == INTERNAL_KEY:
            self.ended = raw[:-3] == EOS
            return key if self._hidden else None
        if (key in HIDDEN and not self._hidden) or not (self._wanted is None or self._wanted(key)):
            self._unwanted.add(prefix)
            return None
        self._known[prefix] = key
        return key

    # --------------------------------------------------------------------------------- what beacons cut

    def _go_on(self, buf: bytes, pos: int, stop: int, base: int, out: list[Any]) -> int:
        """Add to the message under way; where to go on."""
        carry = self._carry
        while (lacking := (self._total or HEADS[carry[0]][2]) - len(carry)) > 0:
            if pos == stop:
                return pos
            taken = min(lacking, stop - pos)
            carry += buf[pos : pos + taken]
            pos += taken
            self._check_start()
        self._finish(bytes(carry), base + pos, out)
        return pos

    def _check_start(self) -> None:
        """Look at the fields before the payload as soon as they are there: they say how much to wait for."""
        carry, start = self._carry, self._carry_start
        unpack, _, size = HEADS[carry[0]]
        if carry[0] > LONGEST_KEY:
            raise _Bad(start, f"its key has {carry[0]} bytes, {LONGEST_KEY} is the most")
        if self._total is not None or len(carry) < size:
            return
        prefix, _, _, timestamp, length = unpack(carry, 0)
        self._total = total = size + length + 3
        if (wrong := key_error(prefix[1:])) is not None:
            raise _Bad(start, f"its key {wrong}")
        if timestamp > LATEST:
            raise _Bad(start, "its timestamp is out of range")
        if start + total > self._limit:
            raise _Bad(start, f"its size of {length} bytes takes it over the limit of the file")
        if self._claim is not None:
            self._weigh(*self._claim)

    def _finish(self, whole: bytes, end: int, out: list[Any]) -> None:
        start = self._carry_start
        unpack, _, size = HEADS[whole[0]]
        prefix, shard, sequence, timestamp, _ = unpack(whole, 0)
        raw = whole[size:]
        if crc16(raw) != GOOD_TAIL:
            raise _Bad(start, _why(prefix, timestamp, raw))
        key = self._known.get(prefix) or self._other(start, prefix, raw)
        if self._doubt is not None:
            self.damages.append(self._doubt)
        self._drop()
        if key is not None:
            out.append(self._make(key, shard, sequence, timestamp, raw[:-3], start, end))

    # ------------------------------------------------------------------------------------------------ beacons

    def _read_beacon(self, buf: bytes, pos: int, at: int) -> int | None:
        """Read the beacon at an index; the index behind it, or None where it is not whole yet."""
        try:
            found = Beacon.decode(buf, pos, self.interval)
        except BadBeacon as exc:
            self.damages.append(Damage(at, f"no beacon: {exc}"))
            self._drop()
            self._skip = 0
            self._resync = True
            self._mark = (at, False)
            return pos + 1
        if found is None:
            return None
        beacon, behind = found
        if self._beacons is not None:
            self._beacons(at, beacon)
        if not beacon.framed:
            self.damages.append(Damage(at, "one mark of the beacon is missing"))
        self._agree(beacon.remaining, at)
        return behind

    def _agree(self, remaining: int, at: int) -> None:
        """Hold what a beacon says of the message that it cuts against what is known."""
        if self._resync:
            self._resync = False
            self._skip = remaining
            self._mark = (at, True)
        elif self._carry:
            claim = len(self._carry) + remaining
            if self._total is None:
                self._claim = (claim, at)
            else:
                self._weigh(claim, at)
        elif remaining != self._skip:
            self.damages.append(Damage(at, f"the beacon says that {remaining} bytes are to come, not {self._skip}"))

    def _weigh(self, claim: int, at: int) -> None:
        """A beacon and a message differ about its size: one beacon may be wrong, two are believed."""
        if claim == self._total:
            return
        if self._doubt is not None:
            raise _Bad(self._carry_start, "its size is not what two beacons say")
        self._doubt = Damage(at, f"the beacon says that the message has {claim} bytes, it has {self._total}")


def _why(prefix: bytes, timestamp: int, raw: bytes) -> str:
    """What is wrong with a message that did not check out."""
    if (wrong := key_error(prefix[1:])) is not None:
        return f"its key {wrong}"
    if timestamp > LATEST:
        return "its timestamp is out of range"
    if raw[-1] != MARK and crc16(raw[:-3]) == int.from_bytes(raw[-3:-1]):
        return "its end mark is missing"
    return "its payload and its checksum do not agree"
