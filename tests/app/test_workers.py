"""Side by side and in order: workers, lanes, threads, and deliveries that are lost while they run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Context, Drop, Retry, RustStreamError, by_key, lifecycle
from ruststream_core.abc import Features
from ruststream_core.lifecycle import ThreadPool
from ruststream_core.memory import MemoryBroker, MemoryLog
from ruststream_core.testing import TestApp
from tests.dispatch.chaos import ChaosBroker


class Order(msgspec.Struct):
    id: int
    customer: str = ""


LEASED = Features(settles=True, retry="broker", attempts="broker", loses=True, keys=True)


async def until(true: Callable[[], bool]) -> None:
    """Turns of the loop until it is so; a test that hangs here is named by the run's own limit."""
    while not true():
        await asyncio.sleep(0)


# -------------------------------------------------------------------------------------------------------- workers


@pytest.mark.parametrize("workers", [1, 3, 8])
async def test_workers_run_side_by_side_and_never_more_than_that(workers: int) -> None:
    app = App("app", broker="memory:")
    gate = asyncio.Event()
    now = most = done = 0

    @app.subscriber("orders", workers=workers)
    async def handle(order: Order) -> None:
        nonlocal now, most, done
        now += 1
        most = max(most, now)
        await gate.wait()
        now -= 1
        done += 1

    async with app.start() as running:
        await running.publish_many([Order(n) for n in range(50)], to="orders")
        await until(lambda: now == workers)
        for _ in range(20):
            await asyncio.sleep(0)
        assert most == workers
        gate.set()
        await until(lambda: done == 50)
    assert most == workers


@pytest.mark.parametrize(
    ("source", "workers", "key"),
    [
        ("orders", by_key(4), lambda n: f"c{n % 7}"),
        (MemoryLog("orders", group="g"), by_key(4), lambda n: f"c{n % 7}"),
        ("orders", by_key(4, lambda order: order.customer), None),
        (MemoryLog("orders", group="g"), by_key(4, lambda order: order.customer), None),
    ],
    ids=["queue", "group", "queue by payload", "group by payload"],
)
async def test_one_key_in_order_and_keys_side_by_side(source: Any, workers: Any, key: Any) -> None:
    app = App("app", broker="memory:")
    seen: dict[str, list[int]] = {}
    running_keys: set[str] = set()
    most = 0

    @app.subscriber(source, workers=workers)
    async def handle(order: Order) -> None:
        nonlocal most
        assert order.customer not in running_keys, "two messages of one key at once"
        running_keys.add(order.customer)
        most = max(most, len(running_keys))
        for _ in range(order.id % 3):
            await asyncio.sleep(0)
        running_keys.discard(order.customer)
        seen.setdefault(order.customer, []).append(order.id)

    async with TestApp(app) as t:
        for n in range(100):
            await t.running.publish(Order(n, f"c{n % 7}"), to="orders", key=None if key is None else key(n))
        await t.settle()
    assert seen == {f"c{c}": [n for n in range(100) if n % 7 == c] for c in range(7)}
    assert most > 1


async def test_lanes_by_a_placeholder_of_the_source() -> None:
    app = App("app", broker="memory:")
    seen: dict[str, list[int]] = {}

    @app.subscriber("orders.{region}.placed", workers=by_key(3, "{region}"))
    async def handle(order: Order, ctx: Context) -> None:
        await asyncio.sleep(0)
        seen.setdefault(ctx.name, []).append(order.id)

    async with TestApp(app) as t:
        for n in range(30):
            await t.running.publish(Order(n), to=f"orders.r{n % 4}.placed")
        await t.settle()
    assert seen == {f"orders.r{r}.placed": [n for n in range(30) if n % 4 == r] for r in range(4)}


async def test_in_place_retries_keep_the_order_of_a_key_strictly() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []
    failed: set[int] = set()

    @app.subscriber(MemoryLog("orders", group="g"), workers=by_key(4))
    async def handle(order: Order) -> None:
        if order.id % 3 == 0 and order.id not in failed:
            failed.add(order.id)
            raise Retry(after=5)
        seen.append(order.id)

    async with TestApp(app) as t:
        await t.publish_many([Order(n) for n in range(9)], to="orders")
        for n in range(9):
            await t.publish(Order(n + 100), to="orders", key="k")
        await t.advance(100)
    keyed = [n for n in seen if n >= 100]
    assert keyed == sorted(keyed)
    assert len(seen) == 18


