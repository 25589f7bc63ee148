"""Publishers: values to bytes, and on to the sender of their destination."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, overload

from ruststream_core.abc import PublishOptions, SendTransactions
from ruststream_core.codecs import Codec, bind_decoder, content_type_of, describe_decode_error, encode_value
from ruststream_core.dispatch._senders import Literally, Senders, Target, Transmit, resolve_target
from ruststream_core.errors import ConfigError, DecodeError, EncodeError, PublishError, Unsupported
from ruststream_core.params import Destination, HeadersLike, Message, Publisher, Reply, message_info, write_headers
from ruststream_core.wire import NO_HEADERS, Headers, Outgoing

__all__ = ["Outlet", "UnitOutlet", "build"]

T = TypeVar("T")


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

    def _way(self, broker: str) -> Transmit:
        return self._senders.transmit(broker)

    @property
    def _bulk(self) -> bool:
        """Whether many messages may go to the transport's sender at once."""
        return self._senders.plain

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
        if (pending := self._way(target.broker)(out)) is not None:
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
        if self._bulk:
            try:
                await self._senders.sender(broker).send_many([out for _, out in numbered])
            except PublishError as exc:
                if not exc.failed:
                    raise
                return {numbered[at][0]: cause for at, cause in exc.failed.items()}
            return {}
        transmit = self._way(broker)
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
        answer = await self._senders.request(target.broker, out, timeout)
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
    """A publisher whose messages become visible with its transaction; on that transaction's broker only."""

    def __init__(self, senders: Senders, broker: str, codec: Codec, transmit: Transmit) -> None:
        super().__init__(senders, broker, codec)
        self._transmit = transmit

    def _way(self, broker: str) -> Transmit:
        if broker != self._broker:
            raise Unsupported(f"a transaction on broker {self._broker!r} cannot publish to {broker!r}")
        return self._transmit

    @property
    def _bulk(self) -> bool:
        return False

    def transaction(self) -> AbstractAsyncContextManager[Publisher]:
        """Refused: transactions do not nest."""
        raise Unsupported("transactions do not nest")
