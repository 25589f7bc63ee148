"""Reading ahead: a thread that parses whole blocks while the loop handles what it parsed before."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ruststream_core_file._format import StreamReader
from ruststream_core_file._watch import FileWatcher

__all__ = ["ReadAhead"]

log = logging.getLogger("ruststream.file")

ROOM: Final = 8
"""Blocks that are held parsed: two megabytes, or one message where that is larger."""
QUANTUM: Final = 4
"""Blocks after which a loop that waits is told. Threads take turns; with fewer, these cost more than the parsing."""


class ReadAhead:
    """Parses ahead of the loop, within a bound, and waits at the end of the file for more.

    Args:
        reader: is used by the thread alone from now on.
        news: called on the loop when it had found nothing and something came, or reading ended.
    """

    def __init__(self, reader: StreamReader, news: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        """What ended the reading, where that was no end of the file."""
        self.ended = False
        """Nothing more comes but what is held."""
        self.place: tuple[int, int] = (0, 0)
        """The file, and the offset in it up to which messages were read."""
        self._reader = reader
        self._news = news
        self._ready: deque[tuple[int, list[Any]]] = deque()
        self._hungry = False
        self._stopped = False
        self._room = threading.Event()
        self._watcher = FileWatcher(reader.path)
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=f"read-ahead-{reader.path.name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------ on the loop

    def pop(self) -> tuple[int, list[Any]] | None:
        """The next messages, and the file that they are of. After None, `news` is called once."""
        self._hungry = False
        if not self._ready:
            self._hungry = True
            if not self._ready:  # looked at again: the thread may have put and not have seen that we wait
                return None
            self._hungry = False
        found = self._ready.popleft()
        self._room.set()
        return found

    @property
    def buffered(self) -> int:
        """Messages that are held."""
        return sum(len(messages) for _, messages in tuple(self._ready))

    def stop(self) -> None:
        """End the thread soon."""
        if not self._stopped:
            self._stopped = True
            self._room.set()
            if not self._gone.done():
                self._watcher.wake()

    async def aclose(self) -> None:
        """End the thread and wait for its end."""
        self.stop()
        await asyncio.wait([self._gone])

    def _finish(self) -> None:
        """On the loop: the thread has done its last."""
        self._watcher.close()
        self._gone.set_result(None)
        self._news()

    # ---------------------------------------------------------------------------------- on the thread

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as exc:
            self.error = exc
        finally:
            self._reader.close()
            self.ended = True
            if not self._call(self._finish):
                self._watcher.close()

    def _read(self) -> None:
        reader, ready, untold = self._reader, self._ready, 0
        while not self._stopped:
            found = reader.read()
            if reader.damages:
                self._report()
            header = reader.header
            if found and header is not None:
                ready.append((header.created_at, found))
                untold += 1
            if header is not None:
                self.place = (header.created_at, reader.offset)
            if self._hungry and ready and (untold >= QUANTUM or not found):
                self._hungry = False
                untold = 0
                self._call(self._news)
            if reader.ended:
                return
            if not found:
                self._watcher.wait()
            elif len(ready) >= ROOM:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        while len(self._ready) >= ROOM and not self._stopped:
            self._room.clear()
            if len(self._ready) >= ROOM and not self._stopped:
                self._room.wait()

    def _report(self) -> None:
        for damage in self._reader.damages:
            log.warning("%s: damaged at offset %d: %s", self._reader.path, damage.offset, damage.reason)
        self._reader.damages.clear()

    def _call(self, function: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop was closed and nobody waits for us any more
            self._stopped = True
            return False
        return True
