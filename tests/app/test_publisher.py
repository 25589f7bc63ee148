"""Publishing from a running app: destinations, headers, many at once, transactions, and every way to get it wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core import (
    App,
    Closed,
    ConfigError,
    EncodeError,
    Out,
    Publisher,
    PublishError,
    Reply,
    Router,
    To,
    Unsupported,
    message,
)
from ruststream_core.abc import Features
from ruststream_core.memory import MemoryBroker
from ruststream_core.middleware import Middleware, Send
from ruststream_core.testing import TestApp
from ruststream_core.wire import Outgoing
from tests.dispatch.chaos import ChaosBroker


class Meta(msgspec.Struct):
    tenant: str
    trace: str | None = None


class Other(msgspec.Struct):
    tenant: str


class Order(msgspec.Struct):
    id: int


@message("orders.{tenant}.placed", headers=Meta)
class Placed(msgspec.Struct):
    id: int
    tenant: str


def sink(app: App, name: str = ">") -> None:
    @app.subscriber(name, name="sink")
    async def take(body: bytes) -> None: ...


async def publishing(app: App) -> TestApp:
    sink(app)
    return TestApp(app)


async def test_every_form_of_a_destination() -> None:
    app = App("app", broker="memory:")
    async with await publishing(app) as t:
        await t.publish(Order(1), to="plain")
        await t.publish(Order(1), to=To("to"))
        await t.publish(Order(7), to="filled.{id}")
        await t.publish({"id": 8}, to="filled.{id}")
        await t.publish(Placed(1, "acme"))
        await t.publish(Placed(1, "acme"), to=Placed)
        await t.publish(Reply(Placed(1, "acme"), key="k"))
        assert [len(t.published(n)) for n in ("plain", "to", "filled.7", "filled.8", "orders.acme.placed")] == [
            1,
            1,
            1,
            1,
            3,
        ]
        assert t.published("orders.acme.placed")[2].key == b"k"


@pytest.mark.parametrize(
    ("value", "arguments", "error", "says"),
    [
        (Order(1), {}, ConfigError, r"no destination: give to=, or decorate Order with @message"),
        (Order(1), {"to": Order}, ConfigError, "is no destination"),
        (Order(1), {"to": 5}, ConfigError, "is no destination"),
        (Order(1), {"to": ""}, ConfigError, "needs a name"),
        (Order(1), {"to": To("a", broker="lake")}, ConfigError, "no broker is called 'lake'; the app has default"),
        (Order(1), {"to": "a.{tenant}"}, ConfigError, "cannot be filled from Order"),
        ({"id": 1}, {"to": "a.{tenant}"}, ConfigError, "cannot be filled from dict"),
        (Placed(1, ""), {}, EncodeError, "cannot stand for a placeholder"),
        (Placed(1, "a.b"), {}, EncodeError, "cannot stand for a placeholder"),
        (Placed(1, "acme"), {"headers": Other("x")}, EncodeError, "takes headers of Meta, not Other"),
        (Placed(1, "acme"), {"headers": {"tenant": "x"}}, EncodeError, "takes headers of Meta, not dict"),
        (Order(1), {"to": "a", "headers": {"x": object()}}, EncodeError, "header 'x'"),
        (Order(1), {"to": "a", "headers": 5}, EncodeError, "headers cannot be int"),
        (object(), {"to": "a"}, EncodeError, "object"),
        (float("nan"), {"to": "a"}, EncodeError, "nan"),
        (Order(1), {"to": "a.*"}, PublishError, "is no destination"),
    ],
)
async def test_what_cannot_be_sent_is_named_and_nothing_leaves(
    value: object, arguments: Any, error: type[Exception], says: str
) -> None:
    async with await publishing(App("app", broker="memory:")) as t:
        for publish in (t.publish, t.running.publish):
            with pytest.raises(error, match=says):
                await publish(value, **arguments)
        arguments.pop("key", None)
        with pytest.raises((error, PublishError)):
            await t.publish_many([value], **arguments)
        assert t._sent == []


async def test_headers_of_the_declared_type_are_written() -> None:
    async with await publishing(App("app", broker="memory:")) as t:
        await t.publish(Placed(1, "acme"), headers=Meta("acme"))
        (sent,) = t.published("orders.acme.placed")
        assert sent.headers.raw() == (("tenant", "acme"),)


async def test_many_values_leave_in_order_and_nothing_leaves_when_one_cannot_be_encoded() -> None:
    async with await publishing(App("app", broker="memory:")) as t:
        await t.publish_many((Order(n) for n in range(5)), to="many")
        assert [m.value.id for m in t.published("many", Order)] == list(range(5))
        with pytest.raises(EncodeError):
            await t.publish_many([Order(9), object()], to="none")
        assert t.published("none") == []


@pytest.mark.parametrize("watched", [False, True])
async def test_what_was_refused_is_told_by_its_index(watched: bool) -> None:
    app = App("app", broker=MemoryBroker(limit=2))
    if watched:
        app.use(Silent())

    async with app.start() as running:
        with pytest.raises(PublishError) as caught:
            await running.publish_many([Order(n) for n in range(4)], to="full")
    assert sorted(caught.value.failed) == [2, 3]


class Silent(Middleware):
    def publish(self, send: Send, broker: str) -> Send:
        async def through(out: Outgoing) -> None:
            await send(out)

        return through


async def test_several_brokers_one_default() -> None:
    app = App("app", brokers={"default": "memory:", "lake": "memory:"})
    async with app.start() as running:
        await running.publish(Order(1), to="a")
        await running.publish(Order(1), to=To("a", broker="lake"))
        await running.publisher("lake").publish(Order(1), to="a")
        with pytest.raises(ConfigError, match="default, lake"):
            running.publisher("sea")
    without = App("app", brokers={"in": "memory:", "lake": "memory:"})
    async with without.start() as running:
        with pytest.raises(ConfigError, match=r"publisher\(name\) with one of in, lake"):
            await running.publish(Order(1), to="a")


async def test_handlers_publish_by_injection_and_through_their_slots() -> None:
    app = App("app", brokers={"default": "memory:", "lake": "memory:"})
    router = Router(out={"audit": To("audit", broker="lake")})

    @router.subscriber("orders", reply="done")
    async def handle(order: Order, publisher: Publisher, audit: Annotated[Publisher, Out("audit")]) -> Order:
        await publisher.publish(order, to="direct")
        await audit.publish(order)
        await audit.publish(order, to="elsewhere")
        return order

    app.include(router)
    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert len(t.published("direct", broker="default")) == 1
        assert len(t.published("audit", broker="lake")) == 1
        assert len(t.published("elsewhere", broker="lake")) == 1


def test_a_slot_without_a_destination_is_refused() -> None:
    app = App("app", broker="memory:")

    @app.subscriber("orders", out={"other": "x"})
    async def handle(order: Order, audit: Annotated[Publisher, Out("audit")]) -> None: ...

    assert app.wiring().problems == [
        "route 'handle': Out('audit') has no destination: give out={'audit': ...}",
    ]


# --------------------------------------------------------------------------------------------------- transactions


async def test_a_transaction_is_all_or_nothing() -> None:
    async with await publishing(App("app", broker="memory:")) as t:
        async with t.transaction() as publisher:
            await publisher.publish(Order(1), to="a")
            await publisher.publish_many([Order(2), Order(3)], to="b")
            await t.settle()
            assert t.statistics()["sink"]["received"] == 0
        await t.settle()
        assert t.statistics()["sink"]["received"] == 3
        assert [len(t.published(name)) for name in "ab"] == [1, 2]
        with pytest.raises(RuntimeError, match="undo"):
            async with t.transaction() as publisher:
                await publisher.publish(Order(4), to="a")
                raise RuntimeError("undo")
        await t.settle()
        assert t.statistics()["sink"]["received"] == 3
        assert len(t.published("a")) == 1, "what was rolled back has not left"


async def test_transactions_do_not_nest_and_stay_on_their_broker() -> None:
    app = App("app", brokers={"default": "memory:", "lake": "memory:"})
    async with app.start() as running, running.transaction() as publisher:
        with pytest.raises(Unsupported, match="do not nest"):
            publisher.transaction()
        with pytest.raises(Unsupported, match="cannot publish to 'lake'"):
            await publisher.publish(Order(1), to=To("a", broker="lake"))


async def test_what_a_transport_cannot_do_is_said() -> None:
    app = App("app", broker=ChaosBroker(Features(settles=True, retry="broker")))
    async with app.start() as running:
        with pytest.raises(Unsupported, match="no transactions"):
            async with running.transaction():
                pass
        with pytest.raises(Unsupported, match="no request/reply"):
            await running.request(Order(1), to="a", timeout=1)


class Stamp(Middleware):
    def publish(self, send: Send, broker: str) -> Send:
        async def through(out: Outgoing) -> None:
            out.headers = out.headers.replaced({"x-stamp": broker})
            await send(out)

        return through


async def test_middleware_sees_what_leaves_in_a_transaction() -> None:
    app = App("app", broker="memory:")
    app.use(Stamp())
    async with await publishing(app) as t:
        async with t.transaction() as publisher:
            await publisher.publish(Order(1), to="a")
        assert t.published("a")[0].headers["x-stamp"] == "default"


# ---------------------------------------------------------------------------------------------- before and after


Use = Callable[[Any], Any]
USES: dict[str, Use] = {
    "publish": lambda p: p.publish(Order(1), to="a"),
    "publish_many": lambda p: p.publish_many([Order(1)], to="a"),
    "request": lambda p: p.request(Order(1), to="a", timeout=1),
}


@pytest.mark.parametrize("use", USES)
async def test_use_after_the_end_is_closed(use: str) -> None:
    app = App("app", broker="memory:")
    async with app.start() as running:
        kept = running.publisher()
    for publisher in (running, kept):
        with pytest.raises(Closed, match="not running"):
            await USES[use](publisher)
    with pytest.raises(Closed):
        async with running.transaction():
            pass


@pytest.mark.parametrize("use", USES)
async def test_a_test_app_that_was_not_entered_is_closed(use: str) -> None:
    with pytest.raises(Closed, match="async with TestApp"):
        await USES[use](TestApp(App("app", broker="memory:")))


async def test_publishing_needs_no_route() -> None:
    app = App("app", broker=(broker := MemoryBroker()))
    async with app.start() as running:
        await running.publish(Order(1), to="kept")
        assert not running._runtime._ended.is_set(), "an app without routes has not ended"
    reader = App("reader", broker=broker)
    seen: list[int] = []

    @reader.subscriber("kept")
    async def take(order: Order) -> None:
        seen.append(order.id)

    async with reader.start():
        while not seen:
            await asyncio.sleep(0)


async def test_what_is_not_json_says_so_in_its_content_type() -> None:
    app = App("app", broker="memory:", codec="msgpack")
    seen: list[Order] = []

    @app.subscriber("a")
    async def handle(order: Order) -> None:
        seen.append(order)

    async with TestApp(app) as t:
        await t.publish(Order(1), to="a")
        (sent,) = t.published("a")
        assert sent.headers["content-type"] == "application/msgpack"
        assert msgspec.msgpack.decode(sent.value) == {"id": 1}
    assert seen == [Order(1)]


async def test_a_destination_that_names_its_broker_needs_no_default() -> None:
    """With several brokers and none called default, `To` says enough."""
    app = App("several", brokers={"in": "memory:", "lake": "memory:"})
    async with app.start() as running:
        await running.publish(b"x", to=To("rows", broker="lake"))
        with pytest.raises(ConfigError, match="say which broker"):
            await running.publish(b"x", to="rows")
