"""What is in this process of a stream: taken in, handed out, settled, kept alive meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ruststream_core.abc import Clock, Demand, Watch
from ruststream_core.errors import ConfigError, LeaseLost, SettleError
from ruststream_core.settlement import ACK, Ack, Drop, Verdict
from ruststream_core.wire import Delivery
from ruststream_core_nats._convert import AckAddress
from ruststream_core_nats._delivery import NAK, WORKING, StreamDelivery, body_of
from ruststream_core_nats._manage import Consumer, Manager
from ruststream_core_nats._subscription import NATSSubscription, window_of
from ruststream_core_nats.config import JetStream

if TYPE_CHECKING:
    from ruststream_core_nats._wire import Wire

__all__ = ["QUARTERS", "Link", "StreamSubscription"]

log = logging.getLogger("ruststream.nats")

WINDOW: Final = 256
"""Most deliveries of a consumer in this process, fetched ones included, where nobody says otherwise."""
UNASKED: Final = 32_768
"""Messages that a push consumer without `max_ack_pending` may send ahead; further ones go back to it."""
QUARTERS: Final = 4
"""Turns in one ack_wait: what is in hand for a whole turn is renewed in the next, at half of its time at the latest."""


class Link(msgspec.Struct, frozen=True):
    """What a subscription needs of its connection."""

    wire: Wire
    manager: Manager
    confirm: Callable[[bytes, bytes], Awaitable[object]]
    """Sends to an address and waits for the server's answer; raises TimeoutError or Closed."""
    inbox: Callable[[], str]
    """A new subject that nobody else listens on."""
    clock: Clock
    """What all timers run on."""


