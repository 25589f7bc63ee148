"""NATS on a real server, against nats-py as its best users drive it and against FastStream.

Messages come from another process over a bare socket, a few thousand ahead of the reader at most. Raw loops use the
client's callback on Core, which is four times as fast as its iterator, and fetches of 256 on JetStream.
"""

# ruff: noqa: RUF001 - titles are written in three languages

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ruststream_core import App, Batch, RouteOptions, To
from ruststream_core.abc import Connection, Demand, Source, Subscription
from ruststream_core.errors import RustStreamError
from ruststream_core.plugins import broker_from_url
from ruststream_core.settlement import ACK
from ruststream_core.testing.servers import NatsServer
from ruststream_core.wire import Outgoing
from ruststream_core_bench._contract import NoWatch, drive_contract
from ruststream_core_bench._environment import round_trip
from ruststream_core_bench._feeding import STEP, produce
from ruststream_core_bench._payload import BODY, Order, counting, counting_batches, decode, encode, replying
from ruststream_core_bench._scenario import Loop, Place, Scenario, Suite, Tally, Task, Text

__all__ = ["SUITE"]

FETCH: Final = 256
BATCH: Final = 64
WINDOW: Final = 256
"""Publishes whose acknowledgement is outstanding."""
SETTLE_SECONDS: Final = 10.0
OPEN_SECONDS: Final = 3600.0
"""How long JetStream waits for an acknowledgement: a stop of the benchmark must not bring messages again."""


# --------------------------------------------------------------------------------------------------- around a loop


async def _produce(task: Task, tally: Tally) -> None:
    """Let the other process send to the task's subject."""
    address = urlsplit(task.place.url)
    await produce(task, tally, "ruststream_core_bench._producer", str(address.hostname), str(address.port), task.name)


@asynccontextmanager
async def _client(task: Task) -> AsyncIterator[Any]:
    import nats  # noqa: PLC0415  only when NATS is measured

    client = await nats.connect(task.place.url)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def _stream(task: Task, *, consumer: bool = True) -> AsyncIterator[Any]:
    """A stream in memory with a durable consumer, both named as the task; afterwards all must be settled."""
    from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig  # noqa: PLC0415  as above

    async with _client(task) as client:
        context = client.jetstream()
        await context.add_stream(StreamConfig(name=task.name, subjects=[task.name], storage=StorageType.MEMORY))
        try:
            if consumer:
                config = ConsumerConfig(
                    durable_name=task.name,
                    filter_subject=task.name,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=OPEN_SECONDS,
                    max_ack_pending=10_000,
                )
                await context.add_consumer(task.name, config)
            yield context
            if consumer:
                await _all_settled(context, task)
        finally:
            await context.delete_stream(task.name)


async def _all_settled(context: Any, task: Task) -> None:
    """A loop that is fast because it does not acknowledge is no result."""
    async with asyncio.timeout(SETTLE_SECONDS):
        # Only the server knows, and it does not tell by itself.
        while (info := await context.consumer_info(task.name, task.name)).ack_floor.consumer_seq < task.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    if info.num_redelivered or info.ack_floor.consumer_seq != task.messages:
        raise RustStreamError(f"of {task.messages} messages some were delivered again: {info}")


@asynccontextmanager
async def _connection(task: Task) -> AsyncIterator[Connection[Any]]:
    connection = await broker_from_url(task.place.url).connect()
    try:
        yield connection
    finally:
        await connection.aclose(5.0)


def _jetstream(task: Task) -> Source:
    from ruststream_core_nats import JetStream  # noqa: PLC0415  only when NATS is measured

    source: Source = JetStream(task.name, stream=task.name, durable=task.name)
    return source


async def _drive(task: Task, tally: Tally, subscription: Subscription, body: Awaitable[None]) -> None:
    work = asyncio.ensure_future(body)
    await _produce(task, tally)
    subscription.stop()
    await work
    await subscription.aclose(5.0)


def _adapter(handler: Callable[[Tally], Any], source_of: Callable[[Task], Source | str]) -> Loop:
    async def loop(task: Task) -> None:
        tally = Tally()
        broker = broker_from_url(task.place.url)
        async with _connection(task) as connection:
            subscription = await connection.subscribe(broker.source(source_of(task)), Demand(), NoWatch())
            await _drive(task, tally, subscription, drive_contract(subscription, handler(tally)))

    return loop


