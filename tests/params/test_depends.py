"""Factories: once per delivery, in order, closed by the outcome, and replaced in tests."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Annotated, Any

import pytest

from ruststream_core.errors import ConfigError
from ruststream_core.params import (
    Bound,
    Context,
    Depends,
    FromHeader,
    FromPath,
    FromState,
    Later,
    Publisher,
    Undecodable,
    inspect_handler,
)
from ruststream_core.settlement import Ack, Drop, FailFast, Outcome, Retry, Skip

Bind = Callable[..., Bound]
Deliver = Callable[..., Any]


class Journal(list[str]):
    """What happened, in order."""


@pytest.fixture
def journal() -> Journal:
    return Journal()


def sync_session(journal: Journal, name: str = "db") -> Callable[[], Iterator[str]]:
    def session() -> Iterator[str]:
        journal.append(f"open {name}")
        try:
            yield name
        except BaseException as error:
            journal.append(f"rollback {name} {type(error).__name__}")
            raise
        else:
            journal.append(f"commit {name}")
        finally:
            journal.append(f"close {name}")

    return session


def async_session(journal: Journal, name: str = "db") -> Callable[[], AsyncIterator[str]]:
    async def session() -> AsyncGenerator[str, None]:
        with contextlib.contextmanager(sync_session(journal, name))() as made:
            yield made

    return session


def managed_session(journal: Journal) -> Any:
    return contextlib.asynccontextmanager(async_session(journal))


def plain_managed_session(journal: Journal) -> Any:
    return contextlib.contextmanager(sync_session(journal))


SESSIONS = [sync_session, async_session, managed_session, plain_managed_session]


# --------------------------------------------------------------------------------------------------- making


async def test_every_kind_of_factory(bound: Bind, delivery: Deliver) -> None:
    class Settings:
        def __init__(self, region: Annotated[str, FromPath]) -> None:
            self.region = region

    async def asynchronous() -> int:
        await asyncio.sleep(0)
        return 2

    def coroutine() -> Awaitable[int]:
        return asynchronous()

    class Maker:
        async def __call__(self, base: Annotated[int, Depends(asynchronous)]) -> int:
            return base + 10

    async def h(
        x: int,
        a: Annotated[int, Depends(lambda: 1)],
        b: Annotated[int, Depends(asynchronous)],
        c: Annotated[int, Depends(coroutine)],
        d: Annotated[int, Depends(Maker())],
        e: Annotated[Settings, Depends(Settings)],
        f: Annotated[int, Depends(functools.partial(max, 3, 4))],
    ) -> Any:
        return a, b, c, d, e.region, f

    with pytest.raises(ConfigError, match="no readable signature"):
        bound(h, path="{region}")

    def largest(*, low: int = 3) -> int:
        return low

    h.__annotations__["f"] = Annotated[int, Depends(functools.partial(largest, low=4))]
    assert await bound(h, path="{region}").call(delivery(name="eu")) == (1, 2, 2, 12, "eu", 4)


async def test_factory_runs_once_per_delivery(bound: Bind, delivery: Deliver) -> None:
    """Two sessions in one delivery would not see each other's writes."""
    made: list[object] = []

    def session() -> object:
        made.append(object())
        return made[-1]

    def repository(s: Annotated[object, Depends(session)]) -> object:
        return s

    async def h(x: int, r: Annotated[object, Depends(repository)], s: Annotated[object, Depends(session)]) -> bool:
        return r is s

    call = bound(h).call
    assert await call(delivery())
    assert await call(delivery())
    assert len(made) == 2


async def test_factory_takes_markers_context_and_publisher(bound: Bind, delivery: Deliver) -> None:
    def tenant(
        name: Annotated[str, FromHeader("x-tenant")], ctx: Context, p: Publisher, *, state: Annotated[str, FromState]
    ) -> Any:
        return name, ctx.route, p, state

    async def h(x: int, ctx: Context, t: Annotated[Any, Depends(tenant)]) -> Any:
        return t

    publisher = Publisher()
    call = bound(h, publisher=publisher, state="s").call
    assert await call(delivery(headers={"x-tenant": "a"})) == ("a", "confirm", publisher, "s")
    with pytest.raises(Undecodable):
        await call(delivery())


async def test_once_per_batch(bound: Bind, delivery: Deliver) -> None:
    made: list[int] = []

    def count() -> int:
        made.append(1)
        return len(made)

    async def h(rows: list[int], n: Annotated[int, Depends(count)]) -> Any:
        return [n] * len(rows)

    ready = bound(h, batch=True)
    assert ready.call_batch is not None
    assert await ready.call_batch([delivery(), delivery()], [1, 2]) == [1, 1]
    assert await ready.call_batch([delivery()], [1]) == [2]


