"""A connection: the client with its callbacks, the replies, and everything that is open on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import ssl
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from ruststream_core.abc import Clock, Connection, Demand, PublishOptions, Watch
from ruststream_core.errors import Closed, ConfigError, ConnectError, PublishError, RustStreamError
from ruststream_core.kit import LoopClock, backoff
from ruststream_core.wire import Delivery, Outgoing, Template
from ruststream_core_nats._convert import nanoseconds, status_of
from ruststream_core_nats._hand import Link
from ruststream_core_nats._internals import FastWire, abort, new_client
from ruststream_core_nats._jetstream import JetStreamSubscription
from ruststream_core_nats._manage import NO_RESPONDERS, Manager, wanted_config
from ruststream_core_nats._public import PublicWire
from ruststream_core_nats._publisher import NATSSender, Way, checked_options, prepare
from ruststream_core_nats._pull import OrderedSubscription, PullSubscription, ordered_config
from ruststream_core_nats._push import PushSubscription
from ruststream_core_nats._replies import Answered, Replies, Reply
from ruststream_core_nats._settings import Settings
from ruststream_core_nats._sources import checked
from ruststream_core_nats._subscription import CoreDelivery, CoreSubscription, NATSSubscription
from ruststream_core_nats._wire import Wire
from ruststream_core_nats.config import CoreSubject, JetStream, JetStreamPublish, NATSSource
from ruststream_core_nats.errors import JetStreamError, describe

if TYPE_CHECKING:
    from nats.aio.client import Client, Server

__all__ = ["NATSConnection"]

log = logging.getLogger("ruststream.nats")

_DENIED: Final = re.compile(r"permissions violation for (subscription|publish) to \"?([^\"\s]+)")


class NATSConnection(Connection[NATSSource]):
    """See `Connection`. One client, which reconnects by itself until it is closed or gives up."""

    kinds: ClassVar[tuple[type[PullSubscription], type[OrderedSubscription], type[PushSubscription]]] = (
        PullSubscription,
        OrderedSubscription,
        PushSubscription,
    )

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._subscriptions: list[NATSSubscription] = []
        self._waits: Iterator[float] = backoff()
        self._client: Client | None = None
        self._cause: BaseException | None = None
        self._refused: asyncio.Future[None] | None = None
        """While the first connection is made: ends it where going on would hang."""
        self._unguard: Callable[[], None] = _nothing
        self._told: set[str] | None = None
        """Reasons that were told in this outage; None while there is none."""
        self._closing = False
        self._ended: RustStreamError | None = None
        self._numbers = itertools.count(1)
        self._own = f"{settings.inbox_prefix}.{token_hex(11)}"
        self._warned: set[str] = set()
        self._wire: Wire
        self._replies: Replies
        self._manager: Manager

    # -------------------------------------------------------------------------------------------------- opening

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Connect.

        Raises:
            ConnectError: no server could be reached, or each refused.
            ConfigError: files or packages are missing.
        """
        self = cls(settings, LoopClock())
        options = self._options()
        client, fast = new_client(internals=settings.internals)
        self._client = client
        try:
            await self._connect(client, options)
            self._patience(client)
            await self._use((FastWire if fast else PublicWire)(client, settings.buffer))
            self._guard(client)
        except BaseException as exc:
            self._closing = True
            await _discard(client)
            if not isinstance(exc, Exception) or isinstance(exc, RustStreamError):
                raise
            cause = self._cause or exc
            raise ConnectError(f"{settings.where}: {describe(cause)}") from cause
        return self

    async def _connect(self, client: Client, options: dict[str, Any]) -> None:
        # Where a TLS handshake fails the client waits for ever that a socket is closed which it has given away.
        self._refused = asyncio.get_running_loop().create_future()
        connecting = asyncio.get_running_loop().create_task(client.connect(**options), name="nats connecting")
        try:
            await asyncio.wait([connecting, self._refused], return_when=asyncio.FIRST_COMPLETED)
        finally:
            refused, self._refused = self._refused, None
            refused.cancel()
            if not connecting.done():
                connecting.cancel()
                await asyncio.wait([connecting])
        if not connecting.cancelled():
            connecting.result()
        elif self._cause is not None:
            raise self._cause

    async def _use(self, wire: Wire) -> None:
        settings = self._settings
        self._wire = wire
        self._replies = Replies(f"{self._own}.r.", self._clock)
        prefix = "$JS.API" if settings.domain is None else f"$JS.{settings.domain}.API"
        self._manager = Manager(self._call, prefix, settings.where)
        await wire.listen(f"{self._own}.r.*", "", self._replies.take)

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        context = settings.context()
        tls = {} if context is None else {"tls": context, "tls_handshake_first": settings.tls_first}
        if settings.tls_hostname is not None:
            tls["tls_hostname"] = settings.tls_hostname
        return {
            "servers": list(settings.servers),
            "name": settings.name,
            "connect_timeout": settings.connect_timeout,
            # For the first connection only, see _patience.
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.05,
            "ping_interval": settings.heartbeat,
            "max_outstanding_pings": 1,
            "pending_size": settings.buffer,
            "flush_timeout": settings.request_timeout,
            "inbox_prefix": settings.inbox_prefix,
            "no_echo": settings.no_echo,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
            "reconnect_to_server_handler": self._next_server,
            **tls,
            **settings.login(),
        }

    def _guard(self, client: Client) -> None:
        """See, once in a heartbeat, that the client gets rid of a line which it has given up.

        It closes the old socket before it makes a new one, and waits until its last bytes are written: for ever,
        where the peer is gone.
        """
        if self._closing or self._ended is not None:
            return
        if client.is_reconnecting and self._told is None:
            abort(client)
        self._unguard = self._clock.call_later(self._settings.heartbeat, lambda: self._guard(client))

    def _patience(self, client: Client) -> None:
        """From now on reconnect as the settings say; the first connection had to fail early instead."""
        limit = self._settings.reconnects
        client.options["max_reconnect_attempts"] = -1 if limit is None else limit
        client.options["allow_reconnect"] = limit != 0
        client.set_server_pool([*self._settings.servers, *(uri.geturl() for uri in client.discovered_servers)])

    def _next_server(self, servers: list[Server], info: dict[str, Any]) -> tuple[Server | None, float]:
        """Which server to try, and after how many seconds: the one that failed least, waits that grow."""
        if self._client is not None:
            abort(self._client)
        return min(servers, key=lambda server: server.reconnects), next(self._waits)

    # ------------------------------------------------------------------------------------- what the client tells

    async def _on_error(self, error: Exception) -> None:
        from nats.errors import SlowConsumerError  # noqa: PLC0415  imported by now

        if self._refused is not None and not self._refused.done() and isinstance(error, ssl.SSLError):
            self._refused.set_result(None)
        # A server that refuses says why and closes, and the reset may overtake the reason: one attempt has it.
        opening = self._told is None and self._client is not None and not self._client.is_connected
        if self._cause is None or not opening or not isinstance(error, OSError):
            self._cause = error
        if isinstance(error, SlowConsumerError):
            if isinstance(self._wire, PublicWire):
                self._wire.dropped(error.sub)
        elif (denied := _DENIED.search(str(error).lower())) is not None:
            self._denied(denied[1], denied[2])
        else:
            self._failed(describe(error))

    def _failed(self, reason: str) -> None:
        """Why an attempt to connect again did not succeed is told once in an outage: it may need an operator."""
        if self._told is None or reason in self._told:
            log.debug("%s: %s", self._settings.where, reason)
        else:
            self._told.add(reason)
            log.warning("%s: still not connected: %s", self._settings.where, reason)

    def _denied(self, what: str, subject: str) -> None:
        """The server does not let this user do something. A subscription would be alive and silent."""
        if what == "publish":
            if subject not in self._warned and len(self._warned) < 1000:
                self._warned.add(subject)
                log.warning("%s: not permitted to publish to %r (said once)", self._settings.where, subject)
            return
        for subscription in self._subscriptions:
            if subject in subscription.subjects:
                text = f"{self._settings.where}: not permitted to subscribe to {subject!r}"
                subscription.fail(ConfigError(text))

    async def _on_disconnected(self) -> None:
        if self._closing:
            return
        self._waits = backoff(0.1, most=max(0.1, self._settings.reconnect_wait))
        cause = ConnectError(f"{self._settings.where}: the connection was lost: {_phrase(self._cause)}")
        log.info("%s", cause)
        self._told = set()
        self._wire.down()
        for subscription in self._subscriptions:
            subscription.interrupted(cause)

    async def _on_reconnected(self) -> None:
        self._cause = None
        self._told = None
        log.info("%s: connected again", self._settings.where)
        self._wire.up()
        for subscription in self._subscriptions:
            subscription.resumed()

    async def _on_closed(self) -> None:
        if self._closing or self._ended is not None:
            return
        cause = self._wire.client.last_error or self._cause
        self._ended = ConnectError(f"{self._settings.where}: the connection was given up: {_phrase(cause)}")
        self._ended.__cause__ = cause
        log.error("%s", self._ended)
        self._wire.up()
        self._replies.cut(self._ended)
        for subscription in self._subscriptions:
            subscription.fail(self._ended)

    # ------------------------------------------------------------------------------------------------ requesting

    async def _ask(self, subject: bytes, payload: bytes, block: bytes, seconds: float, what: str) -> Reply:
        answered = Answered(lambda: TimeoutError(f"no answer from {what!r} within {seconds:g} s"))
        reply = self._replies.expect(answered, seconds)
        try:
            self._wire.publish(subject, payload, reply, block)
            return await answered.future
        finally:
            self._replies.forget(reply)

    async def _call(self, subject: bytes, payload: bytes) -> Reply:
        try:
            return await self._ask(subject, payload, b"", self._settings.request_timeout, subject.decode())
        except PublishError as exc:
            raise ConnectError(f"{self._settings.where}: {exc}") from exc

    async def _confirm(self, address: bytes, body: bytes) -> Reply:
        answer = await self._ask(address, body, b"", self._settings.request_timeout, "the stream")
        if status_of(answer.block)[0] == NO_RESPONDERS:
            raise PublishError("its consumer is not there")
        return answer

    async def request(self, out: Outgoing, timeout: float) -> Delivery:
        """See `RequestReply.request`.

        Raises:
            Closed: after `aclose`.
            TimeoutError: no answer within `timeout` seconds.
            PublishError: nobody listens there, or it cannot be sent.
        """
        self._check_open()
        if out.options is not None:
            raise PublishError(f"{out.name!r}: a request takes no publish options, it was given {out.options!r}")
        subject, block = prepare(out, {}, self._wire.client.max_payload, ())
        answer = await self._ask(subject, out.payload, block, timeout, out.name)
        if status_of(answer.block)[0] == NO_RESPONDERS:
            raise PublishError(f"nobody listens on {out.name!r}")
        return CoreDelivery(answer.payload, answer.subject, b"", answer.block, None)

    # ----------------------------------------------------------------------------------------------- subscribing

    async def subscribe(self, source: NATSSource, demand: Demand, watch: Watch) -> NATSSubscription:
        """See `Connection.subscribe`.

        Raises:
            Closed: after `aclose`.
            ConfigError: stream or consumer are missing or are others than the source says, or the user may not.
            ConnectError: not now.
        """
        self._check_open()
        source = checked(source)
        if isinstance(source, CoreSubject):
            core = CoreSubscription(source, demand, watch, self._clock)
            self._narrow(core)
            return await self._enter(core, core.open(self._wire, Template(source.subject).wildcard("*")))
        try:
            stream = await self._manager.stream_of(source)
            subscription = await self._consuming(source, stream, demand, watch)
        except JetStreamError as exc:
            raise exc.as_config_error(repr(source.name)) from exc
        self._narrow(subscription)
        return await self._enter(subscription, subscription.open())

    async def _consuming(self, source: JetStream, stream: str, demand: Demand, watch: Watch) -> JetStreamSubscription:
        link = Link(self._wire, self._manager, self._confirm, self._inbox, self._clock)
        deliver = f"_DELIVER.{stream}.{source.durable}" if source.durable else self._inbox()
        if source.durable is not None:
            consumer = await self._manager.consumer_of(source, stream, deliver)
        else:
            consumer = await self._manager.create(source, stream, self._ephemeral(source, demand, deliver))
        pull, ordered, push = self.kinds
        try:
            return (push if source.push else ordered if source.ordered else pull)(source, demand, watch, link, consumer)
        except ConfigError:
            if source.durable is None:
                await self._manager.delete(stream, consumer.name)
            raise

    def _ephemeral(self, source: JetStream, demand: Demand, deliver: str) -> dict[str, Any]:
        if source.ordered:
            return ordered_config(source)
        config = wanted_config(source)
        if source.push:
            config |= {"deliver_subject": deliver, "idle_heartbeat": nanoseconds(source.heartbeat)}
        return config

    def _narrow(self, subscription: NATSSubscription) -> None:
        if not self._wire.exact:
            import msgspec  # noqa: PLC0415  seldom

            subscription.features = msgspec.structs.replace(subscription.features, repeated_headers=False)

    async def _enter(self, subscription: NATSSubscription, opening: Any) -> NATSSubscription:
        self._subscriptions.append(subscription)
        try:
            await opening
            # The server's answer to a subscription that it does not permit comes before this returns.
            await self._wire.flush(self._settings.request_timeout)
            subscription.raise_failure()
        except BaseException:
            self._subscriptions.remove(subscription)
            await subscription.aclose(0)
            raise
        return subscription

    def _inbox(self) -> str:
        return f"{self._own}.{next(self._numbers)}"

    # --------------------------------------------------------------------------------------------------- the rest

    async def sender(self, options: PublishOptions | None = None) -> NATSSender:
        """See `Connection.sender`.

        Raises:
            Closed: after `aclose`.
            ConfigError: the options do not fit, or the stream that they expect does not exist.
        """
        self._check_open()
        wanted = checked_options(options)
        if wanted is not None and wanted.expect_stream is not None:
            await self._check_stream(wanted.expect_stream)
        return self._new_sender(wanted)

    def _new_sender(self, options: JetStreamPublish | None) -> NATSSender:
        way = Way(self._wire, self._replies, self._manager, self._is_over, self._settings.request_timeout)
        return NATSSender(way, options)

    def _is_over(self) -> bool:
        return self._closing or self._ended is not None

    async def _check_stream(self, stream: str) -> None:
        try:
            found = await self._manager.last_sequence(stream)
        except JetStreamError as exc:
            raise exc.as_config_error(f"JetStreamPublish: expect_stream={stream!r}") from exc
        if found is None:
            raise ConfigError(f"JetStreamPublish: expect_stream={stream!r}, and there is no such stream")

    async def ping(self) -> None:
        """See `Connection.ping`.

        Raises:
            Closed: after `aclose`.
            ConnectError: no answer in time.
        """
        self._check_open()
        if not self._wire.connected:
            raise ConnectError(f"{self._settings.where}: not connected: {_phrase(self._cause)}")
        await self._wire.flush(self._settings.request_timeout)

    async def aclose(self, grace: float) -> None:
        """See `Connection.aclose`."""
        if self._closing:
            return
        self._closing = True
        self._unguard()
        error = Closed(f"{self._settings.where}: the connection was closed")
        try:
            async with asyncio.timeout(max(grace, 0.1)):
                for subscription in self._subscriptions:
                    await subscription.aclose(grace)
                if self._wire.connected:
                    await self._wire.flush(max(grace, 0.1))
        except (TimeoutError, RustStreamError) as exc:
            log.warning("%s: closed before everything was written: %s", self._settings.where, exc)
        self._replies.cut(error)
        await self._close_client()

    async def _close_client(self) -> None:
        if not self._wire.connected:
            abort(self._wire.client)
        try:
            async with asyncio.timeout(2.0):
                await self._wire.aclose()
        except TimeoutError:
            abort(self._wire.client)
            log.warning("%s: the client did not close in time, its socket was dropped", self._settings.where)
        except Exception as exc:
            log.debug("%s: closing: %s", self._settings.where, describe(exc))

    def _check_open(self) -> None:
        if self._closing:
            raise Closed(f"{self._settings.where}: the connection is closed")
        if self._ended is not None:
            raise self._ended


def _nothing() -> None:
    """There is nothing to cancel."""


async def _discard(client: Client) -> None:
    """Close a client that never came to connect, however far it came."""
    abort(client)
    with contextlib.suppress(Exception):
        async with asyncio.timeout(0.5):
            await client.close()


def _phrase(error: BaseException | None) -> str:
    return "no reason was given" if error is None else describe(error)
