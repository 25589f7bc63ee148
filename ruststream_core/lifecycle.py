"""A running app: started in order, drained to balanced books, closed in reverse."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Final

import msgspec

from ruststream_core.abc import Broker, Clock, Connection, State
from ruststream_core.dispatch import Probe, Route, RoutePlan, Senders, Surroundings
from ruststream_core.errors import ConfigError, ConnectError, PluginError, RustStreamError
from ruststream_core.kit import LoopClock
from ruststream_core.middleware import Middleware
from ruststream_core.settlement import FailFast, Outcome
from ruststream_core.wire import Outgoing

__all__ = ["DrainReport", "Health", "Runtime", "ThreadPool", "leave", "require"]

log = logging.getLogger("ruststream")

CLEANUP: Final = 5.0
"""Seconds that a cancelled handler has to clean up before it is abandoned."""
GRACE: Final = 5.0
"""Seconds for flushing settlements and for each close."""
STALL: Final = 60.0
"""Seconds without any settlement, work in hand, after which a route counts as stuck."""


class Health(msgspec.Struct, frozen=True):
    """Whether the app does its work."""

    ready: bool
    problems: tuple[str, ...] = ()
    """One line for each route that does not move, and the terminal error."""


class DrainReport(msgspec.Struct, frozen=True):
    """How a run ended."""

    routes: Mapping[str, Mapping[str, int]]
    """The books of each route."""
    late: bool
    """The deadline passed with handlers still running."""
    seconds: float

    @property
    def total(self) -> dict[str, int]:
        """The books of all routes together."""
        total: dict[str, int] = {}
        for table in self.routes.values():
            for name, count in table.items():
                total[name] = total.get(name, 0) + count
        return total


class ThreadPool:
    """Daemon threads for plain `def` handlers: an abandoned one must not hold up the exit of the process.

    Args:
        size: most threads; each is started when it is first needed.
    """

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        """Threads without a job, less the jobs that wait for one: each job has its thread when it is queued."""
        self._lock = threading.Lock()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `call` in a thread, within a copy of the caller's context."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(result: Any, error: BaseException | None) -> None:
            if future.done():
                return  # cancelled meanwhile: the thread went on, its result is nobody's
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def job() -> None:
            result = None
            error: BaseException | None = None
            try:
                result = context.run(call)
            except (StopIteration, GeneratorExit) as exc:
                # A future refuses the one; the other, thrown into a coroutine, would close it.
                error = RuntimeError(f"the handler raised {type(exc).__name__}")
                error.__cause__ = exc
            except BaseException as exc:
                error = exc
            try:
                loop.call_soon_threadsafe(deliver, result, error)
            except RuntimeError:
                log.debug("a thread ended after its loop")

        with self._lock:
            if self._idle <= 0 and self._threads < self._size:
                self._threads += 1
                self._idle += 1
                threading.Thread(target=self._work, name=f"ruststream-{self._threads}", daemon=True).start()
            self._idle -= 1
        self._jobs.put(job)
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Let every thread end after its present job."""
        for _ in range(self._threads):
            self._jobs.put(None)


_running: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _after_fork() -> None:
    for runtime in list(_running):
        runtime.forked()


os.register_at_fork(after_in_child=_after_fork)


