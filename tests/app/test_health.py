"""Readiness looks at whether each route moves, not at whether a socket is open."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable

import msgspec
import pytest

from ruststream_core import App, ConnectError, Health, RustStreamError
from ruststream_core.abc import Features
from ruststream_core.dispatch import _route
from tests.dispatch.chaos import ChaosBroker


class Order(msgspec.Struct):
    id: int


class Time:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + self.ahead)
        monkeypatch.setattr(_route, "time", clock)


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


async def test_a_route_with_work_in_hand_that_settles_nothing_is_stuck(now: Time) -> None:
    broker = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", broker=broker)
    gate = asyncio.Event()

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        await gate.wait()

    async with app.start() as running:
        assert running.health() == Health(ready=True)
        now.ahead = 1000
        broker.put("orders", b'{"id":1}')
        await until(lambda: running.statistics()["handle"]["in_hand"] == 1)
        assert running.health().ready, "idle for long, at work for a moment: not stuck"
        now.ahead += 59
        assert running.health().ready
        now.ahead += 2
        health = running.health()
        assert not health.ready
        assert health.problems == ("handle: 1 in hand, none settled for 61 s",)
        gate.set()
        await until(lambda: running.statistics()["handle"]["acked"] == 1)
        assert running.health().ready
        now.ahead += 1000
        assert running.health().ready, "idle is not stuck"
    assert not running.health().ready, "after the drain it takes nothing"


async def test_slow_but_moving_is_healthy(now: Time) -> None:
    broker = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", broker=broker)
    gates: list[asyncio.Event] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        gates.append(asyncio.Event())
        await gates[-1].wait()

    async with app.start() as running:
        for n in range(5):
            broker.put("orders", b'{"id":%d}' % n)
        for n in range(5):
            await until(lambda n=n: len(gates) == n + 1)  # type: ignore[misc]
            assert running.health().ready
            now.ahead += 50
            assert running.health().ready
            gates[-1].set()


async def test_an_outage_and_a_terminal_error_are_told() -> None:
    broker = ChaosBroker(Features(settles=True, retry="broker"))
    app = App("app", broker=broker)

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    with pytest.raises(RustStreamError, match="consumer was deleted"):
        async with app.start() as running:
            broker.subscriptions[0].fail(ConnectError("the consumer was deleted"))
            with pytest.raises(ConnectError):
                await running.wait()
            health = running.health()
            assert not health.ready
            assert health.problems[0] == "terminal: ConnectError: the consumer was deleted"
