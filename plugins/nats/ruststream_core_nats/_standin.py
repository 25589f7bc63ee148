"""The stand-in: the plugin's own connection over a server inside the process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, Self

import msgspec

from ruststream_core.abc import (
    Broker,
    Clock,
    Demand,
    Fault,
    Features,
    ServerInfo,
    Source,
    SubscriptionStatistics,
    Watch,
)
from ruststream_core.errors import ConfigError, ConnectError, LeaseLost
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Outgoing
from ruststream_core_nats._connection import NATSConnection
from ruststream_core_nats._convert import AckAddress
from ruststream_core_nats._delivery import StreamDelivery
from ruststream_core_nats._jetstream import JetStreamSubscription
from ruststream_core_nats._parser import Sink
from ruststream_core_nats._publisher import NATSSender, Way
from ruststream_core_nats._pull import OrderedSubscription, PullSubscription
from ruststream_core_nats._push import PushSubscription
from ruststream_core_nats._server import Interest, Server
from ruststream_core_nats._settings import Settings
from ruststream_core_nats._sources import checked, features_of
from ruststream_core_nats._subscription import NATSSubscription
from ruststream_core_nats._wire import Listener, Wire
from ruststream_core_nats.config import JetStream, JetStreamPublish, NATSSource

__all__ = ["StandInBroker"]

MAX_PAYLOAD: Final = 1 << 20
"""Bytes of headers and payload together, a server's default."""


class StandInBroker(Broker[NATSSource]):
    """A NATS inside the process. Each object is a server of its own, its connections share it.

    Streams and consumers come into being with the sources that name them, whatever `create` says: what a real server
    has to have first is not what a service's test is about. Sources and features are those of `NATSBroker`.

    Args:
        hosts: what documents call it.
        clock: what leases, delays and time limits run on.
        exact: as the broker that it stands for declares repeated headers.
    """

    def __init__(self, hosts: Sequence[str], clock: Clock, *, exact: bool = True) -> None:
        self._hosts = tuple(hosts)
        self._exact = exact
        self._clock = clock
        self._server = Server(clock)

    def __repr__(self) -> str:
        return f"StandInBroker({', '.join(self._hosts)})"

    @classmethod
    def from_url(cls, url: str) -> Self:  # noqa: ARG003
        """Refused: a stand-in is made by `NATSBroker.stand_in`."""
        raise ConfigError("a stand-in has no URL, NATSBroker.stand_in(clock) makes one")

    def source(self, source: str | Source) -> NATSSource:
        """See `Broker.source`."""
        return checked(source)

    def features(self, source: NATSSource) -> Features:
        """See `Broker.features`."""
        return features_of(source, exact=self._exact)

    def describe(self) -> ServerInfo:
        """See `Broker.describe`."""
        return ServerInfo(host=",".join(self._hosts), protocol="nats", description="inside the process")

    def stand_in(self, clock: Clock) -> StandInBroker:
        """Another one, empty."""
        return StandInBroker(self._hosts, clock, exact=self._exact)

    async def connect(self) -> StandInConnection:
        """See `Broker.connect`. Always succeeds."""
        connection = StandInConnection(Settings(servers=tuple(f"nats://{host}" for host in self._hosts)), self._clock)
        await connection.enter(self._server)
        return connection

    def inject(self, fault: Fault, times: int) -> None:
        """See `FaultInjection.inject`. A disconnection is short and loses nothing; a Core subject settles nothing."""
        self._server.inject(fault, times)


class StandInWire(Wire):
    """A line to the server inside the process. What is written has arrived."""

    exact = True

    def __init__(self, server: Server) -> None:
        client: Any = SimpleNamespace(max_payload=MAX_PAYLOAD, is_connected=True, is_closed=False)
        super().__init__(client, 0)
        self._server = server
        self._interests: list[Interest] = []

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"", headers: bytes = b"") -> None:
        """See `Wire.publish`."""
        self._server.publish(subject.decode(), payload, reply.decode(), headers)

    def tell(self, subject: bytes, payload: bytes = b"", reply: bytes = b"") -> None:
        """See `Wire.tell`."""
        self._server.publish(subject.decode(), payload, reply.decode(), b"")

    async def listen(self, subject: str, queue: str, sink: Sink) -> Listener:
        """See `Wire.listen`."""
        interest = Interest(subject, queue, sink)
        self._interests.append(interest)
        self._server.listen(interest)
        return _StandInListener(self._server, interest)

    async def _flush(self) -> None:
        await asyncio.sleep(0)

    async def aclose(self) -> None:
        """See `Wire.aclose`."""
        for interest in self._interests:
            self._server.forget(interest)


