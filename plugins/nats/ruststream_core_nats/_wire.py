"""The client as this plugin uses it: publish, listen, flush.

Two forms exist. `_internals` uses private attributes of nats-py, and is the only place that does; `_public` keeps to
its public interface: the same guarantees, more work per message.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from ruststream_core.errors import ConnectError
from ruststream_core_nats._parser import Sink
from ruststream_core_nats.errors import as_connect_error

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["SOFT", "Listener", "Wire"]

SOFT: Final = 1 << 20
"""Bytes waiting to be written beyond which a publisher is asked to wait."""


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

    async def aclose(self) -> None:
        """Close the client."""
        await self.client.close()
