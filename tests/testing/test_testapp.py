"""`TestApp`: what a service's own tests stand on must itself be right."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core import (
    App,
    Backoff,
    Batch,
    ConfigError,
    ConnectError,
    Context,
    Depends,
    Drop,
    FailFast,
    Outcome,
    Publisher,
    PublishError,
    Retry,
    Router,
    RustStreamError,
    Skip,
    by_key,
    lifecycle,
    subscriber,
)
from ruststream_core.abc import Fault, Features
from ruststream_core.memory import MemoryLog, MemoryQueue
from ruststream_core.testing import TestApp
from tests.dispatch.chaos import ChaosBroker


class Order(msgspec.Struct):
    id: int


# -------------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("workers", [1, 4, by_key(2)])
async def test_publish_returns_when_a_whole_cascade_has_settled(workers: Any) -> None:
    app = App("app", broker="memory:", workers=workers)
    said: list[str] = []

    @app.subscriber("a", reply="b")
    async def first(order: Order) -> Order:
        for _ in range(30):
            await asyncio.sleep(0)
        said.append("first")
        return order

    @app.subscriber("b")
    async def second(order: Order, publisher: Publisher) -> None:
        await asyncio.sleep(0)
        said.append("second")
        await publisher.publish(order, to="c")
        await publisher.publish(order, to="c")

    @app.subscriber("c")
    def third(order: Order) -> None:
        said.append("third")

    @app.subscriber(MemoryLog("b", group="audit"))
    async def audit(order: Order, ctx: Context) -> None:
        async def later() -> None:
            for _ in range(30):
                await asyncio.sleep(0)
            said.append("after ack")

        ctx.after_ack(later)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="a")
        assert sorted(said) == ["after ack", "first", "second", "third", "third"]
        total = t.statistics()
        assert {name: table["acked"] for name, table in total.items()} == {
            "first": 1,
            "second": 1,
            "third": 2,
            "audit": 1,
        }


async def test_publish_waits_for_handlers_in_threads_and_for_what_is_outside() -> None:
    app = App("app", broker="memory:")
    done: list[str] = []
    go_on = threading.Event()

    @app.subscriber("thread")
    def plain(order: Order) -> None:
        go_on.wait(60)
        done.append("thread")

    @app.subscriber("outside")
    async def outside(order: Order) -> None:
        await asyncio.to_thread(go_on.wait, 60)
        done.append("outside")

    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    async with TestApp(app) as t:
        await t.publish(Order(1), to="thread")
        await t.publish(Order(1), to="outside")
    timer.join()
    assert done == ["thread", "outside"]


async def test_advance_runs_each_timer_in_its_turn_with_what_it_causes() -> None:
    app = App("app", broker="memory:")
    t = TestApp(app)
    at: list[tuple[float, str]] = []

    @app.subscriber("a", on_error={ValueError: Backoff(2, factor=2, jitter=0)}, reply="b", max_attempts=9)
    async def first(order: Order, ctx: Context) -> Order:
        at.append((t.clock.time(), f"a{ctx.attempt}"))
        if ctx.attempt < 3:
            raise ValueError
        return order

    @app.subscriber("b")
    async def second(order: Order, ctx: Context) -> None:
        at.append((t.clock.time(), f"b{ctx.attempt}"))
        if ctx.attempt == 1:
            raise Retry(after=1)

    async with t:
        await t.publish(Order(1), to="a")
        assert at == [(0, "a1")]
        await t.advance(100)
    assert at == [(0, "a1"), (2, "a2"), (6, "a3"), (6, "b1"), (7, "b2")]
    with pytest.raises(ValueError, match="only goes on"):
        await t.advance(-1)


async def test_no_time_passes_by_itself() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("a")
    async def handle(order: Order) -> None:
        raise Retry(after=0.001)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="a")
        for _ in range(50):
            await asyncio.sleep(0)
        await t.settle()
        assert len(t.route(handle).calls) == 1
        await t.advance(0.001)
        assert len(t.route(handle).calls) == 2


async def test_a_name_that_nobody_reads_is_an_error_and_so_is_a_typing_mistake() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders.{region}")
    async def handle(order: Order) -> None: ...

    async with TestApp(app) as t:
        for name in ("order.eu", "orders", "orders.eu.x"):
            with pytest.raises(PublishError, match=f"nobody reads '{name}'"):
                await t.publish(Order(1), to=name)
            with pytest.raises(PublishError, match="nobody reads"):
                await t.publish_many([Order(1)], to=name)
        await t.publish(Order(1), to="orders.eu")


async def test_a_message_that_waits_for_its_batch_has_found_its_reader() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", batch=Batch(10, max_wait=5))
    async def handle(orders: list[Order]) -> None: ...

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
        await t.advance(5)
        assert [call.args for call in t.route(handle).calls] == [([Order(1), Order(2)],)]


async def test_messages_that_no_worker_takes_are_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    from ruststream_core.testing import _app

    monkeypatch.setattr(_app, "STUCK", 0.05)
    monkeypatch.setattr(lifecycle, "CLEANUP", 0.0)
    broker = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", broker=broker, drain=0)

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    async with TestApp(app) as t:
        broker.subscriptions[0].waiter = None  # nothing will ever wake its reader
        for _ in range(5):
            await asyncio.sleep(0)
        broker.subscriptions[0].waiter = None
        with pytest.raises(RustStreamError, match="no handler takes them: .*handle: 0 buffered, 1 at the broker"):
            await t.publish(Order(1), to="orders")
        broker.queues["orders"].clear()


# ---------------------------------------------------------------------------------------------------------- errors


async def test_what_no_policy_names_is_raised_where_it_was_published() -> None:
    app = App("app", broker="memory:", on_error={KeyError: Drop})

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        raise KeyError if order.id == 1 else AssertionError("wrong total")

    with pytest.raises(AssertionError, match="wrong total"):
        async with TestApp(app) as t:
            await t.publish(Order(1), to="orders")
            assert [type(error) for error in t.route(handle).errors] == [KeyError]
            await t.publish(Order(2), to="orders")
            raise RuntimeError("not reached")
    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(2), to="orders")
        assert [type(error) for error in t.route(handle).errors] == [AssertionError]


async def test_it_is_raised_at_the_end_at_the_latest() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        raise AssertionError("late")

    with pytest.raises(AssertionError, match="late"):
        async with TestApp(app) as t:
            await t.running.publish(Order(1), to="orders")
            while not t.route(handle).errors:
                await asyncio.sleep(0)


async def test_the_tests_own_error_is_not_hidden() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        raise AssertionError("of the handler")

    with pytest.raises(RuntimeError, match="of the test"):
        async with TestApp(app) as t:
            await t.running.publish(Order(1), to="orders")
            for _ in range(20):
                await asyncio.sleep(0)
            raise RuntimeError("of the test")


async def test_a_terminal_error_is_raised() -> None:
    broker = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", broker=broker)

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    with pytest.raises(ConnectError, match="deleted"):
        async with TestApp(app) as t:
            broker.subscriptions[0].fail(ConnectError("deleted"))
            await t.settle()
            await t.settle()


async def test_fail_fast_is_raised_and_the_handler_runs_once() -> None:
    app = App("app", broker="memory:")
    runs: list[int] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        runs.append(order.id)
        raise FailFast("no")

    with pytest.raises(FailFast):
        async with TestApp(app) as t:
            await t.publish(Order(1), to="orders")
    assert runs == [1]


# --------------------------------------------------------------------------------------------------------- looking


async def test_calls_show_arguments_and_the_message() -> None:
    app = App("app", broker="memory:")

    def database() -> str:
        return "db"

    @app.subscriber("orders", reply="done")
    async def handle(order: Order, ctx: Context, *, db: Annotated[str, Depends(database)]) -> Order:
        return Order(order.id + 1)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders", headers={"x-a": "1"}, key="k")
        (call,) = t.route(handle).calls
        assert call.args[0] == Order(1)
        assert isinstance(call.args[1], Context)
        assert call.args[2] == "db"
        assert (call.message.value, call.message.name, call.message.key) == (b'{"id":1}', "orders", b"k")
        assert call.message.headers["x-a"] == "1"
        assert call.message.attempt == 1
        assert t.route(handle).replies == [Order(2)]
        assert [type(outcome).__name__ for outcome in t.route(handle).outcomes] == ["Ack"]


@pytest.mark.parametrize("kind", ["plain", "partial", "method", "object", "batch", "threads", "by payload"])
async def test_calls_are_recorded_for_every_kind_of_handler(kind: str) -> None:
    import functools

    app = App("app", broker="memory:")

    async def two(prefix: str, order: Order) -> None: ...

    class Handlers:
        async def method(self, order: Order) -> None: ...

        async def __call__(self, order: Order) -> None: ...

    async def plain(order: Order) -> None: ...

    def threads(order: Order) -> None: ...

    async def batch(orders: list[Order]) -> None: ...

    handlers: dict[str, Any] = {
        "plain": plain,
        "partial": functools.partial(two, "x"),
        "method": Handlers().method,
        "object": Handlers(),
        "batch": batch,
        "threads": threads,
        "by payload": plain,
    }
    options: dict[str, Any] = {"batch": {"batch": Batch(1)}, "by payload": {"workers": by_key(2, lambda o: o.id)}}
    app.subscriber("orders", name="handle", **options.get(kind, {}))(handlers[kind])
    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert t.route(handlers[kind]) is t.route("handle")
        (call,) = t.route("handle").calls
        assert call.args[-1] == ([Order(1)] if kind == "batch" else Order(1))
        assert call.message.value == b'{"id":1}'


async def test_calls_side_by_side_belong_to_their_own_messages() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", workers=4)
    async def handle(order: Order) -> None:
        await asyncio.sleep(0)

    async with TestApp(app) as t:
        await t.publish_many([Order(n) for n in range(20)], to="orders")
        for call in t.route(handle).calls:
            assert call.message.value == msgspec.json.encode(call.args[0])
        assert len(t.route(handle).calls) == 20


@pytest.mark.parametrize(
    ("outcome", "kinds"), [(None, ["Ack"]), (Skip, ["Skip"]), (Drop("x"), ["Drop"]), (Retry, ["Retry", "Retry"])]
)
async def test_outcomes_are_what_the_handler_said(outcome: Any, kinds: list[str]) -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", max_attempts=2)
    async def handle(order: Order) -> Outcome | type[Outcome] | None:
        return outcome  # type: ignore[no-any-return]

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert [type(said).__name__ for said in t.route(handle).outcomes] == kinds


async def test_a_route_is_found_by_handler_or_name_and_ambiguity_is_told() -> None:
    app = App("app", broker="memory:")

    @subscriber("orders")
    async def twice(order: Order) -> None: ...

    @app.subscriber("other", name="named")
    async def once(order: Order) -> None: ...

    app.include(twice, prefix="a.")
    app.include(twice, prefix="b.")

    async def nowhere(order: Order) -> None: ...

    async with TestApp(app) as t:
        assert t.route(once) is t.route("named")
        with pytest.raises(ConfigError, match=r"is mounted as twice, twice@b\.orders: name one"):
            t.route(twice)
        assert t.route("twice") is not t.route("twice@b.orders")
        for unknown in (nowhere, "nowhere", "once"):
            with pytest.raises(ConfigError, match="is no route; there are named, twice"):
                t.route(unknown)


async def test_published_shows_what_left_by_name_type_and_broker() -> None:
    app = App("app", brokers={"default": "memory:", "lake": "memory:"})

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Order:
        return order

    router = Router()

    @router.subscriber("done")
    async def done(order: Order) -> None: ...

    app.include(router, broker="lake")
    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.running.publisher("lake").publish(Order(2), to="done")
        assert [m.value for m in t.published("done", Order)] == [Order(1), Order(2)]
        assert [m.value for m in t.published("done", broker="lake")] == [b'{"id":2}']
        assert t.published("nothing") == []


async def test_overrides_take_the_place_of_factories_and_leave_the_app_alone() -> None:
    app = App("app", broker="memory:")
    seen: list[str] = []

    def database() -> str:
        return "real"

    def fake() -> str:
        return "fake"

    @app.subscriber("orders")
    async def handle(order: Order, db: Annotated[str, Depends(database)]) -> None:
        seen.append(db)

    async with TestApp(app, overrides={database: fake}) as t:
        await t.publish(Order(1), to="orders")
    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
    assert seen == ["fake", "real"]


async def test_each_test_has_a_broker_of_its_own_and_the_real_one_is_never_touched() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    for _ in range(2):
        async with TestApp(app) as t:
            await t.publish(Order(1), to="orders")
            assert t.statistics()["handle"]["received"] == 1
    async with TestApp(app, brokers={"default": "memory://other"}) as t:
        await t.publish(Order(1), to="orders")


# ---------------------------------------------------------------------------------------------------------- faults

SOURCES: dict[str, Any] = {"queue": "orders", "group": MemoryLog("orders", group="g")}


def counting(source: str, **options: Any) -> tuple[App, list[tuple[int, int]]]:
    app = App("app", broker="memory:")
    seen: list[tuple[int, int]] = []

    @app.subscriber(SOURCES[source], name="handle", **options)
    async def handle(order: Order, ctx: Context) -> None:
        seen.append((order.id, ctx.attempt))

    return app, seen


@pytest.mark.parametrize("source", SOURCES)
async def test_duplicate_delivers_twice_and_only_so_often(source: str) -> None:
    app, seen = counting(source)
    async with TestApp(app) as t:
        with t.fault("duplicate"):
            await t.publish(Order(1), to="orders")
            await t.publish(Order(2), to="orders")
        await t.publish(Order(3), to="orders")
    assert [number for number, _ in seen] == [1, 1, 2, 3]


@pytest.mark.parametrize("source", SOURCES)
async def test_reorder_delivers_after_the_next_one(source: str) -> None:
    app, seen = counting(source)
    async with TestApp(app) as t:
        with t.fault("reorder"):
            await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
    assert [number for number, _ in seen] == [2, 1, 3]


@pytest.mark.parametrize("source", SOURCES)
async def test_crash_before_settle_brings_it_again_and_the_books_know(source: str) -> None:
    app, seen = counting(source)
    async with TestApp(app) as t:
        with t.fault("crash_before_settle"):
            await t.publish(Order(1), to="orders")
        books = t.statistics()["handle"]
        assert (books["received"], books["acked"], books["lost"]) == (2, 1, 1)
    assert [number for number, _ in seen] == [1, 1]


@pytest.mark.parametrize("outcome", [None, Skip, Drop, Retry])
async def test_crash_before_settle_moves_the_count_of_any_outcome(outcome: Any) -> None:
    app = App("app", broker="memory:")
    runs: list[int] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> Any:
        runs.append(order.id)
        return outcome if len(runs) == 1 else None

    async with TestApp(app) as t:
        with t.fault("crash_before_settle"):
            await t.publish(Order(1), to="orders")
        books = t.statistics()["handle"]
        assert (books["received"], books["acked"], books["lost"]) == (2, 1, 1)
        assert books["dropped"] == books["skipped"] == books["retried"] == 0


async def test_disconnect_is_survived_and_seen() -> None:
    app, seen = counting("queue")
    async with TestApp(app) as t:
        with t.fault("disconnect", times=2):
            await t.publish_many([Order(1), Order(2)], to="orders")
        assert t.running.health().ready
    assert [number for number, _ in seen] == [1, 2]


async def test_faults_end_with_their_block() -> None:
    app, seen = counting("queue")
    async with TestApp(app) as t:
        with t.fault("duplicate", times=5):
            await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
    assert [number for number, _ in seen][-1:] == [2]
    assert [number for number, _ in seen].count(2) == 1


async def test_faults_are_for_one_broker_and_refused_where_nothing_can_do_them() -> None:
    chaos = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", brokers={"default": "memory:", "chaos": chaos})
    wrong: Any = "explode"
    async with TestApp(app) as t:
        with t.fault("duplicate", broker="default"):
            pass
        cases: list[tuple[Fault, str]] = [("duplicate", "chaos"), ("duplicate", "nowhere"), (wrong, "default")]
        for fault, broker in cases:
            with pytest.raises(ConfigError), t.fault(fault, broker=broker):
                pass


async def test_an_idempotent_service_passes_and_another_does_not() -> None:
    """What the faults are for."""

    def service(idempotent: bool) -> tuple[App, list[int]]:
        app = App("app", broker="memory:")
        booked: list[int] = []

        @app.subscriber("orders")
        async def book(order: Order) -> None:
            if not (idempotent and order.id in booked):
                booked.append(order.id)

        return app, booked

    for idempotent, expected in ((True, [1]), (False, [1, 1])):
        app, booked = service(idempotent)
        async with TestApp(app) as t:
            with t.fault("duplicate"):
                await t.publish(Order(1), to="orders")
        assert booked == expected


async def test_queues_with_their_own_dead_letter_work_in_tests() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    @app.subscriber(MemoryQueue("jobs", max_deliveries=2, dead_letter="dead"))
    async def job(order: Order) -> Retry:
        return Retry()

    @app.subscriber("dead")
    async def dead(order: Order) -> None:
        seen.append(order.id)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="jobs")
    assert seen == [1]
