"""Factories around a handler on a running route: rolled back on everything that is not an ack."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core import Ack, App, Backoff, Batch, Context, Depends, Drop, FromHeader, Retry, Skip
from ruststream_core.testing import TestApp


class Order(msgspec.Struct):
    id: int


class Session:
    def __init__(self) -> None:
        self.ends: list[str] = []


SESSION = Session()


async def session() -> AsyncGenerator[Session]:
    try:
        yield SESSION
    except BaseException as error:
        SESSION.ends.append(f"rolled back: {type(error).__name__}")
        raise
    SESSION.ends.append("committed")


def plain_session() -> Generator[Session]:
    try:
        yield SESSION
    except BaseException as error:
        SESSION.ends.append(f"rolled back: {type(error).__name__}")
        raise
    SESSION.ends.append("committed")


@pytest.mark.parametrize("factory", [session, plain_session])
@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (None, "committed"),
        (Ack, "committed"),
        (Skip(), "committed"),
        (Retry, "rolled back: Retry"),
        (Retry(after=3), "rolled back: Retry"),
        (Drop("no"), "rolled back: Drop"),
        (ValueError("no"), "rolled back: ValueError"),
    ],
)
async def test_a_session_is_rolled_back_unless_the_message_is_done(
    factory: Any, outcome: Any, end: str, raised: bool
) -> None:
    SESSION.ends.clear()
    app = App("app", broker="memory:")

    @app.subscriber("orders", max_attempts=1)
    async def handle(order: Order, db: Annotated[Session, Depends(factory)]) -> Any:
        if outcome is not None and (raised or isinstance(outcome, Exception)):
            raise outcome
        return outcome

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
    assert SESSION.ends == [end]


@pytest.mark.parametrize("factory", [session, plain_session])
async def test_plain_handlers_have_their_sessions_too(factory: Any) -> None:
    SESSION.ends.clear()
    app = App("app", broker="memory:")

    @app.subscriber("orders", on_error={ValueError: Drop})
    def handle(order: Order, db: Annotated[Session, Depends(factory)]) -> None:
        if order.id == 1:
            raise ValueError

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
    assert SESSION.ends == ["rolled back: ValueError", "committed"]


async def test_a_failing_commit_is_the_handlers_failure_and_no_reply_leaves() -> None:
    app = App("app", broker="memory:")
    tries = 0

    async def committing() -> AsyncGenerator[int]:
        nonlocal tries
        tries += 1
        yield tries
        if tries == 1:
            raise TimeoutError("commit")

    @app.subscriber("orders", reply="done", on_error={TimeoutError: Backoff(1, jitter=0)})
    async def handle(order: Order, number: Annotated[int, Depends(committing)]) -> Order:
        return Order(number)

    async with TestApp(app) as t:
        await t.publish(Order(0), to="orders")
        assert t.published("done") == []
        await t.advance(1)
        assert [m.value for m in t.published("done", Order)] == [Order(2)]


async def test_a_factory_that_fails_to_open_is_a_failure_and_the_handler_never_runs() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    async def broken() -> int:
        raise ConnectionError("no database")

    @app.subscriber("orders", on_error={ConnectionError: Drop})
    async def handle(order: Order, number: Annotated[int, Depends(broken)]) -> None:
        seen.append(order.id)

    async with TestApp(app) as t:
        await t.publish(Order(0), to="orders")
        assert t.statistics()["handle"]["dropped"] == 1
    assert seen == []


async def test_factories_may_choose_an_outcome() -> None:
    app = App("app", broker="memory:")

    async def only_acme(tenant: Annotated[str, FromHeader("x-tenant")]) -> str:
        if tenant != "acme":
            raise Skip
        return tenant

    @app.subscriber("orders")
    async def handle(order: Order, tenant: Annotated[str, Depends(only_acme)]) -> None: ...

    async with TestApp(app) as t:
        await t.publish(Order(0), to="orders", headers={"x-tenant": "acme"})
        await t.publish(Order(0), to="orders", headers={"x-tenant": "other"})
        books = t.statistics()["handle"]
        assert (books["acked"], books["skipped"]) == (1, 1)


async def test_batches_open_their_factories_once() -> None:
    app = App("app", broker="memory:")
    opened: list[str] = []

    async def per_batch() -> AsyncGenerator[str]:
        opened.append("opened")
        yield "db"
        opened.append("closed")

    @app.subscriber("orders", batch=Batch(3))
    async def handle(orders: list[Order], db: Annotated[str, Depends(per_batch)]) -> None: ...

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
    assert opened == ["opened", "closed"]


async def test_overrides_stand_in_everywhere_nested_ones_included() -> None:
    app = App("app", broker="memory:")
    seen: list[str] = []

    def url() -> str:
        raise AssertionError("the real one")

    def database(at: Annotated[str, Depends(url)], ctx: Context) -> str:
        return f"{at} for {ctx.route}"

    def fake_url() -> str:
        return "fake"

    @app.subscriber("orders")
    async def handle(order: Order, db: Annotated[str, Depends(database)]) -> None:
        seen.append(db)

    async with TestApp(app, overrides={url: fake_url}) as t:
        await t.publish(Order(1), to="orders")
    assert seen == ["fake for handle"]
