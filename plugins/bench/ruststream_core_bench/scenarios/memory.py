"""The in-process transport: no server, no socket, so that what is left is the cost of the code.

The raw loop is the one that everybody would write by hand on `receive`: decode, await the handler, settle. Messages
are published in slabs while the watch stands still, so that memory stays flat and publishing is not measured.
"""

# ruff: noqa: RUF001 - titles are written in three languages

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Unpack

from ruststream_core import App, Batch, Context, Middleware, RouteOptions, by_key
from ruststream_core.abc import Demand, RequestReply, Sender, Subscription
from ruststream_core.memory import MemoryBroker, MemoryQueue
from ruststream_core.middleware import Handle
from ruststream_core.settlement import ACK
from ruststream_core.wire import Delivery, Outgoing
from ruststream_core_bench._by_hand import (
    BATCH,
    answer_requests,
    drive_batches,
    drive_lanes,
    drive_plainly,
    drive_queue,
    drive_replies,
    drive_replies_contract,
)
from ruststream_core_bench._contract import CHUNK, NoWatch, drive_contract
from ruststream_core_bench._payload import (
    BODY,
    KEYS,
    Order,
    Receipt,
    counting,
    counting_batches,
    decode,
    replying,
)
from ruststream_core_bench._scenario import Loop, Place, Scenario, Suite, Tally, Task, Text

__all__ = ["SUITE", "Layer"]

SLAB: Final = 50_000
"""Messages that wait in the queue at most: 64 chunks would do, but each slab costs one switch of tasks."""
ROUTES: Final = 1_000

Feeder = Callable[[int], None]


class Layer(Middleware):
    """The cheapest middleware there can be: one coroutine more."""

    def consume(self, call: Handle, route: str) -> Handle:
        """See `Middleware.consume`."""

        async def layer(delivery: Delivery) -> object:
            return await call(delivery)

        return layer


# ------------------------------------------------------------------------------------------------------- feeding


class _Queue:
    """The queue of one task, and what feeds it."""

    def __init__(self, task: Task, broker: MemoryBroker, sender: Sender) -> None:
        self.task = task
        self.broker = broker
        self.sender = sender

    def feed(self, messages: int) -> None:
        """Publish so many, over 64 keys in turn."""
        send, name, keys = self.sender.send, self.task.name, KEYS
        for number in range(messages):
            send(Outgoing(BODY, name, key=keys[number & 63]))

    def feed_many(self, messages: int) -> None:
        """Publish so many over `ROUTES` names, a chunk's worth to each in turn."""
        for first in range(0, messages, CHUNK):
            name = f"{self.task.name}-{first // CHUNK % ROUTES}"
            for _ in range(min(CHUNK, messages - first)):
                self.sender.send(Outgoing(BODY, name))

    async def subscribe(self, demand: Demand) -> Subscription:
        """A subscription on a connection that lives as long as the process of this run."""
        connection = await self.broker.connect()
        return await connection.subscribe(MemoryQueue(self.task.name), demand, NoWatch())


@asynccontextmanager
async def _source(task: Task) -> AsyncIterator[_Queue]:
    broker = MemoryBroker()
    connection = await broker.connect()
    try:
        yield _Queue(task, broker, await connection.sender())
    finally:
        await connection.aclose(1.0)


async def _slabs(
    task: Task,
    tally: Tally,
    feed: Feeder,
    between: Callable[[], Awaitable[None]] | None = None,
    most: int = SLAB,
) -> None:
    left = task.messages
    while left:
        size = min(left, most)
        feed(size)
        seen = tally.more(size)
        with task.watch:
            await seen
        if between is not None:
            await between()
        left -= size


async def _feed_only(task: Task) -> None:
    async with _source(task) as source:
        with task.watch:
            source.feed(task.messages)


# ---------------------------------------------------------------------------------------- loops without a runtime