def by_customer(order: Order) -> Any:
    raise KeyError("no customer")


def unhashable(order: Order) -> Any:
    return [order.customer]


def outcome(order: Order) -> Any:
    raise Drop("the key function drops")


@pytest.mark.parametrize(("key", "failed"), [(by_customer, 1), (unhashable, 1), (outcome, 0)])
async def test_a_key_function_that_fails_fails_its_message_and_not_the_route(key: Any, failed: int) -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    def of(order: Order) -> object:
        return key(order) if order.id == 1 else order.customer

    @app.subscriber("orders", workers=by_key(2, of), on_error={Exception: Drop})
    async def handle(order: Order) -> None:
        seen.append(order.id)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
        books = t.statistics()["handle"]
        assert (books["dropped"], books["failed"], books["acked"]) == (1, failed, 1)
    assert seen == [2]


async def test_messages_without_a_key_spread_over_the_lanes() -> None:
    app = App("app", broker="memory:")
    gate = asyncio.Event()
    now = 0

    @app.subscriber("orders", workers=by_key(4))
    async def handle(order: Order) -> None:
        nonlocal now
        now += 1
        await gate.wait()

    async with app.start() as running:
        await running.publish_many([Order(n) for n in range(4)], to="orders")
        await until(lambda: now == 4)
        gate.set()


def test_by_key_without_keys_is_refused_with_the_remedy() -> None:
    app = App("app", broker=ChaosBroker(Features(settles=True, retry="broker")))

    @app.subscriber("orders", workers=by_key(4))
    async def handle(order: Order) -> None: ...

    (problem,) = app.wiring().problems
    assert "messages of 'orders' have no key; take by_key(n, function of the payload)" in problem


# -------------------------------------------------------------------------------------------------------- threads


async def test_plain_handlers_run_in_threads_side_by_side_and_the_loop_goes_on() -> None:
    app = App("app", broker="memory:")
    both = threading.Barrier(2, timeout=30)
    threads: set[int] = set()

    @app.subscriber("orders", workers=2)
    def handle(order: Order) -> None:
        threads.add(threading.get_ident())
        if order.id:
            both.wait()  # neither passes alone: they really run at the same time

    async with TestApp(app) as t:
        await t.publish(Order(0), to="orders")
        await t.publish_many([Order(1), Order(2)], to="orders")
    assert threading.get_ident() not in threads


async def test_a_pool_has_a_thread_for_every_job_up_to_its_size() -> None:
    """Two jobs at once after an idle time: an idle thread that is counted twice would run them in turn."""
    pool = ThreadPool(2)
    await pool.run(lambda: None)
    for _ in range(200):
        both = threading.Barrier(2, timeout=30)
        await asyncio.gather(pool.run(both.wait), pool.run(both.wait))
    pool.close()


async def test_a_pool_never_has_more_threads_than_its_size() -> None:
    pool = ThreadPool(3)
    threads: set[int] = set()
    await asyncio.gather(*(pool.run(lambda: threads.add(threading.get_ident())) for _ in range(100)))
    assert 1 <= len(threads) <= 3
    pool.close()


async def test_an_abandoned_thread_is_counted_and_the_end_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "CLEANUP", 0.02)
    broker = MemoryBroker()
    app = App("app", broker=broker, drain=0.02)
    inside, release = threading.Event(), threading.Event()

    @app.subscriber("orders")
    def handle(order: Order) -> None:
        inside.set()
        release.wait(60)

    async with app.start() as running:
        await running.publish(Order(1), to="orders")
        await asyncio.to_thread(inside.wait)
    assert running.report is not None
    total = running.report.total
    assert running.report.late
    assert (total["received"], total["released"], total["acked"]) == (1, 1, 0)
    release.set()


# ----------------------------------------------------------------------------------------------------------- lost


async def run_lost(on_lost: Any) -> tuple[list[str], dict[str, int]]:
    broker = ChaosBroker(LEASED)
    app = App("app", broker=broker)
    said: list[str] = []
    gate = asyncio.Event()

    @app.subscriber("orders", on_lost=on_lost)
    async def handle(order: Order) -> None:
        said.append("started")
        try:
            await gate.wait()
        except asyncio.CancelledError:
            said.append("cancelled")
            raise
        said.append("finished")

    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        await until(lambda: said == ["started"])
        subscription = broker.subscriptions[0]
        subscription.lose(subscription.out[0])
        broker.queues["orders"].clear()
        gate.set()
        await until(lambda: len(said) == 2)
        broker.put("orders", b'{"id":2}')
        await until(lambda: len(said) == 4)
    assert running.report is not None
    return said, running.report.total


