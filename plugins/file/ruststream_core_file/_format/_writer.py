"""Appending to a stream file: one writer, whole messages, a crash cuts off at most what was not flushed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

from ruststream_core_file._format._composer import Composer
from ruststream_core_file._format._layout import (
    DEFAULT_INTERVAL,
    EOS,
    HEADER_SIZE,
    HEADER_START,
    INTERNAL_KEY,
    SIZE_LIMIT,
    Header,
)
from ruststream_core_file._format._numbering import Numbering
from ruststream_core_file._format._recover import find_tail
from ruststream_core_file._format._segments import (
    Rotation,
    archives,
    load_sequences,
    next_archive,
    save_sequences,
)
from ruststream_core_file.errors import FileLocked, FileTooLarge, StreamEnded

__all__ = ["Fsync", "StreamWriter", "now_ms", "open_locked"]

Fsync: TypeAlias = Literal["never", "each", "interval"]

NO_ROTATION: Final = Rotation()
EMPTY: Final = HEADER_SIZE + 7
"""Most bytes of a file without messages: with the smallest interval a beacon follows the header."""


def now_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class StreamWriter:
    """Writes one file, as the original would, byte for byte. Not safe for several threads at once.

    A new or empty file gets a header; an existing one is continued behind its last whole message: a torn message, or
    an end-of-stream message, is cut off. What `append` was given is in the file after `flush`.

    Args:
        path: links are followed; the lock and the rotation are of the real file.
        beacon_interval: of a new file; an existing one keeps its own.
        existing_only: refuse to create the file.
        fsync: never: a crash of the machine may lose what was flushed. each: after every flush. interval: at a flush
            when the last one is `fsync_interval` seconds ago, and at the end.
        size_limit: most bytes of the file.
        rotation: when to begin a new file.
        sync_rotated: fsync a file before the next one begins, for who does all other syncs on a thread.
        clock: the time in milliseconds, for headers and messages that bring none.

    Raises:
        FileLocked: another writer has it.
        NotAStreamFile: it is something else.
        DamagedTail: whole messages would be cut off.
        OSError: it cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        beacon_interval: int = DEFAULT_INTERVAL,
        existing_only: bool = False,
        fsync: Fsync = "never",
        fsync_interval: float = 1.0,
        size_limit: int = SIZE_LIMIT,
        rotation: Rotation = NO_ROTATION,
        sync_rotated: bool = False,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self.closed = False
        self._interval = beacon_interval
        self._fsync = fsync
        self._fsync_every = fsync_interval
        self._limit = size_limit
        self._rotation = rotation
        self._sync_rotated = sync_rotated or fsync != "never"
        self._clock = clock
        self._synced = time.monotonic()
        self._unsynced = False
        self._buffer = bytearray()
        self._fd = open_locked(self.path, create=not existing_only)
        try:
            self._enter()
        except BaseException:
            os.close(self._fd)
            raise

    # ------------------------------------------------------------------------------------------- opening

    def _enter(self) -> None:
        """Find the end, cut off what is behind it, and be ready to write there."""
        size = os.fstat(self._fd).st_size
        raw = os.pread(self._fd, HEADER_SIZE, 0)
        if size < HEADER_SIZE and HEADER_START.startswith(raw[: len(HEADER_START)]):
            self._create(load_sequences(self.path))
            return
        self.header = Header.decode(raw, str(self.path))
        interval = self.header.beacon_interval
        tail = find_tail(self._fd, size, interval, str(self.path))
        if tail.end < size:
            os.ftruncate(self._fd, tail.end)
        self._composer = Composer(interval, tail.end)
        self._composer.realign(self._buffer)
        self._numbering = Numbering(self._fd, tail.end, interval, load_sequences(self.path))
        # As the original: a file that holds no message yet counts as new.
        self._continues = tail.end != HEADER_SIZE
        self._flushed = tail.end
        self.flush()

    def _create(self, older: dict[tuple[str, int], int], *, after: int = 0) -> None:
        self.header = Header(
            file_name=self.path.name, created_at=max(self._clock(), after + 1), beacon_interval=self._interval
        )
        os.ftruncate(self._fd, 0)
        self._composer = Composer(self._interval)
        self._buffer += self._composer.begin(self.header)
        self._numbering = Numbering(self._fd, 0, self._interval, older)
        self._continues = False
        self._flushed = 0
        self.flush()

    # ------------------------------------------------------------------------------------------- writing

    @property
    def offset(self) -> int:
        """Where the next message begins, or the beacon before it."""
        return self._composer.offset

    @property
    def pending(self) -> int:
        """Bytes that wait for `flush`."""
        return len(self._buffer)

    def append(
        self, key: str, payload: bytes, shard: int = 0, *, sequence: int | None = None, timestamp: int | None = None
    ) -> int:
        """Add a message; it is written by the next `flush`.

        Args:
            key: at most 249 of `A-Z a-z 0-9 . _ -`.
            payload: any bytes.
            shard: the shard of the stream.
            sequence: else one more than the stream's highest, from 1.
            timestamp: milliseconds since the Unix epoch, else now.

        Returns:
            The sequence.

        Raises:
            FileTooLarge: it would not fit into the file.
            StreamEnded: after `close`.
            ValueError: the key, the timestamp or the payload's size cannot be written.
            OSError: a file that is full could not be rotated.
        """
        if self.closed:
            raise StreamEnded(f"{self.path}: the writer is closed")
        self._make_room(key, payload)
        if self._continues:
            self._continue(key, shard)
        number = self._numbering.next(key, shard) if sequence is None else sequence
        when = self._clock() if timestamp is None else timestamp
        self._composer.add(self._buffer, key, shard, number, when, payload)
        self._numbering.note(key, shard, number)
        return number

    def _continue(self, key: str, shard: int) -> None:
        state = self._numbering.seed(key, shard)
        if state is not None:
            self._composer.seed(key, shard, state)
        self._continues = False

    def _make_room(self, key: str, payload: bytes) -> None:
        end = self._composer.end_after(key, payload)
        rotation = self._rotation
        aged = rotation.age is not None and self._clock() - self.header.created_at >= rotation.age * 1000
        large = rotation.size is not None and end > rotation.size
        if (aged or large) and self._composer.offset > EMPTY:
            self.rotate()
            end = self._composer.end_after(key, payload)
        if end > self._limit:
            raise FileTooLarge(
                f"{self.path}: a message of {len(payload)} bytes would take it over its limit of {self._limit} bytes; "
                "rotate it, or set a higher limit"
            )

    def flush(self) -> None:
        """Write what was appended.

        Raises:
            OSError: nothing of it is in the file, and its sequences are given again.
        """
        try:
            self._write()
        except OSError:
            self._undo()
            raise
        due = self._fsync == "each" or (
            self._fsync == "interval" and time.monotonic() - self._synced >= self._fsync_every
        )
        if due and self._unsynced:
            self.sync()

    def _write(self) -> None:
        """Write what was appended. Where that fails, what was written of it is cut off, and all of it still waits."""
        if not self._buffer:
            return
        view = memoryview(self._buffer)
        at = self._flushed
        try:
            while view:
                written = os.pwrite(self._fd, view, at)
                view = view[written:]
                at += written
        except OSError:
            os.ftruncate(self._fd, self._flushed)
            raise
        finally:
            view.release()  # the traceback would keep it, and the buffer could not grow
        self._buffer = bytearray()
        self._flushed = at
        self._unsynced = True

    def _undo(self) -> None:
        """After a write that failed: forget what waited and go on behind the last whole message."""
        self._buffer = bytearray()
        if self._flushed:
            self._enter()

    @property
    def deleted(self) -> bool:
        """Whether the file has lost its name: what is written to it goes nowhere."""
        return os.fstat(self._fd).st_nlink == 0

    def duplicate(self) -> int:
        """A descriptor of the file for somebody else, to fsync it on a thread. Who gets it closes it."""
        return os.dup(self._fd)

    def sync(self) -> None:
        """Have what was flushed survive a crash of the machine.

        Raises:
            OSError: the device refused; what it holds is unknown.
        """
        os.fsync(self._fd)
        self._synced = time.monotonic()
        self._unsynced = False

    # ------------------------------------------------------------------------------------------ rotation, end

    def rotate(self) -> None:
        """Move the file aside and begin a new one. Sequences go on.

        Raises:
            OSError: the folder cannot be written; the file goes on as it was, and what was appended still waits.
        """
        self._write()
        if self._sync_rotated and self._unsynced:
            self.sync()
        older = self._numbering.all()
        save_sequences(self.path, older)
        draft = self.path.with_name(f".{self.path.name}.next")
        draft.unlink(missing_ok=True)
        former = self._fd, self.header, self._composer, self._numbering, self._continues, self._flushed
        archive = None
        self._fd = open_locked(draft, create=True)
        try:
            self._create(older, after=self.header.created_at)
            # A link first: at no moment is there no file under the name.
            os.link(self.path, aside := next_archive(self.path))
            archive = aside
            draft.replace(self.path)
        except BaseException:
            os.close(self._fd)
            self._fd, self.header, self._composer, self._numbering, self._continues, self._flushed = former
            for path in (draft, archive):
                if path is not None:
                    path.unlink(missing_ok=True)
            raise
        os.close(former[0])
        if self._rotation.keep is not None:
            for path in archives(self.path)[: -self._rotation.keep or None]:
                path.unlink()

    def close(self, *, eos: bool = False) -> None:
        """Flush, write the end-of-stream message where wanted, and let the file go. Idempotent.

        Raises:
            OSError: the rest could not be written; the file is let go all the same.
        """
        if self.closed:
            return
        self.closed = True
        try:
            if eos:
                self._composer.add(self._buffer, INTERNAL_KEY, 0, 0, self._clock(), EOS)
            self.flush()
            if self._fsync != "never" and self._unsynced:
                self.sync()
        finally:
            os.close(self._fd)


def open_locked(path: Path, *, create: bool) -> int:
    """Open for writing and lock; again where the file was replaced between the two."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            raise FileLocked(f"{path}: another writer has it; one process writes, any number read") from exc
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        os.close(fd)
