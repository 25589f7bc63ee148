"""Pull consumers: requests of this plugin's own, which overlap, and whose answers arrive on one subject."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec

from ruststream_core.abc import Demand, Watch
from ruststream_core.errors import ConfigError, RustStreamError, Superseded
from ruststream_core.wire import Delivery
from ruststream_core_nats._convert import AckAddress, nanoseconds, parse_headers, status_of
from ruststream_core_nats._delivery import StreamDelivery
from ruststream_core_nats._hand import Link
from ruststream_core_nats._jetstream import JetStreamSubscription
from ruststream_core_nats._manage import Consumer, wanted_config
from ruststream_core_nats.config import JetStream

__all__ = ["OrderedSubscription", "PullSubscription", "ordered_config"]

log = logging.getLogger("ruststream.nats")

_HEARTBEAT, _NO_MESSAGES, _EXPIRED, _CONFLICT, _NOBODY = 100, 404, 408, 409, 503
_PASSING: Final = ("Leadership Change", "Server Shutdown", "Exceeded MaxWaiting", "Consumer Deleted")


class PullSubscription(JetStreamSubscription):
    """Asks for as many messages as there is room for, and again when half of them have come."""

    def __init__(self, source: JetStream, demand: Demand, watch: Watch, link: Link, consumer: Consumer) -> None:
        super().__init__(source, demand, watch, link, consumer)
        self._asked = 0
        """Messages that the server was asked for and has neither sent nor refused."""
        self._least = max(1, self.window // 2)
        self._own = link.inbox()
        self._skip = len(self._own) + 1
        self._number = 0
        self._open: dict[bytes, int] = {}
        """Sizes of requests that the server may still be working on, by number."""
        self._withheld: list[tuple[StreamDelivery, bytes]] | None = None
        self._retiring: asyncio.Task[None] | None = None
        times = nanoseconds(source.expires), nanoseconds(source.heartbeat)
        self._terms = b'"expires":%d,"idle_heartbeat":%d}' % times

    async def _attach(self) -> None:
        subject = f"{self._own}.*"
        self.subjects = frozenset({subject.lower()})
        self._listener = await self._wire.listen(subject, "", self._take)

    def stop(self) -> None:
        """See `Subscription.stop`."""
        if not self.stopped and self.source.durable is not None and self._online:
            # A server that brings a message back while it still knows our requests, and nobody listens there any
            # more, counts a delivery, moves it behind the others, and before 2.9.12 sends a settled one again. Asked
            # for the consumer it drops such requests, so refusals wait for its answer.
            self._withheld = []
            super().stop()
            self._retiring = asyncio.get_running_loop().create_task(self._drop_requests(), name="nats retiring")
        else:
            super().stop()

    async def _drop_requests(self) -> None:
        try:
            await self._link.manager.find(self.consumer.stream, self.consumer.name)
        except RustStreamError as exc:
            log.debug("%r: its requests were not dropped: %s", self.source.name, exc)
        self._say_withheld()

    def _say_withheld(self) -> None:
        withheld, self._withheld = self._withheld, None
        for delivery, body in withheld or ():
            super()._refuse(delivery, body)

    def _refuse(self, delivery: StreamDelivery, body: bytes) -> None:
        if self._withheld is not None:
            self._withheld.append((delivery, body))
        else:
            super()._refuse(delivery, body)

    async def _retire(self, grace: float) -> None:
        if self._retiring is not None:
            await asyncio.wait([self._retiring], timeout=grace)
            self._retiring.cancel()
        self._say_withheld()

    def _sync(self) -> None:
        if not self._asked:
            self._ask(self.window - self._room.out - len(self._inbox))

    def _sync_some(self) -> None:
        want = self.window - self._room.out - len(self._inbox) - self._asked
        if want >= self._least or not self._asked:
            self._ask(want)

    def _ask(self, count: int) -> None:
        if count <= 0 or self.stopped or not self._online:
            return
        self._number += 1
        number = b"%d" % self._number
        self._open[number] = count
        if len(self._open) > 64:  # those that were served to the end say nothing
            self._open = dict(list(self._open.items())[-32:])
        self._asked += count
        next_message = f"{self._link.manager.prefix}.CONSUMER.MSG.NEXT.{self.consumer.stream}.{self.consumer.name}"
        reply = b"%b.%b" % (self._own.encode(), number)
        self._wire.tell(next_message.encode(), b'{"batch":%d,' % count + self._terms, reply)

    def _take(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        if not reply:
            self._status(subject[self._skip :], block)
            return
        if self._asked:
            self._asked -= 1
        self._arrived(subject, reply, payload, block)

    def _status(self, number: bytes, block: bytes) -> None:
        self._seen += 1
        code, text = status_of(block)
        if code == _HEARTBEAT:
            self._heartbeat(block)
            return
        asked = self._open.pop(number, None)
        if asked is None:
            return  # of before an outage
        left = parse_headers(block).get("Nats-Pending-Messages", "")
        self._asked = max(0, self._asked - (int(left) if left.isdigit() else asked))
        if code in (_NO_MESSAGES, _EXPIRED):
            self._sync()
        elif code == _NOBODY or (code == _CONFLICT and text.startswith(_PASSING)):
            self._look_after()
        elif code == _CONFLICT and text.startswith("Exceeded"):
            self._end_lost(
                ConfigError(f"{self.source.name!r}: the consumer refuses requests of this size: {text}; window= and"
                            " expires= say how much is asked for")
            )  # fmt: skip
        elif code == _CONFLICT:
            self._sync_some()
        else:
            self._end_lost(ConfigError(f"{self.source.name!r}: the server refuses to deliver: {code} {text}"))

    def _heartbeat(self, block: bytes) -> None:
        """The consumer is there and has nothing."""

    def _expecting(self) -> bool:
        return self._asked > 0

    def _forget_requests(self) -> None:
        self._asked = 0
        self._open.clear()


class OrderedSubscription(PullSubscription):
    """A replay: a consumer without acknowledgements that is made again wherever something may be missing."""

    def __init__(self, source: JetStream, demand: Demand, watch: Watch, link: Link, consumer: Consumer) -> None:
        super().__init__(source, demand, watch, link, consumer)
        self._counted = 0
        """Messages that this consumer has sent here."""
        self._former: list[str] = []
        """Consumers that were left and still have to be deleted."""

    def _arrived(self, subject: bytes, address: bytes, payload: bytes, block: bytes) -> None:
        self._counted += 1
        super()._arrived(subject, address, payload, block)

    def _heartbeat(self, block: bytes) -> None:
        last = parse_headers(block).get("Nats-Last-Consumer", "")
        if last.isdigit() and int(last) > self._counted and not self._remaking:
            log.warning("%r: messages are missing, the replay goes on behind the last one", self.source.name)
            self._look_after()

    def _config(self, start: int | None) -> dict[str, Any]:
        return ordered_config(self.source, start=start)

    def _resume(self) -> None:
        # What was sent into the broken connection is gone, nobody acknowledges: only a new consumer sends it again.
        self._look_after()

    async def _is_gone(self) -> bool:
        self._start = self._resume_at()
        return True

    async def _remake(self) -> None:
        self._leave()
        await super()._remake()
        self._counted = 0
        while self._former:
            await self._link.manager.delete(self.consumer.stream, self._former[-1])
            self._former.pop()

    def _leave(self) -> None:
        """Take nothing more of this consumer, however late it comes."""
        if self.consumer.name:
            self._former.append(self.consumer.name)
        self.consumer = msgspec.structs.replace(self.consumer, name="")
        self._known = 0
        self._first = b"\x00"
        self._forget_requests()

    def _resume_at(self) -> int | None:
        newest = AckAddress.parse(self._newest)
        return self._start if newest is None else newest.stream_sequence + 1

    def position(self, delivery: Delivery) -> int:
        """See `Positioned.position`: the sequence in the stream."""
        assert isinstance(delivery, StreamDelivery)
        found = AckAddress.parse(delivery.address)
        assert found is not None
        return found.stream_sequence

    async def seek(self, position: Any) -> None:
        """Go on from a sequence of the stream, from `"earliest"` or from `"latest"`, the next one to come.

        Raises:
            ConfigError: no such position, or the stream is gone.
            ConnectError: not now; it is done as soon as the server can be reached.
        """
        target = await self._target(position)
        if self._check is not None and not self._check.done():
            await asyncio.wait([self._check])
        self._revoke(Superseded(f"{self.source.name!r} was moved to sequence {target}"))
        self._start, self._newest = target, b""
        self._remaking = True
        self._leave()
        self._look_after()
        assert self._check is not None
        await asyncio.wait([self._check])

    async def _target(self, position: Any) -> int:
        last = await self._link.manager.last_sequence(self.consumer.stream)
        if last is None:
            raise ConfigError(f"{self.source.name!r}: stream {self.consumer.stream!r} is gone")
        named = {"earliest": 1, "latest": last + 1}
        target = named.get(position) if isinstance(position, str) else position
        if isinstance(target, bool) or not isinstance(target, int) or not 1 <= target <= last + 1:
            raise ConfigError(
                f"{self.source.name!r}: cannot seek to {position!r}; 'earliest', 'latest' or 1 to {last + 1} is"
                " accepted"
            )
        return target


def ordered_config(source: JetStream, *, start: int | None = None) -> dict[str, Any]:
    """The consumer of a replay: nobody else's, so it lives in memory only."""
    return {**wanted_config(source, start=start), "mem_storage": True, "num_replicas": 1}