def test_payload_is_not_for_factories() -> None:
    def tenant(order: int) -> str: ...  # type: ignore[empty-body]

    async def h(order: int, t: Annotated[str, Depends(tenant)]) -> None: ...

    with pytest.raises(
        ConfigError, match=r"parameter 'order' of Depends factory .*tenant.* of handler .*never the payload"
    ):
        inspect_handler(h, batch=False, scope=locals())


def test_circles_are_refused() -> None:
    def one(x: Any) -> int: ...  # type: ignore[empty-body]
    def two(x: Annotated[int, Depends(one)]) -> int: ...  # type: ignore[empty-body]

    one.__annotations__["x"] = Annotated[int, Depends(two)]

    async def h(order: int, t: Annotated[int, Depends(one)]) -> None: ...

    with pytest.raises(ConfigError, match=r"circle: .*one -> .*two -> .*one"):
        inspect_handler(h, batch=False, scope=locals())


def test_unhashable_factories_work() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> int:
            return 1

    maker = Unhashable()

    async def h(order: int, a: Annotated[int, Depends(maker)], b: Annotated[int, Depends(maker)]) -> None: ...

    assert len(inspect_handler(h, batch=False, scope=locals()).factories) == 1


def test_remembered_factories() -> None:
    """A cached plain factory is a singleton; a cached coroutine fails from the second message on."""

    @functools.lru_cache
    def settings() -> int:
        return 1

    @functools.lru_cache
    async def broken() -> int:
        return 1

    async def fine(order: int, s: Annotated[int, Depends(settings)]) -> None: ...
    async def wrong(order: int, s: Annotated[int, Depends(broken)]) -> None: ...

    assert inspect_handler(fine, batch=False, scope=locals()).factories
    with pytest.raises(ConfigError, match="awaited twice"):
        inspect_handler(wrong, batch=False, scope=locals())


# --------------------------------------------------------------------------------------------------- overriding


async def test_overrides_replace_factories_at_every_depth(bound: Bind, delivery: Deliver) -> None:
    """A test that replaces the session must reach the repository that takes it."""

    def session() -> str:
        raise AssertionError

    def repository(s: Annotated[str, Depends(session)]) -> str:
        return f"repository of {s}"

    def fake(tenant: Annotated[str, FromHeader("x-tenant")]) -> str:
        return f"fake {tenant}"

    async def h(x: int, r: Annotated[str, Depends(repository)], s: Annotated[str, Depends(session)]) -> Any:
        return r, s

    call = bound(h, overrides={session: fake}).call
    assert await call(delivery(headers={"x-tenant": "a"})) == ("repository of fake a", "fake a")
    call = bound(h, overrides={repository: lambda: "none", session: lambda: "s"}).call
    assert await call(delivery()) == ("none", "s")


