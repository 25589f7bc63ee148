"""The way out: destinations resolved to a sender, values to bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar, overload

import msgspec

from ruststream_core.abc import Connection, PublishOptions, RequestReply, Sender, SendTransactions, Unit
from ruststream_core.codecs import Codec, bind_decoder, content_type_of, describe_decode_error, encode_value
from ruststream_core.errors import Closed, ConfigError, DecodeError, EncodeError, PublishError, Unsupported
from ruststream_core.middleware import Middleware, Send, compose_publish
from ruststream_core.params import (
    Destination,
    HeadersLike,
    Message,
    Publisher,
    Reply,
    To,
    message_info,
    write_headers,
)
from ruststream_core.wire import NO_HEADERS, Headers, Outgoing, Template

__all__ = ["Literally", "Outlet", "Senders", "Target", "Transmit", "UnitOutlet", "build", "resolve_target"]

T = TypeVar("T")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A destination that was looked up once."""

    broker: str
    template: Template
    headers_type: type | None = None
    options: PublishOptions | None = None

    @property
    def name(self) -> str:
        """The name as written."""
        return self.template.text

    def fill(self, value: object) -> str:
        """The name with its placeholders taken from the value.

        Raises:
            ConfigError: the value lacks one.
            EncodeError: its text cannot stand in a name.
        """
        if not self.template.fields:
            return self.template.text
        try:
            if isinstance(value, Mapping):
                return self.template.fill(value)
            return self.template.fill({field: getattr(value, field) for field in self.template.fields})
        except (AttributeError, KeyError) as exc:
            raise ConfigError(f"destination {self.name!r} cannot be filled from {type(value).__name__}: {exc}") from exc
        except ValueError as exc:
            raise EncodeError(f"destination {self.name!r} cannot be filled from {type(value).__name__}: {exc}") from exc


def resolve_target(to: Destination, default_broker: str, known: Iterable[str], where: str) -> Target:
    """Look a destination up.

    Raises:
        ConfigError: it names a broker that the app does not have, or is no destination.
    """
    options = headers_type = None
    broker = default_broker
    if to == "":
        raise ConfigError(f"{where}: a destination needs a name")
    if isinstance(to, To):
        name, options = to.name, to.options
        broker = to.broker or default_broker
    elif isinstance(to, str):
        name = to
    else:
        info = message_info(to) if isinstance(to, type) else None
        if info is None:
            raise ConfigError(f"{where}: {to!r} is no destination: a name, To(...) or a @message class is expected")
        name, headers_type = info.name, info.headers
    if broker not in known:
        raise ConfigError(f"{where}: no broker is called {broker!r}; the app has {', '.join(sorted(known)) or 'none'}")
    try:
        template = Template(name)
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    return Target(broker=broker, template=template, headers_type=headers_type, options=options)


class Transmit(Protocol):
    """How one message leaves for one broker: synchronously where no middleware stands in between."""

    def __call__(self, out: Outgoing) -> asyncio.Future[None] | None:
        """As `Sender.send`."""


