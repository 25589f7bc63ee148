"""A TCP proxy that breaks what runs through it: the network between a client and its server, as a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from ruststream_core.errors import Closed, ConfigError, ConnectError
from ruststream_core.testing.servers._link import BOTH, Direction, Link, Path
from ruststream_core.testing.servers._ports import LOOPBACK, free_ports

__all__ = ["Proxy", "ProxyStatistics"]

_BIND_ATTEMPTS = 20


@dataclass(frozen=True)
class ProxyStatistics:
    """Counts since the proxy was started."""

    accepted: int
    """Connections that clients opened."""
    connections: int
    """Those that are open now."""
    bytes_up: int
    """Bytes handed to the server."""
    bytes_down: int
    """Bytes handed to clients."""


class Proxy:
    """Listens on a port of its own and forwards to one server, byte for byte and in order.

    Everything is done in the event loop that entered it; changes work at once, on open connections too. At most
    64 reads of 64 KiB are held for each direction of a connection, then its sender has to wait.
    """

    def __init__(self, target: str) -> None:
        """Describe a proxy; nothing is opened yet.

        Args:
            target: The server's URL, or `host:port`.

        Raises:
            ConfigError: The target has no host or no port.
        """
        parts = urlsplit(target if "://" in target else f"//{target}")
        if parts.hostname is None or parts.port is None:
            raise ConfigError(f"the target of a proxy needs a host and a port: {parts.hostname}:{parts.port}")
        self._parts = parts
        self._target = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], Link] = {}
        self._accepted = 0
        self._port = 0
        self._path = Path()
        self.heal()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, the same until the end. Raises Closed before the start."""
        if not self._port:
            raise Closed("the proxy's port is known once it is entered")
        return self._port

    @property
    def url(self) -> str:
        """The target's URL with the proxy's address in it. Raises Closed before the start."""
        userinfo, at, _ = self._parts.netloc.rpartition("@")
        changed = self._parts._replace(netloc=f"{userinfo}{at}{LOOPBACK}:{self.port}").geturl()
        return changed.removeprefix("//")

    async def __aenter__(self) -> Self:
        for _ in range(_BIND_ATTEMPTS):
            (self._port,) = free_ports()
            with contextlib.suppress(OSError):
                await self.accept()
                return self
        raise ConnectError("a proxy found no free port")

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        server = self._server
        self.refuse()
        tasks = list(self._links)
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server is not None:
            await server.wait_closed()

    def cut(self) -> int:
        """Reset every open connection, on both sides, without what is still held. Returns how many there were."""
        links = list(self._links.items())
        for task, link in links:
            link.reset()
            task.cancel()
        return len(links)

    def refuse(self) -> None:
        """Refuse new connections, as a port does on which nobody listens; open ones stay."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def accept(self) -> None:
        """Take new connections again, on the same port. Raises OSError if somebody else has taken it meanwhile."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, LOOPBACK, self.port)

    def blackhole(self, direction: Direction | None = None) -> None:
        """Forward nothing in a direction, or in both.

        Connections look alive to each side: not even an end or a reset comes through. What is sent meanwhile is
        held, as TCP would send it again.
        """
        for way in _ways(direction):
            self._path.gates[way].clear()

    def heal(self, direction: Direction | None = None) -> None:
        """Forward again, beginning with what was held."""
        for way in _ways(direction):
            self._path.gates[way].set()

    def delay(self, seconds: float) -> None:
        """Let everything that is read from now on arrive so much later, each way. 0 ends it."""
        self._path.delay = seconds

    def throttle(self, bytes_per_second: int | None) -> None:
        """Limit each direction of each connection. None ends it."""
        if bytes_per_second is not None and bytes_per_second <= 0:
            raise ConfigError("throttle() needs at least one byte a second; blackhole() stops the flow")
        self._path.rate = bytes_per_second

    def statistics(self) -> ProxyStatistics:
        """The counts of this moment."""
        moved = self._path.moved
        return ProxyStatistics(self._accepted, len(self._links), moved["up"], moved["down"])

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        link = Link(self._path, self._target, reader, writer)
        task = asyncio.get_running_loop().create_task(link.run(), name=f"proxy to {self._target}")
        self._links[task] = link
        task.add_done_callback(self._links.pop)


def _ways(direction: Direction | None) -> Iterable[Direction]:
    return BOTH if direction is None else (direction,)
