"""By the client's public interface: slower, and independent of how the client is built."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ruststream_core.errors import ConnectError, PublishError
from ruststream_core_nats._convert import parse_headers
from ruststream_core_nats._parser import Sink
from ruststream_core_nats._wire import SOFT, Listener, Wire
from ruststream_core_nats.errors import as_connect_error, as_publish_error

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ["PublicWire"]

log = logging.getLogger("ruststream.nats")

MESSAGES: Final = 512 * 1024
"""Messages that the client may hold for one subscription; its own default."""


class _Queued(msgspec.Struct, gc=False):
    subject: str
    payload: bytes
    reply: str
    headers: dict[str, str] | None
    done: asyncio.Future[None] | None


class PublicWire(Wire):
    """Public methods of the client only. One task publishes, so that the order of the calls is kept."""

    exact = False

    def __init__(self, client: Client, limit: int) -> None:
        super().__init__(client, limit)
        self._queue: deque[_Queued] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._listeners: dict[int, _PublicListener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer = asyncio.get_running_loop().create_task(self._run(), name="nats writer")

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes = b"", headers: bytes = b""
    ) -> asyncio.Future[None] | None:
        """See `Wire.publish`."""
        if self._bytes > self.limit or self.client.is_closed:
            raise PublishError(f"{self._bytes} bytes wait to be written already, the connection does not keep up")
        # Nobody confirms a message, so nobody waits for this form's queue either while the line keeps up.
        eager = self._bytes < SOFT and self.client.is_connected
        done = None if eager else asyncio.get_running_loop().create_future()
        self._put(_Queued(subject.decode(), payload, reply.decode(), _single(headers), done))
        return done

    def tell(self, subject: bytes, payload: bytes = b"", reply: bytes = b"") -> None:
        """See `Wire.tell`."""
        self._put(_Queued(subject.decode(), payload, reply.decode(), None, None))

    def _put(self, message: _Queued) -> None:
        self._queue.append(message)
        self._bytes += len(message.payload)
        self._wake.set()
        self._idle.clear()

    async def _run(self) -> None:
        while True:
            while self._queue:
                message = self._queue[0]
                self._resolve(message, await self._send(message))
                self._queue.popleft()
                self._bytes -= len(message.payload)
            self._idle.set()
            self._wake.clear()
            await self._wake.wait()

    async def _send(self, message: _Queued) -> Exception | None:
        from nats.errors import OutboundBufferLimitError  # noqa: PLC0415  as above

        for wait in (0.05, 0.1, 0.2, 0.5, 1.0):
            try:
                await self.client.publish(message.subject, message.payload, message.reply, message.headers)
            except OutboundBufferLimitError as exc:
                if message.done is not None:
                    return exc
                await asyncio.sleep(wait)  # a settlement: it is kept while the outage is short
            except Exception as exc:
                return exc
            else:
                return None
        return None

    def _resolve(self, message: _Queued, error: Exception | None) -> None:
        done = message.done
        if done is None:
            if error is not None:
                log.warning("%s", as_publish_error(message.subject, error))
        elif not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(as_publish_error(message.subject, error))

    async def listen(self, subject: str, queue: str, sink: Sink) -> Listener:
        """See `Wire.listen`."""

        async def take(message: Msg) -> None:
            sink(message.subject.encode(), message.reply.encode(), message.data, _block(message.headers))

        try:
            subscription = await self.client.subscribe(subject, queue=queue, cb=take, pending_msgs_limit=MESSAGES)
        except Exception as exc:
            raise as_connect_error(f"subscribing to {subject!r}", exc) from exc
        listener = _PublicListener(lambda: self._spawn(subscription.unsubscribe()))
        self._listeners[id(subscription)] = listener
        return listener

    def dropped(self, subscription: object) -> None:
        """The client dropped a message of one of its subscriptions."""
        if (listener := self._listeners.get(id(subscription))) is not None:
            listener.dropped += 1

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        if not self._writer.done():
            await self._idle.wait()
        # The client sends the PING of a flush before what its buffer holds; the second one comes after all of it.
        await self.client.flush()
        await self.client.flush()

    async def aclose(self) -> None:
        """See `Wire.aclose`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        self._writer.cancel()
        await asyncio.wait([self._writer])
        for message in self._queue:
            self._resolve(message, ConnectError("the connection was closed"))
        self._queue.clear()
        await super().aclose()


class _PublicListener(Listener):
    def __init__(self, unsubscribe: Callable[[], object]) -> None:
        self._unsubscribe: Callable[[], object] | None = unsubscribe

    def silence(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def close(self) -> None:
        self.silence()


async def _quietly(work: Any) -> None:
    try:
        await work
    except Exception as exc:
        log.debug("unsubscribing failed: %s", exc)


def _single(block: bytes) -> dict[str, str] | None:
    """Headers as the client takes them: text, and each name once."""
    if not block:
        return None
    fields: dict[str, str] = {}
    for name, value in parse_headers(block).raw():
        if name in fields:
            raise PublishError(f"header {name!r} occurs twice: that needs NATSBroker(internals=True)")
        if not isinstance(value, str):
            raise PublishError(f"header {name!r}: a value that is no UTF-8 text needs NATSBroker(internals=True)")
        fields[name] = value
    return fields


def _block(headers: Mapping[str, str] | None) -> bytes:
    """The header block that the client has taken apart."""
    if not headers:
        return b""
    fields = dict(headers)
    status = f" {fields.pop('Status')} {fields.pop('Description', '')}".rstrip() if "Status" in fields else ""
    lines = [f"NATS/1.0{status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()
