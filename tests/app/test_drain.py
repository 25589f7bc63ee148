"""GEN-15: two phases and a hard limit; what is cut goes back as if it had never been fetched; the books add up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Batch, Context, FailFast, PluginError, RustStreamError, by_key, lifecycle
from ruststream_core.abc import Features
from ruststream_core.errors import ConnectError
from ruststream_core.memory import MemoryBroker, MemoryLog
from ruststream_core.workers import Books
from tests.dispatch.chaos import ChaosBroker

QUEUE = Features(settles=True, retry="broker", attempts="broker", keys=True)


class Order(msgspec.Struct):
    id: int


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0)


def balanced(total: dict[str, int]) -> bool:
    return total["received"] == sum(total[name] for name in ("acked", *Books.ENDS)) and total["in_hand"] == 0


SHAPES: dict[str, dict[str, Any]] = {
    "one": {},
    "several": {"workers": 3},
    "by key": {"workers": by_key(3)},
    "by payload": {"workers": by_key(3, lambda order: order.id)},
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_running_handlers_finish_and_the_rest_goes_back(shape: str) -> None:
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker, drain=30)
    gate = asyncio.Event()
    started: list[int] = []
    finished: list[int] = []

    @app.subscriber("orders", **SHAPES[shape])
    async def handle(order: Order) -> None:
        started.append(order.id)
        await gate.wait()
        finished.append(order.id)

    async with app.start() as running:
        for n in range(20):
            broker.put("orders", b'{"id":%d}' % n, b"%d" % n)
        await until(lambda: bool(started))
        for _ in range(20):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, gate.set)
    assert started == finished
    assert running.report is not None
    total = running.report.total
    assert not running.report.late
    assert balanced(total)
    assert (total["acked"], total["released"]) == (len(started), total["received"] - len(started))
    assert {attempt for *_, attempt in broker.queues["orders"]} == {1}, "what was given back counts no attempt"
    assert len(broker.queues["orders"]) + total["acked"] == 20


async def cut(
    handler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, *, cleanup: float = 0.05, **options: Any
) -> tuple[dict[str, int], bool, ChaosBroker]:
    monkeypatch.setattr(lifecycle, "CLEANUP", cleanup)
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker, drain=0.02)
    app.subscriber("orders", name="handle", **options)(handler)
    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        await until(lambda: running._runtime.routes["handle"].running())
    assert running.report is not None
    assert balanced(running.report.total)
    return running.report.total, running.report.late, broker


async def test_at_the_deadline_it_is_cancelled_and_its_message_released(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[str] = []

    async def handle(order: Order) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("cleaned up")

    total, late, broker = await cut(handle, monkeypatch, cleanup=30)
    assert (total["released"], total["acked"], total["failed"], total["abandoned"]) == (1, 0, 0, 0)
    assert late
    assert cleaned == ["cleaned up"], "it has the clean-up window for that"
    assert broker.queues["orders"][0][3] == 1


@pytest.mark.parametrize("returns", [None, "reply"])
async def test_one_that_answers_its_cancellation_with_a_result_is_released_all_the_same(
    returns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(order: Order) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return returns

    total, _, broker = await cut(handle, monkeypatch, reply="done")
    assert (total["released"], total["acked"]) == (1, 0)
    assert broker.sent == []


async def test_one_that_ignores_its_cancellation_is_abandoned_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = asyncio.Event()

    async def handle(order: Order) -> None:
        while not forever.is_set():
            try:
                await forever.wait()
            except asyncio.CancelledError:
                continue

    total, late, broker = await cut(handle, monkeypatch)
    assert late
    assert (total["released"], total["abandoned"], total["acked"]) == (1, 1, 0)
    assert broker.subscriptions[0].ledger["released"] == 1
    forever.set()
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert broker.subscriptions[0].ledger["acked"] == 0, "what it does after that settles nothing"


async def test_batches_are_cut_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(orders: list[Order]) -> None:
        await asyncio.Event().wait()

    total, _, _ = await cut(handle, monkeypatch, batch=Batch(4))
    assert (total["released"], total["acked"]) == (1, 0)


async def test_a_drain_of_zero_seconds_cancels_at_once() -> None:
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker, drain=0)

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        await asyncio.Event().wait()

    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        await until(lambda: running._runtime.routes["handle"].running())
    assert running.report is not None
    assert running.report.total["released"] == 1


async def test_no_handler_starts_once_the_drain_has_begun() -> None:
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker)
    draining = False

    @app.subscriber("orders", workers=2)
    async def handle(order: Order) -> None:
        assert not draining
        await asyncio.sleep(0)

    async with app.start() as running:
        for n in range(200):
            broker.put("orders", b'{"id":%d}' % n)
        await until(lambda: running.statistics()["handle"]["received"] > 0)
        draining = True
    assert running.report is not None
    total = running.report.total
    assert total["failed"] == 0
    assert balanced(total)


async def test_positions_stay_below_what_was_given_back() -> None:
    """A group of a log: what was released is what the next run begins with, in order."""
    broker = MemoryBroker()
    first = App("first", broker=broker, drain=30)
    gate = asyncio.Event()
    done: list[int] = []

    @first.subscriber(MemoryLog("orders", group="g"))
    async def handle(order: Order) -> None:
        if order.id == 3:
            await gate.wait()
        done.append(order.id)

    async with first.start() as running:
        await running.publish_many([Order(n) for n in range(10)], to="orders")
        await until(lambda: done == [0, 1, 2])
        asyncio.get_running_loop().call_later(0.02, gate.set)
    assert done == [0, 1, 2, 3]

    second = App("second", broker=broker)
    rest: list[int] = []

    @second.subscriber(MemoryLog("orders", group="g"))
    async def go_on(order: Order, ctx: Context) -> None:
        assert ctx.attempt == 1
        rest.append(order.id)

    async with second.start():
        await until(lambda: len(rest) == 6)
    assert rest == [4, 5, 6, 7, 8, 9]


# ------------------------------------------------------------------------------------------- errors that end an app


class Boom(Exception): ...


@pytest.mark.parametrize(("raised", "seen"), [(ConnectError("deleted"), ConnectError), (Boom("client"), PluginError)])
async def test_a_terminal_error_ends_the_app_and_the_other_routes_drain(
    raised: Exception, seen: type[Exception]
) -> None:
    broken, whole = ChaosBroker(QUEUE), ChaosBroker(QUEUE)
    app = App("app", brokers={"broken": broken, "whole": whole})
    from ruststream_core import Router

    handled: list[int] = []
    gate = asyncio.Event()

    async def handle(order: Order) -> None:
        await gate.wait()
        handled.append(order.id)

    for name in ("broken", "whole"):
        router = Router()
        router.subscriber("orders", name=name)(handle)
        app.include(router, broker=name)
    serving = asyncio.ensure_future(app.serve(signals=False))
    await until(lambda: len(whole.subscriptions) == 1)
    whole.put("orders", b'{"id":1}')
    await until(lambda: whole.subscriptions[0].ledger["handed"] == 1)
    broken.fail_receive = raised
    broken.wake()
    for _ in range(20):
        await asyncio.sleep(0)
    gate.set()
    assert await serving == 1
    assert handled == [1]
    assert whole.subscriptions[0].ledger["acked"] == 1

    broken.subscriptions.clear()
    with pytest.raises(seen) as caught:
        async with app.start() as running:
            with pytest.raises(seen):
                await running.wait()
    if seen is PluginError:
        assert isinstance(caught.value.__cause__, Boom)
        assert "broken: the transport failed in receive" in str(caught.value)


async def test_the_embedding_body_is_never_cancelled_and_leaving_raises() -> None:
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker)

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    body = []
    with pytest.raises(RustStreamError, match="deleted"):
        async with app.start() as running:
            broker.subscriptions[0].fail(ConnectError("deleted"))
            await until(lambda: not running.health().ready)
            for _ in range(20):
                await asyncio.sleep(0)
            body.append("went on")
    assert body == ["went on"]


async def test_the_bodys_own_error_comes_first() -> None:
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker)

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    with pytest.raises(Boom):
        async with app.start() as running:
            broker.subscriptions[0].fail(ConnectError("deleted"))
            await until(lambda: not running.health().ready)
            raise Boom


async def test_fail_fast_stops_fetching_at_once() -> None:
    """Embedded, nobody may leave the body for a while: the released message must not come back in a busy loop."""
    app = App("app", broker="memory:")
    runs = 0

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        nonlocal runs
        runs += 1
        raise FailFast("broken")

    with pytest.raises(FailFast):
        async with app.start() as running:
            await running.publish(Order(1), to="orders")
            await until(lambda: not running.health().ready)
            for _ in range(100):
                await asyncio.sleep(0)
    assert runs == 1


async def test_sources_that_end_by_themselves_end_the_app_with_0() -> None:
    broker = ChaosBroker(QUEUE)
    app = App("app", broker=broker)
    seen: list[int] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        seen.append(order.id)
        if order.id == 2:
            broker.subscriptions[0].end()

    broker.put("orders", b'{"id":1}')
    broker.put("orders", b'{"id":2}')
    assert await app.serve(signals=False) == 0
    assert seen == [1, 2]


async def test_a_source_that_ends_while_the_next_one_is_opened_does_not_end_the_app() -> None:
    first, second = ChaosBroker(QUEUE), ChaosBroker(QUEUE)
    app = App("app", brokers={"first": first, "second": second})
    from ruststream_core import Router

    async def handle(order: Order) -> None:
        if order.id == 9:
            second.subscriptions[0].end()

    for name in ("first", "second"):
        router = Router()
        router.subscriber("orders", name=name)(handle)
        app.include(router, broker=name)

    @app.after_startup
    async def hook() -> None:
        first.subscriptions[0].end()
        for _ in range(20):
            await asyncio.sleep(0)

    serving = asyncio.ensure_future(app.serve(signals=False))
    for _ in range(60):
        await asyncio.sleep(0)
    assert not serving.done()
    second.put("orders", b'{"id":9}')
    assert await serving == 0


async def test_all_workers_that_end_end_the_app_even_when_opened_first() -> None:
    """The first of two sources is over before the second one is opened at all."""
    first, second = ChaosBroker(QUEUE), ChaosBroker(QUEUE)
    app = App("app", brokers={"first": first, "second": second})
    from ruststream_core import Router
    from ruststream_core.abc import Demand, Watch
    from tests.dispatch.chaos import ChaosConnection, ChaosSource, ChaosSubscription

    class Slow(ChaosConnection):
        async def subscribe(self, source: ChaosSource, demand: Demand, watch: Watch) -> ChaosSubscription:
            first.subscriptions[0].end()
            for _ in range(20):
                await asyncio.sleep(0)
            return await super().subscribe(source, demand, watch)

    async def connect() -> ChaosConnection:
        return Slow(second)

    second.connect = connect  # type: ignore[method-assign]

    async def handle(order: Order) -> None: ...

    for name in ("first", "second"):
        router = Router()
        router.subscriber("orders", name=name)(handle)
        app.include(router, broker=name)
    async with app.start() as running:
        waiting = asyncio.ensure_future(running.wait())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        second.subscriptions[0].end()
        await waiting


async def test_hooks_that_fail_after_the_drain_are_logged_and_everything_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("app", broker="memory:")
    ran: list[str] = []

    @app.after_drain
    async def first() -> None:
        raise Boom("hook")

    @app.after_drain
    async def second() -> None:
        ran.append("second")

    async with app.start():
        pass
    assert ran == ["second"]
    assert "an after_drain hook failed" in caplog.text


async def test_the_order_of_a_life() -> None:
    from collections.abc import AsyncGenerator
    from contextlib import asynccontextmanager

    said: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncGenerator[str]:
        said.append("lifespan enters")
        yield "state"
        said.append("lifespan exits")

    class Telling(ChaosBroker):
        def __init__(self, name: str) -> None:
            super().__init__(QUEUE)
            self.name = name

        async def connect(self) -> Any:
            said.append(f"{self.name} connects")
            connection = await super().connect()
            close = connection.aclose

            async def aclose(grace: float) -> None:
                said.append(f"{self.name} closes")
                await close(grace)

            connection.aclose = aclose  # type: ignore[method-assign]
            return connection

    app = App("app", brokers={"default": Telling("a"), "b": Telling("b")}, lifespan=lifespan)

    @app.after_startup
    async def started() -> None:
        said.append("started")

    @app.after_drain
    async def drained() -> None:
        said.append("drained")

    async with app.start() as running:
        assert running.state == "state"
        said.append("body")
    assert said == [
        "lifespan enters",
        "a connects",
        "b connects",
        "started",
        "body",
        "drained",
        "b closes",
        "a closes",
        "lifespan exits",
    ]
