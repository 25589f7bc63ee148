"""Middleware on both sides: order, composed once, short ways, and what it applies to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ruststream_core import App, Batch, Drop, Middleware, Retry, Router, Skip
from ruststream_core.memory import MemoryLog
from ruststream_core.middleware import BatchHandle, Handle, Send
from ruststream_core.testing import TestApp
from ruststream_core.wire import Delivery, Outgoing


class Order(msgspec.Struct):
    id: int


class Tracing(Middleware):
    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said, self.composed = name, said, 0

    def consume(self, call: Handle, route: str) -> Handle:
        self.composed += 1

        async def around(delivery: Delivery) -> object:
            self.said.append(f"{self.name}>{route}")
            try:
                return await call(delivery)
            finally:
                self.said.append(f"{self.name}<")

        return around

    def consume_batch(self, call: BatchHandle, route: str) -> BatchHandle:
        self.composed += 1

        async def around(deliveries: Sequence[Delivery]) -> object:
            self.said.append(f"{self.name}>{route} x{len(deliveries)}")
            return await call(deliveries)

        return around

    def publish(self, send: Send, broker: str) -> Send:
        self.composed += 1

        async def around(out: Outgoing) -> None:
            self.said.append(f"{self.name}:{out.name}")
            await send(out)

        return around


async def test_the_first_is_the_outermost_and_a_routers_stand_inside_the_apps() -> None:
    said: list[str] = []
    app, router = App("app", broker="memory:"), Router()
    layers = [Tracing(name, said) for name in ("a", "b", "r")]
    app.use(layers[0], layers[1])
    router.use(layers[2])

    @router.subscriber("orders")
    async def handle(order: Order) -> None:
        said.append("handled")

    app.include(router)
    async with TestApp(app) as t:
        for _ in range(3):
            said.clear()
            await t.publish(Order(1), to="orders")
    assert said == ["a:orders", "b:orders", "a>handle", "b>handle", "r>handle", "handled", "r<", "b<", "a<"]
    assert [layer.composed for layer in layers] == [2, 2, 1], "once per route and broker, not per message"


async def test_batches_have_their_own() -> None:
    said: list[str] = []
    app = App("app", broker="memory:")
    app.use(Tracing("a", said))

    @app.subscriber("orders", batch=Batch(2))
    async def handle(orders: list[Order]) -> None: ...

    async with TestApp(app) as t:
        await t.publish_many([Order(1), Order(2)], to="orders")
    assert said == ["a:orders", "a:orders", "a>handle x2"]


async def test_it_may_answer_in_the_handlers_place() -> None:
    class Short(Middleware):
        def consume(self, call: Handle, route: str) -> Handle:
            async def around(delivery: Delivery) -> object:
                choice = delivery.headers.get("x-do", "")
                if choice == "raise":
                    raise Drop("by middleware")
                return {"skip": Skip, "reply": Order(9)}.get(choice) or await call(delivery)

            return around

    app = App("app", broker="memory:")
    app.use(Short())

    @app.subscriber("orders", reply="done")
    async def handle(order: Order) -> Order | None:
        return None

    async with TestApp(app) as t:
        for choice in ("skip", "raise", "reply", "none"):
            await t.publish(Order(1), to="orders", headers={"x-do": choice})
        books = t.statistics()["handle"]
        assert (books["skipped"], books["dropped"], books["acked"]) == (1, 1, 2)
        assert [m.value for m in t.published("done", Order)] == [Order(9)]
        assert len(t.route(handle).calls) == 1


async def test_what_it_raises_is_the_handlers_failure() -> None:
    class Broken(Middleware):
        def consume(self, call: Handle, route: str) -> Handle:
            async def around(delivery: Delivery) -> object:
                raise ConnectionError("tracing is down")

            return around

    app = App("app", broker="memory:", on_error={ConnectionError: Drop})
    app.use(Broken())

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert t.statistics()["handle"]["dropped"] == 1


async def test_the_publish_side_sees_replies_copies_and_dead_letters() -> None:
    said: list[str] = []
    app = App("app", broker="memory:")
    app.use(Tracing("a", said))

    @app.subscriber("orders", reply="done", dead_letter="dead", max_attempts=2)
    async def handle(order: Order) -> Order:
        if order.id:
            raise Retry
        return order

    @app.subscriber(MemoryLog("log", start="earliest"), retry_copies=True, max_attempts=2, dead_letter="dead")
    async def read(order: Order) -> None:
        raise Retry

    async with TestApp(app) as t:
        await t.publish(Order(0), to="orders")
        await t.publish(Order(1), to="orders")
        await t.publish(Order(1), to="log")
        assert len(t.published("dead")) == 2
    out = [line for line in said if ":" in line]
    assert out == ["a:orders", "a:done", "a:orders", "a:dead", "a:log", "a:dead"]


async def test_an_answer_to_a_request_passes_the_publish_side() -> None:
    said: list[str] = []
    app = App("app", broker="memory:")
    app.use(Tracing("a", said))

    @app.subscriber("double")
    async def double(number: int) -> int:
        return 2 * number

    async with TestApp(app) as t:
        assert await t.request(4, to="double", timeout=1, reply=int) == 8
    assert [line for line in said if line.startswith("a:_reply.")]


async def test_a_method_left_as_it_is_costs_nothing() -> None:
    """The very sender of the transport is called: no coroutine and no task in between."""

    class OnlyConsumes(Middleware):
        def consume(self, call: Handle, route: str) -> Handle:
            return call

    app = App("app", broker="memory:")
    app.use(OnlyConsumes())
    async with app.start() as running:
        senders = running._runtime.senders
        assert senders.transmit("default") == senders.sender("default").send
        assert senders.plain


async def test_middleware_that_fails_at_start_up_stops_the_start() -> None:
    class Broken(Middleware):
        def consume(self, call: Handle, route: str) -> Handle:
            raise ValueError("no exporter")

    app = App("app", broker="memory:")
    app.use(Broken())

    @app.subscriber("orders")
    async def handle(order: Order) -> None: ...

    with pytest.raises(ValueError, match="no exporter"):
        async with app.start():
            pass


async def test_a_request_passes_the_publish_side() -> None:
    """A middleware that adds a trace header must not miss what asks for an answer."""
    app = App("requests", broker="memory:")
    seen: list[str] = []

    @app.subscriber("double")
    async def double(number: int) -> int:
        return number * 2

    class Watching(Middleware):
        def publish(self, send: Send, broker: str) -> Send:
            async def watched(out: Outgoing) -> None:
                seen.append(out.name)
                await send(out)

            return watched

    app.use(Watching())
    async with TestApp(app) as t:
        assert await t.request(21, to="double", timeout=5, reply=int) == 42
        assert seen[0] == "double"
        assert [message.value for message in t.published("double", int)] == [21]
