"""Core subjects: what arrives waits in a bounded inbox, which `receive` empties."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ruststream_core import kit
from ruststream_core.abc import Clock, Demand, State, Subscription, SubscriptionStatistics, Watch
from ruststream_core.errors import RustStreamError, SettleError
from ruststream_core.kit import Inbox, Window
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Delivery, Headers
from ruststream_core_nats._convert import as_text, parse_headers
from ruststream_core_nats._sources import features_of
from ruststream_core_nats.config import CoreSubject, NATSSource

if TYPE_CHECKING:
    from ruststream_core_nats._wire import Listener, Wire

__all__ = ["CoreDelivery", "CoreSubscription", "NATSSubscription", "window_of"]

log = logging.getLogger("ruststream.nats")

WINDOW: Final = 1024
"""Most deliveries of a Core subject out where nobody says otherwise."""


def window_of(source: NATSSource, demand: Demand, default: int) -> int:
    """The window that was asked for, or one that holds the demand.

    Raises:
        ConfigError: what was asked for does not hold workers times batch.
    """
    asked = demand.prefetch if demand.prefetch is not None else source.window
    return kit.window_of(source.name, asked, workers=demand.workers, batch=demand.batch, default=default)


class CoreDelivery(msgspec.Struct, Delivery, gc=False, eq=False):
    """A message of a Core subject. There is nothing to settle: every verdict frees the window."""

    payload: bytes
    subject: bytes
    reply: bytes
    block: bytes
    window: Window | None
    lost: SettleError | None = None

    @property
    def name(self) -> str:
        """See `Delivery.name`."""
        return as_text(self.subject)

    @property
    def headers(self) -> Headers:
        """See `Delivery.headers`. Read when asked for, each time."""
        return parse_headers(self.block)

    @property
    def reply_to(self) -> str | None:
        """See `Delivery.reply_to`."""
        return as_text(self.reply) if self.reply else None

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `Delivery.settle`."""
        window = self.window
        if window is not None:
            self.window = None
            window.give()
        return None

    def transport(self, field: str) -> object:
        """`nats.subject`."""
        if field == "nats.subject":
            return self.name
        raise KeyError(field)


_OVER: Final = CoreDelivery(b"", b"", b"", b"", None)
"""In an inbox: the time for lingering is over."""