@asynccontextmanager
async def _working(subscription: Subscription, body: Awaitable[None]) -> AsyncIterator[None]:
    work = asyncio.ensure_future(body)
    try:
        yield
    finally:
        subscription.stop()
        await work
        await subscription.aclose(1.0)


def _by_hand(drive: Callable[..., Awaitable[None]], *more: object, demand: Demand | None = None) -> Loop:
    async def loop(task: Task) -> None:
        async with _source(task) as source:
            tally = Tally()
            subscription = await source.subscribe(demand or Demand())
            async with _working(subscription, drive(subscription, counting(tally), *more)):
                await _slabs(task, tally, source.feed)

    return loop


_raw = _by_hand(drive_plainly)
_adapter = _by_hand(drive_contract)


async def _raw_batches(task: Task) -> None:
    async with _source(task) as source:
        tally = Tally()
        subscription = await source.subscribe(Demand(batch=BATCH))
        async with _working(subscription, drive_batches(subscription, counting_batches(tally))):
            await _slabs(task, tally, source.feed)


# ------------------------------------------------------------------------------------------------------- services


def _service(*middleware: Middleware, **options: Unpack[RouteOptions]) -> Loop:
    async def loop(task: Task) -> None:
        async with _source(task) as source:
            tally = Tally()
            app = App("bench", broker=source.broker)
            app.use(*middleware)
            app.subscriber(task.name, **options)(counting(tally))
            async with app.start():
                await _slabs(task, tally, source.feed)

    return loop


async def _service_context(task: Task) -> None:
    async with _source(task) as source:
        tally = Tally()
        app = App("bench", broker=source.broker)

        @app.subscriber(task.name)
        async def handle(order: Order, ctx: Context) -> None:  # noqa: ARG001  what is measured is that they are there
            tally.count += 1
            if tally.count == tally.goal:
                tally.hit()

        async with app.start():
            await _slabs(task, tally, source.feed)


async def _service_batches(task: Task) -> None:
    async with _source(task) as source:
        tally = Tally()
        app = App("bench", broker=source.broker)
        app.subscriber(task.name, batch=Batch(BATCH, max_wait=0))(counting_batches(tally))
        async with app.start():
            await _slabs(task, tally, source.feed)


# ---------------------------------------------------------------------------------------------------- with replies


@asynccontextmanager
async def _emptying(source: _Queue) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """A name for replies, and what takes away those that have gathered there."""
    name = source.task.name + "-replies"
    connection = await source.broker.connect()
    subscription = await connection.subscribe(MemoryQueue(name), Demand(), NoWatch())

    async def empty() -> None:
        while subscription.statistics().lag:
            for delivery in await subscription.receive(CHUNK * 16):
                delivery.settle(ACK)

    yield name, empty
    await connection.aclose(1.0)


def _replies_by_hand(drive: Callable[..., Awaitable[None]]) -> Loop:
    async def loop(task: Task) -> None:
        async with _source(task) as source, _emptying(source) as (to, empty):
            tally = Tally()
            subscription = await source.subscribe(Demand())
            async with _working(subscription, drive(subscription, replying(tally), source.sender, to)):
                await _slabs(task, tally, source.feed, empty)

    return loop


async def _service_replies(task: Task) -> None:
    async with _source(task) as source, _emptying(source) as (to, empty):
        tally = Tally()
        app = App("bench", broker=source.broker)
        app.subscriber(task.name, reply=to)(replying(tally))
        async with app.start():
            await _slabs(task, tally, source.feed, empty)


# ---------------------------------------------------------------------------------------------------- requests


def _requests_by_hand() -> Loop:
    async def loop(task: Task) -> None:
        async with _source(task) as source:
            subscription = await source.subscribe(Demand())
            connection = await source.broker.connect()
            assert isinstance(connection, RequestReply)
            out = Outgoing(BODY, task.name)
            async with _working(subscription, answer_requests(subscription, source.sender)):
                with task.watch:
                    for _ in range(task.messages):
                        await connection.request(out, 60.0)

    return loop


