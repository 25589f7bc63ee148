"""Batches: every form of their result, bad elements, reruns in place, lanes."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from ruststream_core import (
    Ack,
    App,
    Backoff,
    Batch,
    ConfigError,
    Context,
    Drop,
    FromHeader,
    Message,
    Outcome,
    Retry,
    Skip,
    by_key,
)
from ruststream_core.memory import MemoryLog
from ruststream_core.testing import TestApp


class Order(msgspec.Struct):
    id: int
    customer: str = ""


def books(t: TestApp) -> dict[str, int]:
    return {name: count for name, count in t.statistics()["handle"].items() if count and name != "received"}


SOURCES: dict[str, Any] = {"queue": "orders", "group": MemoryLog("orders", group="g")}


def raising(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("result", "ends"),
    [
        (lambda: None, {"acked": 3}),
        (lambda: Ack, {"acked": 3}),
        (lambda: Skip(), {"skipped": 3}),
        (lambda: [None, Drop, Skip()], {"acked": 1, "dropped": 1, "skipped": 1}),
        (lambda: (None, None, None), {"acked": 3}),
        (lambda: raising(Drop("all")), {"dropped": 3}),
        (lambda: raising(BaseExceptionGroup("g", [Skip(), Drop()])), {"dropped": 3}),
        (lambda: raising(KeyError("x")), {"dropped": 3, "failed": 3}),
    ],
)
async def test_every_form_of_a_result(source: str, result: Any, ends: dict[str, int]) -> None:
    app = App("app", broker="memory:")

    @app.subscriber(SOURCES[source], batch=Batch(3), on_error={KeyError: Drop})
    async def handle(orders: list[Order]) -> list[Outcome | None] | Outcome | None:
        return result()  # type: ignore[no-any-return]

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
        assert books(t) == ends


@pytest.mark.parametrize("result", [[None], [None] * 4, [], "abc", 5, {"a": 1, "b": 2, "c": 3}])
async def test_another_length_retries_all_and_says_so(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = App("app", broker="memory:")
    rounds: list[int] = []

    @app.subscriber("orders", batch=Batch(3))
    async def handle(orders: list[Order]) -> Any:
        rounds.append(len(orders))
        return result if len(rounds) == 1 else None

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
        assert books(t) == {"acked": 3, "retried": 3}
    assert rounds == [3, 3]
    assert "one outcome or a list of the same length is expected" in caplog.text
    assert [r for r in caplog.records if r.levelno == logging.ERROR]


async def test_one_bad_element_fails_alone() -> None:
    app = App("app", broker="memory:")
    seen: list[list[int]] = []

    @app.subscriber("orders", batch=Batch(4), dead_letter="dead")
    async def handle(orders: list[Order]) -> None:
        seen.append([order.id for order in orders])

    async with TestApp(app) as t:
        await t.publish_many([Order(1), b"{", Order(3), b""], to="orders")
        assert seen == [[1, 3]]
        assert books(t) == {"acked": 2, "dead_lettered": 2, "undecodable": 2}


async def test_a_batch_of_nothing_but_bad_ones_never_reaches_the_handler() -> None:
    app = App("app", broker="memory:")
    seen: list[Any] = []

    @app.subscriber("orders", batch=Batch(2))
    async def handle(orders: list[Order]) -> None:
        seen.append(orders)

    async with TestApp(app) as t:
        await t.publish_many([b"{", b""], to="orders")
    assert seen == []


async def test_a_type_that_raises_an_outcome_while_it_is_built_fails_alone() -> None:
    """An outcome is no `Exception`: raised by a validator it must not end the worker."""

    class Strict(msgspec.Struct):
        id: int

        def __post_init__(self) -> None:
            if self.id == 1:
                raise Skip

    app = App("app", broker="memory:")
    seen: list[int] = []

    @app.subscriber("orders", batch=Batch(3))
    async def handle(orders: list[Strict]) -> None:
        seen.extend(order.id for order in orders)

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
        assert seen == [2, 3]
        assert books(t) == {"acked": 2, "skipped": 1}


async def test_messages_of_a_batch_have_their_own_headers_keys_and_attempts() -> None:
    app = App("app", broker="memory:")
    seen: list[tuple[int, str, bytes | None, int | None]] = []

    @app.subscriber("orders", batch=Batch(2))
    async def handle(messages: list[Message[Order]]) -> None:
        seen.extend((m.value.id, m.headers.get("x-n", "-"), m.key, m.attempt) for m in messages)

    async with TestApp(app) as t:
        await t.running.publish(Order(1), to="orders", headers={"x-n": "1"}, key="a")
        await t.publish(Order(2), to="orders", key="b")
    assert seen == [(1, "1", b"a", 1), (2, "-", b"b", 1)]


async def test_a_batch_that_is_not_full_waits_for_its_time_only() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    @app.subscriber("orders", batch=Batch(10, max_wait=0.5))
    async def handle(orders: list[Order]) -> None:
        seen.append(len(orders))

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.publish(Order(2), to="orders")
        assert seen == []
        await t.advance(0.5)
        assert seen == [2]


async def test_in_place_reruns_take_only_what_asked_for_it() -> None:
    app = App("app", broker="memory:")
    rounds: list[list[int]] = []

    @app.subscriber(MemoryLog("orders", group="g"), batch=Batch(3), max_attempts=3, dead_letter="dead")
    async def handle(orders: list[Order]) -> list[Outcome | None]:
        rounds.append([order.id for order in orders])
        return [Retry(after=2) if order.id != 2 else None for order in orders]

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
        assert rounds == [[1, 2, 3]]
        await t.advance(1.9)
        assert len(rounds) == 1
        await t.advance(10)
        assert rounds == [[1, 2, 3], [1, 3], [1, 3]]
        assert books(t) == {"acked": 1, "dead_lettered": 2, "reruns": 4}
        assert [m.headers["x-ruststream-attempt"] for m in t.published("dead")] == ["3", "3"]


async def test_a_drain_gives_back_what_waits_for_its_rerun() -> None:
    app = App("app", broker="memory:")

    @app.subscriber(MemoryLog("orders", group="g"), batch=Batch(3))
    async def handle(orders: list[Order]) -> list[Outcome | None]:
        return [Retry(after=1000), None, Retry(after=1000)]

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2), Order(3)], to="orders")
    assert t.running.report is not None
    total = t.running.report.total
    assert (total["acked"], total["released"]) == (1, 2)


async def test_an_exception_reruns_the_batch_by_its_policy() -> None:
    app = App("app", broker="memory:")
    attempts: list[tuple[float, list[int | None]]] = []
    t = TestApp(app)

    @app.subscriber(
        MemoryLog("orders", group="g"), batch=Batch(2), on_error={ValueError: Backoff(3, factor=2, jitter=0)}
    )
    async def handle(messages: list[Message[Order]]) -> None:
        attempts.append((t.clock.time(), [m.attempt for m in messages]))
        if len(attempts) < 3:
            raise ValueError

    async with t:
        await t.publish_many([Order(1), Order(2)], to="orders")
        await t.advance(20)
        assert attempts == [(0, [1, 1]), (3, [2, 2]), (9, [3, 3])]
        assert t.statistics()["handle"]["acked"] == 2


@pytest.mark.parametrize("workers", [by_key(3), by_key(3, lambda order: order.customer)], ids=["by key", "by payload"])
async def test_batches_by_key_keep_the_order_of_a_key(workers: Any) -> None:
    app = App("app", broker="memory:")
    seen: dict[str, list[int]] = {}

    @app.subscriber("orders", batch=Batch(4, max_wait=0), workers=workers)
    async def handle(orders: list[Order]) -> None:
        for order in orders:
            seen.setdefault(order.customer, []).append(order.id)

    async with TestApp(app) as t:
        for number in range(40):
            await t.publish(Order(number, f"c{number % 5}"), to="orders", key=f"c{number % 5}")
        assert not t._runtime.routes["handle"]._stored, "what the pump decoded is handed on, not kept"
    assert seen == {f"c{c}": [n for n in range(40) if n % 5 == c] for c in range(5)}


async def test_a_key_function_that_fails_fails_that_element_of_a_batch() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    def customer(order: Order) -> str:
        if order.id == 1:
            raise KeyError("customer")
        return order.customer

    @app.subscriber("orders", batch=Batch(4, max_wait=0), workers=by_key(2, customer), on_error={KeyError: Drop})
    async def handle(orders: list[Order]) -> None:
        seen.extend(order.id for order in orders)

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2)], to="orders")
        assert seen == [2]
        assert books(t) == {"acked": 1, "dropped": 1, "failed": 1}


def test_what_belongs_to_one_message_is_refused_in_a_batch() -> None:
    from typing import Annotated

    async def with_context(orders: list[Order], ctx: Context) -> None: ...

    async def with_header(orders: list[Order], tenant: Annotated[str, FromHeader("x-tenant")]) -> None: ...

    for handler in (with_context, with_header):
        app = App("app", broker="memory:")
        app.subscriber("orders", batch=Batch(2))(handler)
        (problem,) = app.wiring().problems
        assert "belongs to one message and a batch has many" in problem


async def test_a_window_too_small_for_the_batches_is_refused_with_the_remedy() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", batch=Batch(10), workers=2, prefetch=5)
    async def handle(orders: list[Order]) -> None: ...

    with pytest.raises(ConfigError, match="route 'handle'.*at least 20"):
        async with TestApp(app):
            pass
