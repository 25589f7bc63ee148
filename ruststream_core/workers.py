"""The loops between `receive` and `settle`: one body, and one way each for workers to come by their deliveries.

A worker takes a *run*, an iterator of deliveries, and works it off without any task, queue or call per message but
the handler's own. Sequential: a run is a chunk. `workers=n`: all share the iterator of one chunk, and whoever finds
it empty receives the next. `by_key`: a pump deals chunks onto lanes, a run is what has gathered in the worker's lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, Final, Protocol, TypeAlias

from ruststream_core.abc import Demand, State, Subscription
from ruststream_core.errors import PluginError, RustStreamError, SettleError
from ruststream_core.settlement import ACK, RELEASE, Verdict
from ruststream_core.wire import Delivery

__all__ = ["Books", "Conclusion", "Crew", "ended", "uncancel"]

NextRun: TypeAlias = Callable[[int], Awaitable[Iterator[Delivery] | None]]
"""How worker number k comes by its next run; None at the end."""

CHUNK: Final = 64
"""Deliveries asked for at once. More gains nothing measurable and delays what sits in one worker's hand."""


class Books:
    """What became of the deliveries of one route.

    `received = acked + retried + dropped + dead_lettered + skipped + released + lost + discarded + in hand`.
    Only what is not acked is counted; acked is the difference. The second group says why, outside the sum.
    """

    __slots__ = (
        "abandoned",
        "dead_lettered",
        "discarded",
        "dropped",
        "failed",
        "lost",
        "received",
        "released",
        "reruns",
        "retried",
        "skipped",
        "undecodable",
        "unkept",
    )

    ENDS = ("retried", "dropped", "dead_lettered", "skipped", "released", "lost", "discarded")
    CAUSES = ("failed", "undecodable", "reruns", "unkept", "abandoned")

    def __init__(self) -> None:
        self.received = 0
        for name in (*self.ENDS, *self.CAUSES):
            setattr(self, name, 0)

    retried: int
    dropped: int
    dead_lettered: int
    skipped: int
    released: int
    lost: int
    discarded: int
    failed: int
    undecodable: int
    reruns: int
    unkept: int
    abandoned: int

    def ended(self) -> int:
        """Deliveries that ended otherwise than acked."""
        return sum(getattr(self, name) for name in self.ENDS)

    def add(self, end: str, count: int = 1) -> None:
        """Count `count` more of one kind."""
        setattr(self, end, getattr(self, end) + count)

    def table(self, in_hand: int = 0) -> dict[str, int]:
        """All counts by name, `received` and `acked` first."""
        acked = self.received - self.ended() - in_hand
        rest = {name: getattr(self, name) for name in (*self.ENDS, *self.CAUSES)}
        return {"received": self.received, "acked": acked, **rest, "in_hand": in_hand}


class Conclusion(Protocol):
    """What decides a delivery whose handler did not simply return None."""

    def returned(self, worker: int, delivery: Delivery, result: object) -> Awaitable[None] | None:
        """The handler returned something. What is returned is awaited before the worker goes on."""

    def raised(self, worker: int, delivery: Delivery, error: BaseException) -> Awaitable[None] | None:
        """The handler raised, or the payload did not decode."""

    def end_of(self, verdict: Verdict) -> str:
        """Which count of the books a verdict went to, `acked` for the plain one."""