class Runtime:
    """Everything that is open between start and end. Made anew for each run, bound to its loop."""

    def __init__(
        self,
        plans: Sequence[RoutePlan],
        brokers: Mapping[str, Broker[Any]],
        *,
        middleware: Sequence[Middleware] = (),
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        after_startup: Iterable[Callable[[], Awaitable[None]]] = (),
        after_drain: Iterable[Callable[[], Awaitable[None]]] = (),
        drain: float = 30.0,
        clock: Clock | None = None,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        probe: Probe | None = None,
        on_publish: Callable[[str, Outgoing], None] | None = None,
    ) -> None:
        self._plans = plans
        self._brokers = brokers
        self._lifespan = lifespan
        self._after_startup = list(after_startup)
        self._after_drain = list(after_drain)
        self._drain_seconds = drain
        self._clock = clock or LoopClock()
        self._overrides = overrides or {}
        self._probe = probe
        self.senders = Senders(middleware, on_publish)
        self.routes: dict[str, Route] = {}
        self.state: Any = None
        self.error: BaseException | None = None
        self.report: DrainReport | None = None
        self._stack = AsyncExitStack()
        self._ended = asyncio.Event()
        self._hurry = asyncio.Event()
        self._open_tasks = 0
        self._started = False
        self._pool = ThreadPool(sum(plan.demand.workers for plan in plans))

    # ------------------------------------------------------------------------------------------ start

    async def start(self) -> None:
        """Lifespan, brokers, subscriptions, hooks; what was opened is closed again when one of them fails.

        Raises:
            ConfigError, ConnectError: as the transports. Errors of undoing are attached as notes.
        """
        try:
            if self._lifespan is not None:
                self.state = await self._stack.enter_async_context(self._lifespan())
            self._stack.callback(self._pool.close)
            for name, broker in self._brokers.items():
                await self._connect(name, broker)
            await self._open_senders()
            around = self._surroundings()
            for plan in self._plans:
                await self._open(Route(plan, around))
            for hook in self._after_startup:
                await hook()
        except BaseException as exc:
            await self._undo(exc)
            raise
        _running.add(self)
        self._started = True
        if self.error is not None:
            self._stop_fetching()
        self._look_for_the_end()

    async def _undo(self, error: BaseException) -> None:
        async def closed_senders() -> None:
            await self._bounded(self.senders.aclose(GRACE), "closing the senders")

        for step in (self._stop_crews, self._settlements, self._close_routes, closed_senders, self._stack.aclose):
            try:
                await step()
            except Exception as undoing:
                error.add_note(f"closing what had been opened failed as well: {undoing!r}")

    async def _stop_crews(self) -> None:
        self._stop_fetching()
        await self._cut()

    async def _connect(self, name: str, broker: Broker[Any]) -> None:
        try:
            connection = await broker.connect()
        except RustStreamError as exc:
            kind = next((kind for kind in (ConfigError, ConnectError) if isinstance(exc, kind)), PluginError)
            raise kind(f"broker {name!r}: {exc}") from exc
        except Exception as exc:
            raise PluginError(f"broker {name!r}: {type(broker).__name__}.connect failed: {exc!r}") from exc
        self.senders.connections[name] = connection
        self._stack.push_async_callback(self._disconnect, name, connection)

    async def _disconnect(self, name: str, connection: Connection[Any]) -> None:
        try:
            await asyncio.wait_for(connection.aclose(GRACE), GRACE + 5)
        except Exception as exc:
            log.warning("broker %s did not close cleanly: %r", name, exc)

    async def _open_senders(self) -> None:
        for name in self._brokers:
            await self.senders.open(name)
        for plan in self._plans:
            for target in plan.targets():
                if target.options is not None:
                    await self.senders.open(target.broker, target.options)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            state=self.state,
            senders=self.senders,
            clock=self._clock,
            overrides=self._overrides,
            run_sync=self._pool.run,
            fail_fast=self.fail,
            on_state=self._on_state,
            probe=self._probe,
        )

    async def _open(self, route: Route) -> None:
        for note in route.plan.notes:
            log.warning("route %s: %s", route.plan.name, note)
        await route.open(self.senders.connections[route.plan.broker])
        self.routes[route.plan.name] = route
        for task in route.crew.tasks:
            self._open_tasks += 1
            task.add_done_callback(partial(self._crew_ended, route))

    # ---------------------------------------------------------------------------------------- running

    def _crew_ended(self, route: Route, task: asyncio.Task[None]) -> None:
        self._open_tasks -= 1
        if task.cancelled() and not route.crew.stopping:
            # A cancellation from outside cannot be swallowed, the loop may be ending; a dead worker must be told.
            self.fail(
                RustStreamError(
                    f"route {route.plan.name!r}: a worker was cancelled, from outside or by its handler; "
                    "cancel tasks of your own, never the one that a handler runs in"
                )
            )
        elif not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        else:
            self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        # A source may end while later ones are still being opened: that is not yet the end of all.
        if self._started and self.routes and self._open_tasks == 0:
            self._ended.set()

    def _on_state(self, route: str, state: State, cause: BaseException | None) -> None:
        if cause is not None:
            log.warning("route %s: %s: %s", route, state, cause)
        else:
            log.info("route %s: %s", route, state)

    def fail(self, error: BaseException) -> None:
        """End the run because of `error`; the first one counts."""
        if self.error is None:
            self.error = error
            if isinstance(error, FailFast):
                log.error("a handler asked to stop: %s", error.reason or "FailFast")
            elif not isinstance(error, KeyboardInterrupt | SystemExit):
                log.error("terminal: %s: %s", type(error).__name__, error, exc_info=error)
        self._stop_fetching()  # at once: what was released would come back to the handler that gave up on it
        self._ended.set()

    def _stop_fetching(self) -> None:
        for route in self.routes.values():
            route.crew.stop()
            route.runner.stop()

    def stop(self) -> None:
        """Ask for the end: the first call lets a `wait` return, so that the drain begins."""
        self._ended.set()

    def hurry(self) -> None:
        """Shorten a drain that is under way: cancel handlers and release now."""
        self._hurry.set()
        self._ended.set()

    async def wait(self) -> None:
        """Return when every source has ended or somebody asked for the end.

        Raises:
            BaseException: the terminal error, a handler's FailFast included.
        """
        await self._ended.wait()
        if self.error is not None:
            raise self.error

    def health(self) -> Health:
        """Progress, route by route."""
        problems = [text for route in self.routes.values() if (text := route.healthy(STALL)) is not None]
        if self.error is not None:
            problems.insert(0, f"terminal: {type(self.error).__name__}: {self.error}")
        return Health(not problems and bool(self.senders.connections) and self.report is None, tuple(problems))

    def forked(self) -> None:
        """In a forked child nothing of this is ours: publishing there must fail, not write into shared sockets."""
        self.senders.forked()

    # ------------------------------------------------------------------------------------------ drain

    async def drain(self) -> DrainReport:
        """Stop fetching, finish what runs, account for everything, close in reverse order. Idempotent."""
        if self.report is not None:
            return self.report
        began = time.monotonic()
        self._stop_fetching()
        late = not await self._wait_for_crews(self._drain_seconds)
        if late:
            await self._cut()
        await self._settlements()
        for error in await self._bounded(self.senders.flush(), "flushing what was published"):
            log.error("a message that was published could not be flushed: %r", error)
        await self._close_routes()
        for hook in self._after_drain:
            try:
                await hook()
            except (Exception, Outcome):  # whatever it raises, what is open has still to be closed
                log.exception("an after_drain hook failed")
        await self._bounded(self.senders.aclose(GRACE), "closing the senders")
        tables = {name: route.books.table() for name, route in self.routes.items()}
        self.report = DrainReport(tables, late, time.monotonic() - began)
        _running.discard(self)
        await self._stack.aclose()
        return self.report

    async def _wait_for_crews(self, seconds: float) -> bool:
        """Whether all handlers and what they left on the way ended in time."""

        async def all_done() -> None:
            tasks = [task for route in self.routes.values() for task in route.crew.tasks if not task.done()]
            if tasks:
                await asyncio.wait(tasks)
            for route in self.routes.values():
                await route.runner.finish()

        done = asyncio.ensure_future(all_done())
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait([done, hurry], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finished = done.done()
        for waiter in (done, hurry):
            waiter.cancel()
        await asyncio.wait([done, hurry])
        return finished

    async def _cut(self) -> None:
        self._hurry.clear()
        for route in self.routes.values():
            route.crew.cut()
        if not await self._wait_for_crews(CLEANUP):
            for route in self.routes.values():
                if count := route.crew.abandon():
                    log.error("route %s: %d handlers ignore their cancellation; abandoned", route.plan.name, count)
                route.runner.abandon()

    async def _settlements(self) -> None:
        pending = [future for route in self.routes.values() for future in route.crew.pending]
        if pending:
            _, late = await asyncio.wait(pending, timeout=GRACE)
            if late:
                log.error("%d settlements were not confirmed within %g s", len(late), GRACE)

    async def _close_routes(self) -> None:
        closing = (self._close_route(route) for route in self.routes.values())
        await asyncio.gather(*closing)

    async def _close_route(self, route: Route) -> None:
        try:
            await asyncio.wait_for(route.close(GRACE), GRACE + 5)
        except Exception as exc:
            log.warning("route %s did not close cleanly: %r", route.plan.name, exc)

    async def _bounded(self, work: Awaitable[list[BaseException]], what: str) -> list[BaseException]:
        try:
            return await asyncio.wait_for(work, GRACE + 5)
        except TimeoutError:
            log.warning("%s took longer than %g s and was given up", what, GRACE + 5)
            return []


def require(problems: Sequence[str]) -> None:
    """Raise the problems of the wiring, all at once.

    Raises:
        ConfigError: there is one or more.
    """
    if problems:
        raise ConfigError("\n".join(problems))


def leave(loop: asyncio.AbstractEventLoop) -> None:
    """End what is left on a loop. A task that ignores its cancellation is abandoned: the runner would wait for ever."""
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=CLEANUP))
    for task in left:
        if not task.done():
            log.error("%s ignores its cancellation; abandoned", task.get_name())
            asyncio.tasks._unregister_task(task)  # noqa: SLF001  documented, and what the runner looks at
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  it has been told