# --------------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize("make", SESSIONS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("plain", [False, True], ids=["async handler", "plain handler"])
@pytest.mark.parametrize(
    ("outcome", "commits"),
    [
        (None, True),
        (42, True),
        (Ack, True),
        (Ack(), True),
        (Skip(), True),
        (Retry, False),
        (Retry(after=1), False),
        (Drop("bad"), False),
        (FailFast(), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
async def test_generators_close_by_the_outcome(
    make: Any, plain: bool, outcome: Any, commits: bool, raised: bool, journal: Journal, bound: Bind, delivery: Deliver
) -> None:
    """A session that commits although the message is retried does the work twice."""
    if raised and not (isinstance(outcome, Outcome) or (isinstance(outcome, type) and issubclass(outcome, Outcome))):
        outcome = ValueError("handler")
        commits = False
    session = make(journal)

    def h(x: int, db: Annotated[str, Depends(session)]) -> Any:
        journal.append("handler")
        if raised:
            raise outcome
        return outcome

    async def asynchronous(x: int, db: Annotated[str, Depends(session)]) -> Any:
        return h(x, db)

    call = bound(h if plain else asynchronous).call
    if raised:
        kind = outcome if isinstance(outcome, type) else type(outcome)
        with pytest.raises(kind) as caught:
            await call(delivery())
        assert isinstance(outcome, type) or caught.value is outcome
    else:
        assert await call(delivery()) is outcome
    kind = outcome if isinstance(outcome, type) else type(outcome)
    end = "commit db" if commits else f"rollback db {kind.__name__}"
    assert journal == ["open db", "handler", end, "close db"]


async def test_the_last_opened_closes_first(journal: Journal, bound: Bind, delivery: Deliver) -> None:
    outer = sync_session(journal, "outer")

    async def inner(o: Annotated[str, Depends(outer)]) -> AsyncIterator[str]:
        journal.append("open inner")
        yield o
        journal.append("close inner")

    async def h(x: int, i: Annotated[str, Depends(inner)]) -> None: ...

    await bound(h).call(delivery())
    assert journal == ["open outer", "open inner", "close inner", "commit outer", "close outer"]


async def test_failure_of_a_later_factory_rolls_the_earlier_back(
    journal: Journal, bound: Bind, delivery: Deliver
) -> None:
    """Left open, the session's connection never returns to its pool."""
    session = async_session(journal)

    def broken(s: Annotated[str, Depends(session)]) -> str:
        raise LookupError

    async def h(x: int, b: Annotated[str, Depends(broken)]) -> None: ...

    with pytest.raises(LookupError):
        await bound(h).call(delivery())
    assert journal == ["open db", "rollback db LookupError", "close db"]


async def test_failure_in_closing_is_the_handlers(journal: Journal, bound: Bind, delivery: Deliver) -> None:
    """A commit that fails must not be acked, and the outer session must not commit either."""
    outer = sync_session(journal, "outer")

    async def session(o: Annotated[str, Depends(outer)]) -> AsyncIterator[str]:
        yield o
        raise OSError("commit")

    async def h(x: int, s: Annotated[str, Depends(session)]) -> int:
        return 1

    async def skips(x: int, s: Annotated[str, Depends(session)]) -> None:
        raise Skip

    for fn in (h, skips):
        journal.clear()
        with pytest.raises(OSError, match="commit"):
            await bound(fn).call(delivery())
        assert journal == ["open outer", "rollback outer OSError", "close outer"]


@pytest.mark.parametrize("raised", [False, True])
async def test_catching_in_a_generator_does_not_undo_the_outcome(raised: bool, bound: Bind, delivery: Deliver) -> None:
    """`except BaseException: rollback()` without `raise` must not turn a Retry into an ack."""

    async def session() -> AsyncIterator[int]:
        with contextlib.suppress(BaseException):
            yield 1

    def plain() -> Iterator[int]:
        with contextlib.suppress(BaseException):
            yield 1

    outcome = Retry(after=5)

    async def h(x: int, a: Annotated[int, Depends(session)], b: Annotated[int, Depends(plain)]) -> Any:
        if raised:
            raise outcome
        return outcome

    if raised:
        with pytest.raises(Retry):
            await bound(h).call(delivery())
    else:
        assert await bound(h).call(delivery()) is outcome


async def test_shared_outcome_collects_no_tracebacks(journal: Journal, bound: Bind, delivery: Deliver) -> None:
    """`RETRY = Retry(after=5)` at module level, returned for every message, must not keep every frame alive."""
    shared = Retry(after=5)
    session = async_session(journal)

    async def h(x: int, s: Annotated[str, Depends(session)]) -> Retry:
        return shared

    await bound(h).call(delivery())
    assert shared.__traceback__ is None
    assert shared.__context__ is None


async def test_group_of_accepting_outcomes_commits(journal: Journal, bound: Bind, delivery: Deliver) -> None:
    session = async_session(journal)

    async def h(x: int, s: Annotated[str, Depends(session)], ctx: Context) -> None:
        ctx.after_ack(asyncio.sleep, 0)
        raise BaseExceptionGroup("both", [Ack(), Skip()])

    result = await bound(h).call(delivery())
    assert isinstance(result, Later)
    assert isinstance(result.value, Skip)
    assert "commit db" in journal


async def test_mixed_group_rolls_back(journal: Journal, bound: Bind, delivery: Deliver) -> None:
    session = async_session(journal)

    async def h(x: int, s: Annotated[str, Depends(session)]) -> None:
        raise BaseExceptionGroup("mixed", [Ack(), ValueError()])

    with pytest.raises(BaseExceptionGroup):
        await bound(h).call(delivery())
    assert "rollback db BaseExceptionGroup" in journal


@pytest.mark.parametrize("error", [StopAsyncIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_unusual_exceptions_come_through_unchanged(
    error: type[BaseException], journal: Journal, bound: Bind, delivery: Deliver
) -> None:
    """A generator wraps some of them; the runtime must see what the handler raised."""
    a, b = async_session(journal, "a"), sync_session(journal, "b")

    async def h(x: int, one: Annotated[str, Depends(a)], two: Annotated[str, Depends(b)]) -> None:
        raise error

    coroutine: Any = bound(h).call(delivery())
    with pytest.raises(error):  # driven by hand: a loop would end itself on some of them
        coroutine.send(None)
    assert [line for line in journal if line.startswith("rollback")] == [
        f"rollback b {error.__name__}", f"rollback a {error.__name__}"
    ]  # fmt: skip


async def test_cancellation_is_never_replaced(bound: Bind, delivery: Deliver) -> None:
    """A rollback that fails while the drain cancels must not look like a failed handler."""
    started = asyncio.Event()

    async def session() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise OSError("rollback")

    async def h(x: int, s: Annotated[int, Depends(session)]) -> None:
        started.set()
        await asyncio.Event().wait()

    call = bound(h).call

    async def run() -> None:
        await call(delivery())

    task = asyncio.create_task(run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert any("OSError" in note for note in caught.value.__notes__)
    assert task.cancelled()


async def test_cancellation_during_closing_reaches_the_outer_generators(
    journal: Journal, bound: Bind, delivery: Deliver
) -> None:
    outer = sync_session(journal, "outer")
    closing = asyncio.Event()

    async def slow(o: Annotated[str, Depends(outer)]) -> AsyncIterator[str]:
        yield o
        closing.set()
        await asyncio.Event().wait()

    async def h(x: int, s: Annotated[str, Depends(slow)]) -> None: ...

    call = bound(h).call

    async def run() -> None:
        await call(delivery())

    task = asyncio.create_task(run())
    await closing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert journal == ["open outer", "rollback outer CancelledError", "close outer"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_generators_yield_exactly_once(asynchronous: bool, bound: Bind, delivery: Deliver) -> None:
    def never() -> Iterator[int]:
        yield from ()

    def twice() -> Iterator[int]:
        yield 1
        yield 2

    async def never_async() -> AsyncIterator[int]:
        for value in range(0):
            yield value

    async def twice_async() -> AsyncIterator[int]:
        yield 1
        yield 2

    first, second = (never_async, twice_async) if asynchronous else (never, twice)

    async def none(x: int, s: Annotated[int, Depends(first)]) -> None: ...
    async def two(x: int, s: Annotated[int, Depends(second)]) -> None: ...

    with pytest.raises(RuntimeError, match="without a yield"):
        await bound(none).call(delivery())
    with pytest.raises(RuntimeError, match="more than once"):
        await bound(two).call(delivery())


async def test_context_variables_of_a_generator_reach_the_handler(bound: Bind, delivery: Deliver) -> None:
    tenant = contextvars.ContextVar("tenant", default="none")

    async def scope() -> AsyncIterator[None]:
        token = tenant.set("a")
        yield
        tenant.reset(token)

    async def h(x: int, s: Annotated[None, Depends(scope)]) -> str:
        return tenant.get()

    assert await bound(h).call(delivery()) == "a"
    assert tenant.get() == "none"


# --------------------------------------------------------------------------------------------------- threads


async def test_plain_factories_of_a_plain_handler_share_its_thread(bound: Bind, delivery: Deliver) -> None:
    """An SQLite connection may not change threads between opening, use and closing."""
    threads: list[int] = []

    def connection() -> Generator[int, None, None]:
        threads.append(threading.get_ident())
        yield 1
        threads.append(threading.get_ident())

    def h(x: int, c: Annotated[int, Depends(connection)]) -> None:
        threads.append(threading.get_ident())

    await bound(h).call(delivery())
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_plain_handler_with_both_kinds_of_factories(journal: Journal, bound: Bind, delivery: Deliver) -> None:
    """Async factories stay on the loop, plain ones leave it."""
    loop = threading.get_ident()
    session = sync_session(journal, "plain")

    async def asynchronous() -> AsyncIterator[int]:
        yield threading.get_ident()

    def plain() -> int:
        return threading.get_ident()

    def h(
        x: int,
        a: Annotated[int, Depends(asynchronous)],
        b: Annotated[int, Depends(plain)],
        s: Annotated[str, Depends(session)],
    ) -> Any:
        if x:
            raise ValueError
        return a == loop, b == loop

    call = bound(h).call
    assert await call(delivery(0)) == (True, False)
    assert journal == ["open plain", "commit plain", "close plain"]
    journal.clear()
    with pytest.raises(ValueError):
        await call(delivery(1))
    assert journal == ["open plain", "rollback plain ValueError", "close plain"]


async def test_coroutine_of_a_plain_handler_is_awaited_before_its_generators_close(
    journal: Journal, bound: Bind, delivery: Deliver
) -> None:
    session = sync_session(journal)
    loop = threading.get_ident()

    async def work(fails: bool) -> bool:
        await asyncio.sleep(0)
        journal.append("work")
        if fails:
            raise ValueError
        return threading.get_ident() == loop

    def h(x: int, s: Annotated[str, Depends(session)]) -> Awaitable[bool]:
        return work(bool(x))

    assert await bound(h).call(delivery(0))
    assert journal == ["open db", "work", "commit db", "close db"]
    journal.clear()
    with pytest.raises(ValueError):
        await bound(h).call(delivery(1))
    assert journal == ["open db", "work", "rollback db ValueError", "close db"]


async def test_plain_factory_of_an_async_handler_stays_on_the_loop(bound: Bind, delivery: Deliver) -> None:
    """A change of thread costs more than most factories do."""

    async def h(x: int, t: Annotated[int, Depends(lambda: threading.get_ident())]) -> int:
        return t

    assert await bound(h).call(delivery()) == threading.get_ident()
