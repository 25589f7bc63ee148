"""Between a message of a file and what the core knows: one object per message, headers read when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ruststream_core.errors import SettleError
from ruststream_core.kit import Mark
from ruststream_core.settlement import Verdict
from ruststream_core.wire import NO_HEADERS, Delivery, Headers, Outgoing
from ruststream_core_file._envelope import open_envelope, seal
from ruststream_core_file._format import Position

if TYPE_CHECKING:
    import asyncio

__all__ = ["SEQUENCE_HEADER", "FileDelivery", "GroupDelivery", "Home", "payload_of"]

SEQUENCE_HEADER: Final = "stream-sequence"
"""The header that every delivery has: the message's sequence in its stream."""


class Home(Protocol):
    """The subscription as its deliveries see it."""

    out: int
    """Deliveries in hand."""
    blocked: bool
    """A `receive` waits for room."""

    def wake(self) -> None:
        """Let a waiting `receive` look again."""


class GroupHome(Home, Protocol):
    """The subscription of a group."""

    def decide(self, delivery: GroupDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """Settle a delivery that has left the window."""


class FileDelivery(msgspec.Struct, Delivery, gc=False, eq=False):
    """A message of a subscription without a group. The parser builds it."""

    name: str
    shard: int
    sequence: int
    timestamp: int
    payload: bytes
    start: int
    end: int
    home: Home | None = None
    """None before it was handed out, and again once it is settled or lost."""
    file: int = 0
    """Time in the header of its file."""
    carried: Headers = NO_HEADERS
    """The headers that its payload carried."""
    lost: SettleError | None = None
    mark: Mark | None = None
    """Its place in the group's watermark, where there is a group."""

    def unseal(self) -> None:
        """Take the payload out of its envelope, where it is in one."""
        self.carried, self.payload = open_envelope(self.payload)

    @property
    def headers(self) -> Headers:
        """What the message carried, and `stream-sequence`."""
        return Headers([*self.carried.raw(), (SEQUENCE_HEADER, str(self.sequence))])

    @property
    def position(self) -> Position:
        """Where it stands."""
        return Position(self.file, self.start)

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `Delivery.settle`. Any verdict frees the window and means nothing else."""
        home = self.home
        if home is None:
            return None
        self.home = None
        home.out -= 1
        if home.blocked:
            home.wake()
        return None

    def transport(self, field: str) -> object:
        """`file.key`, `file.shard`, `file.sequence`, `file.timestamp` (milliseconds), `file.offset`."""
        if field not in _FIELDS:
            raise KeyError(field)
        return getattr(self, _FIELDS[field])


class GroupDelivery(FileDelivery, gc=False, eq=False):
    """A message of a subscription with a group: a verdict moves the group's position."""

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `Delivery.settle`. The future ends when the position is kept."""
        home = self.home
        if home is None:
            return None
        self.home = None
        home.out -= 1
        if home.blocked:
            home.wake()
        grouped: GroupHome = home  # type: ignore[assignment]  # only such a home adopts these
        return grouped.decide(self, verdict)


_FIELDS: Final = {
    "file.key": "name",
    "file.shard": "shard",
    "file.sequence": "sequence",
    "file.timestamp": "timestamp",
    "file.offset": "start",
}


def payload_of(out: Outgoing, *, line: bool = False) -> bytes:
    """The payload as it is written: with its headers inside, where it has any.

    The header `stream-sequence` says where a copy came from and is left out: it gets one of its own.

    Raises:
        ValueError: a header cannot be written.
    """
    headers = out.headers
    if headers and SEQUENCE_HEADER in headers:
        headers = Headers([pair for pair in headers.raw() if pair[0].lower() != SEQUENCE_HEADER])
    return seal(headers, out.payload, line=line)
