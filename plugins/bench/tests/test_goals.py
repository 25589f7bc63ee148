"""Goals are judged by the figures that they name."""

from __future__ import annotations

import pytest

from ruststream_core_bench._goals import GOALS, Outcome, judge_goals
from ruststream_core_bench._results import PackageResult


def _of(outcomes: list[Outcome], title: str) -> Outcome:
    return next(outcome for outcome in outcomes if outcome.goal.title.en == title)


def test_microseconds_over_raw(sample: list[PackageResult]) -> None:
    """100,000 against 90,000 a second are 1.11 microseconds more, which is too much."""
    outcome = _of(judge_goals(sample), "typed handler that acks, over raw")
    assert outcome.value == pytest.approx(10 / 9)
    assert outcome.state == "not reached"


def test_indistinguishable_counts_as_reached(sample: list[PackageResult]) -> None:
    """That is the goal itself."""
    outcome = _of(judge_goals(sample), "Core NATS: service over raw")
    assert (outcome.value, outcome.state) == (0.0, "reached")


def test_at_least(sample: list[PackageResult]) -> None:
    """Ten times as fast as the peer is less than the twelve that are wanted."""
    outcome = _of(judge_goals(sample), "Core NATS, times FastStream")
    assert (outcome.value, outcome.state) == (10.0, "not reached")


def test_nothing_measured() -> None:
    """Without results no goal counts as reached."""
    assert [outcome.state for outcome in judge_goals([])] == ["not measured"] * len(GOALS)
