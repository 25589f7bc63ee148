"""Design, not timing: on the way of a plain message there is no task, no annotation work, and nothing that stays."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import sys
import tracemalloc
import typing
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Context, by_key
from ruststream_core.memory import MemoryLog

COUNT = 1000


class Order(msgspec.Struct):
    id: int


SHAPES: dict[str, dict[str, Any]] = {
    "one": {},
    "several": {"workers": 4},
    "by key": {"workers": by_key(4)},
    "by payload": {"workers": by_key(4, lambda order: order.id % 4)},
}


class Counting:
    """Counts the calls of functions that have no place on the hot path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, int] = {}
        self.monkeypatch = monkeypatch

    def watch(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return real(*args, **kwargs)

        self.monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("source", ["orders", MemoryLog("orders", group="g")], ids=["queue", "group"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("context", [False, True], ids=["", "context"])
async def test_a_thousand_messages_make_no_task_and_no_annotation_work(
    shape: str, context: bool, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("app", broker="memory:")
    done = 0

    async def plain(order: Order) -> None:
        nonlocal done
        done += 1

    async def with_context(order: Order, ctx: Context) -> None:
        nonlocal done
        done += 1

    app.subscriber(source, **SHAPES[shape])(with_context if context else plain)
    async with app.start() as running:
        await running.publish_many([Order(n) for n in range(COUNT)], to="orders")
        counting = Counting(monkeypatch)
        loop = asyncio.get_running_loop()
        counting.watch(loop, "create_task")
        counting.watch(inspect, "signature")
        counting.watch(typing, "get_type_hints")
        counting.watch(msgspec.json, "Decoder")
        counting.watch(logging.Logger, "_log")
        while done < COUNT:
            await asyncio.sleep(0)
        assert counting.calls == {}
    assert running.report is not None
    assert running.report.total["acked"] == COUNT


async def blocks_after(app: App, name: str, done: Callable[[], int]) -> list[int]:
    """Memory blocks that stay after each of some rounds of a thousand messages."""
    left = []
    async with app.start() as running:
        for turn in range(6):
            await running.publish_many([Order(n) for n in range(COUNT)], to=name)
            while done() < COUNT * (turn + 1):
                await asyncio.sleep(0)
            gc.collect()
            left.append(sys.getallocatedblocks())
    return left


@pytest.mark.parametrize("shape", SHAPES)
async def test_nothing_stays_of_a_message(shape: str) -> None:
    """A thousand more messages leave no more blocks than the window explains: one for every four at most."""
    app = App("app", broker="memory:")
    done = 0

    # The broker's list of what is in hand is swept when it is twice the window.
    @app.subscriber("orders", prefetch=16, **SHAPES[shape])
    async def handle(order: Order) -> None:
        nonlocal done
        done += 1

    left = await blocks_after(app, "orders", lambda: done)
    assert max(left[1:]) - min(left[1:]) < COUNT // 4, left


async def test_a_message_takes_a_small_and_constant_number_of_blocks() -> None:
    """What the runtime itself has allocated at the height of a thousand messages does not grow with their number."""
    peaks = []
    for count in (COUNT, 4 * COUNT):
        app = App("app", broker="memory:")
        done = 0

        @app.subscriber("orders")
        async def handle(order: Order) -> None:
            nonlocal done
            done += 1

        async with app.start() as running:
            await running.publish_many([Order(n) for n in range(count)], to="orders")
            while done < 100:
                await asyncio.sleep(0)
            tracemalloc.start()
            while done < count:
                await asyncio.sleep(0)
            snapshot = tracemalloc.take_snapshot()
            tracemalloc.stop()
        runtime = snapshot.filter_traces([tracemalloc.Filter(True, "*ruststream_core/*", all_frames=True)])
        peaks.append(sum(stat.count for stat in runtime.statistics("filename")))
    small, large = peaks
    assert small < COUNT // 10
    assert large < COUNT // 10


async def test_middleware_and_routers_that_are_not_used_cost_no_call() -> None:
    """The decoder and the handler are called by the route's own composed function, with nothing in between."""
    app = App("app", broker="memory:")
    frames: list[list[str]] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        names = []
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code.co_name != "_work":
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        frames.append(names)

    async with app.start() as running:
        await running.publish(Order(1), to="orders")
        while not frames:
            await asyncio.sleep(0)
    assert frames == [["handle"]]
