"""Loops as one writes them by hand on a transport's own `receive`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ruststream_core.abc import Sender, Subscription
from ruststream_core.settlement import ACK
from ruststream_core.wire import Delivery, Outgoing
from ruststream_core_bench._contract import CHUNK, drive_contract
from ruststream_core_bench._payload import Order, Receipt, decode, encode

__all__ = [
    "BATCH",
    "answer_requests",
    "drive_batches",
    "drive_lanes",
    "drive_plainly",
    "drive_queue",
    "drive_replies",
    "drive_replies_contract",
]

BATCH: Final = 64


async def drive_plainly(subscription: Subscription, handle: Callable[[Order], Awaitable[None]]) -> None:
    """The loop of somebody who needs nothing else."""
    while chunk := await subscription.receive(CHUNK):
        for delivery in chunk:
            await handle(decode(delivery.payload))
            delivery.settle(ACK)


async def drive_queue(subscription: Subscription, handle: Callable[[Order], Awaitable[None]], workers: int) -> None:
    """Several workers as one writes them by hand: a queue between."""
    queue: asyncio.Queue[Delivery | None] = asyncio.Queue(2 * CHUNK)

    async def work() -> None:
        while (delivery := await queue.get()) is not None:
            await handle(decode(delivery.payload))
            delivery.settle(ACK)

    tasks = [asyncio.ensure_future(work()) for _ in range(workers)]
    while chunk := await subscription.receive(CHUNK):
        for delivery in chunk:
            await queue.put(delivery)
    for _ in tasks:
        await queue.put(None)
    await asyncio.gather(*tasks)


async def drive_lanes(subscription: Subscription, handle: Callable[[Order], Awaitable[None]], workers: int) -> None:
    """Keys in order as one writes it by hand: a queue for each worker."""
    queues: list[asyncio.Queue[Delivery | None]] = [asyncio.Queue(2 * CHUNK) for _ in range(workers)]

    async def work(queue: asyncio.Queue[Delivery | None]) -> None:
        while (delivery := await queue.get()) is not None:
            await handle(decode(delivery.payload))
            delivery.settle(ACK)

    tasks = [asyncio.ensure_future(work(queue)) for queue in queues]
    while chunk := await subscription.receive(CHUNK):
        for delivery in chunk:
            await queues[hash(delivery.key) % workers].put(delivery)
    for queue in queues:
        await queue.put(None)
    await asyncio.gather(*tasks)


async def drive_batches(subscription: Subscription, handle: Callable[[list[Order]], Awaitable[None]]) -> None:
    """Whole chunks, settled one by one."""
    while chunk := await subscription.receive(BATCH):
        await handle([decode(delivery.payload) for delivery in chunk])
        for delivery in chunk:
            delivery.settle(ACK)


async def drive_replies(
    subscription: Subscription, handle: Callable[[Order], Awaitable[Receipt]], sender: Sender, to: str
) -> None:
    """Decode, handle, encode, publish, settle."""
    while chunk := await subscription.receive(CHUNK):
        for delivery in chunk:
            receipt = await handle(decode(delivery.payload))
            sender.send(Outgoing(encode(receipt), to))
            delivery.settle(ACK)


async def drive_replies_contract(
    subscription: Subscription, handle: Callable[[Order], Awaitable[Receipt]], sender: Sender, to: str
) -> None:
    """The same with all that the contract asks for."""

    async def reply(order: Order) -> None:
        confirmed = sender.send(Outgoing(encode(await handle(order)), to))
        if confirmed is not None:
            await confirmed

    await drive_contract(subscription, reply)


async def answer_requests(subscription: Subscription, sender: Sender) -> None:
    """Answer where the request says."""
    while chunk := await subscription.receive(CHUNK):
        for delivery in chunk:
            order = decode(delivery.payload)
            sender.send(Outgoing(encode(Receipt(order.id, order.total)), delivery.reply_to or ""))
            delivery.settle(ACK)
