"""Pieces that several transports need. No I/O; each is used from the loop's thread only."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ruststream_core.errors import Closed, ConfigError

__all__ = [
    "Gather",
    "Inbox",
    "Keeper",
    "LoopClock",
    "Mark",
    "VirtualClock",
    "Watermark",
    "Window",
    "backoff",
    "window_of",
]

T = TypeVar("T")


def backoff(first: float = 0.1, *, factor: float = 2.0, most: float = 30.0) -> Iterator[float]:
    """Endless waits in seconds for reconnecting: growing to `most`, each spread over its upper half."""
    from random import uniform  # noqa: PLC0415  half a millisecond of start-up, for failures only

    delay = first
    while True:
        yield delay * uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret
        delay = min(most, delay * factor)


def window_of(name: str, asked: int | None, *, workers: int, batch: int, default: int) -> int:
    """The window of a subscription: the one that was asked for, else `default`, or more where the demand needs it.

    Args:
        name: of the source, for the error.
        asked: by the route's prefetch or the descriptor.
        workers: handlers side by side.
        batch: deliveries that each takes at once.
        default: of the transport.

    Raises:
        ConfigError: what was asked for does not hold workers times batch.
    """
    least = workers * batch
    if asked is None:
        return max(default, least)
    if asked < least:
        raise ConfigError(
            f"{name!r}: a window of {asked} does not hold {workers} workers with {batch} messages each: "
            f"ask for at least {least}"
        )
    return asked


class Window:
    """Counts what is out and unsettled, and makes `receive` wait while there is no room."""

    __slots__ = ("_waiters", "out", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.out = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self, count: int) -> None:
        """`count` deliveries were handed out."""
        self.out += count

    def give(self, count: int = 1) -> None:
        """`count` deliveries were settled or lost."""
        self.out -= count
        if self._waiters and self.out < self.size:
            self.wake()

    def wake(self) -> None:
        """Let everyone who waits for room look again, at the end of a subscription above all."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def room(self, limit: int, ended: Callable[[], bool]) -> int:
        """Wait until there is room, or until `ended()` after a `wake`.

        Returns:
            How many may be handed out now, at most `limit`; 0 when ended.
        """
        while not ended():
            if (free := self.size - self.out) > 0:
                return min(limit, free)
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return 0


