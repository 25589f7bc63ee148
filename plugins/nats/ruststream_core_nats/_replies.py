"""One wildcard subject for everything that this connection waits for: answers, acknowledgements, confirmations."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from ruststream_core.abc import Clock

__all__ = ["Answered", "Expected", "Replies", "Reply"]


class Expected(Protocol):
    """Somebody who waits."""

    def answered(self, subject: bytes, payload: bytes, block: bytes) -> None:
        """The answer came."""

    def expired(self) -> None:
        """It did not come in time."""

    def cut(self, error: BaseException) -> None:
        """It will not come: the connection is closed."""


class Replies:
    """Subjects of their own for single answers, and their time limits: one timer for all of them.

    Args:
        prefix: what these subjects begin with, its last dot included.
        clock: what the limits run on.
    """

    def __init__(self, prefix: str, clock: Clock) -> None:
        self.prefix = prefix.encode()
        self._skip = len(self.prefix)
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, tuple[Expected, float]] = {}
        self._clock = clock
        self._due = math.inf
        self._cancel: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, who: Expected, seconds: float) -> bytes:
        """A subject for one answer, for so many seconds."""
        token = b"%d" % next(self._numbers)
        due = self._clock.time() + seconds
        self._waiting[token] = (who, due)
        if due < self._due:
            self._arm(due, seconds)
        return self.prefix + token

    def forget(self, subject: bytes) -> None:
        """Nobody waits for that one any more."""
        self._waiting.pop(subject[self._skip :], None)

    def take(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        """A `Sink`: what arrives on the subjects. What nobody waits for is dropped, a second answer for example."""
        if (found := self._waiting.pop(subject[self._skip :], None)) is not None:
            found[0].answered(subject, payload, block)

    def _arm(self, due: float, seconds: float) -> None:
        self._disarm()
        self._due = due
        self._cancel = self._clock.call_later(max(0.0, seconds), self._sweep)

    def _disarm(self) -> None:
        self._due = math.inf
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def _sweep(self) -> None:
        self._cancel = None
        self._due = math.inf
        now = self._clock.time()
        late = [token for token, (_, due) in self._waiting.items() if due <= now]
        for token in late:
            self._waiting.pop(token)[0].expired()
        if self._waiting:
            due = min(due for _, due in self._waiting.values())
            if due < self._due:
                self._arm(due, due - now)

    def cut(self, error: BaseException) -> None:
        """Nothing more will come."""
        waiting, self._waiting = self._waiting, {}
        for who, _ in waiting.values():
            who.cut(error)
        self._disarm()


class Reply(msgspec.Struct, frozen=True):
    """An answer as it came."""

    subject: bytes
    payload: bytes
    block: bytes


class Answered:
    """An `Expected` that is a future: ends with the reply, or with TimeoutError, or with what cut it."""

    def __init__(self, late: Callable[[], TimeoutError]) -> None:
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._late = late

    def answered(self, subject: bytes, payload: bytes, block: bytes) -> None:
        """See `Expected.answered`."""
        if not self.future.done():
            self.future.set_result(Reply(subject, payload, block))

    def expired(self) -> None:
        """See `Expected.expired`."""
        self.cut(self._late())

    def cut(self, error: BaseException) -> None:
        """See `Expected.cut`."""
        if not self.future.done():
            self.future.set_exception(error)
