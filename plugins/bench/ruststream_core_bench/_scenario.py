"""What a transport's module describes: scenarios, each three loops over the same messages, and where they run.

A loop is a coroutine function over one `Task`. It connects, tells its handler's messages to a `Tally`, and keeps
`task.watch` running from the first message to the settlement of the last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import msgspec

from ruststream_core_bench._results import Text

__all__ = ["Loop", "Place", "Scenario", "Stopwatch", "Suite", "Tally", "Task", "Text"]


class Stopwatch:
    """Adds up intervals: wall time, and the CPU time of this process. Use it as a context manager, repeatedly."""

    __slots__ = ("_cpu", "_wall", "cpu", "wall")

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin an interval."""
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def stop(self) -> None:
        """End the interval and add it."""
        self.wall += time.perf_counter() - self._wall
        self.cpu += time.process_time() - self._cpu


class Place(msgspec.Struct, frozen=True):
    """Where the loops of a suite run."""

    url: str
    folder: Path
    """Scratch files; gone afterwards."""
    environment: Mapping[str, str] = {}
    """What is published beside the machine: versions of client and server, the round trip."""


class Task(msgspec.Struct, frozen=True):
    """One run of one loop."""

    messages: int
    name: str
    """A name that no other run has: of its subject, queue, stream or file."""
    place: Place
    watch: Stopwatch


Loop: TypeAlias = Callable[[Task], Coroutine[Any, Any, None]]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the report.

    `raw`, `adapter` and `framework` differ in nothing but what carries the messages.
    """

    name: str
    title: Text
    raw: Loop
    """The client library driven directly; for a transport of our own, the loop that one writes on it by hand."""
    adapter: Loop | None
    """Our Subscription and Sender, no runtime."""
    framework: Loop
    """A handler in an app."""
    peers: Mapping[str, Loop] = {}
    """Other frameworks, by the distribution's name; those that are not installed are left out."""
    feed: Loop | None = None
    """Only what puts the messages there, as the in-process scenarios do within the process: what counts
    instructions takes it off."""
    unit: str = "msg/s"
    per_message: float = 1.0
    """How much of the unit one message is."""
    clock: Literal["wall", "cpu"] = "wall"
    """In-process scenarios wait for nothing, so their CPU time is the same and does not see the neighbours."""
    step: int = 1
    """The count is a multiple of it."""
    most: int = 100_000_000
    """Most messages of one run."""


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """The scenarios of one transport."""

    name: str
    title: Text
    package: str
    """The distribution that is measured."""
    needs: Sequence[str] = ()
    """Distributions without which nothing of it can run."""
    bound: str = "broker-bound"
    """What a row is called whose raw loop mostly waits."""
    scenarios: Sequence[Scenario]
    open: Callable[[], AbstractContextManager[Place]]
    """Starts what the loops need, and ends it."""


class Tally:
    """Counts what handlers have seen, and calls back at a goal. The same few operations in every loop."""

    __slots__ = ("_reached", "count", "goal")

    def __init__(self) -> None:
        self.count = 0
        self.goal = -1
        self._reached: Callable[[], None] = _nothing

    def hit(self) -> None:
        """Called by the handler that reaches the goal."""
        self._reached()

    def at(self, goal: int, reached: Callable[[], None]) -> None:
        """Call `reached` when `goal` messages have been seen, counted from the start."""
        self.goal = goal
        self._reached = reached

    def more(self, messages: int) -> asyncio.Future[None]:
        """A future that ends when that many more have been seen."""
        done = asyncio.get_running_loop().create_future()
        self.at(self.count + messages, lambda: done.set_result(None))
        return done


def _nothing() -> None:
    return None
