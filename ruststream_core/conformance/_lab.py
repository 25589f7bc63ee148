"""What every check works with: connections, taps on subscriptions, and a careful end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from ruststream_core.abc import Connection, Demand, Features, Sender, Source, State, Subscription
from ruststream_core.conformance._target import Target
from ruststream_core.errors import SettleError
from ruststream_core.settlement import ACK, Verdict
from ruststream_core.wire import NO_HEADERS, Delivery, Headers, Outgoing

__all__ = ["CheckFailed", "Lab", "Recorder", "Tap", "numbered"]

T = TypeVar("T")

GRACE: Final = 5.0
"""Seconds of grace that every close gets."""
CLOSING: Final = 10.0
"""Seconds, scaled, after which a close hangs."""
MARKER: Final = b"the end of this check"


class CheckFailed(AssertionError):
    """A transport does not keep a rule; the message says which, and what was seen."""


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Payloads that can be told apart."""
    return [b"message %d" % number for number in range(start, start + count)]


class Recorder:
    """A `Watch` that remembers what it was told."""

    def __init__(self) -> None:
        self.losses: list[tuple[Delivery, SettleError, Verdict | None]] = []
        self.states: list[State] = []
        self._news = asyncio.Event()
        self.causes: list[BaseException] = []

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        """See `Watch.lost`."""
        self.losses.append((delivery, error, verdict))
        self._news.set()

    async def wait_for_losses(self, count: int) -> None:
        """Return when that many were told."""
        while len(self.losses) < count:
            self._news.clear()
            await self._news.wait()

    def state(self, state: State, cause: BaseException | None) -> None:
        """See `Watch.state`."""
        self.states.append(state)
        if cause is not None:
            self.causes.append(cause)


class Tap:
    """A subscription under observation. Its `receive` is never cancelled, as the runtime never does."""

    def __init__(self, lab: Lab, subscription: Subscription, name: str, watch: Recorder) -> None:
        self.lab = lab
        self.subscription = subscription
        self.subscription_name = name
        self.watch = watch
        self.open = True
        self.receiving: asyncio.Task[Sequence[Delivery]] | None = None

    def start(self, limit: int = 1, linger: float = 0.0) -> asyncio.Task[Sequence[Delivery]]:
        """Call `receive`, or go on with the call that is open."""
        if self.receiving is None:
            self.receiving = asyncio.create_task(_call(self.subscription.receive(limit, linger)))
        return self.receiving

    async def receive(self, limit: int = 1, linger: float = 0.0) -> Sequence[Delivery]:
        """What `receive` gives."""
        task = self.start(limit, linger)
        await asyncio.wait([task])
        self.receiving = None
        return task.result()

    async def take(self, count: int, what: str = "messages that were published") -> list[Delivery]:
        """Exactly that many deliveries, unsettled."""
        taken: list[Delivery] = []
        while len(taken) < count:
            self.lab.step = f"waiting for {what}, {len(taken)} of {count} came"
            chunk = await self.receive(count - len(taken))
            self.lab.expect(len(chunk) > 0, f"receive ended while {what} were awaited, {len(taken)} of {count} came")
            taken += chunk
        return taken

    async def nothing(self, why: str) -> None:
        """Fail where something comes within the quiet time."""
        task = self.start()
        await asyncio.wait([task], timeout=self.lab.target.quiet)
        if task.done():
            got = [delivery.payload for delivery in await self.receive()]
            self.lab.fail(f"{why}: receive returned {_short(got)}")

    async def until_marker(self) -> list[Delivery]:
        """Publish a last message, and give everything that comes before it, acknowledged."""
        await self.lab.publish(MARKER, to=self.subscription_name)
        came: list[Delivery] = []
        while True:
            self.lab.step = "waiting for one last message, published after all others"
            for delivery in await self.receive(1) or self.lab.fail("receive ended before the last message"):
                await self.settle(delivery)
                if delivery.payload == MARKER:
                    return came
                came.append(delivery)

    async def settle(self, *deliveries: Delivery, verdict: Verdict = ACK) -> None:
        """Settle all, then wait for what is pending."""
        self.lab.step = f"settling with {verdict!r}"
        await settled([delivery.settle(verdict) for delivery in deliveries])

    async def drain(self) -> list[Delivery]:
        """Stop, and give what was still handed out."""
        self.subscription.stop()
        late: list[Delivery] = []
        self.lab.step = "waiting for receive to return () after stop"
        while chunk := await self.receive(100):
            late += chunk
        return late

    async def close(self) -> None:
        """Stop and close. What is in hand stays unsettled."""
        await self.drain()
        self.lab.step = "closing the subscription"
        await self.subscription.aclose(GRACE)
        self.open = False


async def _call(receiving: Awaitable[T]) -> T:
    return await receiving


async def settled(pending: Iterable[asyncio.Future[None] | None]) -> None:
    """Wait for everything that `settle` or `send` returned. A chunk is settled whole before any of it is awaited."""
    for future in list(pending):
        if future is not None:
            await future


