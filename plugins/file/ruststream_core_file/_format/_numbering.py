"""Which sequence comes next, in a file that an earlier writer began."""

from __future__ import annotations

from ruststream_core_file._format._composer import StreamState
from ruststream_core_file._format._layout import Record
from ruststream_core_file._format._recover import last_marker, last_messages
from ruststream_core_file._format._segments import Sequences

__all__ = ["Numbering"]


class Numbering:
    """The highest sequence of each stream. Looked up when a stream is first written, from its last beacon on.

    Args:
        fd: the file.
        end: where its messages end that an earlier writer wrote; 0 for a new file.
        interval: its beacon interval.
        older: the highest sequences of the files before it.
    """

    def __init__(self, fd: int, end: int, interval: int, older: Sequences) -> None:
        self.known: Sequences = {}
        self._fd = fd
        self._end = end
        self._interval = interval
        self._older = older
        self._last: dict[tuple[str, int], Record] | None = None if end else {}

    def next(self, key: str, shard: int) -> int:
        """The next sequence of a stream, from 1."""
        stream = key, shard
        highest = self.known.get(stream)
        if highest is None:
            highest = max(self._in_file(key, shard), self._older.get(stream, 0))
        return highest + 1

    def note(self, key: str, shard: int, sequence: int) -> None:
        """A message was written."""
        stream = key, shard
        self.known[stream] = max(sequence, self.known.get(stream, 0))

    def all(self) -> Sequences:
        """The highest sequence of every stream in this file and those before."""
        found = dict(self._older)
        for stream, record in self._everything().items():
            found[stream] = max(record.sequence, found.get(stream, 0))
        return found | self.known

    def seed(self, key: str, shard: int) -> StreamState | None:
        """What the original begins a stream's beacon state with when that stream is the first it writes.

        The running checksum goes on from the stream's last message, not from all its messages; other streams begin
        anew.
        """
        newest = None if self._last is not None else last_marker(self._fd, self._end, self._interval, key, shard)
        if newest is None:
            record = self._everything().get((key, shard))
        else:
            # From a beacon that does not count the last message yet, so that reading on meets it.
            before = last_marker(self._fd, self._end, self._interval, key, shard, below=newest[1].sequence)
            start = before[0] if before else 0
            record = last_messages(self._fd, start, self._end, self._interval, key).get((key, shard))
        if record is None:
            return None
        return StreamState(record.sequence, record.timestamp, record.checksum)

    def _in_file(self, key: str, shard: int) -> int:
        newest = None if self._last is not None else last_marker(self._fd, self._end, self._interval, key, shard)
        if newest is None:
            record = self._everything().get((key, shard))
            return record.sequence if record else 0
        start, marker = newest
        later = last_messages(self._fd, start, self._end, self._interval, key).get((key, shard))
        return max(marker.sequence, later.sequence if later else 0)

    def _everything(self) -> dict[tuple[str, int], Record]:
        """A stream that no beacon names may still be there: the file is read once, as a whole."""
        if self._last is None:
            self._last = last_messages(self._fd, 0, self._end, self._interval)
        return self._last
