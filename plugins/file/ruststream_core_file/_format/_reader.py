"""Reading a stream: its files one after the other, blocks at a time, from any position, to the end or beyond it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from ruststream_core_file._format._layout import HEADER_SIZE, SIZE_LIMIT, Header, Record, check_header
from ruststream_core_file._format._parser import Damage, Make, Parser
from ruststream_core_file._format._recover import beacon_at, find_tail
from ruststream_core_file._format._segments import segments
from ruststream_core_file.errors import DamagedTail, FileRemoved

__all__ = ["AfterTime", "FromSequence", "Position", "Start", "StreamReader", "read_stream"]

BLOCK: Final = 256 * 1024
"""Bytes read at once: half of it fits the second cache of most machines beside what becomes of it."""

PREFETCH: Final = 8 * 1024 * 1024
"""Bytes that the system is asked to fetch ahead of the reading."""


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in a stream."""

    file: int
    """Time in the header of the file, milliseconds since the Unix epoch: 0 for the oldest there is."""
    offset: int
    """Offset in that file: a message's start or end."""


class FromSequence(msgspec.Struct, frozen=True):
    """The first message with that sequence or a higher one."""

    sequence: int


class AfterTime(msgspec.Struct, frozen=True):
    """The first message later than that."""

    timestamp: int
    """Milliseconds since the Unix epoch."""


Start: TypeAlias = str | Position | FromSequence | AfterTime
"""Where to read from: "beginning", "end", or one of the classes above."""


