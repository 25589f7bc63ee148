"""Publishing: all senders of a process share one writer of a file, and what they send in one turn is one write."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from ruststream_core.abc import PublishOptions, Sender
from ruststream_core.errors import Closed, ConfigError, PublishError, RustStreamError
from ruststream_core.wire import Outgoing
from ruststream_core_file._convert import payload_of
from ruststream_core_file._format import StreamWriter
from ruststream_core_file._format._layout import INTERNAL_KEY
from ruststream_core_file.config import FileOptions, FileSettings
from ruststream_core_file.errors import FileLocked

__all__ = ["FileSender", "SharedWriter", "checked_options", "existing_writer", "writer_of"]

PIECE: Final = 1024 * 1024
"""Bytes after which `send_many` writes what it has and lets the loop have a turn."""
DEFAULTS: Final = FileOptions()

_WRITERS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, SharedWriter]] = WeakKeyDictionary()


class SharedWriter:
    """The one writer of a file in this process, and the confirmations that wait for its next write.

    Writing goes to the system's cache and happens on the loop; fsync happens on a thread, one at a time, and covers
    what was written before it began.
    """

    def __init__(self, path: Path, settings: FileSettings) -> None:
        self.settings = settings
        self.users = 0
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._waiting: list[asyncio.Future[None]] = []
        self._unsynced: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writer = StreamWriter(
            path,
            beacon_interval=settings.beacon_interval,
            existing_only=settings.existing_only,
            size_limit=settings.size_limit,
            rotation=settings.rotation,
            sync_rotated=settings.fsync != "never",
        )

    @property
    def place(self) -> tuple[int, int]:
        """The file and the offset up to which messages were given."""
        return self._writer.header.created_at, self._writer.offset

    def append(self, out: Outgoing, options: FileOptions) -> None:
        """Take a message. `confirmation` then gives what ends when it is written.

        Raises:
            PublishError: it cannot be written; nothing of it was.
        """
        if out.name == INTERNAL_KEY or not out.name:
            raise PublishError(f"{out.name!r} is no stream key for messages")
        own = out.options if out.options is not None else options
        if not isinstance(own, FileOptions):
            raise PublishError(f"file takes FileOptions, {out.name!r} was given {own!r}")
        try:
            self._writer.append(out.name, payload_of(out), own.shard, timestamp=own.timestamp)
        except PublishError:
            raise
        except (RustStreamError, ValueError, OSError) as exc:
            raise PublishError(f"{self._path}: {exc}") from exc

    def confirmation(self) -> asyncio.Future[None]:
        """A future of its own for what was taken last: it may be cancelled without disturbing another."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def flush(self) -> None:
        """Write what was taken, and confirm it or say that it failed."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._writer.flush()
        except OSError as exc:
            error = PublishError(f"{self._path}: {exc}")
            error.__cause__ = exc
            _fail(waiting, error)
            return
        if self._writer.deleted:
            _fail(waiting, PublishError(f"{self._path} was deleted or replaced while it was written; start again"))
            return
        if self.settings.fsync == "each":
            self._unsynced += waiting
            self._begin_sync()
            return
        _confirm(waiting)
        if self.settings.fsync == "interval" and self._timer is None:
            self._timer = self._loop.call_later(self.settings.fsync_interval, self._begin_sync)

    @property
    def pending(self) -> int:
        """Bytes that were taken and not written."""
        return self._writer.pending

    def _begin_sync(self) -> None:
        self._timer = None
        if self._syncing is None:
            self._syncing = self._loop.create_task(self._sync(), name="file-fsync")

    async def _sync(self) -> None:
        while True:
            waiting, self._unsynced = self._unsynced, []
            try:
                await self._loop.run_in_executor(None, _fsync, self._writer.duplicate())
            except OSError as exc:
                _fail(waiting, PublishError(f"{self._path}: it was written, and fsync failed: {exc}"))
            else:
                _confirm(waiting)
            if not self._unsynced:
                break
        self._syncing = None

    async def drain(self) -> None:
        """Return when what was taken is written, and synced where that is wanted."""
        self.flush()
        while (task := self._syncing) is not None:
            await asyncio.wait([task])

    async def release(self) -> None:
        """One user less; the last one closes the file.

        Raises:
            PublishError: the end of the file could not be written.
        """
        await self.drain()
        self.users -= 1
        if self.users:
            return
        _WRITERS[self._loop].pop(self._path, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with contextlib.suppress(OSError):
            if self.settings.fsync != "never":
                await self._loop.run_in_executor(None, _fsync, self._writer.duplicate())
        try:
            self._writer.close(eos=self.settings.end_with_eos)
        except OSError as exc:
            raise PublishError(f"{self._path}: {exc}") from exc


def _fsync(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _confirm(waiting: Sequence[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


def _fail(waiting: Sequence[asyncio.Future[None]], error: PublishError) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)
            future.exception()  # nobody need await it: a failure without a reader is not the loop's to report


def existing_writer(path: Path) -> SharedWriter | None:
    """The writer that this loop has open, where there is one."""
    return _WRITERS.get(asyncio.get_running_loop(), {}).get(path)


def writer_of(path: Path, settings: FileSettings) -> SharedWriter:
    """The writer of a file, opened by its first user. `release` gives it back.

    Raises:
        FileLocked: another process has it, or this one with other settings.
        ConfigError: it is no stream file, or cannot be created.
    """
    writers = _WRITERS.setdefault(asyncio.get_running_loop(), {})
    writer = writers.get(path)
    if writer is None:
        try:
            writer = writers[path] = SharedWriter(path, settings)
        except OSError as exc:
            raise ConfigError(f"{path} cannot be written: {exc}") from exc
    elif writer.settings != settings:
        raise FileLocked(f"{path} is open in this process with other settings: give both brokers the same")
    writer.users += 1
    return writer


class FileSender(Sender):
    """See `Sender`. The file is opened, and locked, by the first message.

    Args:
        path: the file.
        settings: how it is opened.
        options: for messages that bring none.
    """

    def __init__(self, path: Path, settings: FileSettings, options: FileOptions = DEFAULTS) -> None:
        self._path = path
        self._settings = settings
        self._options = options
        self._writer: SharedWriter | None = None
        self._closed = False

    def _opened(self) -> SharedWriter:
        if self._closed:
            raise Closed(f"the sender to {self._path} is closed")
        if self._writer is None:
            try:
                self._writer = writer_of(self._path, self._settings)
            except RustStreamError as exc:
                raise PublishError(str(exc)) from exc
        return self._writer

    def send(self, out: Outgoing) -> asyncio.Future[None]:
        """See `Sender.send`. Confirmed when it is in the file, and on the device where `fsync="each"`."""
        writer = self._writer or self._opened()
        writer.append(out, self._options)
        return writer.confirmation()

    async def send_many(self, outs: Sequence[Outgoing]) -> None:
        """See `Sender.send_many`. One write, and one fsync; a long batch is written in pieces of a megabyte."""
        writer = self._opened()
        failed: dict[int, BaseException] = {}
        pieces: list[tuple[asyncio.Future[None], list[int]]] = []
        taken: list[int] = []
        for index, out in enumerate(outs):
            try:
                writer.append(out, self._options)
            except PublishError as exc:
                failed[index] = exc
            else:
                taken.append(index)
            if taken and writer.pending > PIECE:
                pieces.append((writer.confirmation(), taken))
                taken = []
                await asyncio.sleep(0)
        if taken:
            pieces.append((writer.confirmation(), taken))
        for confirmed, indexes in pieces:
            await asyncio.wait([confirmed])
            if (error := confirmed.exception()) is not None:
                failed |= dict.fromkeys(indexes, error)
        if failed:
            raise PublishError(f"{len(failed)} of {len(outs)} messages were refused", failed=failed)

    async def flush(self) -> None:
        """See `Sender.flush`."""
        if self._writer is not None:
            await self._writer.drain()

    async def aclose(self, grace: float) -> None:
        """See `Sender.aclose`. The last sender of a file lets it go."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.release()


def checked_options(options: PublishOptions | None) -> FileOptions:
    """Options of a destination.

    Raises:
        ConfigError: they are another transport's.
    """
    if options is None:
        return DEFAULTS
    if not isinstance(options, FileOptions):
        raise ConfigError(f"file takes FileOptions, it was given {type(options).__name__}")
    return options
