"""What handlers did, written where no crash of theirs reaches it: one line for each message, in a file.

Imports nothing of the project: services under test that are processes of their own take it along.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Entry", "Ledger"]


class Entry(NamedTuple):
    """One handling of one message."""

    number: int
    attempt: int
    pid: int
    at: float
    """`time.monotonic()`, which all processes of a machine share."""


class Ledger:
    """An append-only file that several processes write, each line at once. The kernel keeps it when they are killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._read = 0
        self._entries: list[Entry] = []
        self._started: list[Entry] = []

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def write(self, number: int, attempt: int) -> None:
        """Note that a message was handled."""
        os.write(self._file, b"%d %d %d %.6f\n" % (number, attempt, os.getpid(), time.monotonic()))

    def entries(self) -> list[Entry]:
        """All of them so far, in the order of their writing."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            number, attempt, pid, at = line.split()
            entry = Entry(int(number), int(attempt), int(pid), float(at))
            (self._entries if entry.number else self._started).append(entry)
        return self._entries

    def begin(self) -> None:
        """Note that this process is ready to handle messages."""
        self.write(0, 0)

    def processes(self, since: float = 0.0) -> list[int]:
        """The processes that became ready after a moment."""
        self.entries()
        return [entry.pid for entry in self._started if entry.at >= since]

    def handled(self) -> set[int]:
        """The numbers that occur."""
        return {entry.number for entry in self.entries()}

    def missing(self, numbers: Iterable[int]) -> set[int]:
        """Those of `numbers` that were never handled."""
        return set(numbers) - self.handled()

    def again(self) -> list[Entry]:
        """Every handling of a message but its first."""
        seen: Counter[int] = Counter()
        again = []
        for entry in self.entries():
            seen[entry.number] += 1
            if seen[entry.number] > 1:
                again.append(entry)
        return again

    def first_after(self, moment: float) -> float | None:
        """When the first message after a moment was handled."""
        return next((entry.at for entry in self.entries() if entry.at >= moment), None)