class _StandInListener(Listener):
    def __init__(self, server: Server, interest: Interest) -> None:
        self._server = server
        self._interest = interest

    def silence(self) -> None:
        self._server.forget(self._interest)

    def close(self) -> None:
        self._server.forget(self._interest)


class _Crashing(JetStreamSubscription):
    """Loses settlements where that fault is injected."""

    server: Server

    def end(self, delivery: StreamDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `JetStreamSubscription.end`."""
        if not self._settles or not self.server.use("crash_before_settle"):
            return super().end(delivery, verdict)
        self._lose(delivery, LeaseLost("crash_before_settle was injected: the settlement is lost"), verdict)
        found = AckAddress.parse(delivery.address)
        consumer = self.server.streams[self.consumer.stream].consumers.get(self.consumer.name)
        if found is not None and consumer is not None:
            consumer.bring_back(found.stream_sequence)
        return None

    def statistics(self) -> SubscriptionStatistics:
        """See `Subscription.statistics`. What waits at the server is known here."""
        consumer = self.server.streams[self.consumer.stream].consumers.get(self.consumer.name)
        lag = 0 if consumer is None or self.stopped else consumer.waiting
        return msgspec.structs.replace(super().statistics(), lag=lag)


class _Pull(_Crashing, PullSubscription):
    pass


class _Ordered(_Crashing, OrderedSubscription):
    pass


class _Push(_Crashing, PushSubscription):
    pass


class StandInConnection(NATSConnection):
    """See `NATSConnection`."""

    kinds = (_Pull, _Ordered, _Push)

    async def enter(self, server: Server) -> None:
        """Be connected to that server."""
        self._server = server
        server.blink.append(self._blink)
        await self._use(StandInWire(server))

    def _blink(self) -> None:
        cause = ConnectError("disconnect was injected")
        for subscription in self._subscriptions:
            subscription.interrupted(cause)
        self._server.cut()
        for subscription in self._subscriptions:
            subscription.resumed()

    async def subscribe(self, source: NATSSource, demand: Demand, watch: Watch) -> NATSSubscription:
        """See `NATSConnection.subscribe`. Stream and consumer are made where they are missing."""
        self._check_open()
        source = checked(source)
        if isinstance(source, JetStream):
            source = self._created(source)
        return await super().subscribe(source, demand, watch)

    def _created(self, source: JetStream) -> JetStream:
        stream = source.stream
        if stream is None:
            touching = (one.name for one in self._server.streams.values() if one.touches(source.filters[0]))
            stream = next(touching, None) or "stream-" + re.sub(r"[\s.*>/\\]", "-", source.filters[0])
        self._server.ensure(stream, source.filters)
        return msgspec.structs.replace(source, stream=stream, create=True)

    async def _consuming(self, source: JetStream, stream: str, demand: Demand, watch: Watch) -> JetStreamSubscription:
        subscription = await super()._consuming(source, stream, demand, watch)
        assert isinstance(subscription, _Crashing)
        subscription.server = self._server
        return subscription

    def _new_sender(self, options: JetStreamPublish | None) -> NATSSender:
        way = Way(self._wire, self._replies, self._manager, self._is_over, self._settings.request_timeout)
        return _StandInSender(way, options, self._server)

    async def _check_stream(self, stream: str) -> None:
        self._server.ensure(stream, ())

    async def _close_client(self) -> None:
        if self._blink in self._server.blink:
            self._server.blink.remove(self._blink)
        await super()._close_client()


class _StandInSender(NATSSender):
    """Makes a stream for what is published into one, where no source has made it."""

    def __init__(self, way: Way, options: JetStreamPublish | None, server: Server) -> None:
        super().__init__(way, options)
        self._server = server

    def _send_acked(
        self, out: Outgoing, options: JetStreamPublish, subject: bytes, block: bytes
    ) -> asyncio.Future[None]:
        if not any(stream.covers(out.name) for stream in self._server.streams.values()):
            name = options.expect_stream or "stream-" + re.sub(r"[\s.*>/\\]", "-", out.name)
            self._server.ensure(name, [out.name])
        return super()._send_acked(out, options, subject, block)
