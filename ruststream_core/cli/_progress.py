"""Progress of long work: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Final, TextIO

__all__ = ["Progress"]

BAR_EVERY: Final = 0.1
LINE_EVERY: Final = 5.0


class Progress:
    """Counts up to `total`, or without an end where that is None.

    Args:
        what: the noun that is counted.
        total: how many there will be.
        out: where to show it.
    """

    def __init__(self, what: str, total: int | None = None, out: TextIO | None = None) -> None:
        self.count = 0
        self.total = total
        self._what = what
        self._out = out or sys.stderr
        self._bar = self._out.isatty()
        self._began = self._shown = time.monotonic()

    def add(self, count: int = 1) -> None:
        """`count` more are done."""
        self.count += count
        now = time.monotonic()
        if now - self._shown >= (BAR_EVERY if self._bar else LINE_EVERY):
            self._shown = now
            self._show()

    def finish(self) -> None:
        """Show the end."""
        self._show()
        if self._bar:
            print(file=self._out)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """A second, since it began."""
        return self.count / max(self.seconds, 1e-9)

    def _show(self) -> None:
        text = f"{self.count:,} {self._what}, {self.rate:,.0f}/s"
        if self.total:
            text = f"{min(1.0, self.count / self.total):4.0%} {text}"
        if not self._bar:
            print(text, file=self._out, flush=True)
            return
        width = max(10, shutil.get_terminal_size().columns - len(text) - 4)
        full = int(width * min(1.0, self.count / self.total)) if self.total else 0
        print(f"\r[{'#' * full}{'.' * (width - full)}] {text}", end="", file=self._out, flush=True)
