"""Standard input and output on threads: no pipe ever blocks the loop, and nothing of them keeps a process alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["LineReader", "LineWriter"]

BLOCK: Final = 64 * 1024
LONGEST: Final = 64 * 1024 * 1024
"""Bytes of a line; a longer one is given in pieces, so that memory stays flat."""
PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe which is ready takes without blocking."""


class _PipeThread:
    """A thread that waits for a descriptor, or for somebody who wakes it."""

    def __init__(self, fd: int, events: int, name: str) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(fd, events)
        self._poll.register(self._wake_read, select.POLLIN)
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        """Begin, unless the end came first."""
        if not self._stopped:
            self._thread.start()

    def stop(self) -> None:
        """Let the thread end soon."""
        self._stopped = True
        self._wake()

    async def aclose(self) -> None:
        """Let the thread end, and wait for it."""
        self.stop()
        if self._thread.ident is None:
            self._release()
        await asyncio.wait([self._gone])

    def _wake(self) -> None:
        if not self._gone.done():
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(self._wake_write, b"\0")

    def _ready(self) -> bool:
        """Wait; whether the descriptor is ready."""
        found = [fd for fd, _ in self._poll.poll()]
        if self._wake_read in found:
            os.read(self._wake_read, 4096)
        return self._fd in found and not self._stopped

    def _guarded(self) -> None:
        try:
            self._run()
        finally:
            if not self._call(self._release):
                self._close_pipe()

    def _call(self, function: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop was closed
            self._stopped = True
            return False
        return True

    def _release(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
            self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        raise NotImplementedError


class LineReader(_PipeThread):
    """Gives lines in chunks to the loop. Pauses while the loop has not taken the last chunk.

    Args:
        fd: where to read.
        lines: called on the loop with each chunk; returns whether there is room for more, else `resume` is awaited.
        end: called on the loop when nothing more comes.
    """

    def __init__(self, fd: int, lines: Callable[[list[bytes]], bool], end: Callable[[], None]) -> None:
        super().__init__(fd, select.POLLIN | select.POLLHUP, "stdin")
        self._lines = lines
        self._end = end
        self._room = threading.Event()

    def resume(self) -> None:
        """There is room again."""
        self._room.set()

    def stop(self) -> None:
        """See `_PipeThread.stop`."""
        self._stopped = True
        self._room.set()
        self._wake()

    def _run(self) -> None:
        rest = bytearray()
        while not self._stopped:
            if not self._ready():
                continue
            try:
                block = os.read(self._fd, BLOCK)
            except OSError:
                block = b""  # the terminal has gone
            if not block:
                break
            rest += block
            if b"\n" in block or len(rest) > LONGEST:
                self._give(rest)
        if rest and not self._stopped:
            self._hand([bytes(rest)])
        self._call(self._end)

    def _give(self, rest: bytearray) -> None:
        end = rest.rfind(b"\n") + 1 or len(rest)
        whole = bytes(rest[:end])
        del rest[:end]
        self._hand(whole.removesuffix(b"\n").split(b"\n"))

    def _hand(self, lines: list[bytes]) -> None:
        self._room.clear()
        if not self._stopped and self._call(lambda: self._take(lines)):
            self._room.wait()

    def _take(self, lines: list[bytes]) -> None:
        if self._lines(lines):
            self.resume()


class LineWriter(_PipeThread):
    """Writes lines in the order of the calls."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, select.POLLOUT | select.POLLERR, "stdout")
        self.broken: OSError | None = None
        """What ended it: whoever read has gone."""
        self._waiting: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._work = threading.Event()

    def write(self, line: bytes) -> asyncio.Future[None]:
        """The future ends when the system has the line, or with the OSError that keeps it from taking it."""
        future = self._loop.create_future()
        if self.broken is not None:
            future.set_exception(self.broken)
            return future
        self._waiting.append((line, future))
        self._work.set()
        return future

    async def drain(self, seconds: float | None = None) -> None:
        """Return when everything is written or cannot be, or when the time is over."""
        if pending := [future for _, future in tuple(self._waiting) if not future.done()]:
            await asyncio.wait(pending, timeout=seconds)

    def stop(self) -> None:
        """See `_PipeThread.stop`."""
        self._stopped = True
        self._work.set()
        self._wake()

    def _run(self) -> None:
        while not self._stopped:
            self._work.wait()
            self._work.clear()
            while self._waiting and not self._stopped:
                self._write_some()

    def _write_some(self) -> None:
        batch = list(self._waiting)
        data = memoryview(b"".join(line for line, _ in batch))
        try:
            while data and not self._stopped:
                if self._ready():
                    data = data[os.write(self._fd, data[:PIECE]) :]
        except OSError as exc:
            self.broken = exc
        error = self.broken
        if error is None and data:
            return  # stopped in the middle
        for _ in batch:
            self._waiting.popleft()
        self._call(lambda: _resolve([future for _, future in batch], error))


def _resolve(futures: list[asyncio.Future[None]], error: OSError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # nobody need await it
