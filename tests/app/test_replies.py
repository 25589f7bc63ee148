"""What a handler returns and what becomes of it before the message is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from ruststream_core import (
    App,
    Backoff,
    Batch,
    Context,
    Headers,
    Message,
    PublishError,
    Reply,
    Retry,
    Router,
    To,
    message,
)
from ruststream_core.abc import Features
from ruststream_core.memory import MemoryBroker, MemoryLog
from ruststream_core.middleware import Middleware, Send
from ruststream_core.testing import TestApp
from ruststream_core.wire import Outgoing
from tests.dispatch.chaos import ChaosBroker


class Order(msgspec.Struct):
    id: int


@message("receipts.{region}")
class Receipt(msgspec.Struct):
    id: int
    region: str = "eu"


async def test_reply_goes_to_the_route_option() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Order:
        return order

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert [m.value for m in t.published("done", Order)] == [Order(1)]
        assert t.route(handle).replies == [Order(1)]
        assert t.statistics()["handle"]["acked"] == 1


async def test_a_message_type_says_where_it_goes_placeholders_filled() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders")
    async def handle(order: Order) -> Receipt | None:
        return Receipt(order.id) if order.id else None

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(0), to="orders")
        assert [m.value for m in t.published("receipts.eu", Receipt)] == [Receipt(1)]
        assert t.statistics()["handle"]["acked"] == 2


async def test_the_route_option_comes_before_the_message_type() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Receipt:
        return Receipt(order.id)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert len(t.published("done")) == 1
        assert t.published("receipts.eu") == []


async def test_reply_says_more_than_its_value() -> None:
    app = App("app", brokers={"in": "memory:", "lake": "memory:"})
    router = Router()

    @router.subscriber("orders", reply="done")
    async def handle(order: Order) -> Reply[Order]:
        return Reply(order, to=To("elsewhere", broker="lake"), headers={"x-a": "1"}, key="k")

    app.include(router, broker="in")
    async with TestApp(app) as t:
        await t.running.publisher("in").publish(Order(1), to="orders")
        await t.settle()
        assert t.published("done") == []
        (sent,) = t.published("elsewhere", Order, broker="lake")
        assert (sent.value, sent.headers["x-a"], sent.key) == (Order(1), "1", b"k")
        assert t.route(handle).replies == [Order(1)]


async def test_replies_cross_brokers() -> None:
    app = App("app", brokers={"in": "memory:", "lake": "memory:"})
    router = Router()
    seen: list[int] = []

    @router.subscriber("orders", reply=To("done", broker="lake"))
    async def handle(order: Order) -> Order:
        return order

    lake = Router()

    @lake.subscriber("done")
    async def done(order: Order) -> None:
        seen.append(order.id)

    app.include(router, broker="in")
    app.include(lake, broker="lake")
    async with TestApp(app) as t:
        await t.running.publisher("in").publish(Order(1), to="orders")
        await t.settle()
    assert seen == [1]


async def test_the_own_reply_address_comes_first_with_the_correlation_id() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Reply[Order]:
        return Reply(Order(order.id + 1), headers={"x-a": "1"})

    async with TestApp(app) as t:
        assert await t.request(Order(1), to="orders", timeout=1, reply=Order) == Order(2)
        raw: Message[bytes] = await t.request(Order(2), to="orders", headers={"correlation-id": "c-1"}, timeout=1)
        assert raw.value == b'{"id":3}'
        assert raw.headers["correlation-id"] == "c-1"
        assert raw.headers["x-a"] == "1"
        assert t.published("done") == []


async def test_none_answers_nobody() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Order | None:
        return None

    async with TestApp(app) as t:
        asking = asyncio.ensure_future(t.running.request(Order(1), to="orders", timeout=1))
        await asyncio.sleep(0)
        await t.advance(1)
        with pytest.raises(TimeoutError):
            await asking
        assert t.statistics()["handle"]["acked"] == 1


async def test_a_request_whose_answer_does_not_fit_says_so() -> None:
    from ruststream_core import DecodeError

    app = App("app", broker="memory:")

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> list[int]:
        return [1]

    async with TestApp(app) as t:
        with pytest.raises(DecodeError, match="answer of 'orders'"):
            await t.request(Order(1), to="orders", timeout=1, reply=Order)


class Refusing(Middleware):
    """Refuses the first messages to one name."""

    def __init__(self, name: str, times: int) -> None:
        self.name, self.times, self.tried = name, times, 0

    def publish(self, send: Send, broker: str) -> Send:
        async def through(out: Outgoing) -> None:
            if out.name == self.name:
                self.tried += 1
                if self.tried <= self.times:
                    raise PublishError("no room")
            await send(out)

        return through


@pytest.mark.parametrize("source", ["orders", MemoryLog("orders", group="g")], ids=["queue", "group"])
async def test_a_reply_that_fails_is_a_retry_and_never_an_ack(source: Any) -> None:
    app = App("app", broker="memory:")
    refusing = Refusing("done", 2)
    app.use(refusing)
    attempts: list[int] = []

    @app.subscriber(source, reply="done", on_error={PublishError: Backoff(3, factor=1, jitter=0)})
    async def handle(order: Order, ctx: Context) -> Order:
        attempts.append(ctx.attempt)
        return order

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        assert attempts == [1]
        await t.advance(6)
        assert attempts == [1, 2, 3]
        assert len(t.published("done")) == 1
        books = t.statistics()["handle"]
        assert (books["acked"], books["failed"]) == (1, 2)


async def test_a_reply_that_always_fails_ends_in_the_dead_letter() -> None:
    app = App("app", broker="memory:")
    app.use(Refusing("done", 99))

    @app.subscriber("orders", reply="done", max_attempts=2, dead_letter="dead")
    async def handle(order: Order) -> Order:
        return order

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        await t.advance(10)
        (dead,) = t.published("dead")
        assert dead.headers["x-ruststream-error"] == "PublishError: no room"


async def test_a_value_without_any_destination_is_a_named_failure() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", max_attempts=1)
    async def handle(order: Order):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return order

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        (error,) = t.route(handle).errors
        assert "route 'handle' returned Order and nothing says where to" in str(error)
        assert t.statistics()["handle"]["dropped"] == 1


def test_a_declared_value_without_any_destination_is_refused_where_nobody_can_ask() -> None:
    app = App("app", broker=ChaosBroker(Features(settles=True, retry="broker")))

    @app.subscriber("orders")
    async def handle(order: Order) -> Order:
        return order

    (problem,) = app.wiring().problems
    assert "give reply=, decorate the type with @message(...), or return None" in problem


async def test_a_reply_that_cannot_be_encoded_is_a_failure_of_the_handler() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", reply="done", max_attempts=1)
    async def handle(order: Order) -> Any:
        return object()

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        assert t.statistics()["handle"]["dropped"] == 1
        assert t.published("done") == []


@pytest.mark.parametrize("value", ["", "a.b", "a b", "*"])
async def test_a_placeholder_cannot_change_the_structure_of_a_name(value: str) -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", max_attempts=1)
    async def handle(order: Order) -> Receipt:
        return Receipt(order.id, value)

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        (error,) = t.route(handle).errors
        assert "receipts.{region}" in str(error)


async def test_replies_leave_in_the_order_of_the_messages() -> None:
    broker = ChaosBroker(Features(settles=True, retry="broker"), pending=True)
    app = App("app", broker=broker)

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Order:
        return order

    async with app.start():
        for number in range(50):
            broker.put("orders", b'{"id":%d}' % number)
        while len(broker.sent) < 50:
            await asyncio.sleep(0)
    assert [out.payload for out in broker.sent] == [b'{"id":%d}' % number for number in range(50)]


async def test_an_unconfirmed_reply_holds_the_settlement_and_not_the_worker() -> None:
    broker = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", broker=broker)
    confirms: list[asyncio.Future[None]] = []
    handled: list[int] = []

    class Unconfirmed(Middleware):
        def publish(self, send: Send, broker: str) -> Send:
            async def through(out: Outgoing) -> None:
                confirms.append(asyncio.get_running_loop().create_future())
                await confirms[-1]
                await send(out)

            return through

    app.use(Unconfirmed())

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Order:
        handled.append(order.id)
        return order

    async with app.start():
        for number in range(3):
            broker.put("orders", b'{"id":%d}' % number)
        while len(confirms) < 3:
            await asyncio.sleep(0)
        ledger = broker.subscriptions[0].ledger
        assert handled == [0, 1, 2], "the first reply's confirmation did not hold the worker"
        assert ledger["acked"] == 0, "nothing is settled before its reply is confirmed"
        for confirm in confirms:
            confirm.set_result(None)
    assert ledger["acked"] == 3


async def test_the_drain_waits_for_replies_and_settles_after_them() -> None:
    broker = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", broker=broker, drain=10)
    gate = asyncio.Event()

    class Slow(Middleware):
        def publish(self, send: Send, broker: str) -> Send:
            async def through(out: Outgoing) -> None:
                await gate.wait()
                await send(out)

            return through

    app.use(Slow())

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Order:
        return order

    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        while running.statistics()["handle"]["received"] == 0:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, gate.set)
    assert running.report is not None
    assert running.report.total["acked"] == 1
    assert not running.report.late
    assert [out.name for out in broker.sent] == ["done"]


async def test_batches_reply_one_by_one() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", reply="done", batch=Batch(4, max_wait=0))
    async def handle(orders: list[Order]) -> list[Order | Reply[Order] | type[Retry] | None]:
        return [Order(1), Reply(Order(2), headers={"x-a": "1"}), None]

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
        assert [m.value.id for m in t.published("done", Order)] == [1, 2]
        assert t.published("done")[1].headers["x-a"] == "1"
        assert t.statistics()["handle"]["acked"] == 3


async def test_request_and_reply_work_between_running_apps() -> None:
    broker = MemoryBroker()
    app = App("app", broker=broker)

    @app.subscriber("double")
    async def double(number: int) -> int:
        return 2 * number

    async with app.start() as running:
        asking: list[Awaitable[int]] = [running.request(n, to="double", timeout=5, reply=int) for n in range(20)]
        assert await asyncio.gather(*asking) == [2 * n for n in range(20)]


def test_headers_are_headers() -> None:
    assert Headers({"A": "1"})["a"] == "1"
