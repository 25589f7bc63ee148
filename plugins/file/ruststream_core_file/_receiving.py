"""Receiving from something that is read ahead: the window, lingering, loss, the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from ruststream_core.abc import Clock, Features, State, Subscription, SubscriptionStatistics, Watch
from ruststream_core.errors import PluginError, RustStreamError, SettleError
from ruststream_core.wire import Delivery
from ruststream_core_file._convert import FileDelivery

__all__ = ["Feed", "Receiving"]


class Feed(Protocol):
    """What reads ahead."""

    error: BaseException | None
    """What ended it, where that was no plain end."""
    ended: bool
    """Nothing more comes but what is held."""

    @property
    def buffered(self) -> int:
        """Messages that are held."""

    def pop(self) -> tuple[int, list[FileDelivery]] | None:
        """The next messages, and the file that they are of. After None, it wakes the subscription once."""

    def stop(self) -> None:
        """Read no further."""

    async def aclose(self) -> None:
        """Read no further, and wait until that is so."""


class Receiving(Subscription):
    """The part of a subscription that does not care where its messages come from.

    Args:
        name: of the source, for errors.
        features: what the source can do.
        window: most deliveries out and unsettled.
        watch: the runtime.
        clock: what lingering runs on.
    """

    def __init__(self, name: str, features: Features, window: int, watch: Watch, clock: Clock) -> None:
        self.name = name
        self.features = features
        self.window = window
        self.out = 0
        self.blocked = False
        self._watch = watch
        self._clock = clock
        self._stopped = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._feed: Feed | None = None
        self._chunk: list[FileDelivery] = []
        self._file = 0
        self._at = 0
        self._hand: list[FileDelivery] = []
        self._state: State = "connecting"
        self._last: float | None = None
        self._released = 0

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        """See `Subscription.receive`. One caller at a time.

        Raises:
            RustStreamError: what ended the reading.
        """
        await asyncio.sleep(0)
        while not self._stopped:
            room = min(limit, self.window - self.out)
            if room > 0 and (part := self._take(room)):
                if linger > 0 and len(part) < limit:
                    await self._fill(part, limit, linger)
                self._last = time.monotonic()
                return part
            if room > 0 and self._over():
                break
            await self._wait(room)
        return ()

    def _take(self, room: int) -> list[FileDelivery]:
        at = self._at
        if at >= len(self._chunk):
            found = self._feed.pop() if self._feed is not None else None
            if found is None:
                return []
            self._file, self._chunk = found
            at = 0
        part = self._chunk[at : at + room]
        self._at = at + len(part)
        self._adopt(part)
        self._hand_out(part)
        return part

    def _adopt(self, part: list[FileDelivery]) -> None:
        """Make deliveries of what was read."""
        file = self._file
        for delivery in part:
            delivery.home = self
            delivery.file = file
            if delivery.payload.startswith(b"rs"):
                delivery.unseal()

    def _hand_out(self, part: list[FileDelivery]) -> None:
        self.out += len(part)
        # Whom a delivery belongs to is in the delivery; the list is only read at a seek, and swept now and then.
        if len(self._hand) > 2 * self.window:
            self._hand = [delivery for delivery in self._hand if delivery.home is self]
        self._hand += part

    def _over(self) -> bool:
        """Whether nothing more will come; raises what ended it."""
        if not self._dry():
            return False
        assert self._feed is not None
        error = self._feed.error
        self._tell("ended", error)
        if error is None:
            return True
        if isinstance(error, RustStreamError):
            raise error
        raise PluginError(f"{self.name!r} cannot be read any more: {error!r}") from error

    def _dry(self) -> bool:
        return self._feed is not None and self._feed.ended and not self._feed.buffered

    async def _wait(self, room: int) -> None:
        if self._waiter is not None:
            raise RuntimeError("receive is for one caller at a time")
        self.blocked = room <= 0
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None
            self.blocked = False

    def wake(self) -> None:
        """Let a waiting `receive` look again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _fill(self, part: list[FileDelivery], limit: int, linger: float) -> None:
        over = False

        def end() -> None:
            nonlocal over
            over = True
            self.wake()

        cancel = self._clock.call_later(linger, end)
        try:
            while not over and not self._stopped and (room := min(limit - len(part), self.window - self.out)) > 0:
                if more := self._take(room):
                    part += more
                elif self._dry():
                    return
                else:
                    await self._wait(room)
        finally:
            cancel()

    def stop(self) -> None:
        """See `Subscription.stop`."""
        if self._stopped:
            return
        self._stopped = True
        if self._feed is not None:
            self._feed.stop()
        self._tell("ended")
        self.wake()

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`. What is in hand is lost; where there is a group, it comes again."""
        self.stop()
        if self._closed:
            return
        self._closed = True
        feed, self._feed = self._feed, None
        self._let_go(feed)
        if feed is not None:
            await feed.aclose()
        self._lose_all(SettleError("the subscription was closed before the delivery was settled"))

    def _let_go(self, feed: Feed | None) -> None:
        """What was read and never handed out stays where it is."""
        self._released += len(self._chunk) - self._at + (0 if feed is None else feed.buffered)
        self._chunk, self._at = [], 0

    def _lose_all(self, error: SettleError) -> None:
        gone = [delivery for delivery in self._hand if delivery.home is self]
        self._hand = []
        for delivery in gone:
            delivery.home = None
            delivery.lost = error
        self.out -= len(gone)
        for delivery in gone:
            self._watch.lost(delivery, error, None)

    def _tell(self, state: State, cause: BaseException | None = None) -> None:
        if state != self._state:
            self._state = state
            self._watch.state(state, cause)

    def statistics(self) -> SubscriptionStatistics:
        """See `Subscription.statistics`."""
        feed = self._feed
        return SubscriptionStatistics(
            state=self._state,
            buffered=len(self._chunk) - self._at + (0 if feed is None else feed.buffered),
            unsettled=self.out,
            released=self._released,
            last_receive=self._last,
            lag=self._lag(),
        )

    def _lag(self) -> int | None:
        return None
