"""Handlers that take the delivery's own transaction: reply and settlement become visible together, or not at all."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core import App, Context, Drop, Outcome, PublishError, Retry, Transaction
from ruststream_core.memory import MemoryLog
from ruststream_core.memory._unit import MemoryUnit
from ruststream_core.middleware import Middleware, Send
from ruststream_core.testing import TestApp
from ruststream_core.wire import Outgoing


class Order(msgspec.Struct):
    id: int


SOURCES: dict[str, Any] = {"queue": "orders", "group": MemoryLog("orders", group="g")}
Tx = Annotated[MemoryUnit, Transaction]


def books(t: TestApp) -> dict[str, int]:
    return {name: count for name, count in t.statistics()["handle"].items() if count and name != "received"}


@pytest.mark.parametrize("source", SOURCES)
async def test_what_is_sent_in_it_and_the_reply_appear_with_the_ack(source: str) -> None:
    app = App("app", broker="memory:")
    after: list[str] = []

    async def ran() -> None:
        after.append("after ack")

    @app.subscriber(SOURCES[source], reply="done")
    async def handle(order: Order, tx: Tx, ctx: Context) -> Order:
        tx.send(Outgoing(b"{}", "audit"))
        ctx.after_ack(ran)
        return order

    read: list[str] = []

    @app.subscriber("audit")
    async def audit(body: bytes) -> None:
        read.append("audit")

    @app.subscriber("done")
    async def done(body: bytes) -> None:
        read.append("done")

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert books(t) == {"acked": 1}
        assert [m.value for m in t.published("done", Order)] == [Order(1)]
    assert sorted(read) == ["audit", "done"]
    assert after == ["after ack"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(
    ("outcome", "ends"), [(Drop("x"), {"dropped": 1}), (Retry, {}), (ValueError(), {"dropped": 1, "failed": 1})]
)
async def test_everything_else_rolls_back(source: str, outcome: Any, ends: dict[str, int], raised: bool) -> None:
    app = App("app", broker="memory:")
    runs = 0

    @app.subscriber(SOURCES[source], max_attempts=2, on_error={ValueError: Drop})
    async def handle(order: Order, tx: Tx) -> Outcome | type[Outcome] | None:
        nonlocal runs
        runs += 1
        tx.send(Outgoing(b"{}", "audit"))
        if raised or isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    read: list[bytes] = []

    @app.subscriber("audit")
    async def audit(body: bytes) -> None:
        read.append(body)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        if ends:
            assert books(t) == ends
        else:
            assert runs == 2, "a retry runs again, in a transaction of its own"
            assert t.statistics()["handle"]["dropped"] == 1
    assert read == []


class RefuseOnce(Middleware):
    def __init__(self) -> None:
        self.refused = False
        self.stamped: list[str] = []

    def publish(self, send: Send, broker: str) -> Send:
        async def through(out: Outgoing) -> None:
            self.stamped.append(out.name)
            if out.name == "done" and not self.refused:
                self.refused = True
                raise PublishError("not now")
            await send(out)

        return through


@pytest.mark.parametrize("source", SOURCES)
async def test_a_reply_that_cannot_be_sent_rolls_back_and_middleware_sees_it(source: str) -> None:
    app = App("app", broker="memory:", on_error={PublishError: Retry})
    middleware = RefuseOnce()
    app.use(middleware)

    @app.subscriber(SOURCES[source], reply="done")
    async def handle(order: Order, tx: Tx) -> Order:
        return order

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert len(t.published("done")) == 1
        assert t.statistics()["handle"]["acked"] == 1
    assert middleware.stamped == ["orders", "done", "done"]


async def test_a_lost_delivery_does_not_commit() -> None:
    app = App("app", broker="memory:")
    runs: list[int] = []

    @app.subscriber("orders", reply="done")
    async def handle(order: Order, tx: Tx) -> Order:
        runs.append(order.id)
        return order

    async with TestApp(app) as t:
        with t.fault("crash_before_settle"):
            await t.publish(Order(1), to="orders")
        assert books(t) == {"acked": 1, "lost": 1}
        assert len(t.published("done")) == 1, "only the run that could commit has published"
    assert runs == [1, 1]


async def test_a_transaction_that_cannot_be_ended_is_never_ended_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's error in the commit is the handler's failure; a rollback on top would hide it behind its own."""
    app = App("app", broker="memory:", on_error={Exception: Drop})
    ended: list[str] = []

    async def commit(self: MemoryUnit, verdicts: Any) -> None:
        ended.append("commit")
        raise OSError("the socket is gone")

    async def rollback(self: MemoryUnit) -> None:
        ended.append("rollback")

    monkeypatch.setattr(MemoryUnit, "commit", commit)
    monkeypatch.setattr(MemoryUnit, "rollback", rollback)

    @app.subscriber("orders")
    async def handle(order: Order, tx: Tx) -> None: ...

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        (error,) = t.route(handle).errors
        assert "the transaction could not be committed: the socket is gone" in str(error)
    assert ended == ["commit"]
