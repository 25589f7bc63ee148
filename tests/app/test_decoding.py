"""GEN-01: what does not decode is a category of its own: never handled, never retried, kept, and in nobody's way."""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Batch, FromHeader, FromPath, Headers, by_key
from ruststream_core.memory import MemoryLog
from ruststream_core.testing import TestApp

BAD = {
    "cut": b"{",
    "empty": b"",
    "not text": b"\xff",
    "null": b"null",
    "wrong schema": b'{"id":"one"}',
    "missing field": b"{}",
    "deep": b"[" * 100_000,
    "huge number": b'{"id":1' + b"0" * 5000 + b"}",
}
SOURCES: dict[str, Any] = {"queue": "orders", "group": MemoryLog("orders", group="g")}


class Order(msgspec.Struct):
    id: int


def app_of(source: str, seen: list[int], **options: Any) -> App:
    app = App("app", broker="memory:")
    if "batch" in options:

        @app.subscriber(SOURCES[source], dead_letter="dead", name="handle", **options)
        async def handle_all(orders: list[Order]) -> None:
            seen.extend(order.id for order in orders)
    else:

        @app.subscriber(SOURCES[source], dead_letter="dead", **options)
        async def handle(order: Order) -> None:
            seen.append(order.id)

    return app


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 4}, {"workers": by_key(2)}, {"workers": by_key(2, lambda order: order.id)}, {"batch": Batch(3)}],
    ids=["one", "several", "by key", "by payload", "batch"],
)
@pytest.mark.parametrize("body", BAD.values(), ids=list(BAD))
async def test_a_bad_payload_ends_once_in_the_dead_letter_unchanged(body: bytes, source: str, options: Any) -> None:
    seen: list[int] = []
    async with TestApp(app_of(source, seen, **options)) as t:
        await t.publish(body, to="orders", headers={"x-tenant": "acme", "x-raw": b"\xff"}, key="k")
        await t.publish(Order(7), to="orders", key="k")
        await t.advance(1)
        assert seen == [7], "the good one behind it is handled, the bad one never"
        (dead,) = t.published("dead")
        assert hashlib.sha256(dead.value).digest() == hashlib.sha256(body).digest()
        assert dead.key == b"k"
        assert dead.headers.raw()[:2] == (("x-tenant", "acme"), ("x-raw", b"\xff"))
        assert dead.headers["x-ruststream-route"] == "handle"
        assert dead.headers["x-ruststream-attempt"] == "1"
        assert dead.headers["x-ruststream-error"]
        assert datetime.fromisoformat(dead.headers["x-ruststream-first-failed-at"]).tzinfo is not None
        books = t.statistics()["handle"]
        assert (books["undecodable"], books["dead_lettered"], books["retried"], books["acked"]) == (1, 1, 0, 1)
        assert books["failed"] == 0


async def test_without_a_dead_letter_it_is_dropped() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    async with TestApp(app) as t:
        await t.publish(b"{", to="orders")
        assert t.statistics()["handle"]["dropped"] == 1


async def test_the_log_says_where_and_never_what(caplog: pytest.LogCaptureFixture) -> None:
    app = App("app", broker="memory:")

    @app.subscriber(MemoryLog("orders", group="g"))
    async def handle(order: list[Order]) -> None: ...

    async with TestApp(app) as t:
        await t.publish(b'[{"id":1},{"id":"hunter2"}]', to="orders")
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert "route handle" in line
    assert "'orders' at 0" in line
    assert "[1].id" in line
    assert "hunter2" not in caplog.text


async def test_a_missing_or_wrong_header_or_placeholder_is_a_decode_error_too() -> None:
    from typing import Annotated

    app = App("app", broker="memory:")
    seen: list[tuple[int, int]] = []

    @app.subscriber("orders.{number}", dead_letter="dead")
    async def handle(
        order: Order, count: Annotated[int, FromHeader("x-count")], number: Annotated[int, FromPath]
    ) -> None:
        seen.append((count, number))

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders.7")
        await t.publish(Order(1), to="orders.7", headers={"x-count": "many"})
        await t.publish(Order(1), to="orders.seven", headers={"x-count": "2"})
        await t.publish(Order(1), to="orders.7", headers={"x-count": "2"})
        assert seen == [(2, 7)]
        assert len(t.published("dead")) == 3


async def test_a_plain_foreign_message_needs_no_envelope_and_no_header() -> None:
    """GEN-21: what any other client publishes is decoded by the handler's type alone."""
    app = App("app", broker="memory:")
    seen: list[Any] = []

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        seen.append(order)

    async with TestApp(app) as t:
        await t.publish(b' {"id": 1, "unknown": [true, null]} ', to="orders")
        await t.publish(b'{"id":2}', to="orders", headers=Headers([("Content-Type", "application/json")]))
    assert seen == [Order(1), Order(2)]


async def test_a_second_dead_letter_keeps_the_first_failure() -> None:
    app = App("app", broker="memory:")
    then = "2020-01-01T00:00:00.000+00:00"

    @app.subscriber("orders", dead_letter="dead")
    async def handle(order: Order) -> None: ...

    async with TestApp(app) as t:
        await t.publish(b"{", to="orders", headers={"x-ruststream-first-failed-at": then, "x-ruststream-route": "old"})
        (dead,) = t.published("dead")
        assert dead.headers["x-ruststream-first-failed-at"] == then
        assert dead.headers.get_all("x-ruststream-route") == ["handle"]
