"""What pull and push have in common: deliveries in hand, settling, marks of progress, a consumer that is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from ruststream_core.abc import Clock, Demand, Watch
from ruststream_core.errors import ConfigError, ConnectError, LeaseLost, Revoked, RustStreamError, SettleError
from ruststream_core.kit import backoff
from ruststream_core.settlement import ACK, RELEASE, Ack, Drop, Retry, Verdict
from ruststream_core.wire import Delivery, Headers
from ruststream_core_nats._convert import AckAddress, as_text, parse_headers
from ruststream_core_nats._core import NATSSubscription, window_of
from ruststream_core_nats._manage import Consumer, Manager, wanted_config
from ruststream_core_nats.config import JetStream, nanoseconds
from ruststream_core_nats.errors import JetStreamError

if TYPE_CHECKING:
    from ruststream_core_nats._wire import Wire

__all__ = ["JetStreamSubscription", "Link", "StreamDelivery"]

log = logging.getLogger("ruststream.nats")

WINDOW: Final = 256
"""Most deliveries of a consumer in this process, fetched ones included, where nobody says otherwise."""
UNASKED: Final = 32_768
"""Messages that a push consumer without `max_ack_pending` may send ahead; further ones go back to it."""
_NAK, _TERM, _WORKING = b"-NAK", b"+TERM", b"+WPI"
_QUARTERS: Final = 4
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


class StreamDelivery(msgspec.Struct, Delivery, gc=False, eq=False):
    """A message of a stream. Its address for acknowledgements tells the rest, and is taken apart when asked."""

    payload: bytes
    subject: bytes
    address: bytes
    block: bytes
    home: JetStreamSubscription | None
    """None once it is settled or lost."""
    turn: int
    """When it was last known to be alive, in turns of its home."""
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
    def attempt(self) -> int | None:
        """See `Delivery.attempt`: the consumer's count."""
        found = AckAddress.parse(self.address)
        return None if found is None else found.delivered

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `Delivery.settle`. Handed over at once, unless the source asks for `double_ack`."""
        home = self.home
        if home is None:
            return None
        return home.end(self, verdict)

    def transport(self, field: str) -> object:
        """The position and the history of the message, by names that begin with `nats.`.

        `subject`, `stream`, `consumer`, `stream_sequence`, `consumer_sequence`, `num_pending`, `redelivered`, and
        `timestamp`, the time at which the stream took it.
        """
        if field == "nats.subject":
            return self.name
        found = AckAddress.parse(self.address)
        read = _FIELDS.get(field)
        if read is None or found is None:
            raise KeyError(field)
        return read(found)


_FIELDS: Final[dict[str, Callable[[AckAddress], object]]] = {
    "nats.stream": lambda found: found.stream,
    "nats.consumer": lambda found: found.consumer,
    "nats.stream_sequence": lambda found: found.stream_sequence,
    "nats.consumer_sequence": lambda found: found.consumer_sequence,
    "nats.num_pending": lambda found: found.pending,
    "nats.timestamp": lambda found: datetime.fromtimestamp(found.timestamp / 1e9, UTC),
    "nats.redelivered": lambda found: found.delivered > 1,
}


def body_of(verdict: Verdict) -> bytes:
    """What the server is told."""
    if isinstance(verdict, Ack):
        return b""
    if isinstance(verdict, Drop):
        return _TERM
    if isinstance(verdict, Retry) and verdict.after:
        return _NAK + b' {"delay": %d}' % nanoseconds(verdict.after)
    return _NAK


class JetStreamSubscription(NATSSubscription):
    """One consumer, as far as it does not matter who asks for messages.

    Subclasses put messages in by `_arrived`, and say in `_attach`, `_detach` and `_sync` how they are asked for.
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
        self._first = b"\x00"
        """What the address of a message begins with that is delivered for the first time by this consumer."""
        self._timers: dict[str, Callable[[], None]] = {}
        self._check: asyncio.Task[None] | None = None
        self._confirming: set[asyncio.Task[None]] = set()
        self._settles = self.features.settles
        self._start: int | None = None
        """Where the next consumer begins, if this one has to be made again."""
        self._remaking = False
        self._early: list[StreamDelivery] = []
        """Came while a consumer was being made: one that pushes sends before its creation is answered."""

    # ------------------------------------------------------------------------------------------- for subclasses

    async def _attach(self) -> None:
        """Begin to receive from `self.consumer`."""
        raise NotImplementedError

    def _sync(self) -> None:
        """Ask for what there is room for; the server may have forgotten earlier requests."""

    async def open(self) -> None:
        """Begin. Raises ConnectError, Closed or ConfigError."""
        await self._attach()
        self._every("progress", self._lease() / _QUARTERS, self._progress)
        self._every("watch", self._silence(), self._look)
        self._tell("receiving")
        self._sync()

    def _lease(self) -> float:
        """Seconds that the server waits for a settlement, the shortest of them."""
        steps = self.consumer.config.get("backoff") or ()
        return min([self.consumer.ack_wait, *(float(step) / 1e9 for step in steps)])

    def _silence(self) -> float:
        """Seconds without a sign of life that are normal."""
        return self.source.heartbeat

    def _every(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._clock.call_later(seconds, run)
            work()

        self._timers[name] = self._clock.call_later(seconds, run)

    # ------------------------------------------------------------------------------------------------ receiving

    def _arrived(self, subject: bytes, address: bytes, payload: bytes, block: bytes) -> None:
        self._seen += 1
        delivery = StreamDelivery(payload, subject, address, block, self, self._turn)
        if not address.startswith(self._first) and not self._unusual(delivery):
            return
        self._newest = address
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
        if found.delivered == 1:
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
            self._refuse(delivery, _NAK)

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
        if body.startswith(_NAK):
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
                    self._wire.tell(delivery.address, _WORKING)
            return
        for delivery in [one for one in self._held if one.turn < self._turn - _QUARTERS]:
            text = f"{self.source.name!r}: a handler exceeded ack_wait={self._lease():g} s and in_progress is off"
            log.warning("%s: the server delivers the message again", text)
            self._lose(delivery, LeaseLost(text))

    # ------------------------------------------------------------------------------------------------- watching

    def _look(self) -> None:
        """Nothing was heard for two heartbeats: is the consumer still there?"""
        seen, self._seen = self._seen, 0
        silent = not seen and self._expecting() and self._online and not self.stopped
        self._missed = self._missed + 1 if silent else 0
        if self._missed >= 2:
            self._missed = 0
            self._look_after()

    def _expecting(self) -> bool:
        """Whether a sign of life is due."""
        return True

    def _look_after(self) -> None:
        if self._check is None or self._check.done():
            self._check = asyncio.get_running_loop().create_task(self._examine(), name="nats consumer")

    async def _examine(self) -> None:
        waits = backoff(0.1, most=5.0)
        while not self.stopped and self._online:
            try:
                if self._remaking or await self._is_gone():
                    await self._remake()
                self._forget_requests()
                self._sync()
            except (ConnectError, JetStreamError) as exc:
                log.debug("%r: its consumer cannot be looked after: %s", self.source.name, exc)
                await asyncio.sleep(next(waits))
            except RustStreamError as exc:
                self._end_lost(exc)
            else:
                return

    def _forget_requests(self) -> None:
        """The server does not work on earlier requests any more."""

    async def _is_gone(self) -> bool:
        """Whether the consumer was removed and has to be made again.

        Raises:
            ConfigError: it was removed and cannot be made again without doing work twice, or its stream is gone.
        """
        name, stream, manager = self.consumer.name, self.consumer.stream, self._link.manager
        if await manager.find(stream, name) is not None:
            return False
        await asyncio.sleep(0.1)  # a cluster that elects a leader may not know it for a moment
        if await manager.find(stream, name) is not None:
            return False
        if await manager.last_sequence(stream) is None:
            raise ConfigError(f"{self.source.name!r}: stream {stream!r} was deleted")
        if self.source.durable is not None:
            raise ConfigError(
                f"{self.source.name!r}: consumer {name!r} of stream {stream!r} was deleted, and where it was is not"
                " known any more: decide where a new one begins"
            )
        log.info("%r: the server has removed consumer %r, it is made again", self.source.name, name)
        self._start = self._resume_at()
        self._revoke(Revoked(f"{self.source.name!r}: the consumer was removed by the server, the message comes again"))
        return True

    async def _remake(self) -> None:
        """A consumer in the place of the one that is gone, from `_start` on."""
        self._remaking = True
        self._first = b"\x00"
        # Nothing is taken from the old one any more, however late it comes.
        self.consumer = msgspec.structs.replace(self.consumer, name="")
        self.consumer = await self._link.manager.create(self.source, self.consumer.stream, self._config(self._start))
        self._owed.clear()
        self._remaking = False
        early, self._early = self._early, []
        for one in early:
            found = AckAddress.parse(one.address)
            if found is not None and found.consumer == self.consumer.name:
                self._arrived(one.subject, one.address, one.payload, one.block)

    def _config(self, start: int | None) -> dict[str, object]:
        return wanted_config(self.source, start=start)

    def _resume_at(self) -> int | None:
        """The sequence to go on from: nothing unsettled is before it. None where nothing has come yet."""
        newest = AckAddress.parse(self._newest)
        if newest is None:
            return None
        held = (AckAddress.parse(delivery.address) for delivery in self._held)
        return min([newest.stream_sequence + 1, *self._owed, *(one.stream_sequence for one in held if one is not None)])

    def _revoke(self, error: SettleError) -> None:
        """Nothing that is in this process is ours any more; what waits was never handed out and just goes."""
        for waiting in self._inbox.clear():
            assert isinstance(waiting, StreamDelivery)
            waiting.home = None
            self._held.pop(waiting, None)
            self._released += 1
        for delivery in list(self._held):
            self._lose(delivery, error)

    def _end_lost(self, error: RustStreamError) -> None:
        self._revoke(Revoked(str(error)))
        self.fail(error)

    # --------------------------------------------------------------------------------------------- the connection

    def interrupted(self, cause: BaseException | None) -> None:
        """See `NATSSubscription.interrupted`."""
        self._online = False
        self._forget_requests()
        super().interrupted(cause)

    def resumed(self) -> None:
        """See `NATSSubscription.resumed`. Requests that waited at the server are gone, and maybe the consumer."""
        self._online = True
        self._late.clear()
        if self.stopped:
            return
        super().resumed()
        self._resume()

    def _resume(self) -> None:
        self._sync()
        self._look_after()

    def stop(self) -> None:
        """See `Subscription.stop`. What was fetched and not handed out goes back to the server."""
        if self.stopped:
            return
        if self._listener is not None:
            self._listener.silence()
        super().stop()
        if not self._receiving:
            self._return_buffered()

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`."""
        self.stop()
        if self._closed:
            return
        self._closed = True
        if self._check is not None:
            self._check.cancel()
        if self._confirming:
            await asyncio.wait(self._confirming, timeout=grace)
        self._return_buffered()
        await self._retire(grace)
        await self._flush(grace)
        for cancel in self._timers.values():
            cancel()
        error = Revoked(f"{self.source.name!r}: the subscription was closed before the delivery was settled")
        for delivery in list(self._held):
            if self._settles:
                self._refuse(delivery, body_of(RELEASE))
            self._lose(delivery, error)
        if self._listener is not None:
            self._listener.close()
        if self.source.durable is None:
            await self._delete(grace)

    async def _flush(self, grace: float) -> None:
        try:
            await self._wire.flush(max(grace, 0.1))
        except RustStreamError as exc:
            error = LeaseLost(f"{self.source.name!r}: the settlement did not reach the server: {exc}")
            for delivery, verdict in self._late:
                delivery.lost = error
                self._watch.lost(delivery, error, verdict)
        self._late.clear()

    async def _delete(self, grace: float) -> None:
        if not self._online:
            return  # the server removes it by itself, after inactive_threshold
        try:
            async with asyncio.timeout(max(grace, 0.1)):
                await self._link.manager.delete(self.consumer.stream, self.consumer.name)
        except (RustStreamError, TimeoutError) as exc:
            log.debug("%r: its consumer was not deleted: %s", self.source.name, exc)


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