def _service(
    handler: Callable[[Tally], Any],
    source_of: Callable[[Task], Source | str],
    options_of: Callable[[Task], RouteOptions] = lambda _: {},
) -> Loop:
    async def loop(task: Task) -> None:
        tally = Tally()
        app = App("bench", broker=task.place.url)
        app.subscriber(source_of(task), **options_of(task))(handler(tally))
        async with app.start():
            await _produce(task, tally)

    return loop


def _on_stream(inner: Loop) -> Loop:
    async def loop(task: Task) -> None:
        async with _stream(task):
            await inner(task)

    return loop


def _name(task: Task) -> str:
    return task.name


# ----------------------------------------------------------------------------------------------------------- Core


async def _core_raw(task: Task) -> None:
    tally = Tally()
    handle = counting(tally)

    async def callback(message: Any) -> None:
        await handle(decode(message.data))

    async with _client(task) as client:
        await client.subscribe(task.name, cb=callback)
        await client.flush()
        await _produce(task, tally)


def _faststream(task: Task) -> Any:
    from fast_depends.msgspec import MsgSpecSerializer  # noqa: PLC0415  a peer that is measured where it is installed
    from faststream.nats import NatsBroker  # noqa: PLC0415  as above

    return NatsBroker(task.place.url, logger=None, serializer=MsgSpecSerializer())


async def _core_faststream(task: Task) -> None:
    tally, broker = Tally(), _faststream(task)
    broker.subscriber(task.name)(counting(tally))
    await broker.start()
    try:
        await _produce(task, tally)
    finally:
        await broker.stop()


# ------------------------------------------------------------------------------------------------------ JetStream


def _pulling(size: int, work: Callable[[Any, Tally], Callable[[list[Any]], Awaitable[None]]]) -> Loop:
    """The client's own loop: fetch, work, again. `work` makes from context and tally what takes a fetch."""

    async def loop(task: Task) -> None:
        async with _client(task) as client:
            tally = Tally()
            context = client.jetstream()
            pull = await context.pull_subscribe_bind(durable=task.name, stream=task.name)
            on_fetch = work(client, tally)

            async def pulling() -> None:
                while tally.count < task.messages:
                    await on_fetch(await pull.fetch(size, timeout=30))

            working = asyncio.ensure_future(pulling())
            await _produce(task, tally)
            await working
            await client.flush()

    return _on_stream(loop)


def _ack_each(_: Any, tally: Tally) -> Callable[[list[Any]], Awaitable[None]]:
    handle = counting(tally)

    async def work(messages: list[Any]) -> None:
        for message in messages:
            await handle(decode(message.data))
            await message.ack()

    return work


def _reply_and_ack(client: Any, tally: Tally) -> Callable[[list[Any]], Awaitable[None]]:
    handle = replying(tally)

    async def work(messages: list[Any]) -> None:
        for message in messages:
            receipt = await handle(decode(message.data))
            await client.publish("bench-replies", encode(receipt))
            await message.ack()

    return work


def _batch_and_ack(_: Any, tally: Tally) -> Callable[[list[Any]], Awaitable[None]]:
    handle = counting_batches(tally)

    async def work(messages: list[Any]) -> None:
        await handle([decode(message.data) for message in messages])
        for message in messages:
            await message.ack()

    return work


async def _adapter_reply(task: Task) -> None:
    tally = Tally()
    handle = replying(tally)
    async with _connection(task) as connection:
        sender = await connection.sender()

        async def reply(order: Order) -> None:
            confirmed = sender.send(Outgoing(encode(await handle(order)), "bench-replies"))
            if confirmed is not None:
                await confirmed

        source = broker_from_url(task.place.url).source(_jetstream(task))
        subscription = await connection.subscribe(source, Demand(), NoWatch())
        await _drive(task, tally, subscription, drive_contract(subscription, reply))


async def _adapter_batches(task: Task) -> None:
    tally = Tally()
    handle = counting_batches(tally)
    async with _connection(task) as connection:
        source = broker_from_url(task.place.url).source(_jetstream(task))
        subscription = await connection.subscribe(source, Demand(batch=BATCH), NoWatch())

        async def batches() -> None:
            while chunk := await subscription.receive(BATCH):
                await handle([decode(delivery.payload) for delivery in chunk])
                for delivery in chunk:
                    delivery.settle(ACK)

        await _drive(task, tally, subscription, batches())


async def _jetstream_faststream(task: Task) -> None:
    from faststream.nats import JStream, PullSub  # noqa: PLC0415  a peer

    tally, broker = Tally(), _faststream(task)
    stream = JStream(task.name, declare=False)
    pull = PullSub(batch_size=FETCH, timeout=30)
    broker.subscriber(task.name, stream=stream, durable=task.name, pull_sub=pull)(counting(tally))
    await broker.start()
    try:
        await _produce(task, tally)
    finally:
        await broker.stop()