class NATSSubscription(Subscription):
    """What all kinds share: state, the books of the client, and what the connection tells."""

    def __init__(self, source: NATSSource, watch: Watch, window: int, pending: int, clock: Clock) -> None:
        self.source = source
        self._clock = clock
        self.features = features_of(source)
        self.window = window
        self._watch = watch
        self._room = Window(window)
        self._inbox: Inbox[Delivery] = Inbox(pending)
        self._listener: Listener | None = None
        self._failure: RustStreamError | None = None
        self._gathered: list[Delivery] = []
        """What a lingering `receive` has collected so far."""
        self.subjects: frozenset[str] = frozenset()
        """What the server was asked to send, in lower case as its errors have it."""
        self._state: State = "connecting"
        self._last: float | None = None
        self._released = 0
        self._discarded = 0
        self._closed = False

    def _tell(self, state: State, cause: BaseException | None = None) -> None:
        if state != self._state:
            self._state = state
            self._watch.state(state, cause)

    async def _collect(self, room: int, linger: float) -> list[Delivery]:
        """1 to `room` deliveries, in hand from now on; nothing at the end. Lingers on the clock."""
        while chunk := await self._inbox.get(room):
            self._room.take(len(chunk))
            if linger > 0 and len(chunk) < room:
                self._gathered = chunk
                await self._linger(chunk, room, linger)
                self._gathered = []
            if chunk:  # what was lost meanwhile is out of it
                self._last = time.monotonic()
                return chunk
        return chunk

    async def _linger(self, chunk: list[Delivery], room: int, seconds: float) -> None:
        # The end of the time comes through the inbox like a message, so that there is one thing to wait for.
        cancel = self._clock.call_later(seconds, lambda: self._inbox.put(_OVER))
        over = False
        while len(chunk) < room and not over and (more := await self._inbox.get(room - len(chunk))):
            over = _OVER in more
            came = [one for one in more if one is not _OVER]
            self._room.take(len(came))
            chunk += came
        if not over:
            cancel()
            self._forget_end()

    def _forget_end(self) -> None:
        """The time ended in the same turn as the collecting: take its mark out of the inbox again."""
        waiting = self._inbox.clear()
        for one in waiting:
            if one is not _OVER:
                self._inbox.put(one)

    @property
    def stopped(self) -> bool:
        """Whether it fetches no more."""
        return self._inbox.ended

    def _ended(self) -> bool:
        return self._inbox.ended

    def interrupted(self, cause: BaseException | None) -> None:
        """The connection is lost, and is being made again."""
        if not self.stopped:
            self._tell("interrupted", cause)

    def resumed(self) -> None:
        """The connection is there again, with all its listeners."""
        if not self.stopped:
            self._tell("receiving")

    def fail(self, error: RustStreamError) -> None:
        """End for good: what waits is still handed out, then `receive` raises."""
        if not self.stopped:
            self._failure = error
            self._inbox.fail(error)
            self._room.wake()
            self._tell("ended", error)

    def raise_failure(self) -> None:
        """Raise what it ended with, if it did."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """See `Subscription.stop`."""
        if not self.stopped:
            self._inbox.stop()
            self._room.wake()
            self._tell("ended")

    def statistics(self) -> SubscriptionStatistics:
        """See `Subscription.statistics`."""
        return SubscriptionStatistics(
            state=self._state,
            buffered=len(self._inbox),
            unsettled=self._room.out,
            released=self._released,
            discarded=self._discarded + self._inbox.refused + (0 if self._listener is None else self._listener.dropped),
            last_receive=self._last,
        )


class CoreSubscription(NATSSubscription):
    """One subject, or one member of a queue group."""

    source: CoreSubject

    def __init__(self, source: CoreSubject, demand: Demand, watch: Watch, clock: Clock) -> None:
        super().__init__(source, watch, window_of(source, demand, WINDOW), source.pending, clock)
        self._warned = False

    async def open(self, wire: Wire, subject: str) -> None:
        """Listen. Raises ConnectError or Closed."""
        self.subjects = frozenset({subject.lower()})
        self._wire = wire
        self._listener = await wire.listen(subject, self.source.queue_group or "", self._take)
        self._tell("receiving")

    def _take(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        if not self._inbox.put(CoreDelivery(payload, subject, reply, block, self._room)):
            self._refused()

    def _refused(self) -> None:
        if self._warned or self.stopped:
            return
        self._warned = True
        log.warning(
            "%r: %d messages wait already, further ones are dropped: handlers do not keep up. More workers, a larger"
            " pending= or a JetStream source would keep them (said once)",
            self.source.name,
            self._inbox.limit,
        )

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        """See `Subscription.receive`. One caller at a time."""
        room = await self._room.room(limit, self._ended)
        if not room:
            self._discarded += len(self._inbox.clear())
        return await self._collect(room or 1, linger)

    def stop(self) -> None:
        """See `Subscription.stop`. What waits in this process is discarded, and what is on its way."""
        super().stop()
        if self._listener is not None:
            self._listener.silence()

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`."""
        self.stop()
        if self._listener is not None:
            await self._await_last(max(grace, 0.1))
            self._listener.close()
        self._discarded += len(self._inbox.clear())

    async def _await_last(self, grace: float) -> None:
        """Return when what the server had sent is here, and so in the books. It sends no more after that."""
        if not self._wire.connected:
            return
        try:
            await self._wire.flush(grace)
        except RustStreamError as exc:
            log.debug("%r: what was on its way is not counted: %s", self.source.name, exc)