class Senders:
    """The open ways out of a running app, by broker and options."""

    def __init__(self, middleware: Sequence[Middleware], on_publish: Callable[[str, Outgoing], None] | None) -> None:
        self._middleware = middleware
        self._on_publish = on_publish
        self.connections: dict[str, Connection[Any]] = {}
        self._open: dict[tuple[str, int], tuple[Sender, Transmit, PublishOptions | None]] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._forked = False

    def forked(self) -> None:
        """This is a forked child: the connections belong to the parent."""
        self._open.clear()
        self._forked = True

    async def open(self, broker: str, options: PublishOptions | None = None) -> None:
        """Open the way once; later calls with the same options find it."""
        if (broker, id(options)) in self._open:
            return
        sender = await self.connections[broker].sender(options)
        watch = self._on_publish
        seen = None if watch is None else partial(watch, broker)
        self._open[broker, id(options)] = (sender, self._composed(broker, sender.send, seen), options)

    def joined(self, broker: str, unit: Unit) -> tuple[Transmit, Callable[[], None]]:
        """The way out through a transaction, middleware included, and what to call when it has been committed."""
        if self.plain:
            return unit.send, _nothing
        left: list[Outgoing] = []
        watch = self._on_publish

        def committed() -> None:
            if watch is not None:
                for out in left:
                    watch(broker, out)

        return self._composed(broker, unit.send, left.append), committed

    def _composed(self, broker: str, send: Transmit, watch: Callable[[Outgoing], None] | None) -> Transmit:
        transmit = send
        if watch is not None:

            def observed(out: Outgoing) -> asyncio.Future[None] | None:
                pending = send(out)
                watch(out)
                return pending

            transmit = observed
        inner = transmit

        async def innermost(out: Outgoing) -> None:
            if (pending := inner(out)) is not None:
                await pending

        composed: Send = compose_publish(self._middleware, innermost, broker)
        if composed is innermost:
            return transmit

        def through(out: Outgoing) -> asyncio.Future[None]:
            task = asyncio.ensure_future(composed(out))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        return through

    def transmit(self, broker: str, options: PublishOptions | None = None) -> Transmit:
        """The way that `open` opened.

        Raises:
            Closed: the app does not run.
            ConfigError: no such broker.
        """
        try:
            return self._open[broker, id(options)][1]
        except KeyError:
            raise self._missing(broker) from None

    def sender(self, broker: str, options: PublishOptions | None = None) -> Sender:
        """The transport's own sender, for what middleware does not see."""
        try:
            return self._open[broker, id(options)][0]
        except KeyError:
            raise self._missing(broker) from None

    def _missing(self, broker: str) -> Exception:
        if self._forked:
            return Closed("the app was started before a fork: start it in the child")
        if not self._open:
            return Closed("the app is not running: publish inside `async with app.start()`, a handler or a hook")
        return ConfigError(f"no broker is called {broker!r}; the app has {', '.join(sorted(self.connections))}")

    @property
    def plain(self) -> bool:
        """Nothing stands between a publisher and the transport's sender."""
        return self._on_publish is None and not any(
            type(layer).publish is not Middleware.publish for layer in self._middleware
        )

    async def flush(self) -> list[BaseException]:
        """Flush every sender; what failed."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        flushed = await asyncio.gather(*(entry[0].flush() for entry in self._open.values()), return_exceptions=True)
        return [error for error in flushed if error is not None]

    async def aclose(self, grace: float) -> list[BaseException]:
        """Close every sender; what failed."""
        opened = [entry[0] for entry in self._open.values()]
        self._open.clear()
        closed = await asyncio.gather(*(sender.aclose(grace) for sender in opened), return_exceptions=True)
        return [error for error in closed if error is not None]


def _nothing() -> None:
    """What a commit has to tell where nobody asks."""


def build(
    codec: Codec, target: Target, value: object, headers: HeadersLike | None, key: str | bytes | None, options: Any
) -> Outgoing:
    """Encode one value for one target.

    Raises:
        ConfigError: the value lacks a field that the target's name wants.
        EncodeError: value, headers or placeholders do not fit.
    """
    if isinstance(value, Reply):
        headers = headers if headers is not None else value.headers
        key = key if key is not None else value.key
        value = value.value
    if target.headers_type is not None and headers is not None and not isinstance(headers, target.headers_type):
        wanted = target.headers_type.__name__
        raise EncodeError(f"{target.name!r} takes headers of {wanted}, not {type(headers).__name__}")
    name = target.fill(value)
    fields = NO_HEADERS if headers is None else write_headers(headers)
    if codec.name != "json" and "content-type" not in fields:
        # JSON is what everybody expects: only what is not JSON says so, and the plain path carries no header.
        kind = content_type_of(codec, value)
        if kind is not None:
            fields = Headers([*fields.raw(), ("content-type", kind)])
    raw_key = key.encode() if isinstance(key, str) else key
    return Outgoing(encode_value(codec, value), name, fields, raw_key, options)


class Outlet(Publisher):
    """A publisher on one broker.

    Args:
        senders: the app's open ways out.
        broker: where names go that say nothing else.
        codec: how values are written.
        target: where values go that have neither `to` nor a `@message` type.
    """

    def __init__(self, senders: Senders, broker: str, codec: Codec, target: Target | None = None) -> None:
        self._senders = senders
        self._broker = broker
        self._codec = codec
        self._target = target
        self._known: dict[Any, Target] = {}
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def _resolve(self, to: Destination | None, value: object) -> Target:
        if to is None:
            if self._target is not None:
                return self._target
            to = type(value.value if isinstance(value, Reply) else value)
            if message_info(to) is None:
                raise ConfigError(f"no destination: give to=, or decorate {to.__name__} with @message(...)")
        try:
            return self._known[to]
        except KeyError:
            target = resolve_target(to, self._broker, self._senders.connections or (self._broker,), "publish")
        except TypeError:  # an unhashable To, with options of an unhashable kind
            return resolve_target(to, self._broker, self._senders.connections, "publish")
        if len(self._known) < 1024 and not isinstance(to, str):
            self._known[to] = target
        return target

    def _prepare(
        self, value: object, to: Destination | None, headers: HeadersLike | None, key: str | bytes | None, options: Any
    ) -> tuple[Target, Outgoing]:
        if type(to) is str and to and "{" not in to:
            target = Target(broker=self._broker, template=Literally(to))
        else:
            target = self._resolve(to, value)
        return target, build(self._codec, target, value, headers, key, options or target.options)

    async def publish(
        self,
        value: object,
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        key: str | bytes | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """See `Publisher.publish`."""
        target, out = self._prepare(value, to, headers, key, options)
        pending = self._senders.transmit(target.broker)(out)
        if pending is not None:
            await pending

    async def publish_many(
        self,
        values: Iterable[object],
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """See `Publisher.publish_many`."""
        by_broker: dict[str, list[tuple[int, Outgoing]]] = {}
        for index, value in enumerate(values):
            target, out = self._prepare(value, to, headers, None, options)
            by_broker.setdefault(target.broker, []).append((index, out))
        failed: dict[int, BaseException] = {}
        for broker, numbered in by_broker.items():
            failed.update(await self._send_many(broker, numbered))
        if failed:
            first = next(iter(failed.values()))
            raise PublishError(f"{len(failed)} messages were not accepted: {first}", failed=failed)

    async def _send_many(self, broker: str, numbered: list[tuple[int, Outgoing]]) -> dict[int, BaseException]:
        if self._senders.plain:
            try:
                await self._senders.sender(broker).send_many([out for _, out in numbered])
            except PublishError as exc:
                if not exc.failed:
                    raise
                return {numbered[at][0]: cause for at, cause in exc.failed.items()}
            return {}
        transmit = self._senders.transmit(broker)
        sent: list[tuple[int, asyncio.Future[None]]] = []
        failed: dict[int, BaseException] = {}
        for index, out in numbered:
            try:
                if (pending := transmit(out)) is not None:
                    sent.append((index, pending))
            except PublishError as exc:
                failed[index] = exc
        results = await asyncio.gather(*(pending for _, pending in sent), return_exceptions=True)
        failed.update({index: r for (index, _), r in zip(sent, results, strict=True) if r is not None})
        return failed

    @overload
    async def request(
        self,
        value: object,
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        timeout: float,
        reply: type[T],
    ) -> T: ...
    @overload
    async def request(
        self, value: object, *, to: Destination | None = None, headers: HeadersLike | None = None, timeout: float
    ) -> Message[bytes]: ...
    async def request(
        self,
        value: object,
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        timeout: float,
        reply: type[Any] | None = None,
    ) -> Any:
        """See `Publisher.request`."""
        target, out = self._prepare(value, to, headers, None, None)
        self._senders.transmit(target.broker)  # Closed and an unknown broker come first
        connection = self._senders.connections[target.broker]
        if not isinstance(connection, RequestReply):
            raise Unsupported(f"broker {target.broker!r} has no request/reply")
        answer = await connection.request(out, timeout)
        if reply is None:
            return Message(answer.payload, answer.name, answer.headers, answer.key, answer.attempt, None)
        try:
            return self._decoder(reply)(answer.payload)
        except ConfigError:
            raise
        except Exception as exc:
            raise DecodeError(f"the answer of {out.name!r}: {describe_decode_error(exc)}") from exc

    def _decoder(self, reply: Any) -> Callable[[bytes], Any]:
        """The decoder of answers, bound once for each type that can be told again."""
        try:
            known = self._decoders.get(reply)
        except TypeError:  # an annotation that has no hash
            return bind_decoder(self._codec, reply)
        if known is None:
            known = bind_decoder(self._codec, reply)
            if len(self._decoders) < 1024:
                self._decoders[reply] = known
        return known

    def transaction(self) -> AbstractAsyncContextManager[Publisher]:
        """See `Publisher.transaction`."""
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Publisher]:
        sender = self._senders.sender(self._broker)
        if not isinstance(sender, SendTransactions):
            raise Unsupported(f"broker {self._broker!r} has no transactions")
        unit = await sender.begin()
        try:
            transmit, committed = self._senders.joined(self._broker, unit)
            yield UnitOutlet(self._senders, self._broker, self._codec, transmit)
        except BaseException:
            await unit.rollback()
            raise
        await unit.commit(())
        committed()


class UnitOutlet(Outlet):
    """A publisher whose messages become visible with its transaction."""

    def __init__(self, senders: Senders, broker: str, codec: Codec, transmit: Transmit) -> None:
        super().__init__(senders, broker, codec)
        self._transmit = transmit

    async def publish(
        self,
        value: object,
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        key: str | bytes | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """See `Publisher.publish`; to this transaction's broker only."""
        target, out = self._prepare(value, to, headers, key, options)
        if target.broker != self._broker:
            raise Unsupported(f"a transaction on broker {self._broker!r} cannot publish to {target.broker!r}")
        if (pending := self._transmit(out)) is not None:
            await pending

    async def publish_many(
        self,
        values: Iterable[object],
        *,
        to: Destination | None = None,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """See `Publisher.publish_many`; to this transaction's broker only."""
        for value in values:
            await self.publish(value, to=to, headers=headers, options=options)

    def transaction(self) -> AbstractAsyncContextManager[Publisher]:
        """Refused: transactions do not nest."""
        raise Unsupported("transactions do not nest")


class Literally(Template):
    """A name without placeholders, not looked at."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = ()
