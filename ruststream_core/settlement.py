"""What becomes of a delivery: the outcomes that a handler may choose, and the verdicts that a transport sees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Final, TypeAlias

__all__ = [
    "ACK",
    "RELEASE",
    "Ack",
    "Drop",
    "FailFast",
    "Outcome",
    "Release",
    "Retry",
    "Skip",
    "Verdict",
    "strongest",
]


class Outcome(BaseException):
    """Returned or raised by a handler, as a class or as an instance.

    A `BaseException`, so that `except Exception` in a handler cannot turn a `Retry` into an ack.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Ack(Outcome):
    """Done: the broker may forget the message."""


class Skip(Outcome):
    """Nothing to do: acknowledged, and counted as skipped."""


class FailFast(Outcome):
    """The service cannot go on: the delivery is released and the app stops with exit code 1."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __repr__(self) -> str:
        return f"FailFast({self.reason!r})"


class Drop(Outcome):
    """Give the message up: to the broker's own dead letter where it has one, else it is discarded."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __repr__(self) -> str:
        return f"Drop({self.reason!r})"


class Retry(Outcome):
    """Deliver the message again, `after` that many seconds (at once when None).

    Raises:
        ValueError: `after` is negative or not finite.
    """

    def __init__(self, *, after: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason)
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not (seconds >= 0 and math.isfinite(seconds)):
            raise ValueError(f"Retry(after={after!r}): seconds must be finite and not negative")
        self.after: float | None = seconds
        self.reason = reason

    def __repr__(self) -> str:
        return f"Retry(after={self.after!r})"


class Release:
    """The runtime's own verdict: the message was not worked on and goes back as if it had never been fetched."""

    def __repr__(self) -> str:
        return "RELEASE"


Verdict: TypeAlias = Ack | Retry | Drop | Release
"""What a transport is asked to do. Test by type: `ACK` and `RELEASE` are the usual instances, not the only ones, and
`Watch.lost` is given the very object that `settle` was."""

ACK: Final = Ack()
RELEASE: Final = Release()

_STRENGTH: Final = (FailFast, Retry, Drop, Skip, Ack)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def strongest(group: BaseExceptionGroup[BaseException]) -> Outcome | None:
    """The outcome that a group counts as: FailFast over Retry over Drop over Skip over Ack.

    Returns:
        None where the group holds anything but outcomes: that is an error, not a choice.
    """
    outcomes = [leaf for leaf in _leaves(group) if isinstance(leaf, Outcome)]
    if len(outcomes) != sum(1 for _ in _leaves(group)):
        return None
    return min(outcomes, key=lambda outcome: next(i for i, kind in enumerate(_STRENGTH) if isinstance(outcome, kind)))
