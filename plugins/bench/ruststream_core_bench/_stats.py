"""Rounds to figures, figures to verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

__all__ = ["LEAST_ROUNDS", "Judgement", "Spread", "Verdict", "judge", "spread"]

LEAST_ROUNDS: Final = 3
"""Fewer say nothing about how much rounds differ."""

Verdict = Literal["indistinguishable", "slower", "faster", "incomplete"]
"""How a loop compares with the raw one. `incomplete`: it was interrupted before enough rounds were run."""


class Spread(msgspec.Struct, frozen=True):
    """What the rounds of one loop gave. Higher is better."""

    best: float
    median: float
    worst: float


class Judgement(msgspec.Struct, frozen=True):
    """One loop against the raw one."""

    verdict: Verdict
    percent: float | None
    """More time per message than the raw loop's best, in percent; negative where it is faster. None where the
    rounds do not tell the two apart: a figure there would be read as a result."""


def spread(rates: Sequence[float]) -> Spread:
    """Best, median and worst of at least one round."""
    return Spread(round(max(rates), 1), round(statistics.median(rates), 1), round(min(rates), 1))


def judge(raw: Spread, other: Spread, rounds: int) -> Judgement:
    """Compare the best rounds; a difference within the wider of the two spreads is none.

    Args:
        raw: the loop that everything is compared with.
        other: the loop to judge, in the same unit.
        rounds: how many rounds each of them ran.
    """
    if rounds < LEAST_ROUNDS:
        return Judgement("incomplete", None)
    if abs(raw.best - other.best) <= max(raw.best - raw.worst, other.best - other.worst):
        return Judgement("indistinguishable", None)
    percent = round((raw.best / other.best - 1) * 100, 1)
    return Judgement("slower" if percent > 0 else "faster", percent)
