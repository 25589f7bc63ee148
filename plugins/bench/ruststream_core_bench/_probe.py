"""What other processes run, to be looked at from outside: `python -m ruststream_core_bench._probe KIND ...`.

`run SUITE SCENARIO LOOP MESSAGES` does one loop once. `flat MESSAGES` and `in-flight MESSAGES` print figures as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

from ruststream_core import App
from ruststream_core.memory import MemoryBroker
from ruststream_core.wire import Outgoing
from ruststream_core_bench._payload import BODY, Order, counting
from ruststream_core_bench._scenario import Stopwatch, Tally, Task
from ruststream_core_bench.scenarios import load_suite

__all__ = ["main"]

SLAB = 10_000


def run(suite: str, scenario: str, loop: str, messages: str) -> None:
    """One loop, once; `feed` is the one that only publishes."""
    loaded = load_suite(suite)
    found = next(known for known in loaded.scenarios if known.name == scenario)
    with loaded.open() as place:
        asyncio.run(getattr(found, loop)(Task(int(messages), "bench", place, Stopwatch())))


def flat(messages: str) -> None:
    """Blocks and resident memory of a service after two slabs, and after so many messages more."""
    print(json.dumps(asyncio.run(_flat(int(messages)))))


async def _flat(messages: int) -> Mapping[str, float]:
    broker, tally = MemoryBroker(), Tally()
    app = App("flat", broker=broker)
    app.subscriber("orders")(counting(tally))
    sender = await (await broker.connect()).sender()

    async def slabs(count: int) -> tuple[int, float]:
        for _ in range(count):
            for _ in range(SLAB):
                sender.send(Outgoing(BODY, "orders"))
            await tally.more(SLAB)
        gc.collect()
        return sys.getallocatedblocks(), _resident()

    async with app.start():
        before, resident_before = await slabs(2)
        after, resident_after = await slabs(max(1, messages // SLAB))
    return {
        "kept": max(0, after - before) / messages,
        "resident_before": resident_before,
        "resident_after": resident_after,
    }


def _resident() -> float:
    """Resident memory in MiB; 0 where the platform does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)


def in_flight(messages: str) -> None:
    """Bytes that are alive for each message while its handler waits: delivery, payload object, coroutines."""
    print(json.dumps(asyncio.run(_in_flight(int(messages)))))


async def _in_flight(messages: int) -> float:
    broker, gate = MemoryBroker(), asyncio.Event()
    app = App("in-flight", broker=broker)
    inside = 0
    full = asyncio.Event()

    async def wait(order: Order) -> None:  # noqa: ARG001  it is alive meanwhile
        nonlocal inside
        inside += 1
        if inside == messages:
            full.set()
        await gate.wait()

    app.subscriber("orders", workers=messages)(wait)
    sender = await (await broker.connect()).sender()
    async with app.start():
        await asyncio.sleep(0)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(messages):
            sender.send(Outgoing(BODY, "orders"))
        await full.wait()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        gate.set()
    return (after - before) / messages


KINDS: Mapping[str, Callable[..., None]] = {"run": run, "flat": flat, "in-flight": in_flight}


def main(arguments: list[str]) -> None:
    """Do what the arguments name."""
    KINDS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
