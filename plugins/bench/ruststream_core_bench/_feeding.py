"""The other process: a producer that sends as many messages as the reader allows it to."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final

from ruststream_core.errors import RustStreamError
from ruststream_core_bench._scenario import Tally, Task

__all__ = ["AHEAD", "STEP", "allowances", "produce"]

STEP: Final = 1_000
"""Messages of one allowance."""
AHEAD: Final = 16
"""Allowances that the producer may be ahead of the reader: enough to keep it busy, too few to be a backlog."""


def allowances() -> Iterator[None]:
    """In the producer: one for each allowance, until the reader wants no more."""
    print("ready", flush=True)
    while allowed := os.read(sys.stdin.fileno(), 1024):
        for _ in allowed:
            yield None


async def produce(task: Task, tally: Tally, module: str, *arguments: str) -> None:
    """Run a producer and wait until all messages were seen; the watch runs from the first allowance to the last.

    Args:
        task: how many, a multiple of `STEP`.
        tally: where the reader's handler counts.
        module: what `python -m` runs.
        arguments: for the module.

    Raises:
        RustStreamError: the producer did not start.
    """
    producer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert producer.stdin is not None
    assert producer.stdout is not None
    try:
        if await producer.stdout.readline() != b"ready\n":
            raise RustStreamError(f"{module} {' '.join(arguments)} did not start; what it said is above")
        with task.watch:
            await _allow(task.messages // STEP, tally, producer.stdin.write)
    finally:
        producer.stdin.close()
        await producer.wait()


def _allow(steps: int, tally: Tally, write: Callable[[bytes], None]) -> asyncio.Future[None]:
    """Allow some steps, and one more for each that was read; ends when all were."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    given = min(AHEAD, steps)

    def read() -> None:
        nonlocal given
        if tally.goal == steps * STEP:
            done.set_result(None)
            return
        tally.at(tally.goal + STEP, read)
        if given < steps:
            given += 1
            write(b".")

    tally.at(STEP, read)
    write(b"." * given)
    return done
