# ruff: noqa: SLF001
"""The client as this plugin uses it: publish, listen, flush. One form by its internals, one by its public interface.

This is the only module that touches private attributes of nats-py. `open_wire` looks whether they have the shape that
is expected here; where they have not, or where `NATSBroker(internals=False)` says so, everything goes through public
methods: the same guarantees, more work per message.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ruststream_core.errors import ConnectError, PublishError
from ruststream_core_nats._convert import parse_headers
from ruststream_core_nats._parser import FastParser, Sink
from ruststream_core_nats.errors import as_connect_error, as_publish_error

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ["FastWire", "Listener", "PublicWire", "Wire", "abort", "new_client", "open_wire"]

log = logging.getLogger("ruststream.nats")

SOFT: Final = 1 << 20
"""Bytes waiting to be written beyond which a publisher is asked to wait."""

MESSAGES: Final = 512 * 1024
"""Messages that the client may hold for one of its own subscriptions, public form only; its default."""


class Listener(ABC):
    """One subscription of the connection. It is renewed at every reconnect until it is closed."""

    dropped: int = 0
    """Messages that the client dropped because this process did not keep up."""

    @abstractmethod
    def silence(self) -> None:
        """Ask the server for no more. What is on its way still reaches the sink, where the form allows it."""

    @abstractmethod
    def close(self) -> None:
        """Silence, and let go of the sink."""


class Wire(ABC):
    """A connected client. Everything is for the loop's thread.

    `limit`: most bytes that wait to be written, beyond which publishing is refused.
    """

    exact: bool
    """Whether repeated headers and header bytes that are no text can pass."""

    def __init__(self, client: Client, limit: int) -> None:
        self.client = client
        self.limit = limit
        self._up = asyncio.Event()
        self._up.set()
        self._flushing: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether the client believes to be connected."""
        return bool(self.client.is_connected)

    @abstractmethod
    def publish(
        self, subject: bytes, payload: bytes, reply: bytes = b"", headers: bytes = b""
    ) -> asyncio.Future[None] | None:
        """Have a message written, in order. The arguments are sound already.

        Returns:
            None, or a future where the caller had better wait: it ends when there is room again, or with
            PublishError where the message did not leave.

        Raises:
            PublishError: too much waits already, or the connection is closed.
        """

    @abstractmethod
    def tell(self, subject: bytes, payload: bytes = b"", reply: bytes = b"") -> None:
        """Have a small message of the plugin's own written, in order; never refused, kept over an outage."""

    def ack(self, address: bytes) -> None:
        """`tell` with nothing to say: the server takes it as an acknowledgement."""
        self.tell(address)

    @abstractmethod
    async def listen(self, subject: str, queue: str, sink: Sink) -> Listener:
        """Subscribe. When it returns, the server knows, or will be told first after a reconnect.

        Raises:
            ConnectError: it cannot be sent. Closed: the connection is closed.
        """

    async def flush(self, timeout: float) -> None:
        """Return when the server has seen everything written so far. Waits over a short outage.

        Raises:
            ConnectError: not within `timeout` seconds. Closed: the connection is closed.
        """
        try:
            async with asyncio.timeout(timeout):
                while not await self._flushed():
                    await self._up.wait()
        except TimeoutError as exc:
            raise ConnectError(f"flushing: no answer within {timeout:g} s") from exc
        except Exception as exc:
            raise as_connect_error("flushing", exc) from exc

    async def _flushed(self) -> bool:
        """One round trip; False where the line broke meanwhile."""
        await self._up.wait()
        task = asyncio.get_running_loop().create_task(self._flush(), name="nats flush")
        self._flushing.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._flushing.discard(task)
            task.cancel()
        if task.cancelled():
            return False
        task.result()
        return True

    def down(self) -> None:
        """The line broke: no answer will come to what was asked."""
        self._up.clear()
        for task in self._flushing:
            task.cancel()

    def up(self) -> None:
        """The line is there again, or never will be."""
        self._up.set()

    @abstractmethod
    async def _flush(self) -> None: ...

    def abort(self) -> None:
        """Drop the socket at once, so that closing waits for nothing."""
        abort(self.client)

    async def aclose(self) -> None:
        """Close the client."""
        await self.client.close()


# ------------------------------------------------------------------------------------------------ by the internals


