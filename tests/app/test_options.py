"""GEN-24: a policy is kept as written or refused at the start; what nobody wrote bends to what the transport can."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Backoff, ConfigError, Context, Drop, FailFast, Retry, Seeker, Skip, Transaction, by_key
from ruststream_core.abc import Features
from ruststream_core.dispatch import RoutePlan
from tests.dispatch.chaos import ChaosBroker


class Order(msgspec.Struct):
    id: int


async def handle(order: Order) -> None: ...


# Each wish, and what a transport needs for it: a way back, or a way back that waits.
WISHES: dict[str, tuple[dict[str, Any], str]] = {
    "on_error Retry": ({"on_error": {ValueError: Retry}}, "back"),
    "on_error Retry()": ({"on_error": {ValueError: Retry()}}, "back"),
    "on_error Retry(after)": ({"on_error": {ValueError: Retry(after=5)}}, "delay"),
    "on_error Backoff": ({"on_error": {ValueError: Backoff(1)}}, "delay"),
    "on_decode_error Retry": ({"on_decode_error": Retry}, "back"),
    "on_decode_error Backoff": ({"on_decode_error": Backoff(1)}, "delay"),
    "max_attempts": ({"max_attempts": 3}, "back"),
    "on_error Drop": ({"on_error": {ValueError: Drop}}, ""),
    "on_error Skip": ({"on_error": {ValueError: Skip}}, ""),
    "on_error FailFast": ({"on_error": {ValueError: FailFast}}, ""),
    "on_decode_error Drop": ({"on_decode_error": Drop("no")}, ""),
    "one attempt": ({"max_attempts": 1}, ""),
    "dead letter": ({"dead_letter": "dead"}, ""),
    "function": ({"on_error": {ValueError: lambda error: Drop()}}, ""),
}
RETRIES: list[Any] = ["broker", "in_place", "copy", "none"]


def abilities(retry: str, delay: bool, copies: bool) -> set[str]:
    back = retry in ("broker", "in_place") or copies
    waits = retry == "in_place" or (retry == "broker" and delay) or copies
    return {"", *(["back"] if back else []), *(["delay"] if waits else [])}


@pytest.mark.parametrize("copies", [False, True], ids=["", "retry_copies"])
@pytest.mark.parametrize("delay", [False, True], ids=["no delay", "delay"])
@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("wish", WISHES)
def test_a_wish_is_kept_or_refused_with_route_transport_and_remedy(
    wish: str, retry: Any, delay: bool, copies: bool
) -> None:
    options, needs = WISHES[wish]
    app = App("app", broker=ChaosBroker(Features(settles=True, retry=retry, delay=delay)))
    if copies:
        options = {**options, "retry_copies": True}
    app.subscriber("orders", **options)(handle)
    wiring = app.wiring()
    if needs in abilities(retry, delay, copies):
        assert wiring.problems == []
        return
    (problem,) = wiring.problems
    assert problem.startswith("route 'handle': ")
    assert "Chaos ChaosSource('orders')" in problem
    assert "Set retry_copies=True" in problem
    assert "cannot be kept" in problem


@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("where", ["app", "route"])
def test_a_wish_of_the_app_is_a_wish_too(where: str, retry: Any) -> None:
    wish: Any = {"on_error": {ValueError: Backoff(1)}}
    app = App("app", broker=ChaosBroker(Features(settles=True, retry=retry)), **(wish if where == "app" else {}))
    app.subscriber("orders", **(wish if where == "route" else {}))(handle)
    assert bool(app.wiring().problems) == (retry != "in_place")


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("retry", RETRIES)
def test_what_nobody_wrote_is_never_refused(retry: Any, delay: bool, settles: bool) -> None:
    app = App("app", broker=ChaosBroker(Features(settles=settles, retry=retry, delay=delay, release="lost")))
    app.subscriber("orders")(handle)
    assert app.wiring().problems == []


def plan(features: Features, **options: Any) -> RoutePlan:
    app = App("app", broker=ChaosBroker(features))
    app.subscriber("orders", **options)(handle)
    (route,) = app.wiring().routes
    return route


def test_check_tells_the_policy_as_it_will_be() -> None:
    assert plan(Features(settles=False, retry="none")).policy.describe() == "no retry possible; then log and drop"
    assert (
        plan(Features(settles=True, retry="none"), dead_letter="dead").policy.describe()
        == "no retry possible; then dead letter dead"
    )
    assert (
        plan(Features(settles=True, retry="broker", delay=True, drop="dead_letter")).policy.describe()
        == "Backoff(1, factor=2, most=300), 5 attempts; then the broker's dead letter"
    )
    assert (
        plan(Features(settles=True, retry="in_place"), on_error={ValueError: Drop}, max_attempts=2).policy.describe()
        == "ValueError: Drop; Backoff(1, factor=2, most=300) in place, 2 attempts; then log and drop"
    )
    assert (
        plan(Features(settles=True, retry="broker")).policy.describe() == "retry at once, 5 attempts; then log and drop"
    )


async def takes_transaction(order: Order, tx: Any) -> None: ...


async def takes_seeker(order: Order, seeker: Seeker) -> None: ...


@pytest.mark.parametrize(("able", "keys"), list(itertools.product([True, False], repeat=2)))
def test_abilities_that_a_signature_or_an_option_needs(able: bool, keys: bool) -> None:
    from typing import Annotated

    takes_transaction.__annotations__["tx"] = Annotated[object, Transaction]
    features = Features(settles=True, retry="broker", transactions=able, seek=able, keys=keys)
    app = App("app", broker=ChaosBroker(features))
    app.subscriber("a")(takes_transaction)
    app.subscriber("b")(takes_seeker)
    app.subscriber("c", workers=by_key(2))(handle)
    problems = app.wiring().problems
    assert len(problems) == 2 * (not able) + (not keys)
    for word, wanted in (("has none", not able), ("cannot seek", not able), ("have no key", not keys)):
        assert any(word in problem for problem in problems) == wanted


def test_state_needs_a_lifespan() -> None:
    from typing import Annotated

    from ruststream_core import FromState

    async def stateful(order: Order, state: Annotated[str, FromState]) -> None: ...

    app = App("app", broker="memory:")
    app.subscriber("orders")(stateful)
    assert "no lifespan=" in app.wiring().problems[0]


@pytest.mark.parametrize("retry", ["broker", "copy", "none"])
async def test_an_outcome_at_run_time_that_cannot_be_kept_is_said_once_and_stops_nothing(
    retry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio

    broker = ChaosBroker(Features(settles=True, retry=retry, attempts="broker"))
    app = App("app", broker=broker)
    done: list[int] = []

    @app.subscriber("orders")
    async def wishes(order: Order, ctx: Context) -> None:
        if ctx.attempt == 1 and order.id < 3:
            raise Retry(after=60)
        done.append(order.id)

    async with app.start() as running:
        for number in range(4):
            broker.put("orders", b'{"id":%d}' % number)
        while 3 not in done or (retry == "broker" and len(done) < 4):
            await asyncio.sleep(0)
    assert running.report is not None
    assert running.report.total["unkept"] == 3
    assert caplog.text.count("said once") == 1
    assert "Set retry_copies=True" in caplog.text


def test_a_broker_url_of_no_plugin_names_what_to_install() -> None:
    app = App("app", broker="kafka://localhost")
    app.subscriber("orders")(handle)
    with pytest.raises(ConfigError, match=r'pip install "ruststream-core\[kafka\]"'):
        app.resolve_brokers()