class StreamReader:
    """Reads one stream across its files. Takes no lock. Not safe for several threads at once.

    Args:
        path: the current file; older ones beside it are found.
        start: where to begin.
        follow: go on waiting at the end: an unfinished message there is read again from its start next time, because
            a writer may meanwhile have cut it off and written another.
        keys: the streams that are wanted: names, or a function of a name. Positions by sequence or time look at their
            messages only. None for all but those that concern the file itself.
        hidden: give those too.
        make: what to build for each message; see `Record` for what is passed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        start: Start = "beginning",
        *,
        follow: bool = False,
        keys: Callable[[str], bool] | Collection[str] | None = None,
        hidden: bool = False,
        make: Make = Record,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self.damages: list[Damage] = []
        """What was found damaged since somebody emptied the list."""
        self.header: Header | None = None
        """Of the file that is being read; None before the first."""
        self.ended = False
        """The end-of-stream message was met, or the end where `follow` is off."""
        self._start = start
        self._follow = follow
        self._keys = keys
        self._hidden = hidden
        self._make = make
        self._fd = -1
        self._wanted = 0
        self._parser = Parser(SIZE_LIMIT)
        self._until: Callable[[Any], bool] | None = None
        self._reported = -1

    # ------------------------------------------------------------------------------------------ reading

    def read(self) -> list[Any]:
        """The next messages, those that end in one block; empty at the present end, and when `ended`.

        Raises:
            FileRemoved: the file was deleted, replaced or cut short.
            NotAStreamFile: it is something else.
            OSError: it cannot be read.
        """
        while (found := self.step()) is not None:
            if found:
                return found
        return []

    def step(self) -> list[Any] | None:
        """As `read`, one block and no more: perhaps nothing ends in it. None at the present end, and when `ended`."""
        if self.ended:
            return None
        if self._fd < 0 and not self._begin():
            self.ended = not self._follow
            return None
        offset = self._parser.offset
        if offset >= self._wanted:
            self._prefetch(offset)
        block = os.pread(self._fd, BLOCK, offset)
        if block:
            return self._take(block)
        return [] if self._at_end() else None

    def _prefetch(self, offset: int) -> None:
        """Let the system fetch what comes next, while this is parsed and handled."""
        self._wanted = offset + PREFETCH // 2
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, PREFETCH, os.POSIX_FADV_WILLNEED)

    def _take(self, block: bytes) -> list[Any]:
        parser = self._parser
        found = parser.feed(block)
        if parser.damages:
            self._report(parser.damages)
        if parser.rewind is not None:
            parser.restart(parser.rewind, resync=True)
        self.ended = parser.ended
        if found and self._until is not None:
            first = next((index for index, message in enumerate(found) if self._until(message)), None)
            found = [] if first is None else found[first:]
            self._until = self._until if first is None else None
        return found

    def _report(self, damages: list[Damage]) -> None:
        """Tell each damage once, though a tail is read again and again."""
        self.damages += [damage for damage in damages if damage.offset > self._reported]
        self._reported = max(self._reported, *(damage.offset for damage in damages))
        damages.clear()

    def _at_end(self) -> bool:
        """Nothing more in this file for now; whether there may be more, in this one or in the next."""
        parser = self._parser
        newer = self._newer()
        if newer is not None:
            if os.fstat(self._fd).st_size > parser.offset:
                return True  # written between our read and the rotation
            self._report_torn()
            self._open(newer, HEADER_SIZE)
            return True
        if not self._follow:
            self._report_torn()
            self.ended = True
            return False
        offset, resync = parser.checkpoint
        if self._check_alive(offset):
            return True
        parser.restart(offset, resync=resync)
        return False

    def _report_torn(self) -> None:
        if self._parser.torn:
            self._report([Damage(self._parser.checkpoint[0], "the file ends before a whole message")])

    def _newer(self) -> Path | None:
        """The file that was begun after this one, where there is one."""
        assert self.header is not None
        if self._same_file():
            return None
        created = self.header.created_at
        return next((file for time, file in segments(self.path) if time > created), None)

    def _same_file(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return False

    def _check_alive(self, offset: int) -> bool:
        """Raise where the file has gone; whether it was rotated while we looked."""
        size = os.fstat(self._fd).st_size
        if size < offset:
            raise FileRemoved(f"{self.path} was cut short while it was read: {size} bytes, {offset} were there")
        if self._same_file():
            return False
        if self._newer() is not None:
            return True
        if not self.path.exists() or self.path.stat().st_size >= HEADER_SIZE:
            raise FileRemoved(f"{self.path} was deleted or replaced while it was read")
        return False

    # ---------------------------------------------------------------------------------------- positions

    @property
    def position(self) -> Position | None:
        """Where reading goes on; None before the first file is there."""
        return None if self.header is None else Position(self.header.created_at, self._parser.checkpoint[0])

    @property
    def offset(self) -> int:
        """How far the file was read, unfinished messages not counted."""
        return self._parser.checkpoint[0]

    def seek(self, start: Start) -> None:
        """Go on from somewhere else."""
        self._start = start
        self.ended = False
        self.close()

    def close(self) -> None:
        """Let the file go. `read` would begin again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def open(self) -> bool:
        """Find where to begin, if that has not happened; False where there is no file yet.

        Raises:
            FileRemoved: the position is in a file that is not there any more, or beyond its end.
            NotAStreamFile: the file is something else.
        """
        return self._fd >= 0 or self._begin()

    def _begin(self) -> bool:
        files = segments(self.path)
        if not files:
            self._check_header()
            return False
        start = self._start
        self._until = None
        if isinstance(start, Position):
            self._open_position(files, start)
        elif isinstance(start, FromSequence | AfterTime):
            self._open_before(files, start)
        elif start == "end":
            self._open(files[-1][1], HEADER_SIZE)
            self._go_to_end()
        else:
            self._open(files[0][1], HEADER_SIZE)
        return True

    def _check_header(self) -> None:
        """A file without a readable header is either not written yet, or something else."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(HEADER_SIZE)
        except FileNotFoundError:
            return
        check_header(raw, self.path)

    def _open(self, file: Path, offset: int, *, resync: bool = False) -> None:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self.close()
        self._fd = fd
        self._wanted = 0
        self.header = Header.decode(os.pread(fd, HEADER_SIZE, 0), str(file))
        self._parser = Parser(
            self.header.beacon_interval, offset, keys=self._keys, hidden=self._hidden, make=self._make
        )
        self._parser.restart(offset, resync=resync)
        self._reported = -1

    def _go_to_end(self) -> None:
        assert self.header is not None
        size = os.fstat(self._fd).st_size
        try:
            tail = find_tail(self._fd, size, self.header.beacon_interval, str(self.path))
        except DamagedTail:
            self._parser.restart(size, resync=True)
        else:
            self._parser.restart(tail.end)

    def _open_position(self, files: list[tuple[int, Path]], position: Position) -> None:
        by_time = dict(files)
        if position.file not in by_time:
            if position.file > files[-1][0]:
                raise FileRemoved(f"{self.path}: the position is in a file of {position.file}, which is not there")
            # What was there has been deleted by rotation: the oldest that is left comes next.
            later = next(file for time, file in files if time > position.file)
            self._open(later, HEADER_SIZE)
            return
        self._open(by_time[position.file], position.offset)
        if os.fstat(self._fd).st_size < position.offset:
            raise FileRemoved(f"{self.path}: the position {position.offset} is beyond its end")

    def _open_before(self, files: list[tuple[int, Path]], target: FromSequence | AfterTime) -> None:
        """Open where no wanted message was passed yet, as near to the target as beacons tell."""
        self._until = _reaches(target)
        for _, file in reversed(files):
            self._open(file, HEADER_SIZE)
            if (at := self._beacon_before(target)) is not None:
                self._parser.restart(at, resync=True)
                return

    def _beacon_before(self, target: FromSequence | AfterTime) -> int | None:
        """The last beacon before which no message of the key reaches the target; only one key can be looked up."""
        assert self.header is not None
        if not isinstance(self._keys, Collection) or len(self._keys) != 1:
            return None
        (key,) = self._keys
        interval = self.header.beacon_interval
        reached = _reaches(target)
        for index in range(os.fstat(self._fd).st_size // interval, 0, -1):
            found = beacon_at(self._fd, index, interval)
            ours = [marker for marker in found[0].markers if marker.key == key] if found is not None else []
            if ours and not any(reached(marker) for marker in ours):
                return index * interval
        return None


def _reaches(target: FromSequence | AfterTime) -> Callable[[Any], bool]:
    """Whether a message, or what a beacon says of its stream, is at the target or behind it."""
    if isinstance(target, FromSequence):
        sequence = target.sequence
        return lambda message: bool(message.sequence >= sequence)
    timestamp = target.timestamp
    return lambda message: bool(message.timestamp > timestamp)


def read_stream(
    path: str | os.PathLike[str],
    start: Start = "beginning",
    *,
    keys: Callable[[str], bool] | Collection[str] | None = None,
) -> Iterator[Record]:
    """Every message from `start` to the present end, older files included.

    What is damaged is passed over; `check_file` tells what that was.

    Args:
        path: the current file.
        start: where to begin.
        keys: the streams that are wanted, all by default.

    Raises:
        NotAStreamFile: it is something else.
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """
    reader = StreamReader(path, start, keys=keys)
    try:
        if not reader.open():
            Header.decode(reader.path.read_bytes()[:HEADER_SIZE], str(reader.path))
        while found := reader.read():
            yield from found
    finally:
        reader.close()
