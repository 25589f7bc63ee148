"""The in-process broker: connecting, sending, asking."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from ruststream_core.abc import (
    Broker,
    Clock,
    Connection,
    Demand,
    Fault,
    Features,
    PublishOptions,
    Sender,
    ServerInfo,
    Source,
    Unit,
    Watch,
)
from ruststream_core.errors import Closed, ConfigError, PublishError
from ruststream_core.kit import LoopClock
from ruststream_core.memory._config import MemoryLog, MemorySource, checked, features_of
from ruststream_core.memory._delivery import MemoryDelivery
from ruststream_core.memory._store import Store
from ruststream_core.memory._subscription import (
    GroupSubscription,
    LogSubscription,
    MemorySubscription,
    QueueSubscription,
)
from ruststream_core.memory._unit import MemoryUnit
from ruststream_core.wire import Delivery, Outgoing

__all__ = ["MemoryBroker"]

LIMIT: Final = 1_000_000
"""Messages that wait in one queue, or are kept in one log, where nobody says otherwise."""


class MemoryBroker(Broker[MemorySource]):
    """A broker inside the process: `memory:`, `memory://`, `memory://name?limit=1000`.

    Each object holds its own messages, for as long as it lives; its connections share them. The name only tells
    brokers apart in documents and logs.

    Args:
        name: for documents and logs.
        limit: most messages that wait in one queue, or are kept in one log. Beyond it publishing is refused with
            PublishError; a log first forgets what every group has finished.
        clock: what delays, lingering and time limits run on.

    Raises:
        ConfigError: the limit is below 1.
    """

    def __init__(self, name: str = "memory", *, limit: int = LIMIT, clock: Clock | None = None) -> None:
        if limit < 1:
            raise ConfigError(f"memory: limit={limit}, at least 1 is needed")
        self.name = name
        self.limit = limit
        self._store = Store(clock or LoopClock(), limit)

    def __repr__(self) -> str:
        return f"MemoryBroker({self.name!r})"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """See `Broker.from_url`."""
        parts = urlsplit(url)
        if parts.scheme != "memory" or "@" in parts.netloc or parts.path not in ("", "/"):
            raise ConfigError("a memory URL is memory://, memory://name or memory://name?limit=1000")
        settings = dict(parse_qsl(parts.query, keep_blank_values=True))
        limit = settings.pop("limit", str(LIMIT))
        if settings:
            raise ConfigError(f"memory: no setting {', '.join(sorted(settings))}; only limit is known")
        if not limit.isascii() or not limit.isdigit():
            raise ConfigError("memory: limit is a number of messages")
        return cls(parts.netloc or "memory", limit=int(limit))

    def source(self, source: str | Source) -> MemorySource:
        """See `Broker.source`."""
        return checked(source)

    def features(self, source: MemorySource) -> Features:
        """See `Broker.features`."""
        return features_of(source)

    def describe(self) -> ServerInfo:
        """See `Broker.describe`."""
        return ServerInfo(host=self.name, protocol="memory", description="inside the process")

    def stand_in(self, clock: Clock) -> MemoryBroker:
        """An empty broker of the same kind whose timers run on `clock`."""
        return MemoryBroker(self.name, limit=self.limit, clock=clock)

    async def connect(self) -> MemoryConnection:
        """See `Broker.connect`. Always succeeds."""
        self._store.enter()
        return MemoryConnection(self._store)

    def inject(self, fault: Fault, times: int) -> None:
        """See `FaultInjection.inject`. A disconnection is short and loses nothing."""
        self._store.faults.inject(fault, times)


class MemoryConnection(Connection[MemorySource]):
    """See `Connection`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscriptions: list[MemorySubscription] = []
        self._answers: set[asyncio.Future[Delivery]] = set()
        self._closed = False

    async def subscribe(self, source: MemorySource, demand: Demand, watch: Watch) -> MemorySubscription:
        """See `Connection.subscribe`.

        Raises:
            Closed: after `aclose`.
            ConfigError: the window does not hold the demand, or the source is open with other settings.
        """
        self._check_open()
        source = checked(source)
        subscription = _kind(source)(source, demand, watch, self._store)
        self._subscriptions.append(subscription)
        return subscription

    async def sender(self, options: PublishOptions | None = None) -> MemorySender:
        """See `Connection.sender`.

        Raises:
            Closed: after `aclose`.
            ConfigError: options were given, and memory takes none.
        """
        self._check_open()
        if options is not None:
            raise ConfigError(f"memory takes no publish options, it was given {options!r}")
        return MemorySender(self._store, self)

    async def request(self, out: Outgoing, timeout: float) -> Delivery:
        """See `RequestReply.request`. A request to a name that nobody reads waits there until its time is over.

        Raises:
            Closed: after `aclose`, or when the connection closes meanwhile.
            TimeoutError: no answer within `timeout` seconds.
            PublishError: the request cannot be sent.
        """
        self._check_open()
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        reply_to = self._store.reply_name(lambda reply: _resolve(answer, reply))
        cancel = self._store.timers.later(timeout, lambda: _expire(answer, out.name, timeout))
        self._answers.add(answer)
        try:
            self._store.publish(Outgoing(out.payload, out.name, out.headers, out.key, out.options, reply_to))
            return await answer
        finally:
            cancel()
            self._answers.discard(answer)
            self._store.replies.pop(reply_to, None)

    async def ping(self) -> None:
        """See `Connection.ping`.

        Raises:
            Closed: after `aclose`.
        """
        self._check_open()

    async def aclose(self, grace: float) -> None:
        """See `Connection.aclose`."""
        self._closed = True
        for subscription in self._subscriptions:
            await subscription.aclose(grace)
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(Closed("the connection was closed while a request waited for its answer"))

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the memory connection is closed")


class MemorySender(Sender):
    """See `Sender`. Whatever it takes is stored when the call returns."""

    def __init__(self, store: Store, connection: MemoryConnection) -> None:
        self._store = store
        self._connection = connection
        self._closed = False

    def send(self, out: Outgoing) -> None:
        """See `Sender.send`. There is nothing to wait for."""
        if self._closed or self._connection.closed:
            raise Closed("the memory sender is closed")
        self._store.publish(out)

    async def send_many(self, outs: Sequence[Outgoing]) -> None:
        """See `Sender.send_many`."""
        failed: dict[int, BaseException] = {}
        for index, out in enumerate(outs):
            try:
                self.send(out)
            except PublishError as exc:
                failed[index] = exc
        await asyncio.sleep(0)
        if failed:
            raise PublishError(f"{len(failed)} of {len(outs)} messages were refused", failed=failed)

    async def flush(self) -> None:
        """See `Sender.flush`. Nothing is ever on its way."""

    async def begin(self) -> Unit:
        """See `SendTransactions.begin`.

        Raises:
            Closed: after `aclose`.
        """
        if self._closed or self._connection.closed:
            raise Closed("the memory sender is closed")
        return MemoryUnit(self._store)

    async def aclose(self, grace: float) -> None:
        """See `Sender.aclose`."""
        self._closed = True


def _kind(source: MemorySource) -> type[MemorySubscription]:
    if not isinstance(source, MemoryLog):
        return QueueSubscription
    return LogSubscription if source.group is None else GroupSubscription


def _resolve(answer: asyncio.Future[Delivery], out: Outgoing) -> None:
    if not answer.done():
        answer.set_result(MemoryDelivery(out.payload, out.name, out.headers, out.key, out.reply_to, None, 0))


def _expire(answer: asyncio.Future[Delivery], name: str, timeout: float) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError(f"no answer from {name!r} within {timeout} s"))