async def test_the_handler_of_a_lost_message_is_cancelled_and_its_worker_goes_on() -> None:
    said, total = await run_lost("cancel")
    assert said == ["started", "cancelled", "started", "finished"]
    assert (total["lost"], total["acked"], total["failed"]) == (1, 1, 0)


async def test_on_lost_flag_lets_it_finish_and_changes_nothing() -> None:
    said, total = await run_lost("flag")
    assert said == ["started", "finished", "started", "finished"]
    assert (total["lost"], total["acked"], total["failed"]) == (1, 1, 0)


async def test_a_queued_message_that_is_lost_never_starts() -> None:
    broker = ChaosBroker(LEASED)
    app = App("app", broker=broker)
    seen: list[int] = []
    gate = asyncio.Event()

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        seen.append(order.id)
        await gate.wait()

    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        broker.put("orders", b'{"id":2}')
        await until(lambda: seen == [1])
        subscription = broker.subscriptions[0]
        subscription.lose(subscription.out[1])
        broker.queues["orders"].clear()
        gate.set()
    assert seen == [1]
    assert running.report is not None
    assert running.report.total["lost"] == 1


async def test_a_settlement_that_is_lost_while_pending_changes_its_count() -> None:
    broker = ChaosBroker(LEASED, pending=True)
    app = App("app", broker=broker)

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    async with app.start() as running:
        broker.put("orders", b'{"id":1}')
        broker.put("orders", b'{"id":2}')
        await until(lambda: len(broker.subscriptions) == 1 and len(broker.subscriptions[0].undecided) == 2)
        subscription = broker.subscriptions[0]
        subscription.lose(subscription.undecided[0])
        broker.queues["orders"].clear()
        subscription.decide()
    assert running.report is not None
    total = running.report.total
    assert (total["received"], total["acked"], total["lost"]) == (2, 1, 1)


async def test_handlers_in_hand_survive_the_garbage_collector() -> None:
    """GEN-18: 1,000 handlers wait on futures that only they hold; a task without a strong reference would vanish."""
    app = App("app", broker="memory:")
    futures: weakref.WeakSet[asyncio.Future[None]] = weakref.WeakSet()
    done = 0

    @app.subscriber("orders", workers=1000, prefetch=1000)
    async def handle(order: Order) -> None:
        nonlocal done
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        futures.add(future)
        await future
        done += 1

    async with app.start() as running:
        await running.publish_many([Order(n) for n in range(1000)], to="orders")
        await until(lambda: len(futures) == 1000)
        for _ in range(20):
            gc.collect()
            await asyncio.sleep(0)
        assert len(futures) == 1000
        for future in list(futures):
            future.set_result(None)
        del future
        await until(lambda: done == 1000)
        gc.collect()
    assert running.report is not None
    assert running.report.total["acked"] == 1000


async def test_a_handler_may_cancel_tasks_of_its_own() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    @app.subscriber("orders", on_error={TimeoutError: Drop})
    async def handle(order: Order) -> None:
        seen.append(order.id)
        if order.id == 1:
            task = asyncio.ensure_future(asyncio.sleep(0))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if order.id == 2:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

    async with TestApp(app) as t:
        for number in (1, 2, 3):
            await t.publish(Order(number), to="orders")
        books = t.statistics()["handle"]
        assert (books["acked"], books["dropped"]) == (2, 1)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_worker_that_is_cancelled_from_outside_ends_the_app_and_not_in_silence(workers: int) -> None:
    """The task of the worker is cancelled by whoever got hold of it: ready with a worker less would be a lie."""
    app = App("app", broker="memory:")

    @app.subscriber("orders", workers=workers)
    async def handle(order: Order) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(RustStreamError, match="route 'handle': a worker was cancelled, from outside or by its handler"):
        async with app.start() as running:
            await running.publish(Order(1), to="orders")
            with pytest.raises(RustStreamError):
                await running.wait()
            assert not running.health().ready
    assert running.report is not None
    total = running.report.total
    assert total["received"] == total["released"] > 0
