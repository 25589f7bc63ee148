"""Plain functions that a route may call: in the thread pool, or as they are with whatever awaitable they return."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

__all__ = ["RunSync", "awaited", "bounced", "driven", "threaded", "threaded_generator"]

RunSync = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function in the app's thread pool."""

_END = object()


def threaded(fn: Callable[..., Any], run_sync: RunSync) -> Callable[..., Awaitable[Any]]:
    """An async function that calls `fn` in the pool, and awaits what it returns where that is awaitable."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(await run_sync(partial(_contained, fn, *args, **kwargs)))

    return call


def awaited(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """An async function that calls `fn` on the loop, and awaits what it returns where that is awaitable."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(fn(*args, **kwargs))

    return call


def threaded_generator(fn: Callable[..., Any], run_sync: RunSync) -> Callable[..., AsyncGenerator[Any, None]]:
    """An async generator that runs each step of a plain one in the pool."""

    async def steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        generator = fn(*args, **kwargs)
        step = partial(next, generator, _END)
        while (value := await run_sync(step)) is not _END:
            try:
                yield value
            except GeneratorExit:
                await run_sync(generator.close)
                raise
            except BaseException as error:
                step = partial(_thrown, generator, error)
            else:
                step = partial(next, generator, _END)

    return steps


def driven(work: Callable[[Any, Any], Coroutine[Any, Any, Any]], run_sync: RunSync) -> Callable[[Any, Any], Any]:
    """Runs a coroutine of plain steps from beginning to end in one thread of the pool.

    Objects that may not change threads (an SQLite connection) can so be opened by one factory, used by the handler and
    closed again.
    """

    async def run(frame: Any, value: Any) -> Any:
        return await run_sync(partial(_drive, work(frame, value), asyncio.get_running_loop()))

    return run


def bounced(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """`fn` for `driven` work: where it returns an awaitable, that is awaited on the loop while the thread waits."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return await _OnLoop(result) if inspect.isawaitable(result) else _checked(result)

    return call


class _OnLoop:
    """Asks the driver of a coroutine to await something for it."""

    __slots__ = ("_awaitable",)

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._awaitable)


def _drive(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    step = partial(work.send, None)
    try:
        while True:
            wanted = step()
            try:
                step = partial(work.send, asyncio.run_coroutine_threadsafe(_awaited(wanted), loop).result())
            except BaseException as error:
                step = partial(work.throw, error)
    except StopIteration as end:
        return end.value


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else _checked(result)


def _checked(result: Any) -> Any:
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(
            f"a generator ({result.__qualname__}) was returned, whose body would never run; "
            "return a value or an awaitable"
        )
    return result


def _contained(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A StopIteration cannot cross a future: the waiter would never wake."""
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError(f"{fn!r} raised StopIteration") from error


def _thrown(generator: Generator[Any, Any, Any], error: BaseException) -> Any:
    try:
        return generator.throw(error)
    except StopIteration:
        return _END
