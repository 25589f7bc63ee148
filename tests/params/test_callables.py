"""Every kind of callable works as a handler, or is refused with the reason; nothing is left unawaited."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, cast

import pytest

from ruststream_core.errors import ConfigError
from ruststream_core.params import Bound, Context, FromPath, inspect_handler

Bind = Callable[..., Bound]
Deliver = Callable[..., Any]


async def double(x: int) -> int:
    return x * 2


async def scaled(x: int, factor: int, ctx: Context) -> int:
    return x * factor


class Handlers:
    async def method(self, x: int) -> int:
        return x * 2

    @classmethod
    async def of_class(cls, x: int) -> int:
        return x * 2

    @staticmethod
    async def static(x: int) -> int:
        return x * 2

    async def by(self, factor: int, x: int) -> int:
        return x * factor

    twice = functools.partialmethod(by, 2)


class Callable_:
    async def __call__(self, x: int) -> int:
        return x * 2


class PlainCallable:
    def __call__(self, x: int) -> int:
        return x * 2


def kept(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def kept_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


def plain(x: int) -> int:
    return x * 2


def returns_coroutine(x: int) -> Awaitable[int]:
    return double(x)


WORKING: list[tuple[str, Any, str, bool]] = [
    ("async function", double, "double", False),
    ("plain function", plain, "plain", True),
    ("plain function with a coroutine", returns_coroutine, "returns_coroutine", True),
    ("partial by keyword", functools.partial(scaled, factor=2), "scaled", False),
    ("partial by position", functools.partial(Handlers().by, 2), "Handlers.by", False),
    ("partial of a partial", functools.partial(functools.partial(scaled, factor=3), factor=2), "scaled", False),
    ("bound method", Handlers().method, "Handlers.method", False),
    ("class method", Handlers.of_class, "Handlers.of_class", False),
    ("static method", Handlers.static, "Handlers.static", False),
    ("bare static method", Handlers.__dict__["static"], "Handlers.static", False),
    ("partialmethod of an instance", Handlers().twice, "Handlers.by", False),
    ("callable object", Callable_(), "Callable_", False),
    ("plain callable object", PlainCallable(), "PlainCallable", True),
    ("partial of a callable object", functools.partial(Callable_()), "Callable_", False),
    ("decorated with wraps", kept(double), "double", False),
    ("decorated twice", kept(kept(double)), "double", False),
    ("async decorator over a plain function", kept_async(plain), "plain", False),
    ("decorated partial", kept(functools.partial(scaled, factor=2)), "kept.<locals>.wrapper", False),
]


@pytest.mark.parametrize(("fn", "name", "is_sync"), [row[1:] for row in WORKING], ids=[row[0] for row in WORKING])
async def test_works(fn: Any, name: str, is_sync: bool, bound: Bind, delivery: Deliver) -> None:
    """Misread as plain, the coroutine is never awaited; misread parameters lose what was bound."""
    spec = inspect_handler(fn, batch=False)
    assert spec.name == name
    assert spec.is_sync is is_sync
    assert spec.payload_type is int
    assert await bound(fn).call(delivery(21)) == 42


def unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


def generator(x: int) -> Any:
    yield x


async def async_generator(x: int) -> Any:
    yield x


REFUSED: list[tuple[str, Any, str]] = [
    ("a class", Handlers, "is a class"),
    ("an unbound method", Handlers.method, "method without its object"),
    ("a bare classmethod", Handlers.__dict__["of_class"], "bare classmethod"),
    ("a bare partialmethod", Handlers.__dict__["twice"], "bare partialmethod"),
    ("a partialmethod of the class", Handlers.twice, "method without its object"),
    ("decorated without wraps", unwrapped(double), "functools.wraps"),
    ("lru_cache over async", functools.lru_cache(double), "lru_cache"),
    ("lru_cache over plain", functools.lru_cache(plain), "lru_cache"),
    ("lru_cache below a decorator", kept(functools.lru_cache(plain)), "lru_cache"),
    ("a generator", generator, "generator"),
    ("an async generator", async_generator, "generator"),
    ("a decorated generator", kept(generator), "generator"),
    ("a partial of a generator", functools.partial(generator), "generator"),
    ("a lambda", lambda x: double(x), "no annotation"),
    ("a builtin", dict.fromkeys, "annotation"),
    ("a builtin without a signature", max, "no readable signature"),
    ("no callable", 3, "cannot be called"),
    ("a partial that cannot be called", functools.partial(cast("Any", double), nonsense=1), "no readable signature"),
]


@pytest.mark.parametrize(("fn", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_is_refused_with_the_reason(fn: Any, reason: str) -> None:
    """Accepted, each of these would settle messages that nobody worked on."""
    with pytest.raises(ConfigError, match=reason):
        inspect_handler(fn, batch=False)


def test_bound_arguments_are_not_injected() -> None:
    """A partial that binds a marked parameter means its own value."""

    async def h(x: int, region: Annotated[str, FromPath], unknown: Any) -> None: ...

    spec = inspect_handler(functools.partial(h, region="eu", unknown=1), batch=False, scope=locals())
    assert spec.path_fields == ()
    assert [parameter.name for parameter in spec.parameters] == ["x"]


async def test_plain_handlers_run_in_the_pool(bound: Bind, delivery: Deliver) -> None:
    """On the loop, one slow handler would stop every other route and the heartbeats."""
    seen: list[int] = []

    def h(x: int) -> None:
        seen.append(threading.get_ident())

    await bound(h).call(delivery())
    assert seen != [threading.get_ident()]


async def test_coroutine_of_a_plain_handler_runs_on_the_loop(bound: Bind, delivery: Deliver) -> None:
    threads: list[int] = []

    async def work() -> None:
        threads.append(threading.get_ident())

    def h(x: int) -> Awaitable[None]:
        return work()

    await bound(h).call(delivery())
    assert threads == [threading.get_ident()]


async def test_stop_iteration_of_a_plain_handler_is_an_error(bound: Bind, delivery: Deliver) -> None:
    """StopIteration cannot be set on a future: the worker would wait for ever."""

    def h(x: int) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await bound(h).call(delivery())


async def test_generator_returned_by_a_plain_handler_is_an_error(bound: Bind, delivery: Deliver) -> None:
    """The annotation cannot tell; the body would never run and the message be acked."""

    def h(x: int) -> Any:
        return generator(x)

    with pytest.raises(TypeError, match="body would never run"):
        await bound(h).call(delivery())


async def test_decorator_that_answers_itself_works(bound: Bind, delivery: Deliver) -> None:
    """The wrapped function is async, yet this call returns no coroutine."""

    def guarded(fn: Callable[[int], Awaitable[int]]) -> Any:
        @functools.wraps(fn)
        def wrapper(x: int) -> Any:
            return fn(x) if x > 1 else -1

        return wrapper

    call = bound(guarded(double)).call
    assert await call(delivery(1)) == -1
    assert await call(delivery(2)) == 4
