"""One side of a comparison: a subscription, everything that it delivered, and what is still in hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ruststream_core.abc import Broker, Demand, Source, State
from ruststream_core.errors import PublishError, RustStreamError, SettleError
from ruststream_core.kit import LoopClock
from ruststream_core.settlement import Verdict
from ruststream_core.testing.servers import Proxy
from ruststream_core.wire import Delivery, Headers, Outgoing
from ruststream_core_nats import NATSBroker
from ruststream_core_nats._standin import StandInConnection

__all__ = ["Real", "Seen", "StandIn", "World", "difference", "until"]

GRACE = 2.0
TURNS = 10
"""Turns of the loop until what has arrived is handed out."""


class Seen(NamedTuple):
    """A delivery as a handler would see it."""

    payload: bytes
    name: str
    headers: tuple[tuple[str, str], ...]
    attempt: int | None
    sequence: object


class World:
    """What happens on one side. Its `receive` is called without a pause, as a runtime with idle workers does."""

    def __init__(self, broker: Broker[Any], publishing: Broker[Any]) -> None:
        self._broker, self._publishing = broker, publishing
        self.seen: list[Seen] = []
        self.hand: dict[Seen, Delivery] = {}
        self.ended: BaseException | None = None
        self.states: list[State] = []
        self._pump: asyncio.Task[None] | None = None

    async def open(self, source: str | Source) -> None:
        """Begin to receive."""
        self._source = self._broker.source(source)
        self._producer = await self._publishing.connect()
        self._sender = await self._producer.sender()
        await self.begin()

    async def begin(self) -> None:
        """A new process: a connection and a subscription."""
        self.connection = await self._broker.connect()
        self.subscription: Any = await self.connection.subscribe(self._source, Demand(workers=1), self)
        self._pump = asyncio.create_task(self._receive())

    async def publish(self, out: Outgoing) -> str:
        """Publish, wait for what confirms it; the kind of error, or nothing."""
        try:
            if (pending := self._sender.send(out)) is not None:
                await pending
            await self._sender.flush()
        except PublishError:
            return "refused"
        return ""

    async def settle(self, which: Seen, verdict: Verdict) -> None:
        """End a delivery."""
        delivery = self.hand.pop(which)
        if (pending := delivery.settle(verdict)) is not None:
            await pending

    async def crash(self) -> None:
        """The process is gone, without a word to the server."""
        self.hand.clear()
        await self._stop_pump()
        for cancel in getattr(self.subscription, "_timers", {}).values():
            cancel()
        await self._drop()

    async def reconnect(self) -> None:
        """The line breaks, and is there again when this returns."""
        raise NotImplementedError

    async def quiet(self) -> None:
        """Return when what the server had to say by now has arrived."""
        await self.connection.ping()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """The process ends in good order."""
        self.hand.clear()
        await self.subscription.aclose(GRACE)
        await self._stop_pump()
        await self.connection.aclose(GRACE)

    async def close(self) -> None:
        """Everything is closed."""
        await self.end()
        await self._producer.aclose(GRACE)

    async def _drop(self) -> None:
        raise NotImplementedError

    async def _stop_pump(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])

    async def _receive(self) -> None:
        try:
            while chunk := await self.subscription.receive(16):
                for delivery in chunk:
                    self._take(delivery)
        except RustStreamError as exc:
            self.ended = exc

    def _take(self, delivery: Any) -> None:
        sequence = None
        with contextlib.suppress(KeyError):
            sequence = delivery.transport("nats.stream_sequence")
        headers = tuple(sorted(_text(delivery.headers)))
        seen = Seen(delivery.payload, delivery.name, headers, delivery.attempt, sequence)
        self.seen.append(seen)
        if delivery.lost is None:
            self.hand[seen] = delivery

    # -------------------------------------------------------------------------------------------------- as a Watch

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        self.hand = {seen: other for seen, other in self.hand.items() if other is not delivery}

    def state(self, state: State, cause: BaseException | None) -> None:
        self.states.append(state)

    # ------------------------------------------------------------------------------------------------- to compare

    def picture(self) -> tuple[Counter[Seen], set[Seen], str | None]:
        """All that was delivered, what is in hand, and how it ended."""
        return Counter(self.seen), set(self.hand), None if self.ended is None else type(self.ended).__name__


def _text(headers: Headers) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in headers.raw()]


class StandIn(World):
    """In the process, with the time of the loop, as the other side has it."""

    def __init__(self) -> None:
        broker = NATSBroker("nats://nowhere").stand_in(LoopClock())
        super().__init__(broker, broker)

    async def reconnect(self) -> None:
        assert isinstance(self.connection, StandInConnection)
        self.connection._blink()

    async def _drop(self) -> None:
        connection: Any = self.connection
        connection._server.blink.remove(connection._blink)
        await connection._wire.aclose()


class Real(World):
    """A server, behind a proxy that can break the line of the subscription; the publisher has another."""

    def __init__(self, url: str, proxy: Proxy) -> None:
        self._proxy = proxy
        super().__init__(NATSBroker(proxy.url, reconnect_wait=0.1), NATSBroker(url))

    async def reconnect(self) -> None:
        known = len(self.states)
        assert self._proxy.cut() == 1
        await until(lambda: self._again(known))

    def _again(self, known: int) -> bool:
        return self.states[known:][-1:] == ["receiving"]

    async def _drop(self) -> None:
        connection: Any = self.connection
        connection._closing = True
        await connection._wire.aclose()

    async def call(self, subject: str, **body: Any) -> None:
        """One call of the server's interface."""
        producer: Any = self._producer
        await producer._manager.call(subject, body or None)


def difference(stand_in: World, real: World) -> str:
    """What one side has shown and the other has not."""
    (seen, hand, ended), (really, held, gone) = stand_in.picture(), real.picture()
    rows = [("delivered", seen - really, really - seen), ("in hand", hand - held, held - hand), ("ended", ended, gone)]
    return "".join(f"\n {what}: stand-in only {_short(one)}, server only {_short(two)}" for what, one, two in rows)


def _short(found: object) -> str:
    if not isinstance(found, Counter | set):
        return repr(found)
    return str([(one.payload[:12], one.attempt, one.sequence) for one in found])


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether something holds within so many seconds."""
    limit = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > limit:
            return False
        await asyncio.sleep(0.002)
    return True
