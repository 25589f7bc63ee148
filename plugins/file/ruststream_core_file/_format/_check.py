"""Looking a whole file over, and saving what can be read of a damaged one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ruststream_core_file._format._composer import Composer, StreamState
from ruststream_core_file._format._crc import crc16
from ruststream_core_file._format._layout import HEADER_SIZE, Beacon, Header, Record
from ruststream_core_file._format._parser import Damage, Parser
from ruststream_core_file._format._recover import BLOCK, records
from ruststream_core_file._format._writer import open_locked

__all__ = ["Report", "check_file", "repair"]


class Report(msgspec.Struct, kw_only=True):
    """What is in a file."""

    header: Header
    messages: int = 0
    """Those that can be read, the end-of-stream message included."""
    beacons: int = 0
    eos: bool = False
    """Whether it ends with the end-of-stream message."""
    size: int = 0
    whole: int = 0
    """Bytes up to the end of the last whole message and the beacon behind it."""
    damages: list[Damage]
    """What is not as it was written: messages or beacons lost, and those that can be read all the same."""
    torn: int = 0
    """Bytes behind the last whole message, where the file ends inside one."""
    deviations: list[Damage]
    """What the original would not have written but reads: beacons that do not tell what stands before them. A file
    that was continued by a second writer has them, because the original begins its sums anew."""

    @property
    def good(self) -> bool:
        """Whether everything can be read."""
        return not self.damages and not self.torn


class _Checker:
    """Holds beacons against the messages before them."""

    def __init__(self, report: Report, interval: int) -> None:
        self.report = report
        self.interval = interval
        self.states: dict[tuple[str, int], StreamState] = {}
        self._waiting: list[tuple[int, Beacon]] = []

    def beacon(self, at: int, beacon: Beacon) -> None:
        """A beacon was read; the message that it cuts counts in it and comes later."""
        self.report.beacons += 1
        self._waiting.append((at, beacon))

    def message(self, record: Record) -> None:
        """A message was read, behind all beacons that stand before its end."""
        self.flush(record.start)
        stream = record.key, record.shard
        state = self.states.setdefault(stream, StreamState(record.sequence, record.timestamp))
        state.sequence = max(state.sequence, record.sequence)
        state.timestamp = max(state.timestamp, record.timestamp)
        state.running = crc16(record.checksum.to_bytes(2), state.running)

    def flush(self, before: int | None) -> None:
        """Check the beacons at or before an offset."""
        ready = [pair for pair in self._waiting if before is None or pair[0] <= before]
        self._waiting = self._waiting[len(ready) :]
        for at, beacon in ready:
            for marker in beacon.markers:
                state = self.states.get((marker.key, marker.shard))
                said = (marker.sequence, marker.timestamp, marker.running)
                if state is None or said != (state.sequence, state.timestamp, state.running):
                    self.report.deviations.append(
                        Damage(at, f"what the beacon says of {marker.key!r}, shard {marker.shard}, is not so")
                    )


def check_file(path: str | os.PathLike[str]) -> Report:
    """Read one file as a whole and say what is in it. Takes no lock, changes nothing, needs little memory.

    Raises:
        NotAStreamFile: it has no header that can be read.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = Header.decode(os.pread(fd, HEADER_SIZE, 0), str(path))
        report = Report(header=header, size=os.fstat(fd).st_size, damages=[], deviations=[])
        if not header.padded:
            report.deviations.append(Damage(0, "the header is not padded with zeros and ended by 0x0D"))
        checker = _Checker(report, header.beacon_interval)
        parser = Parser(header.beacon_interval, hidden=True, beacons=checker.beacon)
        report.whole = HEADER_SIZE
        for record in records(fd, parser, report.size):
            checker.message(record)
            report.messages += 1
            report.whole = record.end
        checker.flush(None)
        _conclude(report, parser)
        return report
    finally:
        os.close(fd)


def _conclude(report: Report, parser: Parser) -> None:
    report.eos = parser.ended
    seen: dict[int, Damage] = {}
    for damage in parser.damages:
        seen.setdefault(damage.offset, damage)
    report.damages = list(seen.values())
    if report.eos:
        if report.size > report.whole:
            report.deviations.append(Damage(report.whole, "bytes follow the end-of-stream message; nobody reads them"))
    elif parser.torn:
        report.torn = report.size - report.whole
    else:
        report.whole = report.size


def repair(path: str | os.PathLike[str], into: str | os.PathLike[str] | None = None) -> Report:
    """Make a file good again.

    Args:
        path: the damaged file.
        into: a new file, which gets every message that can be read, with its own sequence and time. Without it the
            file itself is cut off behind the last whole message before the first damage: what stands behind is gone.

    Returns:
        What was found in the damaged file.

    Raises:
        FileExistsError: `into` is there already.
        FileLocked: somebody writes to it.
        NotAStreamFile: it has no header that can be read.
        OSError: it cannot be read or written.
    """
    source = Path(os.path.realpath(path))
    fd = open_locked(source, create=False)
    try:
        report = check_file(source)
        if into is not None:
            _copy(fd, report, Path(into))
        elif not report.good:
            os.ftruncate(fd, _end_before_damage(fd, report))
            os.fsync(fd)
        return report
    finally:
        os.close(fd)


def _end_before_damage(fd: int, report: Report) -> int:
    interval = report.header.beacon_interval
    parser = Parser(interval, hidden=True)
    end = HEADER_SIZE
    for record in records(fd, parser, report.size):
        if parser.damages and record.start >= parser.damages[0].offset:
            break
        end = record.end
    return end


def _copy(fd: int, report: Report, target: Path) -> None:
    composer = Composer(report.header.beacon_interval)
    out = bytearray(composer.begin(msgspec.structs.replace(report.header, file_name=target.name)))
    parser = Parser(report.header.beacon_interval, hidden=True)
    with target.open("xb") as file:
        for record in records(fd, parser, report.size):
            composer.add(out, record.key, record.shard, record.sequence, record.timestamp, record.payload)
            if len(out) > BLOCK:
                file.write(out)
                out.clear()
        file.write(out)
        file.flush()
        os.fsync(file.fileno())