async def _service_requests(task: Task) -> None:
    async with _source(task) as source:
        app = App("bench", broker=source.broker)

        @app.subscriber(task.name)
        async def handle(order: Order) -> Receipt:
            return Receipt(order.id, order.total)

        order = decode(BODY)
        async with app.start() as running:
            with task.watch:
                for _ in range(task.messages):
                    await running.request(order, to=task.name, timeout=60.0, reply=Receipt)


# ------------------------------------------------------------------------------------------------------- growth


def _routes(count: int) -> Loop:
    async def loop(task: Task) -> None:
        async with _source(task) as source:
            tally = Tally()
            app = App("bench", broker=source.broker)
            for number in range(count):
                name = f"{task.name}-{number}" if count > 1 else task.name
                app.subscriber(name, name=name)(counting(tally))
            async with app.start():
                # Four chunks for each of many routes: a wake-up is paid once a slab, as under a load.
                await _slabs(task, tally, source.feed if count == 1 else source.feed_many, most=4 * CHUNK * ROUTES)

    return loop


# ---------------------------------------------------------------------------------------------------- the table


def _scenario(name: str, title: Text, framework: Loop, **more: Any) -> Scenario:
    settings: dict[str, Any] = {"raw": _raw, "adapter": _adapter, "feed": _feed_only, "clock": "cpu", "step": BATCH}
    return Scenario(name=name, title=title, framework=framework, **(settings | more))


_SCENARIOS: Final[Sequence[Scenario]] = (
    _scenario(
        "consume",
        Text("typed handler, ack each", "типизированный обработчик, ack на каждое", "类型化处理函数，逐条确认"),
        _service(),
    ),
    _scenario(
        "workers-8",
        Text("workers=8", "workers=8", "workers=8"),
        _service(workers=8),
        adapter=_by_hand(drive_queue, 8, demand=Demand(workers=8)),
    ),
    _scenario(
        "by-key-8",
        Text("by_key(8)", "by_key(8)", "by_key(8)"),
        _service(workers=by_key(8)),
        adapter=_by_hand(drive_lanes, 8, demand=Demand(workers=8, keyed=True)),
    ),
    _scenario("context", Text("with Context", "с Context", "带 Context"), _service_context),
    _scenario("middleware-1", Text("one middleware", "одно middleware", "一个中间件"), _service(Layer())),
    _scenario(
        "middleware-3",
        Text("three middlewares", "три middleware", "三个中间件"),
        _service(Layer(), Layer(), Layer()),
    ),
    _scenario(
        "reply",
        Text("reply published", "публикация ответа", "发布应答"),
        _service_replies,
        raw=_replies_by_hand(drive_replies),
        adapter=_replies_by_hand(drive_replies_contract),
    ),
    _scenario(
        "batch-64",
        Text("batches of 64", "пакеты по 64", "每批 64 条"),
        _service_batches,
        raw=_raw_batches,
        adapter=None,
    ),
    _scenario(
        "request",
        Text("request and reply, one at a time", "запрос и ответ, по одному", "请求与应答，逐个进行"),
        _service_requests,
        raw=_requests_by_hand(),
        adapter=None,
        feed=None,
    ),
    _scenario(
        "routes-1000",
        Text(
            "1,000 routes (raw: a service with one)",
            "1000 маршрутов (raw: сервис с одним)",
            "1000 个路由（raw：只有一个路由的服务）",
        ),
        _routes(ROUTES),
        raw=_routes(1),
        adapter=None,
        feed=None,
    ),
)


@contextmanager
def _open() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="ruststream-bench-") as folder:
        yield Place("memory:", Path(folder))


SUITE: Final = Suite(
    name="memory",
    title=Text("In process", "Внутри процесса", "进程内"),
    package="ruststream-core",
    scenarios=_SCENARIOS,
    open=_open,
)