class Crew:
    """The workers of one subscription; also its `Watch`."""

    def __init__(
        self,
        name: str,
        demand: Demand,
        books: Books,
        lane_of: Callable[[Delivery], Hashable | None],
        on_state: Callable[[State, BaseException | None], None],
        *,
        cancel_lost: bool = True,
    ) -> None:
        self.name = name
        self.books = books
        self.demand = demand
        self.calm = True
        """No worker was cancelled and nobody observes: a handler that returned None is simply acked."""
        self.watched = False
        self.cutting = False
        self.stopping = False
        self.current: list[Delivery | None] = [None] * demand.workers
        self.batches: list[Sequence[Delivery]] = [()] * demand.workers
        self.tasks: list[asyncio.Task[None]] = []
        self.pending: set[asyncio.Future[None]] = set()
        self._last: asyncio.Future[None] | None = None
        self._lane_of = lane_of
        self._on_state = on_state
        self._cancel_lost = cancel_lost
        self._runs: list[Iterator[Delivery]] = [iter(())] * demand.workers
        self._lanes: list[list[Delivery]] = [[] for _ in range(demand.workers)]
        self._sleepers: list[asyncio.Future[None] | None] = [None] * demand.workers
        self._idle: list[asyncio.Future[None]] = []
        self._leading = False
        self._ended = False
        self._hit: set[int] = set()
        self._stop_waiters: set[asyncio.Future[None]] = set()

    # ------------------------------------------------------------------------------------------------ set-up

    def start(
        self,
        subscription: Subscription,
        conclusion: Conclusion,
        invoke: Callable[[Delivery], Awaitable[object]] | None,
        invoke_batch: Callable[[int, Sequence[Delivery]], Awaitable[None]] | None,
    ) -> None:
        """Begin to work. Exactly one of `invoke` and `invoke_batch` is given."""
        self.subscription = subscription
        self.conclusion = conclusion
        workers = self.demand.workers
        spawn = asyncio.get_running_loop().create_task
        next_run: NextRun = self._own if workers == 1 or subscription.receivers >= workers else self._shared
        if self.demand.keyed:
            next_run = self._lane
            self.tasks.append(spawn(self._pump(), name=f"{self.name}:pump"))
        for k in range(workers):
            work = self._work(k, invoke, next_run) if invoke else self._work_batches(k, invoke_batch, next_run)
            self.tasks.insert(k, spawn(work, name=f"{self.name}:{k}"))

    # ------------------------------------------------------------------------------------------------ the body

    async def _work(
        self,
        k: int,
        invoke: Callable[[Delivery], Awaitable[object]],
        next_run: NextRun,
    ) -> None:
        current = self.current
        conclusion = self.conclusion
        while (run := await next_run(k)) is not None:
            self._runs[k] = run
            for delivery in run:
                if delivery.lost is not None:
                    continue
                current[k] = delivery
                try:
                    result = await invoke(delivery)
                except BaseException as error:
                    waiting = conclusion.raised(k, delivery, error)
                else:
                    if result is None and self.calm:
                        settling = delivery.settle(ACK)
                        if settling is not None and settling is not self._last:
                            self.track(settling)
                        continue
                    waiting = conclusion.returned(k, delivery, result)
                if waiting is not None:
                    await waiting
            current[k] = None

    async def _work_batches(
        self,
        k: int,
        invoke: Callable[[int, Sequence[Delivery]], Awaitable[None]] | None,
        next_run: NextRun,
    ) -> None:
        assert invoke is not None
        size = self.demand.batch
        while (run := await next_run(k)) is not None:
            self._runs[k] = run
            while taken := list(islice(run, size)):
                self.batches[k] = batch = [delivery for delivery in taken if delivery.lost is None]
                if batch:
                    await invoke(k, batch)
                self.batches[k] = ()

    def track(self, settling: asyncio.Future[None]) -> None:
        """Remember a pending settlement, so that a drain waits for it. It does not hold the worker."""
        self._last = settling
        if not settling.done():
            self.pending.add(settling)
            settling.add_done_callback(self.pending.discard)

    # ---------------------------------------------------------------------------------- where runs come from

    async def _receive(self) -> Sequence[Delivery]:
        demand = self.demand
        limit = demand.batch if demand.batch > 1 else CHUNK
        try:
            chunk = await self.subscription.receive(limit, demand.linger)
        except RustStreamError:
            raise
        except Exception as exc:
            raise PluginError(f"{self.name}: the transport failed in receive: {exc!r}") from exc
        self.books.received += len(chunk)
        if self.stopping:
            self._release_all(iter(chunk))
            return ()
        return chunk

    async def _own(self, _: int) -> Iterator[Delivery] | None:
        chunk = await self._receive()
        return iter(chunk) if chunk else None

    async def _shared(self, _: int) -> Iterator[Delivery] | None:
        """Leader and followers on one chunk.

        A chunk wakes one sleeper, and that one the next while work is left, so that handlers which never suspend
        cost one wake-up a chunk.
        """
        while True:
            run = self._runs[0]
            if self.demand.batch == 1 and length_hint(run):
                self._wake_one()
                return run
            if self._ended:
                return None
            if self._leading:
                sleeper = asyncio.get_running_loop().create_future()
                self._idle.append(sleeper)
                await sleeper
                continue
            self._leading = True
            chunk: Sequence[Delivery] = ()
            try:
                chunk = await self._receive()
            finally:
                self._leading = False
                if chunk:
                    self._wake_one()
                else:
                    self._end()
            if not chunk:
                return None
            run = iter(chunk)
            if self.demand.batch == 1:
                self._runs = [run] * len(self._runs)
            return run

    def _wake_one(self) -> None:
        if self._idle:
            _wake(self._idle.pop())

    def _end(self) -> None:
        self._ended = True
        while self._idle:
            self._wake_one()
        for k in range(len(self._sleepers)):
            self._wake_lane(k)

    async def _lane(self, k: int) -> Iterator[Delivery] | None:
        while not (lane := self._lanes[k]):
            if self._ended:
                return None
            sleeper = self._sleepers[k] = asyncio.get_running_loop().create_future()
            await sleeper
        self._lanes[k] = []
        return iter(lane)

    async def _pump(self) -> None:
        lanes, sleepers, lane_of, workers = self._lanes, self._sleepers, self._lane_of, self.demand.workers
        try:
            while chunk := await self._receive():
                for delivery in chunk:
                    key = lane_of(delivery)
                    k = hash(key) % workers if key is not None else min(range(workers), key=self._load)
                    lanes[k].append(delivery)
                    if sleepers[k] is not None:
                        self._wake_lane(k)
        finally:
            self._end()

    def _load(self, k: int) -> int:
        return len(self._lanes[k]) + length_hint(self._runs[k]) + (self.current[k] is not None)

    def _wake_lane(self, k: int) -> None:
        sleeper, self._sleepers[k] = self._sleepers[k], None
        if sleeper is not None:
            _wake(sleeper)

    # ----------------------------------------------------------------------------------- loss, pause and drain

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        """`Watch.lost`: count it, take its former count back, and stop its handler."""
        books = self.books
        books.lost += 1
        if verdict is not None:
            if (end := self.conclusion.end_of(verdict)) != "acked":
                books.add(end, -1)
            return
        if not self._cancel_lost:
            return
        for k, running in enumerate(self.current):
            if running is delivery:
                self._cancel(k, delivery)

    def _cancel(self, k: int, delivery: Delivery) -> None:
        if self.tasks[k] is asyncio.current_task():
            # The handler itself brought the loss about; a cancel now would hit whatever it awaits next, even after
            # it has returned. Look again when its turn is over.
            asyncio.get_running_loop().call_soon(self._cancel_if_current, k, delivery)
        else:
            self._cancel_if_current(k, delivery)

    def _cancel_if_current(self, k: int, delivery: Delivery) -> None:
        if self.current[k] is delivery:
            self.calm = False
            self._hit.add(k)
            self.tasks[k].cancel()

    def settled_down(self, k: int) -> None:
        """A cancelled handler has ended: the short way is open again, unless another was, or somebody observes."""
        self._hit.discard(k)
        self.calm = not (self._hit or self.cutting or self.watched)

    def state(self, state: State, cause: BaseException | None) -> None:
        """`Watch.state`."""
        self._on_state(state, cause)

    @property
    def pauses(self) -> int:
        """Workers that wait for a timer."""
        return len(self._stop_waiters)

    async def pause(self, timer: Callable[[Callable[[], None]], Callable[[], None]]) -> bool:
        """Hold a worker until the timer has run what it is given; False where a drain began first.

        `timer` starts it and returns what cancels it.
        """
        if self.stopping:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._stop_waiters.add(waiter)
        cancel = timer(lambda: _wake(waiter))
        try:
            await waiter
        finally:
            self._stop_waiters.discard(waiter)
            cancel()
        return not self.stopping

    def stop(self) -> None:
        """Take nothing more, and give back what no handler has started."""
        if self.stopping:
            return
        self.stopping = True
        self.subscription.stop()
        for waiter in self._stop_waiters:
            _wake(waiter)
        for run in (*self._runs, *map(iter, self._lanes)):
            self._release_all(run)
        for lane in self._lanes:
            lane.clear()

    def _release_all(self, run: Iterator[Delivery]) -> None:
        # The workers iterate over the same object, so what is taken here never reaches a handler.
        for delivery in run:
            self.release(delivery)

    def release(self, delivery: Delivery) -> None:
        """Give a delivery back that was not worked on, or not to its end. One that is lost is counted already."""
        if delivery.lost is not None:
            return
        keeps = self.subscription.features.release != "lost"
        self.books.add("released" if keeps else "discarded")
        if (settling := delivery.settle(RELEASE)) is not None:
            self.track(settling)

    def cut(self) -> None:
        """Cancel every handler that still runs; its delivery is released, whatever it returns."""
        self.cutting = True
        self.calm = False
        for k, task in enumerate(self.tasks[: self.demand.workers]):
            if self.current[k] is not None or self.batches[k]:
                task.cancel()

    def abandon(self) -> int:
        """Release what a handler that ignores its cancellation still holds; how many these were."""
        count = 0
        for k, task in enumerate(self.tasks):
            if k >= self.demand.workers or task.done():
                task.cancel()
                continue
            held = [d for d in (self.current[k], *self.batches[k]) if d is not None and d.lost is None]
            self.current[k], self.batches[k] = None, ()
            task.cancel()
            for delivery in held:
                self.release(delivery)
            count += len(held)
        self.books.abandoned += count
        return count


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def ended(future: asyncio.Future[None]) -> None:
    """Return when `future` is done, however it ended.

    A cancellation stops the waiting, not the future: others share it. `asyncio.wait` does the same at three times
    the cost.
    """
    if not future.done():
        waiter = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: _wake(waiter))
        await waiter


def uncancel() -> bool:
    """Whether the running task had been cancelled from outside; takes the cancellation back."""
    task: asyncio.Task[Any] | None = asyncio.current_task()
    cancelled = False
    while task is not None and task.cancelling():
        task.uncancel()
        cancelled = True
    return cancelled
