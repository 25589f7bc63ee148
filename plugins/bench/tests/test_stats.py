"""Figures and verdicts: what the whole report rests on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core_bench._measure import calibrate
from ruststream_core_bench._scenario import Stopwatch
from ruststream_core_bench._stats import Spread, judge, spread


def test_spread_of_rounds() -> None:
    """Rates: the highest is the best."""
    assert spread([90.0, 100.0, 95.0]) == Spread(100.0, 95.0, 90.0)


@pytest.mark.parametrize(
    ("raw", "other", "verdict", "percent"),
    [
        (Spread(100, 99, 98), Spread(80, 79, 78), "slower", 25.0),
        (Spread(100, 99, 98), Spread(125, 124, 123), "faster", -20.0),
        (Spread(100, 99, 98), Spread(98, 97, 96), "indistinguishable", None),
        (Spread(100, 90, 70), Spread(80, 79, 78), "indistinguishable", None),
        (Spread(100, 99, 98), Spread(80, 60, 55), "indistinguishable", None),
    ],
)
def test_verdicts(raw: Spread, other: Spread, verdict: str, percent: float | None) -> None:
    """A difference within the wider spread of the two loops is no result, and has no percentage."""
    judgement = judge(raw, other, 3)
    assert (judgement.verdict, judgement.percent) == (verdict, percent)


def test_two_rounds_prove_nothing() -> None:
    """An interrupted scenario is shown as such, however clear it looks."""
    judgement = judge(Spread(100, 99, 98), Spread(50, 49, 48), 2)
    assert (judgement.verdict, judgement.percent) == ("incomplete", None)


rates = st.lists(st.floats(1, 1e7), min_size=3, max_size=9)


@given(rates, rates)
def test_percent_exactly_where_there_is_a_verdict(raw: list[float], other: list[float]) -> None:
    """Never a percentage with `indistinguishable`, always one without, and its sign is the verdict's."""
    judgement = judge(spread(raw), spread(other), len(raw))
    assert (judgement.percent is None) == (judgement.verdict == "indistinguishable")
    if judgement.verdict == "faster":
        assert judgement.percent is not None
        assert judgement.percent <= 0


def _machine(overhead: float, per_message: float) -> tuple[Callable[[int], float], list[int]]:
    asked: list[int] = []

    def seconds(count: int) -> float:
        asked.append(count)
        return overhead + count * per_message

    return seconds, asked


@given(
    overhead=st.floats(0, 0.1),
    per_message=st.floats(1e-7, 1e-2),
    target=st.floats(0.5, 10),
    step=st.sampled_from([1, 64, 1000]),
)
def test_calibrated_count_lasts(overhead: float, per_message: float, target: float, step: int) -> None:
    """On a machine that is steady apart from a fixed start, the count lasts and is a multiple of the step."""
    seconds, asked = _machine(overhead, per_message)
    count = calibrate(seconds, target, step=step)
    assert count % step == 0
    # The fixed start is part of what was measured: a tenth of a second in a fifth of the target at most.
    assert count * per_message >= target - overhead / 0.2
    assert len(asked) < 12


def test_calibration_stops_at_the_most() -> None:
    """A loop that is never slow enough ends with the most messages instead of never."""
    seconds, asked = _machine(0, 1e-12)
    assert calibrate(seconds, 5, step=64, most=64_000) == 64_000
    assert max(asked) <= 64_000


def test_stopwatch_adds_up() -> None:
    """Scenarios stop it while they publish the next slab."""
    watch = Stopwatch()
    with watch:
        pass
    first = watch.wall
    with watch:
        sum(range(1000))
    assert watch.wall > first > 0
    assert watch.cpu >= 0
