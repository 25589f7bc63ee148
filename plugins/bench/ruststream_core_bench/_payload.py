"""The message of every scenario: 512 bytes of JSON, byte for byte the same in all loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from ruststream_core_bench._scenario import Tally

__all__ = [
    "BODY",
    "KEYS",
    "SIZE",
    "Handler",
    "Order",
    "Receipt",
    "counting",
    "counting_batches",
    "decode",
    "encode",
    "replying",
]

SIZE: Final = 512


class Order(msgspec.Struct):
    """What is sent."""

    id: int
    customer: str
    items: list[str]
    total: float
    note: str


class Receipt(msgspec.Struct):
    """What is replied."""

    order_id: int
    total: float


def _body() -> bytes:
    order = Order(1_000_001, "customer-4711", ["book", "lamp", "chair"], 129.5, "")
    padding = SIZE - len(msgspec.json.encode(order))
    return msgspec.json.encode(msgspec.structs.replace(order, note="n" * padding))


BODY: Final = _body()
KEYS: Final = tuple(f"key-{number}".encode() for number in range(64))
decode: Final[Callable[[bytes], Order]] = msgspec.json.Decoder(Order).decode
encode: Final = msgspec.json.Encoder().encode

Handler: TypeAlias = Callable[[Order], Awaitable[None]]


def counting(tally: Tally) -> Handler:
    """A handler that only counts."""

    async def handle(order: Order) -> None:  # noqa: ARG001  a handler takes its message
        tally.count += 1
        if tally.count == tally.goal:
            tally.hit()

    return handle


def counting_batches(tally: Tally) -> Callable[[list[Order]], Awaitable[None]]:
    """The same for batches. A batch may end beyond the goal."""

    async def handle(orders: list[Order]) -> None:
        before = tally.count
        tally.count = before + len(orders)
        if before < tally.goal <= tally.count:
            tally.hit()

    return handle


def replying(tally: Tally) -> Callable[[Order], Awaitable[Receipt]]:
    """A handler that counts and answers."""

    async def handle(order: Order) -> Receipt:
        tally.count += 1
        if tally.count == tally.goal:
            tally.hit()
        return Receipt(order.id, order.total)

    return handle
