"""Waiting for a file to change: inotify where the platform has it, and a backed-off poll as the floor everywhere."""

from __future__ import annotations

import contextlib
import functools
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["FileWatcher"]

MODIFIED: Final = 0x002
ATTRIBUTES: Final = 0x004
MOVED_TO: Final = 0x080
CREATED: Final = 0x100
DELETED: Final = 0x200
MOVED_SELF: Final = 0x800
FILE_EVENTS: Final = MODIFIED | ATTRIBUTES | MOVED_SELF
FOLDER_EVENTS: Final = MOVED_TO | CREATED | DELETED
NONBLOCKING_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC

POLL_FIRST: Final = 0.001
POLL_MOST: Final = 0.1
"""Seconds between two looks where nothing tells of changes."""
FLOOR: Final = 2.0
"""Seconds after which a look is taken although nothing was told: network file systems tell nothing."""


@functools.cache
def _libc() -> Any:
    """The C library with inotify, or None."""
    import ctypes  # noqa: PLC0415  a service that only writes does without

    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.inotify_init1.argtypes = [ctypes.c_int]
        libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        return libc
    return None


class FileWatcher:
    """Used by one thread, which waits, and by others, which wake it.

    Args:
        path: the file; it need not exist.
        inotify: whether to try it.
    """

    def __init__(self, path: Path, *, inotify: bool = True) -> None:
        self._path = path
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._delay = POLL_FIRST
        self._watches: set[int] = set()
        self._inotify = -1
        libc = _libc() if inotify else None
        if libc is not None:
            self._inotify = libc.inotify_init1(NONBLOCKING_CLOEXEC)
        if self._inotify >= 0:
            self._poll.register(self._inotify, select.POLLIN)

    def wait(self, seconds: float | None = None) -> None:
        """Return when something may have changed, or somebody woke us. Changes since the last call count."""
        fresh = self._arm()
        if fresh is True:
            return  # what happened before the watch was there would go unnoticed
        timeout = FLOOR if fresh is False else self._delay
        self._delay = min(POLL_MOST, self._delay * 2)
        ready = self._poll.poll(1000 * min(timeout, FLOOR if seconds is None else seconds))
        for fd, _ in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 65_536)

    def moved(self) -> None:
        """Something had changed: look soon again."""
        self._delay = POLL_FIRST

    def _arm(self) -> bool | None:
        """Watch the file and its folder: True where a watch is new, None where there is nothing to watch with."""
        if self._inotify < 0:
            return None
        add: Callable[[int, bytes, int], int] = _libc().inotify_add_watch
        folder = add(self._inotify, os.fsencode(self._path.parent), FOLDER_EVENTS)
        file = add(self._inotify, os.fsencode(self._path), FILE_EVENTS)
        if folder < 0:
            return None
        watches = {folder, file}
        fresh = watches != self._watches
        self._watches = watches
        return fresh

    def wake(self) -> None:
        """Let `wait` return. From any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Let the descriptors go; nobody may wait or wake any more."""
        for fd in (self._wake_read, self._wake_write, self._inotify):
            if fd >= 0:
                os.close(fd)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
