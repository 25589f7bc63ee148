"""Replies: encoded, handed over, and only when that is confirmed the delivery is settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Any

import msgspec

from ruststream_core.dispatch._ending import kind_of
from ruststream_core.dispatch._plan import RoutePlan
from ruststream_core.dispatch._publish import build
from ruststream_core.dispatch._retrying import Retrying
from ruststream_core.dispatch._senders import Literally, Target, Transmit
from ruststream_core.errors import EncodeError, RustStreamError
from ruststream_core.params import Reply
from ruststream_core.settlement import ACK, Retry
from ruststream_core.wire import NO_HEADERS, Delivery, Outgoing
from ruststream_core.workers import ended

__all__ = ["Replying"]

log = logging.getLogger("ruststream")


class Replying(Retrying):
    """An ending that answers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        plan = self.plan
        self._send_reply = None if plan.reply is None else self._senders.transmit(plan.reply.broker)
        self._plain_type = _plain_reply_type(plan) if self._probe is None else None

    def _reply(self, worker: int, delivery: Delivery, value: object, *, hold: bool) -> Awaitable[None] | None:
        if self._probe is not None:
            self._probe.replied(self.plan.name, value.value if isinstance(value, Reply) else value)
        try:
            pending = self.send_reply(delivery, value)
        except Exception as exc:
            return self._unsent(worker, delivery, exc)
        return self._unless_pending(worker, delivery, pending, hold=hold)

    def _reply_plainly(self, worker: int, delivery: Delivery, value: object) -> Awaitable[None] | None:
        """The short way of a reply: its type, name and codec were settled when the route was mounted."""
        target = self.plan.reply
        assert target is not None
        assert self._send_reply is not None
        try:
            out = Outgoing(self.plan.codec.encode(value), target.template.text, NO_HEADERS, None, target.options)
            pending = self._send_reply(out)
        except Exception as exc:
            return self._unsent(worker, delivery, exc)
        if pending is not None:
            return self._unless_pending(worker, delivery, pending, hold=False)
        settling = delivery.settle(ACK)
        if settling is not None:
            self.crew.track(settling)
        return None

    def _unless_pending(
        self, worker: int, delivery: Delivery, pending: asyncio.Future[None] | None, *, hold: bool
    ) -> Awaitable[None] | None:
        if pending is None or pending.done():
            return self._sent(worker, delivery, pending)
        self._hold(delivery)
        if hold or self._policy.retry == "in_place":
            return self._await_reply(worker, delivery, pending)
        self._waiting[id(delivery)] = pending
        pending.add_done_callback(partial(self._confirmed, delivery))
        self.crew.track(pending)
        return None

    def send_reply(
        self, delivery: Delivery, value: object, transmit: Transmit | None = None
    ) -> asyncio.Future[None] | None:
        """Encode a reply and hand it over, to the delivery's own address first."""
        plan = self.plan
        own = delivery.reply_to
        to = value.to if isinstance(value, Reply) else None
        if own is not None:
            out = build(plan.codec, _address(plan.broker, own), value, None, None, None)
            if (correlation := delivery.headers.get("correlation-id")) is not None:
                out.headers = out.headers.replaced({"correlation-id": correlation})
            return (transmit or self._send_back)(out)
        target = plan.target_of(to, value)
        if target is None:
            raise EncodeError(f"route {plan.name!r} returned {type(value).__name__} and nothing says where to")
        out = build(plan.codec, target, value, None, None, target.options)
        if transmit is not None and target.broker == plan.broker:
            return transmit(out)
        if target is plan.reply and self._send_reply is not None:
            return self._send_reply(out)
        return self._senders.transmit(target.broker)(out)

    def _sent(self, worker: int, delivery: Delivery, pending: asyncio.Future[None] | None) -> Awaitable[None] | None:
        if pending is not None and (pending.cancelled() or pending.exception() is not None):
            cause = RustStreamError("cancelled") if pending.cancelled() else pending.exception()
            return self._unsent(worker, delivery, cause or RustStreamError("unknown"))
        self._observe(delivery, ACK)
        self.settle(delivery, ACK)
        return None

    async def _await_reply(self, worker: int, delivery: Delivery, pending: asyncio.Future[None]) -> None:
        await ended(pending)
        if (waiting := self._sent(worker, delivery, pending)) is not None:
            await waiting

    def _confirmed(self, delivery: Delivery, pending: asyncio.Future[None]) -> None:
        del self._waiting[id(delivery)]
        if id(delivery) in self._gone:
            return  # the drain's last deadline came first
        if (waiting := self._sent(-1, delivery, pending)) is not None:
            self._spawn(waiting)

    def _unsent(self, worker: int, delivery: Delivery, error: BaseException) -> Awaitable[None] | None:
        self.books.failed += 1
        log.warning("route %s: the reply could not be published: %s", self.plan.name, kind_of(error), exc_info=error)
        if self._probe is not None:
            self._probe.failed(self.plan.name, error, named=False)
        self._observe(delivery, retry := Retry(reason="the reply could not be published"))
        return self._retry(worker, delivery, retry, error)


def _plain_reply_type(plan: RoutePlan) -> type | None:
    """The class of replies that need no look at names, headers or options; None where there is no such class."""
    kind, target = plan.spec.reply_type, plan.reply
    if target is None or target.template.fields or plan.codec.name != "json" or plan.mount.options.get("reply") is None:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _address(broker: str, name: str) -> Target:
    return Target(broker=broker, template=Literally(name))
