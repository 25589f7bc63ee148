"""Receiving: the window, lingering, loss, the end, and the faults that a test injects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from ruststream_core import kit
from ruststream_core.abc import Demand, State, Subscription, SubscriptionStatistics, Unit, Watch
from ruststream_core.errors import ConfigError, ConnectError, Revoked, SettleError, Superseded
from ruststream_core.memory._config import MemorySource, features_of
from ruststream_core.memory._delivery import MemoryDelivery
from ruststream_core.memory._sinks import Feed, Group
from ruststream_core.memory._store import Store
from ruststream_core.memory._unit import MemoryUnit
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Delivery

__all__ = ["GroupSubscription", "LogSubscription", "MemorySubscription", "QueueSubscription"]

WINDOW: Final = 1024
"""Most deliveries out where nobody says otherwise."""


class MemorySubscription(Subscription):
    """One open source.

    Raises:
        ConfigError: the window that was asked for does not hold workers times batch, or the source is open with
            other settings.
    """

    def __init__(self, source: MemorySource, demand: Demand, watch: Watch, store: Store) -> None:
        self.source = source
        self.features = features_of(source)
        self.window = _window(source, demand)
        self.out = 0
        self.blocked = False
        self.stopped = False
        self._watch = watch
        self._store = store
        self._feed: Feed = store.feed(source)
        self._waiter: asyncio.Future[None] | None = None
        self._hand: list[MemoryDelivery] = []
        self._held: MemoryDelivery | None = None
        self._state: State = "receiving"
        self._released = 0
        self._last: float | None = None
        self._open = True
        self._feed.members.append(self)
        store.subscriptions.append(self)
        watch.state("receiving", None)

    # ------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        """See `Subscription.receive`. One caller at a time."""
        await asyncio.sleep(0)
        while not self.stopped:
            room = min(limit, self.window - self.out)
            if room > 0 and (chunk := self._take(room)):
                if self._wayward:
                    chunk = await self._misbehave(chunk)
                if linger > 0 and len(chunk) < limit and chunk:
                    await self._fill(chunk, limit, linger)
                if chunk:
                    self._last = time.monotonic()
                    return chunk
            else:
                await self._wait(room)
        return ()

    def _take(self, room: int) -> list[MemoryDelivery]:
        feed = self._feed
        chunk = feed.take(room)
        for delivery in chunk:
            delivery.home = self
        self.out += len(chunk)
        # Whom a delivery belongs to is in the delivery; the list is only read at the end, and swept now and then.
        if len(self._hand) > 2 * self.window:
            self._hand = [delivery for delivery in self._hand if delivery.home is self]
        self._hand += chunk
        if feed.waiting and feed.lag:
            feed.wake()
        return chunk

    async def _wait(self, room: int) -> None:
        if self._waiter is not None:
            raise RuntimeError("receive is for one caller at a time")
        self.blocked = room <= 0
        if room > 0:
            self._feed.waiting.append(self)
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None
            self.blocked = False
            if room > 0 and self in self._feed.waiting:
                self._feed.waiting.remove(self)

    def wake(self) -> bool:
        """Let a waiting `receive` look again; False where none waits."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False
        waiter.set_result(None)
        return True

    async def _fill(self, chunk: list[MemoryDelivery], limit: int, linger: float) -> None:
        over = False

        def end() -> None:
            nonlocal over
            over = True
            self.wake()

        cancel = self._store.timers.later(linger, end)
        try:
            while not over and not self.stopped and (room := min(limit - len(chunk), self.window - self.out)) > 0:
                if more := self._take(room):
                    chunk += await self._misbehave(more) if self._wayward else more
                else:
                    await self._wait(room)
        finally:
            cancel()

    def stop(self) -> None:
        """See `Subscription.stop`."""
        if self.stopped:
            return
        self.stopped = True
        if self._held is not None:
            held, self._held = self._held, None
            self._return(held)
        self._tell("ended", None)
        self.wake()

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`. What is in hand is lost and comes again, counted."""
        self.stop()
        if not self._open:
            return
        self._detach()
        for delivery in self._hand:
            if delivery.home is self:
                self.lose(delivery, Revoked("the subscription was closed before the delivery was settled"))
        self._hand = []

    def forsake(self) -> None:
        """The loop has gone and nobody will settle what is in hand: it comes again."""
        self.stopped = True
        self._waiter = None
        self._detach()
        for delivery in self._hand:
            if delivery.home is self:
                delivery.home = None
                self._feed.bring_back(delivery, counted=True)
        self._hand = []

    def _detach(self) -> None:
        self._open = False
        self._feed.members.remove(self)
        self._store.subscriptions.remove(self)
        self._feed.wake()

    def statistics(self) -> SubscriptionStatistics:
        """See `Subscription.statistics`. What a lingering `receive` has collected counts as unsettled."""
        return SubscriptionStatistics(
            state=self._state,
            unsettled=self.out,
            released=self._released,
            last_receive=self._last,
            lag=self._feed.lag,
        )

    def _tell(self, state: State, cause: BaseException | None) -> None:
        self._state = state
        self._watch.state(state, cause)

    # -------------------------------------------------------------------------------------------------- settling

    def end(self, delivery: MemoryDelivery, verdict: Verdict) -> None:
        """See `Home.end`."""
        self._feed.end(delivery, verdict)

    def lose(self, delivery: MemoryDelivery, error: SettleError, verdict: Verdict | None = None) -> None:
        """See `Home.lose`."""
        self._forget(delivery)
        delivery.lost = error
        self._feed.bring_back(delivery, counted=True)
        self._watch.lost(delivery, error, verdict)

    def _forget(self, delivery: MemoryDelivery) -> None:
        delivery.home = None
        self.out -= 1
        if self.blocked:
            self.wake()

    def supersede(self, error: SettleError) -> list[MemoryDelivery]:
        """Let everything in hand go for good. What had been handed out is returned, to be told as lost."""
        gone = [delivery for delivery in self._hand if delivery.home is self]
        for delivery in gone:
            self._forget(delivery)
            delivery.lost = error
        held, self._held, self._hand = self._held, None, []
        self._released += held is not None
        return [delivery for delivery in gone if delivery is not held]

    def tell_lost(self, delivery: MemoryDelivery, error: SettleError) -> None:
        """Tell the runtime."""
        self._watch.lost(delivery, error, None)

    def _return(self, delivery: MemoryDelivery) -> None:
        self._forget(delivery)
        self._released += 1
        self._feed.bring_back(delivery, counted=False)

    # ---------------------------------------------------------------------------------------------------- faults

    @property
    def _wayward(self) -> bool:
        return bool(self._store.faults.left) or self._held is not None

    async def _misbehave(self, chunk: list[MemoryDelivery]) -> list[MemoryDelivery]:
        faults = self._store.faults
        out: list[MemoryDelivery] = []
        held_before = self._held
        for taken in chunk:
            delivery = taken
            if faults.use("disconnect"):
                await self._blink()
            if faults.use("duplicate"):
                self._feed.bring_back(delivery, counted=False)
            if faults.use("crash_before_settle"):
                delivery = self._feed.crashing(taken)
                self._hand[self._hand.index(taken)] = delivery
            if self._held is None and faults.use("reorder"):
                self._held = delivery
                continue
            out.append(delivery)
            held, self._held = self._held, None
            if held is not None and held is held_before:
                self._return(held)  # one more in this chunk could exceed the limit: it comes next instead
            elif held is not None:
                out.append(held)
        return out

    async def _blink(self) -> None:
        self._tell("interrupted", ConnectError("disconnect was injected"))
        await asyncio.sleep(0)
        if not self.stopped:
            self._tell("receiving", None)


class _Transactional(MemorySubscription):
    async def begin(self, deliveries: Sequence[Delivery]) -> Unit:
        """See `Transactions.begin`."""
        return MemoryUnit(self._store)


class QueueSubscription(_Transactional):
    """Receives from a queue."""


class LogSubscription(MemorySubscription):
    """Reads a log for itself."""

    _feed: Group

    def position(self, delivery: Delivery) -> int:
        """See `Positioned.position`: the number of the message in its log, from 0."""
        return cast("MemoryDelivery", delivery).order

    async def seek(self, position: Any) -> None:
        """Go on from a position, `"earliest"` or `"latest"`; with a group, for all its members.

        A position that is no longer kept counts as the oldest that is.

        Raises:
            ConfigError: no such position.
        """
        log = self._feed.log
        target = log.position_of(position)
        if target is None or not 0 <= target <= log.end:
            raise ConfigError(
                f"{self.source.name!r}: cannot seek to {position!r}; 'earliest', 'latest' or 0 to {log.end} is accepted"
            )
        error = Superseded(f"{self.source.name!r} was moved to position {target}")
        superseded = [(member, delivery) for member in self._feed.members for delivery in member.supersede(error)]
        self._feed.seek(target)
        for member, delivery in superseded:
            member.tell_lost(delivery, error)

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`."""
        await super().aclose(grace)
        self._feed.log.forget(self._feed)


class GroupSubscription(LogSubscription, _Transactional):
    """Reads a log as a member of a group."""


def _window(source: MemorySource, demand: Demand) -> int:
    asked = demand.prefetch if demand.prefetch is not None else source.window
    return kit.window_of(source.name, asked, workers=demand.workers, batch=demand.batch, default=WINDOW)
