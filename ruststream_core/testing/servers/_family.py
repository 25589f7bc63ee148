"""A process and everything it started: some servers answer their clients from processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["GONE", "STOPPED", "family", "send", "wait_until"]

GONE = "Z"
"""States of a process that will do nothing more."""
STOPPED = "TtZ"
"""States of a process that does nothing before it is told to go on."""

_PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all its descendants that live, parents before children."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for child, parent, state in _table():
        if state not in GONE:
            children[parent].append(child)
    found = [pid]
    for member in found:
        found.extend(children[member])
    return found


def send(pids: Sequence[int], signum: int) -> None:
    """Send a signal to each; one that has ended meanwhile is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def wait_until(pids: Sequence[int], states: str, seconds: float) -> None:
    """Wait until each of the processes is in one of the states, or is no more.

    Raises:
        TimeoutError: One of them is in another state after so many seconds.
    """
    limit = time.monotonic() + seconds
    while other := {pid for pid, _, state in _table() if state not in states}.intersection(pids):
        if time.monotonic() > limit:
            raise TimeoutError(f"processes {sorted(other)} still run {seconds:g} s after the signal")
        time.sleep(0.005)


def _table() -> Iterator[tuple[int, int, str]]:
    if not _PROC.joinpath("self", "stat").exists():
        yield from _ask_ps()
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in brackets may itself hold blanks and brackets.
                state, parent = entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                yield int(entry.name), int(parent), state


def _ask_ps() -> Iterator[tuple[int, int, str]]:
    command = ["ps", "-A", "-o", "pid=,ppid=,state="]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        pid, parent, state = line.split()
        yield int(pid), int(parent), state[0]
