"""What users write and their type checkers accept, mypy and pyright in strict mode. Nothing here is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, assert_type

import msgspec
from pydantic import BaseModel

from ruststream_core import (
    Ack,
    App,
    Backoff,
    Batch,
    Context,
    Depends,
    Drop,
    FailFast,
    FromHeader,
    FromHeaders,
    FromPath,
    FromState,
    FromTransport,
    Message,
    Middleware,
    Out,
    Outcome,
    Publisher,
    Reply,
    Retry,
    Router,
    Running,
    Seeker,
    Skip,
    To,
    Transaction,
    by_key,
    message,
    subscriber,
)
from ruststream_core.memory import MemoryBroker, MemoryLog, MemoryQueue
from ruststream_core.middleware import Handle
from ruststream_core.testing import TestApp
from ruststream_core.wire import Delivery


class Order(msgspec.Struct):
    id: int
    customer: str


class Receipt(msgspec.Struct):
    order_id: int


class Cancelled(msgspec.Struct, tag=True):
    id: int


class Paid(msgspec.Struct, tag=True):
    id: int


class Model(BaseModel):
    id: int


class Meta(msgspec.Struct, rename="kebab"):
    x_tenant: str


@message("orders.{customer}.placed", headers=Meta)
class Placed(msgspec.Struct):
    customer: str


@dataclass
class Resources:
    pool: list[str]


@asynccontextmanager
async def lifespan(app: App) -> AsyncGenerator[Resources]:
    yield Resources([app.title])


app = App(
    "shop",
    version="1.0",
    brokers={"in": "memory:", "lake": MemoryBroker()},
    lifespan=lifespan,
    drain=20,
    on_error={TimeoutError: Backoff(1, most=60), KeyError: Skip, ValueError: Drop("bad"), OSError: lambda _: Retry()},
    on_decode_error=FailFast,
    max_attempts=5,
)


async def session(resources: Annotated[Resources, FromState]) -> AsyncGenerator[str]:
    yield resources.pool[0]


Session = Annotated[str, Depends(session)]


@app.subscriber("commands", reply="receipts", workers=by_key(8, lambda order: order.customer))
async def command(order: Order, db: Session, ctx: Context) -> Receipt | Retry | None:
    ctx.after_ack(mail, order, subject=db)
    return Retry(after=3) if order.id < 0 else Receipt(order.id)


async def mail(order: Order, *, subject: str) -> None: ...


@app.subscriber(MemoryQueue("rows"), batch=Batch(64, max_wait=0.01), workers=by_key(4), out={"audit": "audit"})
async def load(rows: list[Message[Order]], audit: Annotated[Publisher, Out("audit")]) -> list[Outcome | Receipt | None]:
    await audit.publish_many(row.value for row in rows)
    return [Retry(after=30) if row.value.id == 1 else Receipt(row.value.id) for row in rows]


router = Router(prefix="events.", dead_letter=To("dead", broker="lake"), retry_copies=True)


@router.subscriber("{kind}.>", reply=To("events", broker="lake"))
async def forward(
    model: Model,
    kind: Annotated[str, FromPath],
    tenant: Annotated[str, FromHeader("x-tenant")] = "none",
    sequence: Annotated[int | None, FromTransport("nats.stream_sequence")] = None,
) -> Reply[Model]:
    return Reply(model, key=kind, headers={"tenant": tenant, "sequence": str(sequence)})


app.include(router, broker="in", prefix="eu.")
app.include(router, broker="in", out={"audit": To("audit", broker="lake")})


@app.subscriber(Placed)
async def by_type(placed: Placed, meta: Annotated[Meta, FromHeaders]) -> None: ...


@app.subscriber(MemoryLog("log", group="billing"))
async def seek(body: bytes, seeker: Seeker) -> None:
    await seeker.seek(0)


@app.subscriber("transactional")
async def transactional(order: Order, unit: Annotated[Any, Transaction]) -> Ack:
    return Ack()


@app.subscriber("union")
def synchronous(event: Cancelled | Paid) -> None: ...


class Handlers:
    @subscriber("orders.placed")
    async def placed(self, order: Order, ctx: Context) -> Receipt:
        return Receipt(order.id)


class Callable:
    async def __call__(self, order: Order) -> None: ...


handlers = Handlers()
app.include(Router.of(handlers))
app.include(handlers.placed, broker="in")
app.subscriber("object")(Callable())
app.subscriber("partial")(partial(command, db="x"))


class Timed(Middleware):
    def consume(self, call: Handle, route: str) -> Handle:
        async def timed(delivery: Delivery) -> object:
            return await call(delivery)

        return timed


app.use(Timed())


@app.after_startup
async def started() -> None: ...


async def client(publisher: Publisher, running: Running) -> None:
    assert_type(await publisher.request(Order(1, "a"), to="stock", timeout=1, reply=Receipt), Receipt)
    assert_type(await publisher.request(b"", to="stock", timeout=1), Message[bytes])
    await running.publish(Placed("a"), headers=Meta("t"))
    async with running.publisher("lake").transaction() as unit:
        await unit.publish(Order(1, "a"), to="rows", key=b"k")
    assert_type(running.health().ready, bool)


async def called_directly() -> None:
    assert_type(await command(Order(1, "a"), "db", Context()), Receipt | Retry | None)
    assert_type(await handlers.placed(Order(1, "a"), Context()), Receipt)
    assert_type(synchronous(Paid(1)), None)


async def tested() -> None:
    async with TestApp(app, overrides={session: lambda: "fake"}) as t:
        with t.fault("duplicate"):
            await t.publish(Order(1, "a"), to="commands")
        await t.advance(5)
        assert_type([received.value for received in t.published("receipts", Receipt)], list[Receipt])
        assert_type(t.route(command).outcomes, list[Outcome])
