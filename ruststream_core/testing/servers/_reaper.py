"""Ends the servers of a test process that was killed before it could do so itself.

The kernel's own means, a signal at the parent's death, is tied to the *thread* that started the child: a server
started in a worker thread would die with that thread. Instead one small process, started as a script with the first
server, reads a pipe. The pipe ends with the test process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable

__all__ = ["Reaper"]


class Reaper:
    """The test process's side of the pipe."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the reaper if there is none; before the first server, so that none is ever without it."""
        with self._lock:
            self._running()

    def watch(self, pid: int, folder: str) -> None:
        """End the process group `pid` and remove `folder` should this process die without `forget`."""
        self._tell(f"watch {pid} {folder}")

    def forget(self, pid: int) -> None:
        """The process has ended and been waited for: its number may soon be somebody else's."""
        self._tell(f"forget {pid}")

    def close(self) -> None:
        """End the reaper; what is still watched ends with it."""
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            child.communicate()

    def _tell(self, line: str) -> None:
        # It is a safety net: somebody who killed it has lost that, not the test.
        with self._lock, contextlib.suppress(BrokenPipeError):
            child = self._running()
            assert child.stdin is not None
            child.stdin.write(line + "\n")
            child.stdin.flush()

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None or self._owner != os.getpid():
            self._owner = os.getpid()
            # Apart from the terminal: its Ctrl-C must not end the reaper before the work is done.
            command = [sys.executable, "-I", "-S", __file__]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        return self._child


def _serve(lines: Iterable[str]) -> None:
    watched: dict[int, str] = {}
    for line in lines:
        word, pid, *folder = line.rstrip("\n").split(" ", 2)
        if word == "watch":
            watched[int(pid)] = folder[0]
        else:
            watched.pop(int(pid), None)
    for left, place in watched.items():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(left, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    _serve(sys.stdin)
