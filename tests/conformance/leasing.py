"""A transport that lends: leases with renewals, gathered settlements, outages, an end for good. In this process.

What the in-memory transport cannot show, the suite is shown by this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ruststream_core.abc import Clock, Demand, Features, PublishOptions, State, Watch
from ruststream_core.errors import Closed, ConfigError, ConnectError, LeaseLost, PublishError, Revoked, SettleError
from ruststream_core.kit import Gather
from ruststream_core.memory import MemoryBroker
from ruststream_core.memory._broker import MemoryConnection, MemorySender
from ruststream_core.memory._config import MemorySource
from ruststream_core.memory._delivery import MemoryDelivery
from ruststream_core.memory._store import Store
from ruststream_core.memory._subscription import QueueSubscription
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Delivery, Headers, Outgoing

LIFE = 1.0
MOST = 1_200_000


class LeaseBroker(MemoryBroker):
    """Queues whose deliveries are lent for `LIFE` seconds."""

    def __init__(self, password: str = "", *, down: bool = False, clock: Clock | None = None) -> None:
        super().__init__("lease", clock=clock)
        self._password = password
        self._down = down
        self.connections: list[LeaseConnection] = []

    def features(self, source: MemorySource) -> Features:
        return lease_features(super().features(source))

    def stand_in(self, clock: Clock) -> LeaseBroker:
        return LeaseBroker(self._password, down=self._down, clock=clock)

    async def connect(self) -> LeaseConnection:
        if self._down:
            raise ConnectError("lease://somebody@nowhere cannot be reached")
        self._store.enter()
        connection = LeaseConnection(self._store)
        self.connections.append(connection)
        return connection

    def outage(self) -> None:
        """Every connection breaks and is made again."""
        for connection in self.connections:
            for subscription in connection.leased:
                if subscription._open:
                    subscription.interrupt()

    def terminate(self, name: str) -> None:
        """The queue is deleted."""
        for connection in self.connections:
            for subscription in connection.leased:
                if subscription.source.name == name:
                    subscription.fail(ConfigError(f"the queue {name!r} was deleted"))


class LeaseConnection(MemoryConnection):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.leased: list[LeasedSubscription] = []

    async def subscribe(self, source: MemorySource, demand: Demand, watch: Watch) -> LeasedSubscription:
        self._check_open()
        subscription = LeasedSubscription(source, demand, watch, self._store)
        self._subscriptions.append(subscription)
        self.leased.append(subscription)
        return subscription

    async def sender(self, options: PublishOptions | None = None) -> LeaseSender:
        await super().sender(options)
        return LeaseSender(self._store, self)


class LeaseSender(MemorySender):
    def send(self, out: Outgoing) -> None:
        if self._closed or self._connection.closed:
            raise Closed("the sender is closed")
        if len(out.payload) > MOST:
            raise PublishError(f"{len(out.payload)} bytes, {MOST} are allowed")
        # A header has one value here, the last.
        single = {name.lower(): (name, value) for name, value in out.headers.raw()}
        self._store.publish(Outgoing(out.payload, out.name, Headers(single.values()), out.key, out.options))


class LeasedDelivery(Delivery):
    """A delivery whose settlement is pending until the next statement."""

    def __init__(self, inner: MemoryDelivery, owner: LeasedSubscription) -> None:
        self.inner = inner
        self.owner = owner
        self.verdict: Verdict | None = None

    @property
    def payload(self) -> bytes:
        return self.inner.payload

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def headers(self) -> Headers:
        return self.inner.headers

    @property
    def key(self) -> bytes | None:
        return self.inner.key

    @property
    def attempt(self) -> int | None:
        return self.inner.attempt

    @property
    def reply_to(self) -> str | None:
        return self.inner.reply_to

    @property
    def lost(self) -> SettleError | None:  # type: ignore[override]
        return self.inner.lost

    def settle(self, verdict: Verdict) -> Any:
        if self.inner.home is None or self.verdict is not None:
            return None
        self.verdict = verdict
        return self.owner.pending.add(self)


class LeasedSubscription(QueueSubscription):
    def __init__(self, source: MemorySource, demand: Demand, watch: Watch, store: Store) -> None:
        self.outer: dict[int, LeasedDelivery] = {}
        self.leases: dict[int, list[Callable[[], None]]] = {}
        self.pending: Gather[LeasedDelivery] = Gather(self.flush)
        self.error: ConfigError | None = None
        super().__init__(source, demand, _Outward(self, watch), store)
        self.features = lease_features(self.features)

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        chunk = await super().receive(limit, linger)
        if not chunk and self.error is not None:
            raise self.error
        return [self.lend(delivery) for delivery in chunk]

    # ------------------------------------------------------------------------------------------ leases

    def lend(self, delivery: Any) -> LeasedDelivery:
        outer = self.outer[id(delivery)] = LeasedDelivery(delivery, self)
        self.renew(delivery)
        return outer

    def renew(self, delivery: MemoryDelivery) -> None:
        self.end_lease(delivery)
        later = self._store.timers.later
        self.leases[id(delivery)] = [
            later(LIFE, lambda: self.expire(delivery)),
            later(LIFE / 2, lambda: self.keep(delivery)),
        ]

    def keep(self, delivery: MemoryDelivery) -> None:
        """The client's side: renew what is in hand."""
        self.renew(delivery)

    def expire(self, delivery: MemoryDelivery) -> None:
        """The broker's side: the lease is over."""
        self.lose(delivery, LeaseLost("the lease ran out"))

    def end_lease(self, delivery: MemoryDelivery) -> None:
        for cancel in self.leases.pop(id(delivery), ()):
            cancel()

    # ---------------------------------------------------------------------------------------- settling

    async def flush(self, outers: Sequence[LeasedDelivery]) -> None:
        for outer in outers:
            if outer.lost is None and outer.verdict is not None:
                self.end_lease(outer.inner)
                outer.inner.settle(outer.verdict)
                self.outer.pop(id(outer.inner), None)

    def lose(self, delivery: MemoryDelivery, error: SettleError, verdict: Verdict | None = None) -> None:
        self.end_lease(delivery)
        super().lose(delivery, error, verdict)

    async def aclose(self, grace: float) -> None:
        self.stop()
        await self.pending.drain()
        await super().aclose(grace)

    # ------------------------------------------------------------------------------------- catastrophes

    def interrupt(self) -> None:
        self._tell("interrupted", ConnectError("the connection broke"))
        for delivery in self._hand:
            if delivery.home is self:
                self.lose(delivery, Revoked("the connection broke"))
        self._tell("receiving", None)

    def fail(self, error: ConfigError) -> None:
        self.error = error
        self.stop()


class _Outward:
    """Tells the runtime of the object that it was given."""

    def __init__(self, subscription: LeasedSubscription, watch: Watch) -> None:
        self._subscription = subscription
        self._watch = watch

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        outer = self._subscription.outer.pop(id(delivery), None)
        if outer is not None:
            self._watch.lost(outer, error, verdict or outer.verdict)

    def state(self, state: State, cause: BaseException | None) -> None:
        self._watch.state(state, cause)


def lease_features(features: Features) -> Features:
    return msgspec.structs.replace(
        features, loses=True, survives_outage=False, transactions=False, max_payload=MOST, repeated_headers=False
    )
