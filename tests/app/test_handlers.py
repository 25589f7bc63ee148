"""GEN-09, GEN-10, GEN-21: every kind of callable works end to end or is refused with the reason, never half run."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from ruststream_core import (
    App,
    ConfigError,
    Context,
    Depends,
    FromHeader,
    FromHeaders,
    FromPath,
    FromState,
    FromTransport,
    Headers,
    Message,
    Publisher,
    Router,
    subscriber,
)
from ruststream_core.memory import MemoryLog
from ruststream_core.testing import TestApp

SEEN: list[Any] = []


class Order(msgspec.Struct):
    id: int


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SEEN.clear()


async def plain(order: Order) -> None:
    await asyncio.sleep(0)
    SEEN.append(order)


def sync(order: Order) -> None:
    SEEN.append(order)


async def two(prefix: str, order: Order) -> None:
    await plain(order)


async def keyword(order: Order, *, prefix: str) -> None:
    await plain(order)


def sync_two(prefix: str, order: Order) -> None:
    sync(order)


class Handlers:
    async def method(self, order: Order) -> None:
        await plain(order)

    def sync_method(self, order: Order) -> None:
        sync(order)

    @staticmethod
    async def static(order: Order) -> None:
        await plain(order)

    @classmethod
    async def of_class(cls, order: Order) -> None:
        await plain(order)

    async def _two(self, prefix: str, order: Order) -> None:
        await plain(order)

    made = functools.partialmethod(_two, "x")


class Callable_:
    async def __call__(self, order: Order) -> None:
        await plain(order)


class SyncCallable:
    def __call__(self, order: Order) -> None:
        sync(order)


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def around(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    return around


def wrapped_by_plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def around(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return around


def returning_a_coroutine(order: Order) -> Any:
    return plain(order)


def returning_a_future(order: Order) -> Any:
    SEEN.append(order)
    return asyncio.sleep(0)


WORK: dict[str, Any] = {
    "function": plain,
    "plain function": sync,
    "partial": functools.partial(two, "x"),
    "partial of keyword": functools.partial(keyword, prefix="x"),
    "partial of partial": functools.partial(functools.partial(two), "x"),
    "plain partial": functools.partial(sync_two, "x"),
    "bound method": Handlers().method,
    "plain bound method": Handlers().sync_method,
    "static method": Handlers.static,
    "class method": Handlers.of_class,
    "partial method": Handlers().made,
    "callable object": Callable_(),
    "plain callable object": SyncCallable(),
    "wrapped": wrapped(plain),
    "wrapped by plain": wrapped_by_plain(plain),
    "plain wrapped by plain": wrapped_by_plain(sync),
    "plain returning a coroutine": returning_a_coroutine,
    "plain returning a future": returning_a_future,
    "partial of an object": functools.partial(Callable_()),
}


@pytest.mark.parametrize("source", ["queue", "group"])
@pytest.mark.parametrize("name", WORK)
async def test_every_kind_of_callable_runs_to_its_end_before_the_ack(name: str, source: str) -> None:
    app = App("app", broker="memory:")
    app.subscriber("orders" if source == "queue" else MemoryLog("orders", group="g"), name="handle")(WORK[name])
    async with TestApp(app) as t:
        await t.publish(Order(1), to="orders")
        assert [Order(1)] == SEEN
        assert t.statistics()["handle"]["acked"] == 1


def generator(order: Order) -> Generator[int]:
    SEEN.append(order)
    yield 1


async def async_generator(order: Order) -> AsyncGenerator[int]:
    SEEN.append(order)
    yield 1


@functools.lru_cache
def remembered(order: Order) -> None:
    SEEN.append(order)


def without_wraps(fn: Callable[..., Any]) -> Callable[..., Any]:
    async def around(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    return around


async def no_payload() -> None: ...


async def two_payloads(a: Order, b: Order) -> None: ...


async def unannotated(order) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    ...


REFUSED: dict[str, tuple[Any, str]] = {
    "generator": (generator, "is a generator, whose body would never run"),
    "async generator": (async_generator, "is a generator, whose body would never run"),
    "partial of a generator": (functools.partial(generator), "is a generator"),
    "lru_cache": (remembered, "remembers its results"),
    "class": (Order, "is a class"),
    "no payload": (no_payload, "takes no payload"),
    "two payloads": (two_payloads, "2 parameters that could be the payload: 'a', 'b'"),
    "unannotated": (unannotated, "parameter 'order' .* has no annotation"),
    "unbound method": (Handlers.method, "use Router.of"),
    "decorator without wraps": (without_wraps(plain), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_handler_is_refused_before_a_message_flows(name: str) -> None:
    handler, says = REFUSED[name]
    app = App("app", broker="memory:")
    app.subscriber("orders", name="handle")(handler)
    with pytest.raises(ConfigError, match=says or "."):
        app.runtime(app.resolve_brokers())


async def test_a_plain_function_that_returns_a_generator_is_a_failure_and_never_an_ack() -> None:
    """It cannot be seen at the start; acked, the message would be gone and the body never have run."""
    app = App("app", broker="memory:")

    @app.subscriber("orders", max_attempts=1)
    def handle(order: Order) -> Any:
        return generator(order)

    async with TestApp(app, raise_errors=False) as t:
        await t.publish(Order(1), to="orders")
        (error,) = t.route(handle).errors
        assert "whose body would never run" in str(error)
        assert t.statistics()["handle"]["acked"] == 0


# ------------------------------------------------------------------------------------------------ signature matrix


class Meta(msgspec.Struct):
    tenant: str


@dataclass
class Data:
    id: int


class Typed(TypedDict):
    id: int


class Model(pydantic.BaseModel):
    id: int


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Order, Order(1)),
        (Data, Data(1)),
        (Typed, {"id": 1}),
        (Model, Model(id=1)),
        (dict[str, int], {"id": 1}),
        (bytes, b'{"id":1}'),
        (str, '{"id":1}'),
        (Any, {"id": 1}),
        (Order | None, Order(1)),
    ],
)
async def test_a_plain_foreign_body_becomes_what_the_handler_takes(kind: Any, expected: object) -> None:
    app = App("app", broker="memory:")

    async def handle(body: Any) -> None:
        SEEN.append(body)

    async def message_of(body: Any) -> None:
        SEEN.append(body.value)

    handle.__annotations__["body"] = kind
    message_of.__annotations__["body"] = Message[kind]
    app.subscriber("a")(handle)
    app.subscriber("b")(message_of)
    async with TestApp(app) as t:
        await t.publish(b'{"id":1}', to="a")
        await t.publish(b'{"id":1}', to="b")
    assert [expected, expected] == SEEN


def database() -> str:
    return "db"


async def in_order(
    order: Order,
    ctx: Context,
    region: Annotated[str, FromPath],
    headers: Annotated[Headers, FromHeaders],
    meta: Annotated[Meta, FromHeaders],
    tenant: Annotated[str, FromHeader("tenant")],
    number: Annotated[int, FromTransport("memory.order")],
    db: Annotated[str, Depends(database)],
    state: Annotated[str, FromState],
    publisher: Publisher,
    missing: Annotated[str, FromHeader("missing")] = "default",
) -> None:
    SEEN.append((order, ctx.name, region, headers["tenant"], meta, tenant, number > 0, db, state, missing))
    assert isinstance(publisher, Publisher)


async def backwards(
    publisher: Publisher,
    state: Annotated[str, FromState],
    db: Annotated[str, Depends(database)],
    number: Annotated[int, FromTransport("memory.order")],
    tenant: Annotated[str, FromHeader("tenant")],
    meta: Annotated[Meta, FromHeaders],
    headers: Annotated[Headers, FromHeaders],
    region: Annotated[str, FromPath],
    ctx: Context,
    order: Order,
    missing: Annotated[str, FromHeader("missing")] = "default",
) -> None:
    await in_order(order, ctx, region, headers, meta, tenant, number, db, state, publisher, missing)


async def by_name(
    *,
    missing: Annotated[str, FromHeader("missing")] = "default",
    publisher: Publisher,
    state: Annotated[str, FromState],
    db: Annotated[str, Depends(database)],
    number: Annotated[int, FromTransport("memory.order")],
    tenant: Annotated[str, FromHeader("tenant")],
    meta: Annotated[Meta, FromHeaders],
    headers: Annotated[Headers, FromHeaders],
    region: Annotated[str, FromPath],
    order: Order,
    ctx: Context,
) -> None:
    await in_order(order, ctx, region, headers, meta, tenant, number, db, state, publisher, missing)


def plain_by_name(
    *,
    missing: Annotated[str, FromHeader("missing")] = "default",
    publisher: Publisher,
    state: Annotated[str, FromState],
    db: Annotated[str, Depends(database)],
    number: Annotated[int, FromTransport("memory.order")],
    tenant: Annotated[str, FromHeader("tenant")],
    meta: Annotated[Meta, FromHeaders],
    headers: Annotated[Headers, FromHeaders],
    region: Annotated[str, FromPath],
    order: Order,
    ctx: Context,
) -> Any:
    return in_order(order, ctx, region, headers, meta, tenant, number, db, state, publisher, missing)


@pytest.mark.parametrize("handler", [in_order, backwards, by_name, plain_by_name])
async def test_parameters_may_stand_anywhere_and_come_by_type_and_marker(handler: Any) -> None:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncGenerator[str]:
        yield "state"

    app = App("app", broker="memory:", lifespan=lifespan)
    app.subscriber("orders.{region}", name="handle")(handler)
    async with TestApp(app) as t:
        await t.publish(b'{"id":1}', to="orders.eu", headers={"tenant": "acme"})
        assert t.statistics()["handle"]["acked"] == 1
    assert [
        (Order(1), "orders.eu", "eu", "acme", Meta("acme"), "acme", True, "db", "state", "default"),
    ] == SEEN


async def test_methods_of_two_instances_are_two_routes() -> None:
    class Service:
        def __init__(self, name: str) -> None:
            self.name = name

        @subscriber("orders")
        async def take(self, order: Order) -> None:
            SEEN.append(self.name)

    app = App("app", broker="memory:")
    for name in ("a", "b"):
        app.include(Router.of(Service(name)), prefix=f"{name}.")
    async with TestApp(app) as t:
        await t.publish(Order(1), to="a.orders")
        await t.publish(Order(1), to="b.orders")
    assert SEEN == ["a", "b"]
