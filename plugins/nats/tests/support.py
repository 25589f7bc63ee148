"""What the tests share: a watch that remembers, messages, and waiting for something to become true."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from ruststream_core.abc import State, Subscription
from ruststream_core.errors import SettleError
from ruststream_core.settlement import ACK, Verdict
from ruststream_core.wire import NO_HEADERS, Delivery, Headers, Outgoing

_numbers = itertools.count(1)


def fresh(word: str = "t") -> str:
    """A name that no other test uses."""
    return f"{word}{next(_numbers)}x{id(_numbers) % 10_000}"


class Watcher:
    """A `Watch` that remembers what it was told."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.causes: list[BaseException | None] = []
        self.losses: list[tuple[Delivery, SettleError, Verdict | None]] = []
        self._news = asyncio.Event()

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        self.losses.append((delivery, error, verdict))
        self._news.set()

    def state(self, state: State, cause: BaseException | None) -> None:
        self.states.append(state)
        self.causes.append(cause)
        self._news.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Return when it holds; looked at whenever something was told."""
        while not holds():
            self._news.clear()
            await self._news.wait()


def out(payload: bytes, to: str, headers: Headers = NO_HEADERS, options: Any = None) -> Outgoing:
    """A message."""
    return Outgoing(payload, to, headers, options=options)


async def take(subscription: Subscription, count: int) -> list[Delivery]:
    """That many deliveries, unsettled."""
    taken: list[Delivery] = []
    while len(taken) < count:
        chunk = await subscription.receive(count - len(taken))
        assert chunk, "the subscription ended"
        taken += chunk
    return taken


async def acked(subscription: Subscription, count: int) -> list[bytes]:
    """The payloads of that many deliveries, acknowledged."""
    deliveries = await take(subscription, count)
    for delivery in deliveries:
        waiting = delivery.settle(ACK)
        if waiting is not None:
            await waiting
    return [delivery.payload for delivery in deliveries]


async def within(seconds: float, holds: Callable[[], object]) -> None:
    """Return when it holds. A limit, so that a failure is told, not a time that is asserted."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
