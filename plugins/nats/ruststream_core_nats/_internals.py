# ruff: noqa: SLF001
"""By the client's internals: the one place that touches private attributes of nats-py.

`new_client` looks whether they have the shape that is expected here. Where they have not, or where
`NATSBroker(internals=False)` says so, the client is used through its public interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ruststream_core.errors import PublishError
from ruststream_core_nats._parser import FastParser, Sink
from ruststream_core_nats._wire import SOFT, Listener, Wire
from ruststream_core_nats.errors import as_connect_error

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["FastWire", "abort", "new_client"]

log = logging.getLogger("ruststream.nats")


def new_client(*, internals: bool) -> tuple[Client, bool]:
    """A client that is not connected, and whether its internals are as `FastWire` expects them."""
    from nats.aio.client import Client  # noqa: PLC0415  the client is imported with the first connection

    client = Client()
    if not internals:
        return client, False
    if (missing := _unexpected(client)) is not None:
        log.warning("nats-py has other internals than this plugin knows (%s): its public interface is used", missing)
        return client, False
    return client, True


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
        # Python 3.11.2, which is Debian's, cannot abort a TLS transport that has lost its connection already.
        with contextlib.suppress(AttributeError):
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
    }
    for name, parameters in calls.items():
        method = getattr(client, name, None)
        if not inspect.iscoroutinefunction(method) or list(inspect.signature(method).parameters) != parameters:
            return f"{name} does not take ({', '.join(parameters)})"
    if not hasattr(client, "_flush_queue") or {"parse", "reset"} - set(dir(Parser)):
        return "no flush queue, or another parser"
    return None
