"""Whole services: on the stand-in with a test's clock, and on a server."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core import App, Backoff, Drop, FromPath, FromTransport, Retry, To, by_key
from ruststream_core.errors import ConfigError
from ruststream_core.testing import TestApp
from ruststream_core.testing.servers import NatsServer
from ruststream_core_nats import CoreSubject, JetStream, JetStreamPublish, NATSBroker


class Order(msgspec.Struct):
    """A message."""

    id: int
    region: str = "eu"


class Receipt(msgspec.Struct):
    """A reply."""

    order: int


async def test_retries_run_on_the_tests_clock() -> None:
    """A test of a delayed retry would wait for it."""
    app = App("t", broker="nats://nowhere")
    attempts: list[int] = []

    @app.subscriber(JetStream("orders.{region}", stream="ORDERS", durable="worker"))
    async def handle(order: Order, region: Annotated[str, FromPath]) -> None:
        attempts.append(order.id)
        if len(attempts) < 3:
            raise Retry(after=60)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders.eu")
        assert attempts == [1]
        await t.advance(59)
        assert attempts == [1]
        await t.advance(1)
        assert attempts == [1, 1]
        await t.advance(60)
        assert attempts == [1, 1, 1]


async def test_replies_requests_and_groups_on_the_stand_in() -> None:
    """A service's own test would need a server."""
    app = App("t", broker="nats://nowhere")

    @app.subscriber(CoreSubject("orders.{region}", queue_group="g"), reply="receipts")
    async def confirm(order: Order) -> Receipt:
        return Receipt(order.id)

    @app.subscriber("receipts")
    async def note(receipt: Receipt) -> None: ...

    async with TestApp(app) as t:
        await t.publish(Order(7), to="orders.eu")
        assert [message.value for message in t.published("receipts", Receipt)] == [Receipt(7)]
        assert await t.request(Order(8), to="orders.eu", timeout=5, reply=Receipt) == Receipt(8)


@pytest.mark.parametrize("fault", ["duplicate", "reorder", "crash_before_settle", "disconnect"])
async def test_faults_on_the_stand_in(fault: Any) -> None:
    """Whether a service's work may be done twice could not be tested."""
    app = App("t", broker="nats://nowhere")
    seen: list[int] = []

    @app.subscriber(JetStream("orders", stream="ORDERS", durable="worker"))
    async def handle(order: Order) -> None:
        seen.append(order.id)

    async with TestApp(app) as t:
        with t.fault(fault):
            await t.publish_many([Order(1), Order(2)], to="orders")
        assert sorted(set(seen)) == [1, 2]
        assert len(seen) == (3 if fault in ("duplicate", "crash_before_settle") else 2)
        assert (seen[0] == 2) == (fault == "reorder")


async def test_core_subjects_take_no_retry_policy() -> None:
    """NATS-16: a retry on a Core subject would be accepted, and the message be gone."""
    app = App("t", broker="nats://nowhere")

    @app.subscriber("orders", on_error={ValueError: Backoff()})
    async def handle(order: Order) -> None: ...

    with pytest.raises(ConfigError, match="orders"):
        async with TestApp(app):
            pass


async def test_core_subjects_retry_by_copies_where_asked() -> None:
    """NATS-16: the policy that is documented: a counted copy."""
    app = App("t", broker="nats://nowhere")
    seen: list[int] = []

    @app.subscriber("orders", on_error={ValueError: Backoff(first=5, jitter=0)}, retry_copies=True, max_attempts=3)
    async def handle(order: Order) -> None:
        seen.append(order.id)
        raise ValueError

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.advance(100)
        assert seen == [1, 1, 1]


async def test_a_service_on_a_server(server: NatsServer, lab: Any) -> None:
    """The parts would fit each other and not the runtime."""
    name = lab.name("S")
    app = App("t", broker=NATSBroker(server.url, internals=lab.internals))
    handled: dict[str, list[int]] = {}
    done = asyncio.Event()

    @app.subscriber(
        JetStream(f"{name}.orders.{{region}}", stream=name, durable="worker", create=True),
        workers=by_key(4, "{region}"),
        out={"audit": To(f"{name}.audit")},
    )
    async def handle(
        order: Order,
        region: Annotated[str, FromPath],
        sequence: Annotated[int, FromTransport("nats.stream_sequence")],
    ) -> None:
        if order.id == 13:
            raise Drop("unlucky")
        assert sequence >= 1
        handled.setdefault(region, []).append(order.id)
        if sum(map(len, handled.values())) == 99:
            done.set()

    async with app.start() as running:
        for number in range(100):
            to = To(f"{name}.orders.r{number % 3}", options=JetStreamPublish())
            await running.publish(Order(number), to=to)
        async with asyncio.timeout(30):
            await done.wait()
    assert {region: sorted(ids) == ids for region, ids in handled.items()} == {"r0": True, "r1": True, "r2": True}
    connection = await lab.connect(server.url)
    info = await lab.call(connection, f"CONSUMER.INFO.{name}.worker")
    assert (info["num_pending"], info["num_redelivered"]) == (0, 0)
