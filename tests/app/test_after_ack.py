"""`ctx.after_ack`: at most once, only once the ack has settled, and waited for at the end."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core import App, Context, Depends, Drop, Outcome, PublishError, Retry, Skip
from ruststream_core.abc import Features
from ruststream_core.memory import MemoryLog
from ruststream_core.middleware import Middleware, Send
from ruststream_core.testing import TestApp
from ruststream_core.wire import Outgoing
from tests.dispatch.chaos import ChaosBroker


class Order(msgspec.Struct):
    id: int


SOURCES: dict[str, Any] = {"queue": "orders", "group": MemoryLog("orders", group="g")}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(
    ("outcome", "runs"), [(None, True), (Skip, True), (Drop, False), (Drop("x"), False), (ValueError(), False)]
)
async def test_it_runs_after_an_ack_and_after_nothing_else(source: str, outcome: Any, runs: bool, raised: bool) -> None:
    app = App("app", broker="memory:")
    ran: list[int] = []

    async def after(number: int) -> None:
        ran.append(number)

    @app.subscriber(SOURCES[source], on_error={ValueError: Drop})
    async def handle(order: Order, ctx: Context) -> Any:
        ctx.after_ack(after, order.id)
        ctx.after_ack(after, number=order.id + 1)
        if outcome is not None and (raised or isinstance(outcome, Exception)):
            raise outcome
        return outcome

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
    assert ran == ([1, 2] if runs else [])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("raised", [True, False])
async def test_a_run_that_was_retried_leaves_nothing_behind(source: str, raised: bool) -> None:
    """In place the message stays in hand: what its first run registered must not run after its second."""
    app = App("app", broker="memory:")
    ran: list[int] = []
    runs = 0

    async def after(run: int) -> None:
        ran.append(run)

    @app.subscriber(SOURCES[source])
    async def handle(order: Order, ctx: Context) -> Outcome | None:
        nonlocal runs
        runs += 1
        if runs != 3:
            ctx.after_ack(after, runs)
        if runs < 3:
            if raised:
                raise Retry
            return Retry()
        return None

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
        assert t.statistics()["handle"]["acked"] == 2
    assert runs == 4
    assert ran == [4]


class RefuseOnce(Middleware):
    def __init__(self) -> None:
        self.refused = False

    def publish(self, send: Send, broker: str) -> Send:
        async def through(out: Outgoing) -> None:
            if out.name == "done" and not self.refused:
                self.refused = True
                raise PublishError("not now")
            await send(out)

        return through


@pytest.mark.parametrize("source", SOURCES)
async def test_it_runs_after_the_reply_and_not_after_one_that_failed(source: str) -> None:
    app = App("app", broker="memory:")
    app.use(RefuseOnce())
    ran: list[tuple[int, int]] = []
    runs = 0
    t = TestApp(app, raise_errors=False)

    async def after(run: int) -> None:
        ran.append((run, len(t.published("done"))))

    @app.subscriber(SOURCES[source], reply="done")
    async def handle(order: Order, ctx: Context) -> Order:
        nonlocal runs
        runs += 1
        ctx.after_ack(after, runs)
        return order

    async with t:
        await t.publish(Order(1), to="orders")
        await t.advance(10)
    assert ran == [(2, 1)]


async def test_what_it_raises_is_logged_and_the_next_ones_still_run(caplog: pytest.LogCaptureFixture) -> None:
    """An outcome raised there comes too late to mean anything, and must not end the worker."""
    app = App("app", broker="memory:")
    ran: list[str] = []

    async def fails(error: BaseException) -> None:
        raise error

    async def works() -> None:
        ran.append("works")

    @app.subscriber("orders")
    async def handle(order: Order, ctx: Context) -> None:
        ctx.after_ack(fails, ValueError("late"))
        ctx.after_ack(fails, Drop("late"))
        ctx.after_ack(fails, asyncio.CancelledError())
        ctx.after_ack(works)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
        assert t.statistics()["handle"]["acked"] == 2
    assert ran == ["works", "works"]
    assert caplog.text.count("after_ack failed") == 6


async def test_it_waits_for_a_pending_settlement_and_never_runs_when_that_is_lost() -> None:
    features = Features(settles=True, retry="broker", attempts="broker", loses=True)
    broker = ChaosBroker(features, pending=True)
    app = App("app", broker=broker)
    ran: list[int] = []

    async def after(number: int) -> None:
        ran.append(number)

    @app.subscriber("orders", workers=2)
    async def handle(order: Order, ctx: Context) -> None:
        ctx.after_ack(after, order.id)

    async with app.start():
        broker.put("orders", b'{"id":1}')
        broker.put("orders", b'{"id":2}')
        while not broker.subscriptions or len(broker.subscriptions[0].undecided) < 2:
            await asyncio.sleep(0)
        subscription = broker.subscriptions[0]
        assert ran == []
        first = next(d for d in subscription.undecided if d.payload == b'{"id":1}')
        subscription.lose(first)
        broker.queues["orders"].clear()
        subscription.decide()
    assert ran == [2]


async def test_the_drain_waits_for_it() -> None:
    app = App("app", broker="memory:", drain=30)
    begun, finished = asyncio.Event(), asyncio.Event()

    async def after() -> None:
        begun.set()
        for _ in range(50):
            await asyncio.sleep(0)
        finished.set()

    @app.subscriber("orders")
    async def handle(order: Order, ctx: Context) -> None:
        ctx.after_ack(after)

    async with app.start() as running:
        await running.publish(Order(1), to="orders")
        await begun.wait()
        assert not finished.is_set()
    assert finished.is_set()
    assert running.report is not None
    assert running.report.total["acked"] == 1


async def test_factories_close_before_the_reply_and_the_settlement() -> None:
    app = App("app", broker="memory:")
    order_of: list[str] = []
    t = TestApp(app)

    async def after() -> None:
        order_of.append("after ack")

    async def session() -> Any:
        yield "session"
        order_of.append(f"closed, {len(t.published('done'))} replies, {t.statistics()['handle']['acked']} acked")

    @app.subscriber("orders", reply="done")
    async def handle(order: Order, ctx: Context, s: Annotated[str, Depends(session)]) -> Order:
        ctx.after_ack(after)
        order_of.append("handled")
        return order

    async with t:
        await t.publish(Order(1), to="orders")
    assert order_of == ["handled", "closed, 0 replies, 0 acked", "after ack"]
