"""Where handlers are mounted: prefixes, nesting, several mounts, defaults, names, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from ruststream_core import App, Batch, ConfigError, Drop, Middleware, Router, To, by_key, message, subscriber
from ruststream_core.memory import MemoryLog, MemoryQueue
from ruststream_core.testing import TestApp


class Order(msgspec.Struct):
    id: int


@message("orders.placed")
class Placed(msgspec.Struct):
    id: int


async def handle(order: Order) -> None: ...


def mounted(app: Router) -> list[str]:
    return [mount.source_name for mount in app.mounts()]


def test_a_prefix_joins_names_descriptors_and_message_classes() -> None:
    router = Router(prefix="shop.")
    router.subscriber("orders")(handle)
    router.subscriber(MemoryLog("events", group="g"))(handle)
    router.subscriber(Placed)(handle)
    assert mounted(router) == ["shop.orders", "shop.events", "shop.orders.placed"]


def test_nested_prefixes_stand_outermost_first() -> None:
    inner, middle, app = Router(prefix="c."), Router(prefix="b."), App("app", broker="memory:")
    inner.subscriber("d")(handle)
    middle.include(inner, prefix="b2.")
    app.include(middle, prefix="a.")
    assert mounted(app) == ["a.b.b2.c.d"]


def test_a_prefix_never_touches_reply_and_dead_letter() -> None:
    router = Router(prefix="shop.")

    async def answer(order: Order) -> Order:
        return order

    router.subscriber("orders", reply="receipts", dead_letter="dead")(answer)
    app = App("app", broker="memory:")
    app.include(router)
    (route,) = app.wiring().routes
    assert route.reply is not None
    assert route.dead_letter is not None
    assert (route.source.name, route.reply.name, route.dead_letter.name) == ("shop.orders", "receipts", "dead")


def test_each_mount_of_a_router_is_a_route_of_its_own() -> None:
    router = Router()
    router.subscriber("orders")(handle)
    app = App("app", broker="memory:")
    app.include(router, prefix="eu.")
    app.include(router, prefix="us.")
    assert [(r.name, r.source.name) for r in app.wiring().routes] == [
        ("handle", "eu.orders"),
        ("handle@us.orders", "us.orders"),
    ]


def test_the_same_name_twice_is_refused_with_the_remedy() -> None:
    app = App("app", broker="memory:")
    app.subscriber("a", name="same")(handle)
    app.subscriber("b", name="same")(handle)
    assert app.wiring().problems == [
        "route 'same': the name is taken, give the second one another with name=",
    ]


def test_one_broken_route_does_not_hide_the_others() -> None:
    app = App("app", broker="memory:")

    async def no_payload() -> None: ...

    async def no_way_back(order: Order) -> Order:
        return order

    app.subscriber("a")(no_payload)
    app.subscriber("b")(handle)
    app.subscriber("c", reply=To("x", broker="nowhere"))(no_way_back)
    wiring = app.wiring()
    assert [route.name for route in wiring.routes] == ["handle"]
    assert [problem.partition(":")[0] for problem in wiring.problems] == ["route 'no_payload'", "route 'no_way_back'"]
    with pytest.raises(ConfigError, match=r"no_payload(.|\n)*no_way_back"):
        app.runtime(app.resolve_brokers())


async def test_stacked_decorators_mount_twice_and_keep_the_function() -> None:
    app = App("app", broker="memory:")
    seen: list[int] = []

    @app.subscriber("b")
    @app.subscriber("a")
    async def both(order: Order) -> None:
        seen.append(order.id)

    await both(Order(0))
    async with TestApp(app) as t:
        await t.publish(Order(1), to="a")
        await t.publish(Order(2), to="b")
    assert seen == [0, 1, 2]


async def test_free_standing_marks_work_on_functions_partials_and_callable_objects() -> None:
    seen: list[str] = []

    @subscriber("function")
    async def function(order: Order) -> None:
        seen.append("function")

    async def of(what: str, order: Order) -> None:
        seen.append(what)

    class Handler:
        async def __call__(self, order: Order) -> None:
            seen.append("object")

    app = App("app", broker="memory:")
    app.include(function)
    app.include(subscriber("partial")(functools.partial(of, "partial")))
    app.include(subscriber("object")(Handler()))
    async with TestApp(app) as t:
        for name in ("function", "partial", "object"):
            await t.publish(Order(1), to=name)
    assert seen == ["function", "partial", "object"]


async def test_router_of_collects_methods_of_every_kind_inherited_ones_included() -> None:
    seen: list[tuple[str, Any]] = []

    class Base:
        @subscriber("inherited")
        async def inherited(self, order: Order) -> None:
            seen.append(("inherited", self))

    class Handlers(Base):
        @subscriber("method")
        async def method(self, order: Order) -> None:
            seen.append(("method", self))

        @subscriber("static-outside")
        @staticmethod
        async def static_outside(order: Order) -> None:
            seen.append(("static-outside", None))

        @staticmethod
        @subscriber("static-inside")
        async def static_inside(order: Order) -> None:
            seen.append(("static-inside", None))

        @subscriber("class-outside")
        @classmethod
        async def class_outside(cls, order: Order) -> None:
            seen.append(("class-outside", cls))

        @classmethod
        @subscriber("class-inside")
        async def class_inside(cls, order: Order) -> None:
            seen.append(("class-inside", cls))

    handlers = Handlers()
    app = App("app", broker="memory:")
    app.include(Router.of(handlers))
    names = ["class-inside", "class-outside", "inherited", "method", "static-inside", "static-outside"]
    async with TestApp(app) as t:
        for name in names:
            await t.publish(Order(1), to=name)
    assert seen == [
        ("class-inside", Handlers),
        ("class-outside", Handlers),
        ("inherited", handlers),
        ("method", handlers),
        ("static-inside", None),
        ("static-outside", None),
    ]


def test_router_of_an_object_without_marks_says_so() -> None:
    class Nothing:
        async def method(self, order: Order) -> None: ...

    with pytest.raises(ConfigError, match=r"Nothing has no method marked with @subscriber"):
        Router.of(Nothing())


def test_a_class_without_a_message_name_is_no_source() -> None:
    with pytest.raises(ConfigError, match=r'decorate it with @message\("name"\)'):
        Router().subscriber(Order)(handle)


def test_a_method_of_an_instance_takes_no_mark_and_says_what_to_do() -> None:
    class Handlers:
        async def method(self, order: Order) -> None: ...

    with pytest.raises(ConfigError, match=r"router\.subscriber"):
        subscriber("a")(Handlers().method)


@pytest.mark.parametrize("item", [handle, 5, "orders", None, Order])
def test_include_refuses_what_is_neither_router_nor_marked(item: Any) -> None:
    with pytest.raises(ConfigError, match="neither a Router nor marked"):
        Router().include(item)


def test_routers_cannot_include_themselves_however_far_around() -> None:
    outer, inner = Router(), Router()
    outer.include(inner)
    with pytest.raises(ConfigError, match="cannot include itself"):
        inner.include(outer)
    with pytest.raises(ConfigError, match="cannot include itself"):
        outer.include(outer)


# ------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"worker": 3}, "no option 'worker', did you mean 'workers'?"),
        ({"retires": 3}, "did you mean 'retry_copies'?"),
        ({"zzz": 3}, "no option 'zzz'; known are batch, codec,"),
        ({"workers": 0}, "workers=0, a number from 1 or by_key"),
        ({"workers": True}, "workers=True"),
        ({"workers": "4"}, "workers='4'"),
        ({"batch": 10}, r"batch=10, Batch\(size\) is expected"),
        ({"prefetch": 0}, "prefetch=0, a number from 1"),
        ({"prefetch": "many"}, "prefetch='many'"),
        ({"max_attempts": 0}, "max_attempts=0, a number from 1"),
        ({"max_attempts": True}, "max_attempts=True"),
        ({"max_attempts": None}, "max_attempts=None"),
        ({"on_error": ValueError}, "a mapping from exception type to policy"),
        ({"on_error": {"ValueError": Drop}}, "has 'ValueError' as a key"),
        ({"on_error": {BaseException: Drop}}, "an exception type is expected"),
        ({"on_lost": "flags"}, "on_lost='flags', 'cancel' or 'flag'"),
        ({"retry_copies": "yes"}, "retry_copies='yes', True or False"),
        ({"out": "audit"}, "out='audit', a mapping"),
        ({"name": 5}, "name=5, text"),
        ({"description": 5}, "description=5, text"),
    ],
)
def test_a_wrong_option_is_named_where_it_is_written(options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        Router().subscriber("orders", **options)(handle)
    if "batch" not in options and "name" not in options:
        with pytest.raises(ConfigError):
            Router(**options)


@pytest.mark.parametrize("option", ["name", "reply", "batch"])
def test_what_belongs_to_one_route_is_no_default(option: str) -> None:
    wrong: Any = {option: "x"}
    with pytest.raises(ConfigError, match=f"no option '{option}'"):
        App("app", broker="memory:", **wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dead_letter": ""}, "a destination needs a name"),
        ({"dead_letter": "dead.{id}"}, "fills no placeholder"),
        ({"dead_letter": "orders"}, "leads back into the source"),
        ({"dead_letter": 3}, "3 is no destination"),
        ({"dead_letter": Order}, "is no destination"),
        ({"dead_letter": To("dead", broker="lake")}, "no broker is called 'lake'; the app has default"),
        ({"on_decode_error": 3}, "an Outcome, a Backoff or a function"),
        ({"on_error": {ValueError: "drop"}}, "an Outcome, a Backoff or a function"),
        ({"on_error": {ValueError: ValueError}}, "an Outcome, a Backoff or a function"),
        ({"codec": "jsn"}, "jsn"),
        ({"reply": "x"}, "on a handler that returns nothing"),
        ({"workers": by_key(2, "{region}")}, r"has no \{region\}"),
        ({"batch": Batch(2)}, r"list\[T\]"),
    ],
)
def test_a_wrong_option_is_found_without_a_server(options: Any, says: str) -> None:
    app = App("app", broker="memory:")
    app.subscriber("orders", **options)(handle)
    (problem,) = app.wiring().problems
    assert problem.startswith("route 'handle': ")
    with pytest.raises(ConfigError, match=says):
        app.runtime(app.resolve_brokers())


def test_a_dead_letter_of_the_same_name_on_another_broker_is_fine() -> None:
    app = App("app", brokers={"in": "memory:", "lake": "memory:"})
    router = Router()
    router.subscriber("orders", dead_letter=To("orders", broker="lake"))(handle)
    app.include(router, broker="in")
    assert app.wiring().problems == []


def test_the_narrowest_default_wins_and_out_is_merged() -> None:
    inner = Router(workers=3, prefetch=30, out={"a": "inner-a", "b": "inner-b"})
    inner.subscriber("x", workers=4, out={"a": "route-a"})(handle)
    outer = Router(workers=1, max_attempts=9, description="outer")
    outer.include(inner, prefetch=20, max_attempts=8)
    app = App("app", broker="memory:", workers=7, codec="msgpack", out={"c": "app-c"})
    app.include(outer)
    (mount,) = app.mounts()
    assert dict(mount.options) == {
        "workers": 4,
        "prefetch": 30,  # the router that is included is narrower than its inclusion
        "max_attempts": 8,
        "description": "outer",
        "codec": "msgpack",
        "out": {"a": "route-a", "b": "inner-b", "c": "app-c"},
    }


def test_the_nearest_broker_wins() -> None:
    inner, outer = Router(), Router()
    inner.include(subscriber("a")(handle), broker="two")
    inner.subscriber("b")(handle)
    outer.include(inner, broker="one")
    assert [mount.broker for mount in outer.mounts()] == ["two", "one"]


def test_several_brokers_and_no_choice_is_an_error_with_the_remedy() -> None:
    app = App("app", brokers={"in": "memory:", "lake": "memory:"})
    app.subscriber("orders")(handle)
    assert app.wiring().problems == ["route 'handle': say which broker: include(..., broker=) with one of in, lake"]


def test_a_prefix_on_a_source_that_takes_none_is_an_error() -> None:
    from ruststream_core.abc import Source

    class Fixed(Source):
        @property
        def name(self) -> str:
            return "fixed"

    app = App("app", broker="memory:")
    router = Router(prefix="a.")
    router.subscriber(Fixed())(handle)
    app.include(router)
    assert app.wiring().problems == ["prefix 'a.': Fixed takes no prefix: mount it on a router without one"]


def test_brokers_are_given_once_and_rightly() -> None:
    with pytest.raises(ConfigError, match="not both"):
        App("app", broker="memory:", brokers={"a": "memory:"})
    with pytest.raises(ConfigError, match="drain"):
        App("app", broker="memory:", drain=-1)
    with pytest.raises(ConfigError, match="no broker is called 'lake'; the app has default"):
        App("app", broker="memory:").resolve_brokers({"lake": "memory:"})
    wrong: Any = 5
    with pytest.raises(ConfigError, match="a URL or a Broker is expected"):
        App("app", broker=wrong).resolve_brokers()


def test_middleware_must_be_middleware() -> None:
    wrong: Any = Middleware
    with pytest.raises(ConfigError, match="no Middleware"):
        App("app", broker="memory:").use(wrong)


async def test_a_handler_in_a_function_finds_its_local_types() -> None:
    """Annotations are strings here: without the frame's names `Local` could not be found."""

    class Local(msgspec.Struct):
        id: int

    app = App("app", broker="memory:")
    seen: list[Local] = []

    @app.subscriber("a")
    async def take(local: Local) -> None:
        seen.append(local)

    async with TestApp(app) as t:
        await t.publish({"id": 3}, to="a")
    assert seen == [Local(3)]


async def test_queue_settings_of_the_descriptor_reach_the_broker() -> None:
    app = App("app", broker="memory:")

    @app.subscriber(MemoryQueue("jobs", dead_letter="jobs.dead"))
    async def refuse(order: Order) -> Drop:
        return Drop("no")

    async with TestApp(app) as t:
        await t.publish(Order(1), to="jobs")
        assert t.statistics()["refuse"]["dropped"] == 1


def test_batches_and_lanes_check_their_numbers() -> None:
    for size, wait in ((0, None), (1, -1.0)):
        with pytest.raises(ValueError, match="size from 1"):
            Batch(size, max_wait=wait)
    with pytest.raises(ValueError, match="at least 1"):
        by_key(0)
    for text in ("region", "{}", "{a b}", "{a}.{b}"):
        with pytest.raises(ValueError, match="placeholder"):
            by_key(2, text)
