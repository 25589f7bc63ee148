"""One message of a stream in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec

from ruststream_core.errors import SettleError
from ruststream_core.settlement import Ack, Drop, Retry, Verdict
from ruststream_core.wire import Delivery, Headers
from ruststream_core_nats._convert import AckAddress, as_text, nanoseconds, parse_headers

__all__ = ["NAK", "WORKING", "Home", "StreamDelivery", "body_of"]

NAK: Final = b"-NAK"
WORKING: Final = b"+WPI"
_TERM: Final = b"+TERM"


class Home(Protocol):
    """The subscription as its deliveries see it."""

    def end(self, delivery: StreamDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """Settle what is in hand."""


class StreamDelivery(msgspec.Struct, Delivery, gc=False, eq=False):
    """A message of a stream. Its address for acknowledgements tells the rest, and is taken apart when asked."""

    payload: bytes
    subject: bytes
    address: bytes
    block: bytes
    home: Home | None
    """None once it is settled or lost."""
    turn: int
    """When it was last known to be alive, in turns of its home."""
    lost: SettleError | None = None

    @property
    def name(self) -> str:
        """See `Delivery.name`."""
        return as_text(self.subject)

    @property
    def headers(self) -> Headers:
        """See `Delivery.headers`. Read when asked for, each time."""
        return parse_headers(self.block)

    @property
    def attempt(self) -> int | None:
        """See `Delivery.attempt`: the consumer's count."""
        found = AckAddress.parse(self.address)
        return None if found is None else found.delivered

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        """See `Delivery.settle`. Handed over at once, unless the source asks for `double_ack`."""
        home = self.home
        if home is None:
            return None
        return home.end(self, verdict)

    def transport(self, field: str) -> object:
        """The position and the history of the message, by names that begin with `nats.`.

        `subject`, `stream`, `consumer`, `stream_sequence`, `consumer_sequence`, `num_pending`, `redelivered`, and
        `timestamp`, the time at which the stream took it.
        """
        if field == "nats.subject":
            return self.name
        found = AckAddress.parse(self.address)
        read = _FIELDS.get(field)
        if read is None or found is None:
            raise KeyError(field)
        return read(found)


_FIELDS: Final[dict[str, Callable[[AckAddress], object]]] = {
    "nats.stream": lambda found: found.stream,
    "nats.consumer": lambda found: found.consumer,
    "nats.stream_sequence": lambda found: found.stream_sequence,
    "nats.consumer_sequence": lambda found: found.consumer_sequence,
    "nats.num_pending": lambda found: found.pending,
    "nats.timestamp": lambda found: datetime.fromtimestamp(found.timestamp / 1e9, UTC),
    "nats.redelivered": lambda found: found.delivered > 1,
}


def body_of(verdict: Verdict) -> bytes:
    """What the server is told."""
    if isinstance(verdict, Ack):
        return b""
    if isinstance(verdict, Drop):
        return _TERM
    if isinstance(verdict, Retry) and verdict.after:
        return NAK + b' {"delay": %d}' % nanoseconds(verdict.after)
    return NAK
