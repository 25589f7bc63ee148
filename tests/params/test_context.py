"""`Context` and what it registers for after the ack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from ruststream_core.params import Bound, Context, FromPath, Later, Message
from ruststream_core.settlement import Ack, Retry, Skip
from ruststream_core.wire import Headers

Bind = Callable[..., Bound]
Deliver = Callable[..., Any]


async def test_context_tells_about_the_delivery(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, ctx: Context, region: Annotated[str, FromPath]) -> Any:
        return ctx.name, ctx.route, ctx.headers["a"], ctx.key, ctx.attempt, region

    call = bound(h, path="orders.{region}.placed", attempt=lambda _: 3).call
    got = await call(delivery(headers={"A": "b"}, key=b"k"))
    assert got == ("orders.eu.placed", "confirm", "b", b"k", 3, "eu")


async def test_context_before_the_payload(bound: Bind, delivery: Deliver) -> None:
    async def h(ctx: Context, x: Message[int]) -> Any:
        return ctx.name, x.value

    assert await bound(h).call(delivery(5)) == ("orders.eu.placed", 5)


async def test_attempt_is_the_brokers_or_one(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, ctx: Context) -> int:
        return ctx.attempt

    assert await bound(h).call(delivery(attempt=4)) == 4
    assert await bound(h).call(delivery()) == 1


async def note(log: list[str], *, text: str) -> None:
    log.append(text)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("end", [None, 42, Ack(), Skip()], ids=str)
async def test_callbacks_come_beside_the_result(plain: bool, end: Any, bound: Bind, delivery: Deliver) -> None:
    """Raised or returned, an accepting outcome keeps what was registered."""
    log: list[str] = []

    def h(x: int, ctx: Context) -> Any:
        ctx.after_ack(note, log, text="first")
        ctx.after_ack(note, log, text="second")
        if isinstance(end, Skip):
            raise end
        return end

    async def asynchronous(x: int, ctx: Context) -> Any:
        return h(x, ctx)

    result = await bound(h if plain else asynchronous).call(delivery())
    assert isinstance(result, Later)
    assert result.value is end
    assert log == []
    for callback in result.callbacks:
        await callback()
    assert log == ["first", "second"]


async def test_no_callbacks_no_wrapper(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, ctx: Context) -> int:
        return 1

    assert await bound(h).call(delivery()) == 1


@pytest.mark.parametrize("end", [Retry(), ValueError(), asyncio.CancelledError()], ids=repr)
async def test_callbacks_are_dropped_with_the_failure(end: BaseException, bound: Bind, delivery: Deliver) -> None:
    """After a Retry the message comes again, and its callbacks with it."""

    async def h(x: int, ctx: Context) -> None:
        ctx.after_ack(asyncio.sleep, 0)
        raise end

    with pytest.raises(type(end)) as caught:
        await bound(h).call(delivery())
    assert caught.value is end


async def test_each_delivery_has_its_own_context(bound: Bind, delivery: Deliver) -> None:
    """Callbacks of one message must never run for another."""

    async def h(x: int, ctx: Context) -> int:
        if x:
            ctx.after_ack(asyncio.sleep, 0)
        return x

    call = bound(h).call
    assert isinstance(await call(delivery(1)), Later)
    assert await call(delivery(0)) == 0


async def test_built_by_hand_for_a_test_of_a_handler() -> None:
    ctx = Context(name="orders", headers={"A": "b"}, attempt=2)
    assert (ctx.name, ctx.route, ctx.headers["a"], ctx.key, ctx.attempt) == ("orders", "", "b", None, 2)
    ctx.after_ack(asyncio.sleep, 0)
    message = Message(3, name="orders", headers=Headers({"A": "b"}), position=9)
    assert (message.value, message.name, message.headers["a"], message.position) == (3, "orders", "b", 9)
    assert (message.key, message.attempt) == (None, None)
    assert "orders" in repr(ctx)
    assert "orders" in repr(message)
