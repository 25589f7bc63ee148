"""A process and everything it started: some servers answer their clients from processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["GONE", "STOPPED", "family", "orphans", "send", "wait_until"]

GONE = "Z"
"""States of a process that will do nothing more."""
STOPPED = "TtZ"
"""States of a process that does nothing before it is told to go on."""

_PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all its descendants that live, parents before children."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for one in _table():
        if one.state not in GONE:
            children[one.parent].append(one.pid)
    found = [pid]
    for member in found:
        found.extend(children[member])
    return found


def orphans(leader: int) -> list[int]:
    """What lives of the process group of a leader that has ended."""
    table = [one for one in _table() if one.state not in GONE]
    # Once the group is empty its number may be given to a new process, which leads its own group then.
    reused = any(one.pid == leader for one in table)
    return [] if reused else [one.pid for one in table if one.group == leader]


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
    while other := {one.pid for one in _table() if one.state not in states}.intersection(pids):
        if time.monotonic() > limit:
            raise TimeoutError(f"processes {sorted(other)} still run {seconds:g} s after the signal")
        time.sleep(0.005)


class _Process(NamedTuple):
    pid: int
    state: str
    parent: int
    group: int


def _table() -> Iterator[_Process]:
    if not _PROC.joinpath("self", "stat").exists():
        yield from _ask_ps()
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in brackets may itself hold blanks and brackets.
                state, parent, group = entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
                yield _Process(int(entry.name), state, int(parent), int(group))


def _ask_ps() -> Iterator[_Process]:
    command = ["ps", "-A", "-o", "pid=,state=,ppid=,pgid="]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        pid, state, parent, group = line.split()
        yield _Process(int(pid), state[0], int(parent), int(group))
