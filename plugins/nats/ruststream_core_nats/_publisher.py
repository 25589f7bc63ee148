"""Publishing: to a subject, or into a stream with its acknowledgement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ruststream_core.abc import PublishOptions, Sender
from ruststream_core.errors import Closed, ConfigError, ConnectError, PublishError, RustStreamError
from ruststream_core.wire import Headers, Outgoing
from ruststream_core_nats._convert import encode_headers, publish_subject, status_of
from ruststream_core_nats.config import JetStreamPublish
from ruststream_core_nats.errors import JetStreamError

if TYPE_CHECKING:
    from ruststream_core_nats._manage import Manager
    from ruststream_core_nats._replies import Replies
    from ruststream_core_nats._wire import Wire

__all__ = ["NATSSender", "Way", "checked_options", "prepare"]

log = logging.getLogger("ruststream.nats")

IN_FLIGHT: Final = 65_536
"""Acknowledgements that may be outstanding on one sender."""
_SUBJECTS: Final = 10_000
"""Subjects that are remembered as sound."""


def checked_options(options: PublishOptions | None) -> JetStreamPublish | None:
    """Options of this broker with sound values.

    Raises:
        ConfigError: says what is accepted.
    """
    if options is None:
        return None
    if not isinstance(options, JetStreamPublish):
        raise ConfigError(f"NATS takes JetStreamPublish as publish options, it was given {type(options).__name__}")
    if not 0 < options.timeout < 1e9:
        raise ConfigError(f"JetStreamPublish: timeout={options.timeout!r}, a number of seconds is needed")
    try:
        encode_headers(Headers(options.headers()))
    except PublishError as exc:
        raise ConfigError(f"JetStreamPublish: {exc}") from exc
    return options


def prepare(
    out: Outgoing, known: dict[str, bytes], most: int, extra: tuple[tuple[str, str], ...]
) -> tuple[bytes, bytes]:
    """The subject and the header block of a message.

    Raises:
        PublishError: it cannot be sent as it is; no byte of it left.
    """
    subject = known.get(out.name)
    if subject is None:
        subject = publish_subject(out.name)
        if len(known) >= _SUBJECTS:
            known.clear()
        known[out.name] = subject
    headers = out.headers.replaced(dict(extra)) if extra else out.headers
    block = encode_headers(headers) if headers else b""
    if len(block) + len(out.payload) > most:
        raise PublishError(
            f"{out.name!r}: {len(out.payload)} bytes of payload and {len(block)} of headers, the server takes"
            f" {most} together"
        )
    return subject, block


class _Ack(msgspec.Struct):
    """One acknowledgement that is awaited."""

    sender: NATSSender
    future: asyncio.Future[None]
    name: str
    seconds: float

    def answered(self, subject: bytes, payload: bytes, block: bytes) -> None:
        """See `Expected.answered`."""
        if b'"error"' in payload or not payload.startswith(b"{") or b'"stream"' not in payload:
            self.cut(_refused(self.name, payload, block))
        elif not self.future.done():
            self.future.set_result(None)
        self.sender.ended()

    def expired(self) -> None:
        """See `Expected.expired`."""
        self.sender.explain(self)

    def cut(self, error: BaseException) -> None:
        """See `Expected.cut`."""
        if not self.future.done():
            self.future.set_exception(
                error if isinstance(error, PublishError) else PublishError(f"{self.name!r}: {error}")
            )
            self.future.exception()  # whoever does not await it has chosen not to know


def _refused(name: str, payload: bytes, block: bytes) -> PublishError:
    if status_of(block)[0] == 503:
        return PublishError(f"no stream covers subject {name!r}")
    try:
        error = msgspec.json.decode(payload, type=dict[str, object]).get("error")
    except msgspec.DecodeError:
        error = None
    if not isinstance(error, dict):
        return PublishError(f"no stream acknowledged {name!r}: somebody else answered on that subject")
    told = JetStreamError.of(error)
    return PublishError(f"the stream did not take {name!r}: {told} (JetStream error {told.number})")


class Way(msgspec.Struct, frozen=True):
    """What a sender needs of its connection."""

    wire: Wire
    replies: Replies
    manager: Manager
    closed: Callable[[], bool]
    timeout: float
    """Seconds for a round trip."""


class NATSSender(Sender):
    """One way out, with the options that hold where a message brings none."""

    def __init__(self, way: Way, options: JetStreamPublish | None) -> None:
        self._wire = way.wire
        self._replies = way.replies
        self._manager = way.manager
        self._connection_closed = way.closed
        self._timeout = way.timeout
        self._options = options
        self._extra = () if options is None else options.headers()
        self._known: dict[str, bytes] = {}
        self._recent: tuple[PublishOptions | None, tuple[tuple[str, str], ...]] = (None, ())
        self._in_flight = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._explaining: set[asyncio.Task[None]] = set()
        self._closed = False

    def send(self, out: Outgoing) -> asyncio.Future[None] | None:
        """See `Sender.send`. Without JetStreamPublish a future only says that the connection is behind."""
        if self._closed or self._connection_closed():
            raise Closed("the sender is closed")
        options, extra = self._options, self._extra
        if out.options is not None and out.options is not options:
            options = out.options
            extra = self._extra_of(options)
        if options is not None and options.msg_id_header is not None:
            extra = self._with_id(out, options, extra)
        subject, block = prepare(out, self._known, self._wire.client.max_payload, extra)
        if options is None:
            reply = b"" if out.reply_to is None else publish_subject(out.reply_to)
            return self._wire.publish(subject, out.payload, reply, block)
        return self._send_acked(out, options, subject, block)

    def _extra_of(self, options: PublishOptions) -> tuple[tuple[str, str], ...]:
        if options is not self._recent[0]:
            try:
                checked = checked_options(options)
            except ConfigError as exc:
                raise PublishError(str(exc)) from exc
            assert checked is not None
            self._recent = options, checked.headers()
        return self._recent[1]

    def _with_id(
        self, out: Outgoing, options: JetStreamPublish, extra: tuple[tuple[str, str], ...]
    ) -> tuple[tuple[str, str], ...]:
        assert options.msg_id_header is not None
        value = out.headers.get(options.msg_id_header)
        if not value:
            raise PublishError(
                f"{out.name!r}: its message id comes from header {options.msg_id_header!r}, which is missing"
            )
        return (*extra, ("Nats-Msg-Id", value))

    def _send_acked(
        self, out: Outgoing, options: JetStreamPublish, subject: bytes, block: bytes
    ) -> asyncio.Future[None]:
        if self._in_flight >= IN_FLIGHT:
            raise PublishError(f"{out.name!r}: {IN_FLIGHT} acknowledgements are outstanding already")
        if out.reply_to is not None:
            raise PublishError(
                f"{out.name!r}: a stream's acknowledgement goes to the reply address, it cannot have another"
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ack = _Ack(self, future, out.name, options.timeout)
        reply = self._replies.expect(ack, options.timeout)
        try:
            left = self._wire.publish(subject, out.payload, reply, block)
        except PublishError:
            self._replies.forget(reply)
            raise
        if self._in_flight == 0:
            self._idle.clear()
        self._in_flight += 1
        if left is not None:
            left.add_done_callback(lambda done: self._left(done, ack, reply))
        return future

    def _left(self, done: asyncio.Future[None], ack: _Ack, reply: bytes) -> None:
        """The client has told whether it took the message."""
        if not done.cancelled() and (error := done.exception()) is not None and not ack.future.done():
            self._replies.forget(reply)
            ack.cut(error)
            self.ended()

    def ended(self) -> None:
        """One acknowledgement less to wait for."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    def explain(self, ack: _Ack) -> None:
        """No acknowledgement came: find out why before saying so."""
        task = asyncio.get_running_loop().create_task(self._explain(ack))
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)

    async def _explain(self, ack: _Ack) -> None:
        text = f"no acknowledgement for {ack.name!r} within {ack.seconds:g} s; whether the stream has it is not known"
        try:
            if self._wire.connected and not await self._manager.covering(ack.name):
                text = f"no stream covers subject {ack.name!r}, and somebody listens there who does not acknowledge"
        except RustStreamError as exc:
            log.debug("asking for the stream of %r failed: %s", ack.name, exc)
        ack.cut(PublishError(text))
        self.ended()

    async def send_many(self, outs: Sequence[Outgoing]) -> None:
        """See `Sender.send_many`."""
        failed: dict[int, BaseException] = {}
        pending: list[tuple[int, asyncio.Future[None]]] = []
        for index, out in enumerate(outs):
            try:
                waiting = self.send(out)
            except PublishError as exc:
                failed[index] = exc
                continue
            if waiting is not None:
                pending.append((index, waiting))
                if len(pending) >= 1024:
                    await _settled(pending, failed)
        await _settled(pending, failed)
        if failed:
            raise PublishError(f"{len(failed)} of {len(outs)} messages were not accepted", failed=failed)

    async def flush(self) -> None:
        """See `Sender.flush`. Acknowledgements that fail meanwhile are told by their own futures."""
        await self._wire.flush(self._timeout)
        if self._in_flight:
            try:
                async with asyncio.timeout(self._timeout * 2):
                    await self._idle.wait()
            except TimeoutError as exc:
                raise ConnectError(f"{self._in_flight} acknowledgements did not come in time") from exc

    async def aclose(self, grace: float) -> None:
        """See `Sender.aclose`."""
        if self._closed:
            return
        self._closed = True
        if self._connection_closed():
            return
        try:
            async with asyncio.timeout(max(grace, 0.1)):
                await self.flush()
        except (RustStreamError, TimeoutError) as exc:
            log.warning("closing a sender: not everything is known to have arrived: %s", exc)


async def _settled(pending: list[tuple[int, asyncio.Future[None]]], failed: dict[int, BaseException]) -> None:
    if pending:
        await asyncio.wait([future for _, future in pending])
        for index, future in pending:
            if future.cancelled():
                failed[index] = PublishError("cancelled")
            elif (error := future.exception()) is not None:
                failed[index] = error
        pending.clear()
