"""When to look into a table again."""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import Final

from ruststream_core.abc import Clock
from ruststream_core.kit import LoopClock

__all__ = ["Hub", "Pace", "Wake"]

MOST_TIMES: Final = 10_000
EARLY: Final = 0.002
"""Seconds that a timer may fire before the database's own clock says the same."""


class Wake:
    """Whoever polls waits here: for news, for a row of this process that comes due, or for the poll's turn.

    Args:
        clock: the time that delays run on.
        poll: seconds between two looks, spread over the upper half.
    """

    def __init__(self, clock: Clock, poll: float) -> None:
        self._clock = clock
        self._poll = poll
        # A clock that a test moves is the database's own.
        self._early = EARLY if isinstance(clock, LoopClock) else 0.0
        self._permit = False
        self._due: list[float] = []
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """There is news. Kept for the next who waits, where nobody does now."""
        self._permit = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def after(self, delay: float) -> None:
        """A row comes due in `delay` seconds."""
        if len(self._due) < MOST_TIMES:
            heapq.heappush(self._due, self._clock.time() + delay + self._early)

    async def wait(self) -> None:
        """Return when it is worth looking again."""
        if not self._permit:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            cancel = self._clock.call_later(self._seconds(), lambda: _let_go(waiter))
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                cancel()
        self._permit = False

    def _seconds(self) -> float:
        poll = self._poll * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret
        now = self._clock.time()
        while self._due and self._due[0] <= now:
            heapq.heappop(self._due)
        return poll if not self._due else min(poll, self._due[0] - now)


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Hub:
    """Wakes the subscriptions of this process when it publishes itself, and on notifications."""

    def __init__(self) -> None:
        self._wakes: dict[str, dict[str | None, set[Wake]]] = {}

    def join(self, table: str, queue: str | None, wake: Wake) -> None:
        """Have `wake` set at news of that queue."""
        self._wakes.setdefault(table, {}).setdefault(queue, set()).add(wake)

    def leave(self, table: str, queue: str | None, wake: Wake) -> None:
        """Not any more."""
        queues = self._wakes.get(table, {})
        queues.get(queue, set()).discard(wake)
        if not queues.get(queue):
            queues.pop(queue, None)

    def news(self, table: str, queue: str | None = None) -> None:
        """Rows were added to a queue; to any of the table where it is not said."""
        queues = self._wakes.get(table)
        if not queues:
            return
        chosen = queues.values() if queue is None else (queues.get(queue, ()), queues.get(None, ()))
        for wakes in chosen:
            for wake in wakes:
                wake.set()

    def all(self) -> None:
        """Whatever came while nobody listened: everyone looks once."""
        for table in self._wakes:
            self.news(table)


class Pace:
    """How many rows to claim at once.

    Read ahead about a quarter of a second of work: few rows while handlers are slow, so that other processes get
    theirs, many while they are fast, so that a statement carries many.
    """

    AHEAD: Final = 0.25

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._size = least
        self._since = 0.0
        self._done = 0

    @property
    def size(self) -> int:
        """Rows for the next claim."""
        return self._size

    def claimed(self, now: float, done: int) -> None:
        """A claim is made at `now`; `done` deliveries were settled up to here, ever."""
        elapsed = now - self._since
        if elapsed < self.AHEAD / 10:
            return
        rate = (done - self._done) / elapsed
        self._since, self._done = now, done
        self._size = max(self._least, min(self._most, int(rate * self.AHEAD), self._size * 4))
