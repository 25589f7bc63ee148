"""Counting, and the comparison with another revision."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ruststream_core.errors import ConfigError, RustStreamError
from ruststream_core_bench._code import Change, Effort, counted, regressions, worktree
from ruststream_core_bench._count import call, counters, per_message, probe


def test_difference_cancels_the_start() -> None:
    """A fixed cost of start and end is not part of what a message costs."""

    def counter(command: Sequence[str], checkout: Path | None) -> int:
        return 1_000_000 + 10 * int(command[0])

    assert per_message(counter, lambda messages: [str(messages)], 64, None) == 10


@pytest.mark.parametrize(
    ("metric", "before", "now", "worse"),
    [
        ("instructions", 10_000, 10_200, False),
        ("instructions", 10_000, 10_201, True),
        ("instructions", 10_000, 9_000, False),
        ("allocations", 10.1, 10.3, False),
        ("allocations", 10.1, 11.1, True),
    ],
)
def test_what_counts_as_worse(metric: str, before: float, now: float, worse: bool) -> None:
    """More than 2 % instructions, or one allocation; amortised fractions of one are no regression."""
    change = Change("consume", metric, before, now)
    assert (regressions([change]) == [change]) == worse


def test_probe_runs_a_loop() -> None:
    """What is counted is a process that does one loop and says nothing."""
    assert call(probe("run", "memory", "consume", "framework", 64)).stdout == ""


def test_a_failing_probe_says_why() -> None:
    """The end of its traceback is in the error."""
    with pytest.raises(RustStreamError, match="StopIteration"):
        call(probe("run", "memory", "no-such-scenario", "raw", 64))


def test_memory_probe() -> None:
    """It prints what the report needs."""
    figures = json.loads(call(probe("flat", 20_000)).stdout)
    assert set(figures) == {"kept", "resident_before", "resident_after"}


def test_in_flight_probe() -> None:
    """A waiting handler holds its payload object at least."""
    assert json.loads(call(probe("in-flight", 100)).stdout) > 100


def test_counting_follows_the_work() -> None:
    """Ten times the objects are ten times the allocations; where nothing can be counted, that is said."""
    found = counters()
    if not found:
        with pytest.raises(ConfigError, match="install valgrind"):
            counted(Effort(messages=64, only="consume"), lambda _: None)
        return

    def run(messages: int) -> Sequence[str]:
        return [sys.executable, "-S", "-c", f"kept = [object() for _ in range({10 * messages})]"]

    costs = {metric: per_message(counter, run, 1000, None) for metric, counter in found.items()}
    assert costs["instructions"] > 100
    # The objects themselves, and the numbers of the range beyond the cached ones.
    assert 10 <= costs.get("allocations", 10) <= 21


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)  # noqa: S607


def test_worktree_of_a_revision(tmp_path: Path) -> None:
    """The other revision's files, while the context lasts, and nothing of it left in the repository afterwards."""
    _git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("old")
    _git(tmp_path, "add", "file")
    _git(tmp_path, "commit", "-q", "-m", "old")
    (tmp_path / "file").write_text("new")
    with worktree(tmp_path, "HEAD") as tree:
        assert (tree / "file").read_text() == "old"
    assert not tree.exists()
    assert list((tmp_path / ".git" / "worktrees").glob("*")) == []


def test_worktree_of_nothing(tmp_path: Path) -> None:
    """Outside a repository git's own words are shown."""
    with pytest.raises(ConfigError, match="git rev-parse"), worktree(tmp_path, "HEAD"):
        pass
