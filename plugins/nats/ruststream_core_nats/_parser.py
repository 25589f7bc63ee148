# ruff: noqa: SLF001  it stands in for a part of the client
"""Reading the wire: messages go straight to whoever listens, everything else to the client's own methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

__all__ = ["FastParser", "Sink"]

Sink: TypeAlias = Callable[[bytes, bytes, bytes, bytes], object]
"""Takes subject, reply subject, payload and header block; what a message does not have is empty. Never raises."""

_LONGEST_LINE: Final = 1 << 20
"""Bytes without a line end after which the stream is no NATS protocol; the server's INFO is the longest line."""
_MSG, _HMSG = ord("M"), ord("H")
_MESSAGES: Final = (_MSG, _HMSG)
_LENGTHS: Final = {_MSG: (4, 5), _HMSG: (5, 6)}
"""Words in the line of a message, without and with a reply subject."""


class FastParser:
    """In the place of the client's parser: same methods, same calls into the client for what is no message.

    The client's own matches a handful of expressions against a growing buffer and builds a `Msg` with parsed headers
    for each message. This one splits lines, and hands bytes to the sink of the subscription. A subscription without
    a sink is the client's business.
    """

    def __init__(self, client: Any, sinks: dict[bytes, Sink]) -> None:
        self.nc = client
        self._sinks = sinks
        self.reset()

    def reset(self) -> None:
        """Forget what was received of an earlier connection."""
        self._parts: list[bytes] = []
        self._held = 0
        self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        """Take what was read.

        Raises:
            ProtocolError: that is no NATS protocol; the client reconnects.
        """
        if self._parts:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._needed:  # a large message: join once, when it is complete
                return
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            rest, needed = await self._lines(data)
        except (ValueError, IndexError) as exc:
            raise _protocol_error(f"malformed line: {exc}") from exc
        if rest < len(data):
            left = data[rest:]
            self._parts, self._held, self._needed = [left], len(left), needed
            if needed == 0 and len(left) > _LONGEST_LINE:
                raise _protocol_error("a line without end")

    async def _lines(self, data: bytes) -> tuple[int, int]:
        """Work off what is complete; returns where the rest begins and how long it has to become, 0 for unknown."""
        sinks, find, end = self._sinks, data.find, len(data)
        at = count = size = 0
        try:
            while at < end:
                if (line_end := find(b"\r\n", at)) < 0:
                    return at, 0
                kind = data[at]
                if kind in _MESSAGES:
                    words = data[at:line_end].split()
                    if len(words) not in _LENGTHS[kind]:
                        raise ValueError(f"{len(words)} words")
                    begin = line_end + 2
                    stop = begin + int(words[-1])
                    if stop + 2 > end:
                        return at, stop + 2 - at
                    header_end = begin + int(words[-2]) if kind == _HMSG else begin
                    reply = words[3] if len(words) == (5 if kind == _MSG else 6) else b""
                    count += 1
                    size += stop - header_end
                    at = stop + 2
                    sink = sinks.get(words[2])
                    if sink is not None:
                        sink(words[1], reply, data[header_end:stop], data[begin:header_end])
                    else:
                        # The client takes None for no headers.
                        block = data[begin:header_end] or None
                        await self.nc._process_msg(int(words[2]), words[1], reply, data[header_end:stop], block)
                else:
                    line = data[at:line_end]
                    at = line_end + 2
                    await self._control(line)
        finally:
            stats = self.nc.stats
            stats["in_msgs"] += count
            stats["in_bytes"] += size
        return at, 0

    async def _control(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        word = word.upper()
        if word == b"PING":
            await self.nc._process_ping()
        elif word == b"PONG":
            await self.nc._process_pong()
        elif word == b"INFO":
            await self.nc._process_info(json.loads(rest))
        elif word == b"-ERR":
            await self.nc._process_err(rest.decode("utf-8", "replace").strip().strip("'").lower())
        elif word not in (b"+OK", b""):
            raise _protocol_error(f"unknown command {line[:40]!r}")


def _protocol_error(text: str) -> Exception:
    from nats.errors import ProtocolError  # noqa: PLC0415  the client is imported with the first connection

    return ProtocolError(f"nats: {text}")
