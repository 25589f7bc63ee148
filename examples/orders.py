"""Orders in, receipts out: validated, keyed by customer, with a dead letter. `demo.py` runs it over a recording."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Annotated

import msgspec

from ruststream_core import App, Backoff, Context, FromPath, Skip, To, by_key, subscriber
from ruststream_core_file import FileBroker, FileStream


class Line(msgspec.Struct):
    sku: str
    quantity: int
    price: Decimal


class Order(msgspec.Struct):
    id: int
    customer: str
    currency: str
    lines: list[Line]


class Receipt(msgspec.Struct):
    order_id: int
    customer: str
    region: str
    total: Decimal
    currency: str


class StockUnavailable(Exception):
    """The warehouse does not answer for now."""


app = App(
    "orders",
    version="1.0.0",
    brokers={
        "in": FileBroker(os.environ.get("ORDERS", "orders.ss"), existing_only=True),
        "out": FileBroker(os.environ.get("RECEIPTS", "receipts.ss"), end_with_eos=True),
    },
    on_error={StockUnavailable: Backoff(0.05, most=1)},
)


async def reserve(order: Order, attempt: int) -> None:
    """Stands for a call of another service: it fails once in a while, and works when it is asked again."""
    if order.id % 25_000 == 7 and attempt == 1:
        raise StockUnavailable(f"order {order.id}")


@subscriber(
    FileStream("orders.{region}", replay=True, group="billing"),
    reply=To("receipts", broker="out"),
    workers=by_key(8, lambda order: order.customer),
    dead_letter=To("orders.dead", broker="out"),
)
async def confirm(order: Order, ctx: Context, region: Annotated[str, FromPath]) -> Receipt | Skip:
    """One order. Those of a customer are worked on in their order, customers side by side."""
    if not order.lines:
        return Skip()
    await reserve(order, ctx.attempt)
    total = sum((line.quantity * line.price for line in order.lines), Decimal(0))
    return Receipt(order.id, order.customer, region, total, order.currency)


app.include(confirm, broker="in")
