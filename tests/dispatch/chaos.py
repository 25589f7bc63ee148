"""A transport that misbehaves on request and keeps a ledger of its own, to hold the books of the runtime against."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Self

from ruststream_core.abc import (
    Broker,
    Clock,
    Connection,
    Demand,
    Features,
    PublishOptions,
    Sender,
    ServerInfo,
    Source,
    Subscription,
    SubscriptionStatistics,
    Watch,
)
from ruststream_core.errors import LeaseLost, RustStreamError
from ruststream_core.kit import Window
from ruststream_core.settlement import Ack, Drop, Release, Retry, Verdict
from ruststream_core.wire import NO_HEADERS, Delivery, Headers, Outgoing


class ChaosSource(Source):
    """A name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name


class ChaosDelivery(Delivery):
    """One message, with what happened to it."""

    __slots__ = ("_attempt", "_headers", "_key", "_name", "_payload", "lost", "subscription", "verdict")

    def __init__(
        self, payload: bytes, name: str, key: bytes | None, headers: Headers, attempt: int, subscription: Any
    ) -> None:
        self._payload, self._name, self._key, self._headers = payload, name, key, headers
        self._attempt = attempt
        self.lost = None
        self.verdict: Verdict | None = None
        self.subscription: ChaosSubscription = subscription

    @property
    def payload(self) -> bytes:
        return self._payload

    @property
    def name(self) -> str:
        return self._name

    @property
    def key(self) -> bytes | None:
        return self._key

    @property
    def headers(self) -> Headers:
        return self._headers

    @property
    def attempt(self) -> int | None:
        return self._attempt if self.subscription.features.attempts == "broker" else None

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        assert self.verdict is None, f"settled twice: {self.verdict!r}, then {verdict!r}"
        self.verdict = verdict
        return self.subscription.settle(self, verdict)


class ChaosBroker(Broker[ChaosSource]):
    """Queues in this process.

    Args:
        features: what its sources declare.
        pending: whether settlements stay pending until `decide`.
    """

    def __init__(self, features: Features, *, pending: bool = False, window: int = 64) -> None:
        self.declared = features
        self.pending = pending
        self.window = window
        self.queues: dict[str, deque[tuple[bytes, bytes | None, Headers, int]]] = {}
        self.subscriptions: list[ChaosSubscription] = []
        self.sent: list[Outgoing] = []
        self.fail_receive: BaseException | None = None
        self.fail_send: BaseException | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        raise NotImplementedError(url)

    def source(self, source: str | Source) -> ChaosSource:
        return source if isinstance(source, ChaosSource) else ChaosSource(str(source))

    def features(self, source: ChaosSource) -> Features:
        return self.declared

    def describe(self) -> ServerInfo:
        return ServerInfo(host="here", protocol="chaos")

    def stand_in(self, clock: Clock) -> ChaosBroker:
        return self

    async def connect(self) -> ChaosConnection:
        return ChaosConnection(self)

    def put(self, name: str, payload: bytes, key: bytes | None = None, headers: Headers = NO_HEADERS) -> None:
        self.queues.setdefault(name, deque()).append((payload, key, headers, 1))
        self.wake()

    def wake(self) -> None:
        for subscription in self.subscriptions:
            subscription.wake()


class ChaosConnection(Connection[ChaosSource]):
    """Nothing to connect to."""

    def __init__(self, broker: ChaosBroker) -> None:
        self.broker = broker
        self.closed = False

    async def subscribe(self, source: ChaosSource, demand: Demand, watch: Watch) -> ChaosSubscription:
        subscription = ChaosSubscription(
            self.broker, source, watch, max(self.broker.window, demand.workers * demand.batch)
        )
        self.broker.subscriptions.append(subscription)
        return subscription

    async def sender(self, options: PublishOptions | None = None) -> ChaosSender:
        return ChaosSender(self.broker)

    async def ping(self) -> None:
        return None

    async def aclose(self, grace: float) -> None:
        self.closed = True


class ChaosSender(Sender):
    """Puts into the queues."""

    def __init__(self, broker: ChaosBroker) -> None:
        self.broker = broker

    def send(self, out: Outgoing) -> asyncio.Future[None] | None:
        if self.broker.fail_send is not None:
            raise self.broker.fail_send
        self.broker.sent.append(out)
        self.broker.put(out.name, out.payload, out.key, out.headers)
        if not self.broker.pending:
            return None
        loop = asyncio.get_running_loop()
        confirmed = loop.create_future()
        loop.call_later(0.0005, _confirm, confirmed)
        return confirmed

    async def send_many(self, outs: Sequence[Outgoing]) -> None:
        for out in outs:
            self.send(out)

    async def flush(self) -> None:
        return None

    async def aclose(self, grace: float) -> None:
        return None