class FastWire(Wire):
    """Writes into the client's buffer, and reads by a parser that knows this plugin's sinks."""

    exact = True

    def __init__(self, client: Client, limit: int) -> None:
        super().__init__(client, limit)
        self._inner: Any = client
        self._sinks: dict[bytes, Sink] = {}
        self._kicked = False
        self._loop = asyncio.get_running_loop()
        parser: Any = FastParser(client, self._sinks)
        client._ps = parser

    @staticmethod
    def prepare(client: Client) -> str | None:
        """Look at a client that is not connected yet; what is missing in it, None where all is as expected."""
        return _unexpected(client)

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes = b"", headers: bytes = b""
    ) -> asyncio.Future[None] | None:
        """See `Wire.publish`."""
        inner = self._inner
        waiting = inner._pending_data_size
        if waiting > SOFT and (waiting > self.limit or inner.is_closed):
            raise PublishError(f"{waiting} bytes wait to be written already, the connection does not keep up")
        if headers:
            sizes = len(headers)
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
                subject, reply, sizes, sizes + len(payload), headers, payload,
            )  # fmt: skip
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
        inner._pending.append(command)
        inner._pending_data_size = waiting + len(command)
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)
        return self._written() if waiting > SOFT else None

    def tell(self, subject: bytes, payload: bytes = b"", reply: bytes = b"") -> None:
        """See `Wire.tell`."""
        self._write(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))

    def ack(self, address: bytes) -> None:
        """See `Wire.ack`. Once per message, so it is spelt out."""
        command = b"PUB %b 0\r\n\r\n" % address
        inner = self._inner
        inner._pending.append(command)
        inner._pending_data_size += len(command)
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    def _write(self, command: bytes) -> None:
        inner = self._inner
        inner._pending.append(command)
        inner._pending_data_size += len(command)
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        """Wake the client's flusher, once for all that this turn of the loop has written."""
        self._kicked = False
        inner = self._inner
        if inner.is_connected and inner._flush_queue.empty():
            inner._flush_queue.put_nowait(self._loop.create_future())

    def _written(self) -> asyncio.Future[None] | None:
        inner = self._inner
        if not inner.is_connected or inner._flush_queue.full():
            return None
        done: asyncio.Future[None] = self._loop.create_future()
        inner._flush_queue.put_nowait(done)
        return done

    async def listen(self, subject: str, queue: str, sink: Sink) -> Listener:
        """See `Wire.listen`."""
        inner = self._inner
        # The client's method sends SUB and enters it for reconnects; nothing can arrive before the next turn.
        try:
            subscription = await self.client.subscribe(subject, queue=queue)
        except Exception as exc:
            raise as_connect_error(f"subscribing to {subject!r}", exc) from exc
        key = b"%d" % subscription._id
        self._sinks[key] = sink

        def silence() -> None:
            if inner._subs.pop(subscription._id, None) is not None and inner.is_connected:
                self._write(b"UNSUB %b\r\n" % key)

        return _FastListener(silence, lambda: self._sinks.pop(key, None))

    async def _flush(self) -> None:
        # The client writes its PING at once, before what waits in its buffer: first let that be written.
        if (written := self._written()) is not None:
            await written
        await self.client.flush()


class _FastListener(Listener):
    def __init__(self, silence: Callable[[], object], forget: Callable[[], object]) -> None:
        self._silence = silence
        self._forget = forget

    def silence(self) -> None:
        self._silence()

    def close(self) -> None:
        self._silence()
        self._forget()


def abort(client: Any) -> None:
    """Drop a client's socket, if it has one where it is expected; else nothing.

    A stream with unwritten bytes waits for them when it is closed: for ever, where the peer is gone. And the socket
    of an attempt that failed after it was connected is never closed by the client, only collected some time later.
    """
    writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


def _unexpected(client: Any) -> str | None:
    from nats.protocol.parser import Parser  # noqa: PLC0415  the client is imported with the first connection

    shapes: dict[str, type] = {"_pending": list, "_pending_data_size": int, "_subs": dict, "_ps": Parser, "stats": dict}
    for name, kind in shapes.items():
        if not isinstance(getattr(client, name, None), kind):
            return f"{name} is no {kind.__name__}"
    calls = {
        "_process_msg": ["sid", "subject", "reply", "data", "headers"],
        "_process_err": ["err_msg"],
        "_process_info": ["info", "initial_connection"],
        "_process_ping": [],
        "_process_pong": [],
        "_process_op_err": ["e"],
    }
    for name, parameters in calls.items():
        method = getattr(client, name, None)
        if not inspect.iscoroutinefunction(method) or list(inspect.signature(method).parameters) != parameters:
            return f"{name} does not take ({', '.join(parameters)})"
    if not hasattr(client, "_flush_queue") or {"parse", "reset"} - set(dir(Parser)):
        return "no flush queue, or another parser"
    return None


# ---------------------------------------------------------------------------------------- by the public interface


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


# ------------------------------------------------------------------------------------------------------- choosing


def new_client(*, internals: bool) -> tuple[Client, bool]:
    """A client that is not connected, and whether its internals are as `FastWire` expects them."""
    from nats.aio.client import Client  # noqa: PLC0415  as above

    client = Client()
    if not internals:
        return client, False
    if (missing := FastWire.prepare(client)) is not None:
        log.warning("nats-py has other internals than this plugin knows (%s): its public interface is used", missing)
        return client, False
    return _impatient(client), True


def _impatient(client: Any) -> Client:
    """Have the client drop a broken connection at once instead of waiting until its last bytes are written."""
    process: Callable[[Exception], Any] = client._process_op_err

    async def process_op_err(error: Exception) -> None:
        if client.is_connected:
            abort(client)
        await process(error)

    client._process_op_err = process_op_err
    patched: Client = client
    return patched


def open_wire(client: Client, *, fast: bool, limit: int) -> Wire:
    """The form that fits."""
    return FastWire(client, limit) if fast else PublicWire(client, limit)
