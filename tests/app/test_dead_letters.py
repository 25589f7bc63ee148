"""Where messages go that are given up: published first, settled after, never lost in between."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Backoff, Drop, PublishError, Retry, Router, To
from ruststream_core.abc import Features
from ruststream_core.memory import MemoryLog
from ruststream_core.middleware import Middleware, Send
from ruststream_core.testing import TestApp
from ruststream_core.wire import Outgoing
from tests.dispatch.chaos import ChaosBroker

QUEUE = Features(settles=True, retry="broker", attempts="broker")


class Order(msgspec.Struct):
    id: int


class Gate(Middleware):
    """Refuses everything to one name until it is opened."""

    def __init__(self, name: str) -> None:
        self.name, self.open, self.tried = name, False, 0

    def publish(self, send: Send, broker: str) -> Send:
        async def through(out: Outgoing) -> None:
            if out.name == self.name:
                self.tried += 1
                if not self.open:
                    raise PublishError("the dead letter is full")
            await send(out)

        return through


def failing(app: Router, source: Any, **options: Any) -> None:
    @app.subscriber(source, max_attempts=1, **options)
    async def handle(order: Order) -> None:
        raise ValueError("no")


async def test_a_dead_letter_may_be_on_another_broker() -> None:
    app = App("app", brokers={"in": "memory:", "lake": "memory:"})
    router = Router()
    failing(router, "orders", dead_letter=To("dead", broker="lake"))
    app.include(router, broker="in")
    async with TestApp(app, raise_errors=False) as t:
        await t.running.publisher("in").publish(Order(1), to="orders", key="k")
        await t.settle()
        (dead,) = t.published("dead", Order, broker="lake")
        assert (dead.value, dead.key) == (Order(1), b"k")
        assert t.published("dead", broker="in") == []


@pytest.mark.parametrize("source", ["orders", MemoryLog("orders", group="g")], ids=["queue", "group"])
async def test_while_it_cannot_be_published_the_original_is_kept(source: Any) -> None:
    app = App("app", broker="memory:")
    gate = Gate("dead")
    app.use(gate)
    failing(app, source, dead_letter="dead")
    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        await t.advance(20)
        assert gate.tried > 3
        books = t.statistics()["handle"]
        assert (books["in_hand"], books["dead_lettered"], books["dropped"]) == (1, 0, 0)
        gate.open = True
        await t.advance(60)
        assert len(t.published("dead")) == 1
        books = t.statistics()["handle"]
        assert (books["in_hand"], books["dead_lettered"], books["failed"]) == (0, 1, 1)


@pytest.mark.parametrize("source", ["orders", MemoryLog("orders", group="g")], ids=["queue", "group"])
async def test_a_drain_meanwhile_gives_the_original_back(source: Any) -> None:
    app = App("app", broker="memory:")
    app.use(Gate("dead"))
    failing(app, source, dead_letter="dead")
    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
    assert t.running.report is not None
    total = t.running.report.total
    assert (total["received"], total["released"], total["dead_lettered"]) == (1, 1, 0)
    assert not t.running.report.late, "it does not wait for the dead letter to come back to life"


async def test_a_lost_message_is_not_dead_lettered_any_more() -> None:
    """Its next delivery is somebody else's: two dead letters of one message would be wrong."""
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker)
    gate = Gate("dead")
    app.use(gate)
    failing(app, "orders", dead_letter="dead")
    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        while not gate.tried:
            await asyncio.sleep(0)
        subscription = broker.subscriptions[0]
        (delivery,) = subscription.out
        broker.queues["orders"].clear()
        subscription.lose(delivery)
        broker.queues["orders"].clear()
        gate.open = True
    assert broker.sent == []
    assert running.report is not None
    assert running.report.total["lost"] == 1


async def test_where_nothing_comes_back_an_explicit_drop_is_a_drop_and_silence_is_the_dead_letter() -> None:
    features = Features(settles=True, retry="none")
    for options, dead in (({}, 1), ({"on_error": {ValueError: Drop}}, 0)):
        broker = ChaosBroker(features)
        app = App("app", broker=broker)

        async def handle(order: Order) -> None:
            raise ValueError("no")

        app.subscriber("orders", dead_letter="dead", **options)(handle)  # type: ignore[arg-type]
        async with app.start() as running:
            broker.put("orders", b'{"id":1}')
            while running.statistics()["handle"]["failed"] == 0:
                await asyncio.sleep(0)
        assert len(broker.sent) == dead


async def test_where_nothing_comes_back_a_returned_retry_is_counted_and_given_up() -> None:
    broker = ChaosBroker(Features(settles=True, retry="none"))
    app = App("app", broker=broker)

    @app.subscriber("orders", dead_letter="dead")
    async def handle(order: Order) -> Retry:
        return Retry()

    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        broker.put("orders", b'{"id":2}')
        while running.statistics()["handle"]["dead_lettered"] < 2:
            await asyncio.sleep(0)
    assert running.report is not None
    assert running.report.total["unkept"] == 2


async def test_copies_carry_the_count_and_the_original_is_settled_after_the_copy() -> None:
    broker = ChaosBroker(Features(settles=True, retry="copy", attempts="header"))
    app = App("app", broker=broker)

    @app.subscriber(
        "orders", retry_copies=True, max_attempts=3, dead_letter="dead", on_error={ValueError: Backoff(0, most=0)}
    )
    async def handle(order: Order) -> None:
        raise ValueError("no")

    async with app.start() as running:
        broker.put("orders", b'{"id":1}', b"k")
        while running.statistics()["handle"]["dead_lettered"] == 0:
            await asyncio.sleep(0)
    assert [(out.name, out.headers["x-ruststream-attempt"], out.key) for out in broker.sent] == [
        ("orders", "2", b"k"),
        ("orders", "3", b"k"),
        ("dead", "3", b"k"),
    ]
    assert {out.payload for out in broker.sent} == {b'{"id":1}'}


@pytest.mark.parametrize("release", ["free", "lost"])
async def test_a_drain_does_not_forget_copies_that_wait_for_their_time(release: Any) -> None:
    """Given back where that is possible, else published at once: the process will not be there any more."""
    broker = ChaosBroker(Features(settles=release == "free", retry="copy", release=release))
    app = App("app", broker=broker, drain=5)
    running_late = asyncio.Event()

    @app.subscriber("orders", retry_copies=True)
    async def handle(order: Order) -> None:
        if order.id == 2:
            await running_late.wait()
        raise Retry(after=3600)

    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        broker.put("orders", b'{"id":2}')
        while running.statistics()["handle"]["received"] < 2 or not running._runtime.routes["handle"].running():
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, running_late.set)
    assert running.report is not None
    total = running.report.total
    assert not running.report.late
    if release == "free":
        assert (total["released"], total["retried"]) == (2, 0)
        assert broker.sent == []
    else:
        assert (total["released"], total["discarded"], total["retried"]) == (0, 0, 2)
        assert sorted(out.payload for out in broker.sent) == [b'{"id":1}', b'{"id":2}']
    assert not broker.subscriptions[0].out