# ------------------------------------------------------------------------------------------------------ publishing


async def _publish_raw(task: Task) -> None:
    async with _stream(task, consumer=False) as context:
        order = decode(BODY)
        with task.watch:
            for _ in range(task.messages // WINDOW):
                await asyncio.gather(*[context.publish(task.name, encode(order)) for _ in range(WINDOW)])


def _acknowledged() -> Any:
    from ruststream_core_nats import JetStreamPublish  # noqa: PLC0415  only when NATS is measured

    return JetStreamPublish()


async def _publish_adapter(task: Task) -> None:
    async with _stream(task, consumer=False), _connection(task) as connection:
        sender = await connection.sender(_acknowledged())
        order = decode(BODY)
        with task.watch:
            for _ in range(task.messages // WINDOW):
                await sender.send_many([Outgoing(encode(order), task.name) for _ in range(WINDOW)])


async def _publish_service(task: Task) -> None:
    async with _stream(task, consumer=False):
        app = App("bench", broker=task.place.url)
        to = To(task.name, options=_acknowledged())
        order = decode(BODY)
        async with app.start() as running:
            with task.watch:
                for _ in range(task.messages // WINDOW):
                    await running.publish_many([order] * WINDOW, to=to)


# ------------------------------------------------------------------------------------------------------- the table


@contextmanager
def _open() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="ruststream-bench-") as folder, NatsServer() as server:
        yield Place(server.url, Path(folder), asyncio.run(_facts(server.url)))


async def _facts(url: str) -> dict[str, str]:
    import nats  # noqa: PLC0415  only when NATS is measured

    client = await nats.connect(url)

    async def answer(message: Any) -> None:
        await message.respond(b"")

    await client.subscribe("bench-echo", cb=answer)
    facts = {
        "broker": f"nats-server {_dotted(client.connected_server_version)} on the same machine",
        "client": f"nats-py {metadata.version('nats-py')}",
        "round_trip": await round_trip(lambda: client.request("bench-echo", b"")) + " requests on one connection",
    }
    await client.close()
    return facts


def _dotted(version: Any) -> str:
    return f"{version.major}.{version.minor}.{version.patch}"


SUITE: Final = Suite(
    name="nats",
    title=Text("NATS", "NATS", "NATS"),
    package="ruststream-core-nats",
    needs=("nats-py", "ruststream-core-nats"),
    open=_open,
    scenarios=(
        Scenario(
            name="core",
            title=Text("Core, 512 B", "Core, 512 Б", "Core，512 字节"),
            raw=_core_raw,
            adapter=_adapter(counting, _name),
            framework=_service(counting, _name),
            peers={"faststream": _core_faststream},
            step=STEP,
        ),
        Scenario(
            name="jetstream",
            title=Text("JetStream pull, ack each", "JetStream pull, ack на каждое", "JetStream 拉取，逐条确认"),
            raw=_pulling(FETCH, _ack_each),
            adapter=_on_stream(_adapter(counting, _jetstream)),
            framework=_on_stream(_service(counting, _jetstream)),
            peers={"faststream": _on_stream(_jetstream_faststream)},
            step=STEP,
        ),
        Scenario(
            name="reply",
            title=Text(
                "JetStream pull, reply published on Core",
                "JetStream pull, ответ через Core",
                "JetStream 拉取，经 Core 发布应答",
            ),
            raw=_pulling(FETCH, _reply_and_ack),
            adapter=_on_stream(_adapter_reply),
            framework=_on_stream(_service(replying, _jetstream, lambda _: {"reply": "bench-replies"})),
            step=STEP,
        ),
        Scenario(
            name="batch-64",
            title=Text("JetStream fetches of 64, ack each", "JetStream, выборки по 64", "JetStream 每次取 64 条"),
            raw=_pulling(BATCH, _batch_and_ack),
            adapter=_on_stream(_adapter_batches),
            framework=_on_stream(_service(counting_batches, _jetstream, lambda _: {"batch": Batch(BATCH)})),
            step=STEP,
        ),
        Scenario(
            name="publish-256",
            title=Text(
                "JetStream publish, 256 acknowledgements in flight",
                "публикация в JetStream, 256 подтверждений в пути",
                "JetStream 发布，256 个待确认",
            ),
            raw=_publish_raw,
            adapter=_publish_adapter,
            framework=_publish_service,
            step=WINDOW,
        ),
    ),
)