class StreamSubscription(NATSSubscription):
    """What came of one consumer, as far as it does not matter how it was asked for.

    Subclasses put messages in by `_arrived`, and ask for more in `_sync` and `_sync_some`.
    """

    source: JetStream

    def __init__(self, source: JetStream, demand: Demand, watch: Watch, link: Link, consumer: Consumer) -> None:
        window = _window(source, demand, consumer)
        # Twice: what was asked for before an outage may still come after it.
        pending = 2 * ((consumer.max_ack_pending or UNASKED) if source.push else window)
        super().__init__(source, watch, window, pending, link.clock)
        self.consumer = consumer
        self._link = link
        self._wire = link.wire
        self._held: dict[StreamDelivery, None] = {}
        """Everything that is in this process, handed out or not."""
        self._owed: set[int] = set()
        """Stream sequences that were given back and have not come again."""
        self._late: list[tuple[StreamDelivery, Verdict]] = []
        """Settled while there was no connection, and not known to have left."""
        self._online = True
        self._receiving = False
        self._seen = 0
        self._missed = 0
        self._turn = 0
        self._newest = b""
        self._known = 0
        """Up to this sequence a message may come again and be counted as new: servers before 2.9.12 do so after an
        outage."""
        self._first = b"\x00"
        """What the address of a message begins with that is delivered for the first time by this consumer."""
        self._timers: dict[str, Callable[[], None]] = {}
        self._check: asyncio.Task[None] | None = None
        self._confirming: set[asyncio.Task[None]] = set()
        self._settles = self.features.settles
        self._start: int | None = None
        """Where the next consumer begins, if this one has to be made again."""
        self._remaking = False
        self._wanted = False
        """The consumer has to be looked after."""
        self._renew = False
        self._early: list[StreamDelivery] = []
        """Came while a consumer was being made: one that pushes sends before its creation is answered."""

    # ------------------------------------------------------------------------------------------- for subclasses

    def _sync(self) -> None:
        """Ask for what there is room for; the server may have forgotten earlier requests."""

    def _lease(self) -> float:
        """Seconds that the server waits for a settlement, the shortest of them."""
        steps = self.consumer.config.get("backoff") or ()
        return min([self.consumer.ack_wait, *(float(step) / 1e9 for step in steps)])

    def _every(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._clock.call_later(seconds, run)
            work()

        self._timers[name] = self._clock.call_later(seconds, run)

    # ------------------------------------------------------------------------------------------------ receiving

    def _arrived(self, subject: bytes, address: bytes, payload: bytes, block: bytes) -> None:
        self._seen += 1
        delivery = StreamDelivery(payload, subject, address, block, self, self._turn)
        if address.startswith(self._first):
            self._newest = address
        elif not self._unusual(delivery):
            return
        if self._inbox.put(delivery):
            self._held[delivery] = None
        else:
            self._give_back(delivery)

    def _unusual(self, delivery: StreamDelivery) -> bool:
        """A repetition, the first message of a consumer, or one of a consumer that is gone; whether to hand it out."""
        found = AckAddress.parse(delivery.address)
        if found is None or found.consumer != self.consumer.name:
            if self._remaking:
                self._early.append(delivery)
            return False
        if found.delivered == 1 and found.stream_sequence > self._known:
            self._newest = delivery.address
            # The five numbers are the end of either form, an account's token may follow them in one.
            tokens = delivery.address.split(b".")
            self._first = b".".join(tokens[: 4 if len(tokens) == 9 else 6]) + b".1."
            return True
        self._owed.discard(found.stream_sequence)
        if (known := self._in_hand(found.stream_sequence)) is None:
            return True
        if not self.source.in_progress:
            self._lose(known, LeaseLost(f"{self.source.name!r}: ack_wait passed and the server delivered it again"))
            return True
        # The server's time for it ran out in an outage. It is still being worked on here, and an acknowledgement by
        # the new address is as good: nobody needs to do it twice.
        known.address = delivery.address
        return False

    def _in_hand(self, sequence: int) -> StreamDelivery | None:
        for delivery in self._held:
            found = AckAddress.parse(delivery.address)
            if found is not None and found.stream_sequence == sequence:
                return delivery
        return None

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        """See `Subscription.receive`. One caller at a time."""
        self._receiving = True
        try:
            room = await self._room.room(limit, self._ended)
            self._sync_some()
            chunk = await self._collect(room, linger) if room else await self._end()
        finally:
            self._receiving = False
        if self.stopped:
            self._return_buffered()
        return chunk

    def _sync_some(self) -> None:
        """`_sync`, where it is worth it."""

    async def _end(self) -> list[Delivery]:
        self._return_buffered()
        await asyncio.sleep(0)
        return await self._inbox.get(1)

    def _return_buffered(self) -> None:
        self._give_all_back(self._inbox.clear())

    def _give_all_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            assert isinstance(delivery, StreamDelivery)
            self._give_back(delivery)

    def _give_back(self, delivery: StreamDelivery) -> None:
        """What was never handed out goes back."""
        delivery.home = None
        self._held.pop(delivery, None)
        self._released += 1
        if self._settles:
            self._refuse(delivery, NAK)

    # ------------------------------------------------------------------------------------------------- settling

    def end(self, delivery: StreamDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """Settle what is in hand."""
        if self.source.double_ack:
            return self._end_confirmed(delivery, verdict)
        delivery.home = None
        self._held.pop(delivery, None)
        if self._settles:
            if verdict is ACK:
                self._wire.ack(delivery.address)
            else:
                self._say(delivery, verdict)
            if not self._online:
                self._late.append((delivery, verdict))
        self._room.give()
        if self._receiving:
            self._sync_some()
        return None

    def _say(self, delivery: StreamDelivery, verdict: Verdict) -> None:
        body = body_of(verdict)
        if body.startswith(NAK):
            self._refuse(delivery, body)
        else:
            self._wire.tell(delivery.address, body)

    def _refuse(self, delivery: StreamDelivery, body: bytes) -> None:
        """Have it delivered again."""
        self._wire.tell(delivery.address, body)
        self._owe(delivery)

    async def _retire(self, grace: float) -> None:
        """What has to be done after `stop` before everything is flushed."""

    def _owe(self, delivery: StreamDelivery) -> None:
        # Only a consumer that has to be made again needs to know; the server keeps a durable one.
        if self.source.durable is None and (found := AckAddress.parse(delivery.address)) is not None:
            self._owed.add(found.stream_sequence)

    def _end_confirmed(self, delivery: StreamDelivery, verdict: Verdict) -> asyncio.Future[None]:
        delivery.home = None
        # What is refused may come again before the server has confirmed that it was.
        self._held.pop(delivery, None)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(self._confirmed(delivery, verdict, done))
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)
        return done

    async def _confirmed(self, delivery: StreamDelivery, verdict: Verdict, done: asyncio.Future[None]) -> None:
        try:
            await self._link.confirm(delivery.address, body_of(verdict))
        except Exception as exc:
            error = LeaseLost(f"{self.source.name!r}: the server did not confirm the settlement: {exc}")
            self._lose(delivery, error, verdict)
        else:
            self._room.give()
            if not isinstance(verdict, Ack | Drop):
                self._owe(delivery)
        if not done.done():
            done.set_result(None)

    def _lose(self, delivery: StreamDelivery, error: SettleError, verdict: Verdict | None = None) -> None:
        delivery.home = None
        delivery.lost = error
        self._held.pop(delivery, None)
        if self._unqueue(delivery):
            return
        self._room.give()
        self._watch.lost(delivery, error, verdict)

    def _unqueue(self, delivery: StreamDelivery) -> bool:
        """Take it out of what waits; False where it was handed out."""
        if delivery in self._gathered:
            self._gathered.remove(delivery)
            self._room.give()
            return True
        waiting = self._inbox.clear()
        if self.stopped:
            self._give_all_back(one for one in waiting if one is not delivery)
        else:
            for one in waiting:
                if one is not delivery:
                    self._inbox.put(one)
        return any(one is delivery for one in waiting)

    # ------------------------------------------------------------------------------------------------- progress

    def _progress(self) -> None:
        """One turn: keep alive what is in hand since before the last one, or see what is too old."""
        self._turn += 1
        if not self._settles or not self._online:
            return
        if self.source.in_progress:
            for delivery in self._held:
                if delivery.turn < self._turn - 1:
                    delivery.turn = self._turn
                    self._wire.tell(delivery.address, WORKING)
            return
        for delivery in [one for one in self._held if one.turn < self._turn - QUARTERS]:
            text = f"{self.source.name!r}: a handler exceeded ack_wait={self._lease():g} s and in_progress is off"
            log.warning("%s: the server delivers the message again", text)
            self._lose(delivery, LeaseLost(text))

    def _revoke(self, error: SettleError) -> None:
        """Nothing that is in this process is ours any more; what waits was never handed out and just goes."""
        for waiting in self._inbox.clear():
            assert isinstance(waiting, StreamDelivery)
            waiting.home = None
            self._held.pop(waiting, None)
            self._released += 1
        for delivery in list(self._held):
            self._lose(delivery, error)


def _window(source: JetStream, demand: Demand, consumer: Consumer) -> int:
    most, least = consumer.max_ack_pending, demand.workers * demand.batch
    wanted = window_of(source, demand, WINDOW)
    if source.ordered or most is None:
        return wanted
    if most < least:
        raise ConfigError(
            f"{source.name!r}: max_ack_pending={most} of consumer {consumer.name!r} does not hold {demand.workers}"
            f" workers with {demand.batch} messages each: ask for at least {least}"
        )
    return min(wanted, most)
