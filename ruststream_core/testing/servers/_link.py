"""What lies between a client and its server: the state of the path, and one connection that takes it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Literal, TypeAlias

__all__ = ["BOTH", "Direction", "Link", "Path"]

Direction: TypeAlias = Literal["up", "down"]
"""From the client to the server, or back."""

BOTH: tuple[Direction, Direction] = ("up", "down")
_Held: TypeAlias = tuple[float, bytes | OSError]
_READ_BYTES = 1 << 16
_CHUNKS = 64
_RESET = struct.pack("ii", 1, 0)


class Path:
    """How the way to the server is at this moment, for all connections that take it."""

    def __init__(self) -> None:
        self.gates: dict[Direction, asyncio.Event] = {way: asyncio.Event() for way in BOTH}
        self.delay = 0.0
        self.rate: int | None = None
        self.moved: dict[Direction, int] = dict.fromkeys(BOTH, 0)

    async def pass_gate(self, way: Direction) -> None:
        """Wait while nothing goes this way."""
        await self.gates[way].wait()

    def pieces(self, data: bytes) -> Iterator[tuple[bytes, float]]:
        """Parts of some data, each with the seconds that it takes."""
        start = 0
        while start < len(data):
            rate = self.rate
            # A twentieth of a second at a time, so that a slow flow is slow and not jerky.
            size = len(data) - start if rate is None else max(1, rate // 20)
            piece = data[start : start + size]
            start += size
            yield piece, 0.0 if rate is None else len(piece) / rate

    def count(self, way: Direction, size: int) -> None:
        """Note that so many bytes were handed over."""
        self.moved[way] += size


class Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(
        self, path: Path, target: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._path = path
        self._target = target
        self._reader = reader
        self._writers = [writer]

    async def run(self) -> None:
        """Forward until both sides have ended or one is lost; the other side learns it as it would without a proxy."""
        try:
            await self._path.pass_gate("up")
            reader, writer = await asyncio.open_connection(*self._target)
            self._writers.append(writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(self._reader, writer, "up"))
                group.create_task(self._carry(reader, self._writers[0], "down"))
        except* OSError:
            # One side is lost, and the news of it travels the same way as data.
            for way in BOTH:
                await self._path.pass_gate(way)
            self.reset()
        finally:
            for writer in self._writers:
                writer.close()

    def reset(self) -> None:
        """End both connections with a reset, at once."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        held: asyncio.Queue[_Held] = asyncio.Queue(_CHUNKS)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._collect(reader, held))
            group.create_task(self._deliver(held, writer, way))

    async def _collect(self, reader: asyncio.StreamReader, held: asyncio.Queue[_Held]) -> None:
        """Reading goes on while earlier data waits, or a delay would be a limit of the rate as well."""
        loop = asyncio.get_running_loop()
        data: bytes | OSError = b"-"
        while data and not isinstance(data, OSError):
            try:
                data = await reader.read(_READ_BYTES)
            except OSError as exc:
                data = exc
            await held.put((loop.time() + self._path.delay, data))

    async def _deliver(self, held: asyncio.Queue[_Held], writer: asyncio.StreamWriter, way: Direction) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await held.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._path.pass_gate(way)
            if isinstance(data, OSError):
                raise data
            if not data:
                writer.write_eof()
                return
            for piece, seconds in self._path.pieces(data):
                await self._path.pass_gate(way)
                writer.write(piece)
                await writer.drain()
                self._path.count(way, len(piece))
                await asyncio.sleep(seconds)
