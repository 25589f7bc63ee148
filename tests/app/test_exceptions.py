"""GEN-16: whatever class a handler raises, the worker goes on, or the app ends with the code that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Batch, Drop, Running, by_key
from ruststream_core.memory import MemoryBroker, MemoryLog
from ruststream_core.testing import TestApp
from ruststream_core.wire import Outgoing


class Order(msgspec.Struct):
    id: int


class Custom(BaseException):
    """What a timeout library or a test framework raises past `except Exception`."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def deep() -> None:
    deep()


RAISES: dict[str, Callable[[], BaseException]] = {
    "custom base exception": lambda: Custom("x"),
    "generator exit": lambda: GeneratorExit(),
    "cancelled, without anybody cancelling": lambda: asyncio.CancelledError(),
    "stop iteration": lambda: StopIteration(5),
    "stop async iteration": lambda: StopAsyncIteration(),
    "mixed group": lambda: ExceptionGroup("mixed", [ValueError(), TypeError()]),
    "base group": lambda: BaseExceptionGroup("base", [Custom(), ValueError()]),
    "group with outcomes and errors": lambda: BaseExceptionGroup("mixed", [Drop(), ValueError()]),
    "unprintable": lambda: Unprintable(),
    "recursion": lambda: RecursionError("too deep"),
    "memory": lambda: MemoryError(),
    "timeout": lambda: TimeoutError(),
}
SHAPES: dict[str, dict[str, Any]] = {
    "one": {},
    "several": {"workers": 2},
    "by key": {"workers": by_key(2, lambda order: order.id)},
    "batch": {"batch": Batch(1)},
}


def mount(app: App, source: Any, sync: bool, error: BaseException, seen: list[int], **options: Any) -> None:
    batch = "batch" in options

    def act(payload: Any) -> None:
        number = payload[0].id if batch else payload.id
        if number == 1:
            raise error
        seen.append(number)

    options |= {"max_attempts": 1, "dead_letter": "dead", "name": "handle"}
    if batch:

        def plain_batch(orders: list[Order]) -> None:
            act(orders)

        async def async_batch(orders: list[Order]) -> None:
            act(orders)

        app.subscriber(source, **options)(plain_batch if sync else async_batch)
        return

    def plain(order: Order) -> None:
        act(order)

    async def coroutine(order: Order) -> None:
        act(order)

    app.subscriber(source, **options)(plain if sync else coroutine)


@pytest.mark.parametrize("source", ["queue", "group"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", RAISES)
async def test_it_is_the_handlers_failure_and_the_next_message_is_handled(
    name: str, shape: str, sync: bool, source: str
) -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []
    at: Any = "orders" if source == "queue" else MemoryLog("orders", group="g")
    mount(app, at, sync, RAISES[name](), seen, **SHAPES[shape])
    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
        await t.advance(1)
        books = t.statistics()["handle"]
        assert (books["failed"], books["dead_lettered"], books["acked"]) == (1, 1, 1)
        (dead,) = t.published("dead", Order)
        assert dead.value == Order(1)
        assert seen == [2]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
async def test_what_ends_a_process_ends_the_app_cleanly_and_the_message_is_released(
    error: BaseException, sync: bool, shape: str
) -> None:
    broker = MemoryBroker()
    app = App("app", broker=broker)
    seen: list[int] = []
    drained: list[str] = []
    mount(app, "orders", sync, error, seen, **SHAPES[shape])

    @app.after_drain
    async def hook() -> None:
        drained.append("hook")

    kept: list[Running] = []
    with pytest.raises(type(error)) as left:
        async with app.start() as running:
            kept.append(running)
            await running.publish(Order(1), to="orders")
            with pytest.raises(type(error)) as waited:
                await running.wait()
            assert waited.value is error
    assert left.value is error
    report = kept[0].report
    assert report is not None
    total = report.total
    assert (total["received"], total["released"], total["failed"]) == (1, 1, 0)
    assert drained == ["hook"]
    assert seen == []


def test_system_exit_of_a_handler_is_the_exit_code_of_the_process() -> None:
    broker = MemoryBroker()
    app = App("app", broker=broker)
    mount(app, "orders", False, SystemExit(7), [])

    @app.subscriber("kick", reply="orders")
    async def kick(order: Order) -> Order:
        return order

    @app.after_startup
    async def publish() -> None:
        (await (await broker.connect()).sender()).send(Outgoing(b'{"id":1}', "kick"))

    with pytest.raises(SystemExit) as caught:
        app.run(signals=False)
    assert caught.value.code == 7


async def test_really_endless_recursion_is_a_failure_like_any_other() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", on_error={RecursionError: Drop})
    async def handle(order: Order) -> None:
        if order.id == 1:
            deep()

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
        books = t.statistics()["handle"]
        assert (books["dropped"], books["acked"]) == (1, 1)


async def test_each_failure_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", max_attempts=2)
    async def handle(order: Order) -> None:
        raise ValueError("the stock is gone")

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        await t.advance(10)
    failed = [r for r in caplog.records if "failed on attempt" in r.getMessage()]
    assert [r.getMessage() for r in failed] == [
        f"route handle: the handler failed on attempt {n}: ValueError: the stock is gone" for n in (1, 2)
    ]
    assert all(r.exc_info for r in failed)
    assert sum("gave up" in r.getMessage() for r in caplog.records) == 1