class Lab:
    """One check's own broker, and everything that it opens there."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.broker = target.make_broker()
        self.step = "connecting"
        self.taps: list[Tap] = []
        self._connections: list[Connection[Any]] = []
        self._senders: list[Sender] = []
        self._names: set[str] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self.name = target.new_name()

    # -------------------------------------------------------------------------------------------- saying

    def expect(self, holds: object, seen: str) -> None:
        """Fail with `seen` where `holds` is not true."""
        if not holds:
            raise CheckFailed(seen)

    def fail(self, seen: str) -> Any:
        """Fail."""
        raise CheckFailed(seen)

    def equal(self, got: object, wanted: object, what: str) -> None:
        """Fail where these differ."""
        if got != wanted:
            raise CheckFailed(f"{what}: {_short(got)}, where {_short(wanted)} was expected")

    async def raises(self, kind: type[BaseException], call: Callable[[], Any], what: str) -> BaseException:
        """The exception of that kind which `call` raises, at once or when awaited."""
        try:
            result = call()
            if isinstance(result, Awaitable):
                await result
        except kind as exc:
            return exc
        except Exception as exc:
            raise CheckFailed(f"{what} raised {type(exc).__name__}: {exc}, not {kind.__name__}") from exc
        raise CheckFailed(f"{what} raised nothing, {kind.__name__} was expected")

    # ------------------------------------------------------------------------------------------- opening

    @property
    def features(self) -> Features:
        """What the broker declares for the source."""
        return self.broker.features(self.broker.source(self.target.source(self.name)))

    async def prepared(self, name: str) -> str:
        """`name`, after the server has what it needs for it."""
        if name not in self._names:
            self._names.add(name)
            if self.target.prepare is not None:
                await self.target.prepare(name)
        return name

    async def other_name(self) -> str:
        """A second source's name."""
        return await self.prepared(self.target.new_name())

    async def connect(self) -> Connection[Any]:
        """A connection of its own."""
        await self.prepared(self.name)
        self.step = "connecting"
        connection = await self.broker.connect()
        self._connections.append(connection)
        return connection

    async def connection(self) -> Connection[Any]:
        """The connection that the check uses mostly."""
        return self._connections[0] if self._connections else await self.connect()

    async def open(
        self,
        name: str | None = None,
        *,
        source: str | Source | None = None,
        demand: Demand | None = None,
        connection: Connection[Any] | None = None,
    ) -> Tap:
        """Subscribe."""
        name = await self.prepared(name or self.name)
        connection = connection or await self.connection()
        self.step = "subscribing"
        watch = Recorder()
        wanted = self.broker.source(self.target.source(name) if source is None else source)
        subscription = await connection.subscribe(wanted, demand or Demand(), watch)
        tap = Tap(self, subscription, name, watch)
        self.taps.append(tap)
        return tap

    async def reopen(self, tap: Tap) -> Tap:
        """Close a tap, let whatever the broker lent out run out, and subscribe again."""
        if tap.open:
            await tap.close()
        if self.target.lease is not None:
            self.step = "outlasting the lease"
            await self.target.pass_time(1.5 * self.target.lease)
        return await self.open(tap.subscription_name)

    async def sender(self) -> Sender:
        """A sender of its own."""
        connection = await self.connection()
        self.step = "opening a sender"
        sender = await connection.sender()
        self._senders.append(sender)
        return sender

    def out(
        self,
        payload: bytes,
        *,
        to: str | None = None,
        headers: Headers = NO_HEADERS,
        key: bytes | None = None,
        reply_to: str | None = None,
    ) -> Outgoing:
        """A message to the source; with one key for all where there are keys, so that their order is defined."""
        if key is None and self.features.keys:
            key = b"one"
        destination = self.target.destination(to or self.name)
        return Outgoing(payload, destination, headers, key, reply_to=reply_to)

    async def publish(self, *payloads: bytes, to: str | None = None) -> None:
        """Publish in order and wait for the confirmations."""
        await self.send(*[self.out(payload, to=to) for payload in payloads])

    async def send(self, *outs: Outgoing) -> None:
        """Send in order and wait for the confirmations."""
        sender = self._senders[0] if self._senders else await self.sender()
        self.step = "publishing"
        await settled([sender.send(out) for out in outs])

    async def flush(self) -> None:
        """Return when what was published has left this process."""
        self.step = "flushing a sender"
        for sender in self._senders:
            await sender.flush()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that does not outlive the check."""
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        return task

    # ------------------------------------------------------------------------------------------- closing

    async def close(self) -> list[str]:
        """Close what is open, each within a bound; say what hung or raised."""
        trouble: list[str] = []
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for tap in self.taps:
            if tap.open:
                await self._bounded("Subscription.aclose", _quit(tap), trouble)
        for sender in self._senders:
            await self._bounded("Sender.aclose", sender.aclose(GRACE), trouble)
        for connection in reversed(self._connections):
            await self._bounded("Connection.aclose", connection.aclose(GRACE), trouble)
        return trouble

    async def _bounded(self, what: str, closing: Awaitable[object], trouble: list[str]) -> None:
        scope = asyncio.timeout(CLOSING * self.target.scale)
        try:
            async with scope:
                await closing
        except Exception as exc:
            hung = isinstance(exc, TimeoutError) and scope.expired()
            trouble.append(f"{what} {'hangs' if hung else f'raised {type(exc).__name__}: {exc}'}")


async def _quit(tap: Tap) -> None:
    tap.subscription.stop()
    task = tap.receiving
    if task is not None:
        try:
            await task
        except Exception:  # the check has had its say about what receive raises
            task = None
    await tap.subscription.aclose(GRACE)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}… ({len(text)} characters)"