class Inbox(Generic[T]):
    """A bounded buffer between a client that pushes and a runtime that receives.

    One wake-up per chunk, whatever the rate: `put` only appends while nobody waits.

    Args:
        limit: most items held; beyond it `put` refuses.
    """

    __slots__ = ("_error", "_items", "_stopped", "_waiter", "_want", "limit", "refused")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0
        self._items: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._want = 1
        self._stopped = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def ended(self) -> bool:
        """Stopped or failed: `get` gives what is left, then nothing."""
        return self._stopped

    def put(self, item: T) -> bool:
        """Append; False, and counted in `refused`, where the buffer is full or ended."""
        items = self._items
        if len(items) >= self.limit or self._stopped:
            self.refused += 1
            return False
        items.append(item)
        if self._waiter is not None and len(items) >= self._want:
            self._wake()
        return True

    def stop(self) -> None:
        """Refuse more; a waiting `get` returns."""
        self._stopped = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Stop; once empty, `get` raises `error`."""
        self._error = error
        self.stop()

    def clear(self) -> list[T]:
        """Take everything that was never handed out."""
        items = list(self._items)
        self._items.clear()
        return items

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self, limit: int, linger: float = 0.0) -> list[T]:
        """1 to `limit` items in order; empty when ended. Yields to the loop at least once. One caller at a time.

        Raises:
            BaseException: what `fail` was given, once the buffer is empty.
        """
        items = self._items
        if items:
            await asyncio.sleep(0)
        while not items and not self._stopped:
            await self._wait(1, None)
        if linger > 0 and len(items) < limit and not self._stopped:
            await self._wait(limit, linger)
        if not items and self._error is not None:
            raise self._error
        if len(items) <= limit:
            return self.clear()
        take = items.popleft
        return [take() for _ in range(limit)]

    async def _wait(self, want: int, seconds: float | None) -> None:
        if self._waiter is not None:
            raise RuntimeError("Inbox.get is for one caller at a time")
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        self._want = want
        timer = None if seconds is None else loop.call_later(seconds, self._wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class Mark(msgspec.Struct, gc=False):
    """One position that is open in a `Watermark`."""

    position: Any
    done: bool = False


class Watermark(Generic[T]):
    """The position below which everything is finished, however unordered the finishing is."""

    __slots__ = ("_open", "position")

    def __init__(self, position: T) -> None:
        self.position = position
        self._open: deque[Mark] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, position: T) -> Mark:
        """Begin a position, the highest so far. Give the mark to `close` when it is finished."""
        mark = Mark(position)
        self._open.append(mark)
        return mark

    def close(self, mark: Mark) -> bool:
        """Finish a position; True where the watermark moved. A mark of before `reset` changes nothing."""
        mark.done = True
        marks = self._open
        moved = False
        while marks and marks[0].done:
            self.position = marks.popleft().position
            moved = True
        return moved

    def reset(self, position: T) -> None:
        """Forget what is open and go on from `position`."""
        self._open.clear()
        self.position = position


class LoopClock:
    """The running loop's own time."""

    def time(self) -> float:
        """Seconds, monotonic."""
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Run `callback` in `delay` seconds; call the result to cancel it."""
        return asyncio.get_running_loop().call_later(delay, callback).cancel


class VirtualClock:
    """A time that stands still until somebody moves it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, list[Callable[[], object]]]] = []

    def time(self) -> float:
        """Seconds since it was made."""
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Run `callback` when the clock has been moved by `delay` seconds; call the result to cancel it."""
        cell = [callback]
        heapq.heappush(self._timers, (self._now + delay, next(self._order), cell))
        return cell.clear

    @property
    def waiting(self) -> int:
        """Timers that have not run."""
        return sum(1 for _, _, cell in self._timers if cell)

    def step(self, until: float) -> bool:
        """Move to the next timer at or before `until` and run it; False where there is none, the time then `until`."""
        while self._timers and self._timers[0][0] <= until:
            due, _, cell = heapq.heappop(self._timers)
            if cell:
                self._now = max(self._now, due)
                cell[0]()
                return True
        self._now = max(self._now, until)
        return False


class Keeper(Generic[T]):
    """Renews what is in hand at half its life, until it is dropped from here.

    Args:
        life: seconds that one renewal lasts.
        renew: renews all of these at once; what it raises is passing and tried again at the next turn. It calls
            `discard` for what turned out to be lost.
    """

    def __init__(self, life: float, renew: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        self._half = life / 2
        self._renew = renew
        self._due: dict[T, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._wanted: asyncio.Event | None = None
        self.failures = 0

    def __len__(self) -> int:
        return len(self._due)

    def add(self, item: T) -> None:
        """Keep `item` alive; its life began now."""
        self._due[item] = time.monotonic() + self._half
        if self._task is None:
            self._wanted = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="keeper")
        if self._wanted is not None:
            self._wanted.set()

    def discard(self, item: T) -> None:
        """Leave `item` alone from now on. A renewal that is under way still ends."""
        self._due.pop(item, None)

    async def _run(self) -> None:
        while True:
            if not self._due:
                assert self._wanted is not None
                self._wanted.clear()
                await self._wanted.wait()
            # Items are added in order of time, so the first is due first.
            first = next(iter(self._due.values()), None)
            if first is None:
                continue
            if (wait := first - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            await self._turn()

    async def _turn(self) -> None:
        horizon = time.monotonic() + self._half / 10
        batch = [item for item, due in itertools.takewhile(lambda pair: pair[1] <= horizon, self._due.items())]
        if not batch:
            return
        started = time.monotonic()
        try:
            await self._renew(batch)
        except Exception:  # a passing failure: the next turn comes before the life is over
            self.failures += 1
            started -= self._half * 0.8
        for item in batch:
            if item in self._due:
                del self._due[item]
                self._due[item] = started + self._half

    async def aclose(self) -> None:
        """Stop renewing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._due.clear()


class Gather(Generic[T]):
    """Turns settlements that arrive one by one into few statements: whatever is ready when the connection is free.

    No timer: the first item starts a flush at the end of the loop's turn, those that come meanwhile form the next.

    Args:
        flush: runs one statement over these items. It reports what failed by itself and should not raise; an
            exception is kept for `aclose` and does not reach the futures.
        limit: most items in one statement.
    """

    def __init__(self, flush: Callable[[Sequence[T]], Awaitable[None]], *, limit: int = 1000) -> None:
        self._flush = flush
        self._limit = limit
        self._items: list[T] = []
        self._group: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> asyncio.Future[None]:
        """Have `item` flushed with its neighbours; the future is shared by all of one statement.

        Raises:
            Closed: after `aclose`.
        """
        if self._closed:
            raise Closed("settlements are closed")
        group = self._group
        if group is None:
            group = self._group = asyncio.get_running_loop().create_future()
        self._items.append(item)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="gather")
        return group

    async def _run(self) -> None:
        await asyncio.sleep(0)  # let the turn that began it end
        while self._items:
            group, items = self._group, self._items
            self._group, self._items = None, []
            for start in range(0, len(items), self._limit):
                await self._statement(items[start : start + self._limit])
            if group is not None and not group.done():
                group.set_result(None)
        self._task = None

    async def _statement(self, items: Sequence[T]) -> None:
        try:
            await self._flush(items)
        except Exception as exc:
            self.error = exc

    async def drain(self) -> None:
        """Return when everything added so far was flushed."""
        while (task := self._task) is not None:
            await asyncio.wait([task])

    async def aclose(self) -> None:
        """Flush what is there and refuse more."""
        self._closed = True
        await self.drain()
