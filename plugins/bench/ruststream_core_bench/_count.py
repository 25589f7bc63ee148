"""Instructions and allocations of a command, as a simulator or the processor counts them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ruststream_core.errors import RustStreamError

__all__ = ["Counter", "call", "counters", "per_message", "probe", "valgrind_version"]

Counter: TypeAlias = Callable[[Sequence[str], Path | None], int]
"""Runs a command and counts; the path is that of another checkout whose core is to be used."""

_COLLECTED: Final = re.compile(r"Collected : (\d+)")
_ALLOCATED: Final = re.compile(r"total heap usage: ([\d,]+) allocs")
_PERF: Final = re.compile(r"^(\d+),.*instructions", re.MULTILINE)


def probe(*arguments: object) -> list[str]:
    """The command of one probe; see `_probe`."""
    return [sys.executable, "-m", "ruststream_core_bench._probe", *map(str, arguments)]


def call(command: Sequence[str], checkout: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with fixed hashes and no writing of bytecode.

    Raises:
        RustStreamError: it failed; the end of what it wrote is shown.
    """
    variables = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"} | environment
    if checkout is not None:
        variables["PYTHONPATH"] = str(checkout)
    # The folder of the call comes first on the path of `python -m`, before PYTHONPATH.
    run = subprocess.run(command, env=variables, cwd=checkout, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RustStreamError(f"{' '.join(command)} failed:\n{run.stderr[-2000:]}")
    return run


def counters() -> Mapping[str, Counter]:
    """What can be counted here: `instructions`, `allocations`, both, or nothing."""
    found: dict[str, Counter] = {}
    if shutil.which("valgrind"):
        return {"instructions": _callgrind, "allocations": _memcheck}
    if _perf_works():
        found["instructions"] = _perf
    return found


def valgrind_version() -> str:
    """For the environment of the report."""
    return call(["valgrind", "--version"]).stdout.strip() if shutil.which("valgrind") else "not installed"


def per_message(counter: Counter, run: Callable[[int], Sequence[str]], messages: int, checkout: Path | None) -> float:
    """What one message costs: a run of twice as many less a run of so many, so that start and end cancel."""
    return (counter(run(2 * messages), checkout) - counter(run(messages), checkout)) / messages


def _callgrind(command: Sequence[str], checkout: Path | None) -> int:
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    return _figure(_COLLECTED, call([*valgrind, *command], checkout).stderr)


def _memcheck(command: Sequence[str], checkout: Path | None) -> int:
    # With every block from malloc, what the checker counts is what the interpreter asked for. Objects that it takes
    # from its own free lists are not asked for.
    valgrind = ["valgrind", "--tool=memcheck", "--leak-check=no", "--undef-value-errors=no"]
    return _figure(_ALLOCATED, call([*valgrind, *command], checkout, PYTHONMALLOC="malloc").stderr)


def _perf(command: Sequence[str], checkout: Path | None) -> int:
    return _figure(_PERF, call(["perf", "stat", "-x,", "-e", "instructions:u", *command], checkout).stderr)


def _perf_works() -> bool:
    """Virtual machines often have the program and no counters."""
    if not shutil.which("perf"):
        return False
    run = subprocess.run(
        ["perf", "stat", "-x,", "-e", "instructions:u", "true"],  # noqa: S607  from the PATH, as it was found
        capture_output=True,
        text=True,
        check=False,
    )
    return _PERF.search(run.stderr) is not None


def _figure(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    if found is None:
        raise RustStreamError(f"no figure in what the counting program said:\n{text[-2000:]}")
    return int(found[1].replace(",", ""))