def _confirm(confirmed: asyncio.Future[None]) -> None:
    if not confirmed.done():
        confirmed.set_result(None)


class ChaosSubscription(Subscription):
    """Hands out, settles, and loses what it is told to lose."""

    def __init__(self, broker: ChaosBroker, source: ChaosSource, watch: Watch, window: int) -> None:
        self.broker, self.source, self.watch = broker, source, watch
        self.features = broker.declared
        self.window = window
        self.room = Window(window)
        self.ledger: Counter[str] = Counter()
        self.verdicts: dict[bytes, str] = {}
        self.taken: set[bytes] = set()
        self.out: list[ChaosDelivery] = []
        self.undecided: list[ChaosDelivery] = []
        self.group: asyncio.Future[None] | None = None
        self.stopped = False
        self.waiter: asyncio.Future[None] | None = None

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[ChaosDelivery]:
        await asyncio.sleep(0)
        queue = self.broker.queues.setdefault(self.source.name, deque())
        while True:
            if self.broker.fail_receive is not None:
                raise self.broker.fail_receive
            free = await self.room.room(limit, lambda: self.stopped)
            if free == 0:
                return ()
            if queue:
                break
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        chunk = []
        for _ in range(min(free, len(queue))):
            payload, key, headers, attempt = queue.popleft()
            self.verdicts.pop(payload, None)
            chunk.append(ChaosDelivery(payload, self.source.name, key, headers, attempt, self))
        self.room.take(len(chunk))
        self.out += chunk
        self.ledger["handed"] += len(chunk)
        return chunk

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def stop(self) -> None:
        self.stopped = True
        self.room.wake()
        self.wake()

    def settle(self, delivery: ChaosDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        if delivery.lost is not None:
            return None
        if not self.broker.pending or isinstance(verdict, Release):
            self.decide_one(delivery)
            return None
        if self.group is None:
            self.group = asyncio.get_running_loop().create_future()
        self.undecided.append(delivery)
        return self.group

    def decide_one(self, delivery: ChaosDelivery) -> None:
        verdict = delivery.verdict
        names = {Ack: "acked", Retry: "retried", Drop: "dropped", Release: "released"}
        self.verdicts[delivery.payload] = next(name for kind, name in names.items() if isinstance(verdict, kind))
        self.ledger[self.verdicts[delivery.payload]] += 1
        self.gone(delivery)
        if isinstance(verdict, Retry | Release):
            item = (delivery.payload, delivery.key, delivery.headers, delivery._attempt + isinstance(verdict, Retry))
            self.broker.queues[self.source.name].append(item)
            self.broker.wake()

    def decide(self) -> None:
        """Commit everything that is pending."""
        undecided, self.undecided = self.undecided, []
        group, self.group = self.group, None
        for delivery in undecided:
            self.decide_one(delivery)
        if group is not None:
            group.set_result(None)

    def lose(self, delivery: ChaosDelivery) -> None:
        """The delivery is not ours any more; it comes back, as a lease that ran out does."""
        self.ledger["lost"] += 1
        self.taken.add(delivery.payload)
        if delivery in self.undecided:
            self.undecided.remove(delivery)
        self.gone(delivery)
        delivery.lost = LeaseLost("taken away by the test")
        self.broker.queues[self.source.name].append(
            (delivery.payload, delivery.key, delivery.headers, delivery._attempt)
        )
        self.watch.lost(delivery, delivery.lost, delivery.verdict)
        self.broker.wake()

    def gone(self, delivery: ChaosDelivery) -> None:
        self.out.remove(delivery)
        self.room.give()

    def end(self) -> None:
        """The source comes to its end."""
        self.stop()

    def fail(self, error: RustStreamError) -> None:
        """`receive` raises this from now on."""
        self.broker.fail_receive = error
        self.wake()

    async def aclose(self, grace: float) -> None:
        self.decide()

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            state="ended" if self.stopped else "receiving",
            unsettled=self.room.out,
            lag=len(self.broker.queues.get(self.source.name, ())),
        )
