"""Driving a subscription without a runtime: the plugin's loop of every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ruststream_core.abc import State, Subscription
from ruststream_core.errors import SettleError
from ruststream_core.settlement import ACK, RELEASE, Verdict
from ruststream_core.wire import Delivery
from ruststream_core_bench._payload import Order, decode

__all__ = ["CHUNK", "NoWatch", "drive_contract"]

CHUNK: Final = 64
"""Deliveries asked for at once: as many as the runtime asks for."""


class NoWatch:
    """A `Watch` for loops that have no runtime."""

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        """What was lost comes again and is counted twice, which the count of messages shows."""

    def state(self, state: State, cause: BaseException | None) -> None:
        """Nothing to tell."""


async def drive_contract(subscription: Subscription, handle: Callable[[Order], Awaitable[None]]) -> None:
    """The same with all that the contract asks of whoever drives a subscription.

    Lost deliveries are skipped, an error gives the delivery back, pending settlements are kept until decided.
    """
    pending: set[asyncio.Future[None]] = set()
    last: asyncio.Future[None] | None = None
    while chunk := await subscription.receive(CHUNK):
        for delivery in chunk:
            if delivery.lost is not None:
                continue
            try:
                await handle(decode(delivery.payload))
            except Exception:
                delivery.settle(RELEASE)
                raise
            settling = delivery.settle(ACK)
            if settling is not None and settling is not last:
                last = settling
                pending.add(settling)
                settling.add_done_callback(pending.discard)
    if pending:
        await asyncio.wait(pending)
