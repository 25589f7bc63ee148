"""GEN-13, GEN-19: one app in several loops, threads and processes, and other people's signal handlers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Closed
from ruststream_core.memory import MemoryBroker


class Order(msgspec.Struct):
    id: int


def feeding(broker: Any = "memory:") -> tuple[App, list[int]]:
    """An app that handles three messages of its own and then asks to stop."""
    app = App("app", broker=broker)
    seen: list[int] = []

    @app.subscriber("orders", reply="orders.next")
    async def handle(order: Order) -> Order:
        seen.append(order.id)
        return order

    @app.subscriber("orders.next")
    async def stop(order: Order) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    return app, seen


def test_three_runs_of_one_app_in_three_loops() -> None:
    """Nothing is bound to a loop before the start, so that tests and servers may start it again."""
    broker = MemoryBroker()
    app, seen = feeding(broker)
    for number in range(3):

        async def once(number: int = number) -> int:
            await put(broker, number)
            return await app.serve()

        assert asyncio.run(once()) == 0
    assert seen == [0, 1, 2]


async def put(broker: MemoryBroker, number: int) -> None:
    from ruststream_core.wire import Outgoing

    connection = await broker.connect()
    sender = await connection.sender()
    sender.send(Outgoing(b'{"id":%d}' % number, "orders"))
    await connection.aclose(0)


def test_three_embedded_runs_and_nothing_kept_from_the_last_one() -> None:
    app, _ = feeding()
    kept: list[Any] = []

    async def once() -> None:
        async with app.start() as running:
            kept.append(running)
            await running.publish(Order(1), to="elsewhere")

    for _ in range(3):
        asyncio.run(once())
    for running in kept:
        with pytest.raises(Closed):
            asyncio.run(running.publish(Order(1), to="elsewhere"))


async def test_two_runs_side_by_side_do_not_share() -> None:
    app, _ = feeding()
    async with app.start() as one, app.start() as two:
        assert one.state is two.state is None
        await one.publish(Order(1), to="a")
        await two.publish(Order(1), to="a")
        assert one._runtime is not two._runtime


def _answer_of_child(work: Coroutine[Any, Any, None]) -> str:
    """What happens when a forked child uses what its parent opened: driven without the parent's loop."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            work.send(None)
            answer = "suspended"
        except StopIteration:
            answer = "returned"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    work.close()
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(pid, 0)
    return answer


async def test_a_forked_child_does_not_write_into_its_parents_connections() -> None:
    app, _ = feeding()
    async with app.start() as running:
        for work in (running.publish(Order(1), to="a"), running.publish_many([Order(1)], to="a")):
            answer = _answer_of_child(work)
            assert answer == "Closed: the app was started before a fork: start it in the child"
        await running.publish(Order(1), to="a")  # the parent goes on


# -------------------------------------------------------------------------------------------------------- signals


def test_signal_handlers_are_what_they_were_before() -> None:
    def mine(number: int, frame: object) -> None: ...

    former = {number: signal.signal(number, mine) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        broker = MemoryBroker()
        app, _ = feeding(broker)

        async def once() -> int:
            await put(broker, 1)
            return await app.serve()

        assert asyncio.run(once()) == 0
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


async def test_what_a_service_gave_to_its_loop_still_works_afterwards() -> None:
    """Inside an existing loop, such as a notebook's or a web server's."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, came.set)
    try:
        broker = MemoryBroker()
        app, _ = feeding(broker)
        await put(broker, 1)
        assert await app.serve() == 0
        came.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        await came.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_signals_may_be_left_alone() -> None:
    app, _ = feeding()
    before = signal.getsignal(signal.SIGTERM)
    serving = asyncio.ensure_future(app.serve(signals=False))
    for _ in range(20):
        await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGTERM) is before
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def test_it_runs_in_a_thread_without_touching_signals() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    broker = MemoryBroker()
    app = App("app", broker=broker)
    seen = threading.Event()
    stop: list[Any] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        seen.set()
        raise SystemExit(5)

    def work() -> None:
        async def once() -> int:
            await put(broker, 1)
            return await app.serve()

        try:
            asyncio.run(once())
        except SystemExit as error:
            stop.append(error.code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert seen.is_set()
    assert stop == [5]
    assert {number: signal.getsignal(number) for number in before} == before


async def test_serve_that_is_cancelled_drains_first() -> None:
    broker = MemoryBroker()
    app = App("app", broker=broker)
    handled: list[int] = []
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        begun.set()
        await gate.wait()
        handled.append(order.id)

    await put(broker, 1)
    serving = asyncio.ensure_future(app.serve(signals=False))
    await begun.wait()
    serving.cancel()
    asyncio.get_running_loop().call_later(0.02, gate.set)
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert handled == [1]
