"""What a handler says of its message, and what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ruststream_core import Ack, App, Backoff, Context, Drop, FailFast, Outcome, Retry, Router, Skip
from ruststream_core.memory import MemoryBroker, MemoryLog, MemoryQueue
from ruststream_core.settlement import strongest
from ruststream_core.testing import TestApp


class Order(msgspec.Struct):
    id: int


SOURCES: dict[str, Any] = {"queue": "orders", "group": MemoryLog("orders", group="g")}
COUNTS = {Ack: "acked", Skip: "skipped", Drop: "dropped"}


def books(t: TestApp, route: str = "handle") -> dict[str, int]:
    return {name: count for name, count in t.statistics()[route].items() if count and name != "received"}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
@pytest.mark.parametrize("instance", [True, False], ids=["instance", "class"])
@pytest.mark.parametrize("kind", [Ack, Skip, Drop])
async def test_an_outcome_counts_however_it_is_said(source: str, kind: Any, instance: bool, raised: bool) -> None:
    app = App("app", broker="memory:")

    @app.subscriber(SOURCES[source])
    async def handle(order: Order) -> Outcome | type[Outcome]:
        outcome: Any = kind() if instance else kind
        if not raised:
            return outcome  # type: ignore[no-any-return]
        raise outcome

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert books(t) == {COUNTS[kind]: 1}
        assert [type(outcome) for outcome in t.route(handle).outcomes] == [kind]


async def test_except_exception_cannot_swallow_an_outcome() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        with contextlib.suppress(Exception):
            raise Drop("no")

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert books(t) == {"dropped": 1}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("after", [5, timedelta(seconds=5)])
async def test_retry_after_waits_exactly_that_long(source: str, after: float | timedelta) -> None:
    app = App("app", broker="memory:")
    attempts: list[int] = []

    @app.subscriber(SOURCES[source])
    async def handle(order: Order, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise Retry(after=after)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.advance(4.999)
        assert attempts == [1]
        await t.advance(0.001)
        assert attempts == [1, 2]


@pytest.mark.parametrize("source", SOURCES)
async def test_retry_without_a_wait_comes_again_at_once(source: str) -> None:
    app = App("app", broker="memory:")
    calls = itertools.count(1)

    @app.subscriber(SOURCES[source])
    async def handle(order: Order) -> type[Retry] | None:
        return Retry if next(calls) < 3 else None

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert next(calls) == 4
        assert t.statistics()["handle"]["acked"] == 1


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("how", ["retry", "error"])
async def test_max_attempts_counts_retries_and_errors_alike(source: str, how: str) -> None:
    """A handler that always asks for another try must not go round for ever."""
    app = App("app", broker="memory:")
    attempts: list[int] = []

    @app.subscriber(SOURCES[source], max_attempts=3, dead_letter="dead", on_error={ValueError: Backoff(1, jitter=0)})
    async def handle(order: Order, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise Retry(after=1) if how == "retry" else ValueError("no")

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        await t.advance(100)
        assert attempts == [1, 2, 3]
        (dead,) = t.published("dead", Order)
        assert dead.headers["x-ruststream-attempt"] == "3"
        assert t.statistics()["handle"]["dead_lettered"] == 1


async def test_one_attempt_means_one() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", max_attempts=1)
    async def handle(order: Order) -> None:
        raise Retry

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert books(t) == {"dropped": 1}


async def test_drop_goes_to_the_brokers_own_dead_letter_and_not_to_the_routes() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    @app.subscriber(MemoryQueue("orders", dead_letter="orders.dropped"), dead_letter="orders.dead")
    async def handle(order: Order) -> Drop:
        return Drop("no")

    @app.subscriber("orders.dropped")
    async def dropped(order: Order) -> None:
        seen.append(order.id)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert seen == [1]
        assert t.published("orders.dead") == []


@pytest.mark.parametrize("said", [FailFast, FailFast("broken")])
async def test_fail_fast_releases_the_message_and_stops_the_app(said: Any) -> None:
    broker = MemoryBroker()
    app = App("app", broker=broker)

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        raise said

    @app.after_startup
    async def publish() -> None:
        connection = await broker.connect()
        from ruststream_core.wire import Outgoing

        (await connection.sender()).send(Outgoing(b'{"id":1}', "orders"))

    assert await app.serve(signals=False) == 1

    attempts: list[int] = []
    again = App("again", broker=broker)

    @again.subscriber("orders")
    async def take(order: Order, ctx: Context) -> None:
        attempts.append(ctx.attempt)

    async with again.start():
        while not attempts:
            await asyncio.sleep(0)
    assert attempts[0] == 1, "released: the attempt that failed fast does not count"


async def test_fail_fast_as_a_policy_keeps_the_error() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", on_error={KeyError: FailFast})
    async def handle(order: Order) -> None:
        raise KeyError("stock")

    with pytest.raises(KeyError, match="stock"):
        async with TestApp(app) as t:
            await t.publish(Order(1), to="orders")


# ----------------------------------------------------------------------------------------------------- on_error


async def run_policy(app: App, error: Exception, **options: Any) -> dict[str, int]:
    router = Router(**{k[7:]: v for k, v in options.items() if k.startswith("router_")})

    async def handle(order: Order) -> None:
        raise error

    router.subscriber("orders", **{k: v for k, v in options.items() if not k.startswith("router_")})(handle)
    app.include(router)
    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        return books(t)


class Narrow(LookupError): ...


@pytest.mark.parametrize(
    ("route", "router", "whole", "error", "end"),
    [
        ({LookupError: Drop}, {Narrow: Skip}, {Narrow: Ack}, Narrow(), "dropped"),
        ({ValueError: Drop}, {LookupError: Skip}, {Narrow: Drop}, Narrow(), "skipped"),
        ({ValueError: Drop}, {ValueError: Drop}, {LookupError: Ack}, Narrow(), "acked"),
        ({LookupError: Drop, Narrow: Skip}, {}, {}, Narrow(), "skipped"),
        ({Exception: Drop, LookupError: Skip}, {}, {}, Narrow(), "skipped"),
    ],
)
async def test_the_nearest_mapping_decides_and_in_it_the_nearest_type(
    route: Any, router: Any, whole: Any, error: Exception, end: str
) -> None:
    app = App("app", broker="memory:", on_error=whole)
    assert await run_policy(app, error, on_error=route, router_on_error=router) == {end: 1, "failed": 1}


def raises(error: BaseException) -> Callable[[Exception], Outcome]:
    def policy(_: Exception) -> Outcome:
        raise error

    return policy


@pytest.mark.parametrize(
    ("policy", "end"),
    [
        (lambda error: Drop(str(error)), "dropped"),
        (lambda error: Skip, "skipped"),
        (raises(Drop("raised by the policy")), "dropped"),
    ],
    ids=["instance", "class", "raised"],
)
async def test_a_policy_may_be_a_function(policy: Any, end: str) -> None:
    """One that raises its outcome must not end the worker: outcomes are no `Exception`."""
    assert await run_policy(App("app", broker="memory:"), ValueError(), on_error={ValueError: policy}) == {
        end: 1,
        "failed": 1,
    }


@pytest.mark.parametrize("policy", [raises(RuntimeError()), lambda error: None, lambda error: 5])
async def test_a_policy_function_that_fails_means_retry(policy: Any) -> None:
    app = App("app", broker="memory:")
    assert await run_policy(app, ValueError(), on_error={ValueError: policy}, max_attempts=2) == {
        "retried": 1,
        "dropped": 1,
        "failed": 2,
    }


async def test_backoff_grows_from_attempt_to_attempt() -> None:
    app = App("app", broker="memory:")
    at: list[float] = []
    t = TestApp(app)

    @app.subscriber("orders", on_error={ValueError: Backoff(1, factor=3, most=5, jitter=0)}, max_attempts=5)
    async def handle(order: Order) -> None:
        at.append(t.clock.time())
        raise ValueError

    async with t:
        await t.publish(Order(1), to="orders")
        await t.advance(60)
    assert at == [0, 1, 4, 9, 14]


@pytest.mark.parametrize("source", SOURCES)
async def test_backoff_of_on_decode_error_is_the_one_that_was_written(source: str) -> None:
    """Not the one of `on_error`, nor the default: the message comes again after 7 seconds."""
    app = App("app", broker="memory:", on_error={Exception: Backoff(100, jitter=0)})

    @app.subscriber(SOURCES[source], on_decode_error=Backoff(7, jitter=0), max_attempts=2)
    async def handle(order: Order) -> None: ...

    async with TestApp(app) as t:
        await t.publish(b"{", to="orders")
        await t.advance(6.99)
        assert t.statistics()["handle"]["undecodable"] == 1
        await t.advance(0.01)
        assert t.statistics()["handle"]["undecodable"] == 2
        assert t.statistics()["handle"]["dropped"] == 1


async def test_retry_of_on_decode_error_comes_at_once() -> None:
    app = App("app", broker="memory:", on_error={Exception: Backoff(100)})

    @app.subscriber("orders", on_decode_error=Retry, max_attempts=3)
    async def handle(order: Order) -> None: ...

    async with TestApp(app) as t:
        await t.publish(b"{", to="orders")
        assert t.statistics()["handle"]["undecodable"] == 3


# ------------------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("members", "end"),
    [
        ([Ack(), Skip()], "skipped"),
        ([Skip(), Drop()], "dropped"),
        ([Ack(), Drop(), Skip()], "dropped"),
        ([Ack(), BaseExceptionGroup("inner", [Drop(), Skip()])], "dropped"),
    ],
)
async def test_a_group_of_outcomes_counts_as_its_strongest(members: list[BaseException], end: str) -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders")
    async def handle(order: Order) -> None:
        raise BaseExceptionGroup("several", members)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert books(t) == {end: 1}


def test_the_order_of_strength() -> None:
    outcomes: list[Outcome] = [Ack(), Skip(), Drop(), Retry(), FailFast()]
    for count in range(1, 6):
        assert strongest(BaseExceptionGroup("", outcomes[:count])) is outcomes[count - 1]
    assert strongest(BaseExceptionGroup("", [Ack(), ValueError()])) is None


async def test_a_mixed_group_is_an_error() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", on_error={ValueError: Skip, ExceptionGroup: Drop})
    async def handle(order: Order) -> None:
        raise ExceptionGroup("mixed", [ValueError(), TypeError()])

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert books(t) == {"dropped": 1, "failed": 1}


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_a_wait_is_finite_and_not_negative(after: Any) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        Retry(after=after)


@pytest.mark.parametrize("numbers", [{"first": -1}, {"factor": 0.5}, {"most": 0.5}, {"jitter": 2}, {"jitter": -1}])
def test_backoff_checks_its_numbers(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Backoff(**numbers)


def test_backoff_stays_below_its_most_however_many_attempts() -> None:
    assert Backoff(1, most=300, jitter=0).delay(10_000) == 300
