"""Runs a handler with its context and its factories, and closes the factories by the handler's outcome."""

# ruff: noqa: SLF001  the frame is this package's own; a method call for each of its fields would cost every message

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from types import AsyncGeneratorType, CoroutineType
from typing import Any

from ruststream_core.params._live import Later, Live
from ruststream_core.settlement import Ack, Outcome, Skip, strongest

__all__ = ["Step", "with_context", "with_factories"]

Step = tuple[Callable[[Live], Any], bool]
"""What makes one factory's value from the frame, and whether it is a generator that gives it."""
_Run = Callable[[Live, Any], Coroutine[Any, Any, Any]]
_Opened = Generator[Any, Any, Any] | AsyncGenerator[Any, Any]


async def with_context(handling: Awaitable[Any], frame: Live) -> Any:
    """What the handler returns, with what `after_ack` registered beside it."""
    try:
        result = await handling
    except BaseException as error:
        if frame._later is None or (kept := _accepting(error)) is None:
            raise
        return Later(kept, frame._later)
    later = frame._later
    return result if later is None else Later(result, later)


def with_factories(invoke: Callable[[Live, Any], Any], steps: tuple[Step, ...]) -> _Run:
    """Factories in their order, the handler, and the generators closed in reverse."""

    async def run(frame: Live, value: Any) -> Any:
        values = frame._values = []
        opened: list[_Opened] = []
        try:
            for make, generates in steps:
                made = make(frame)
                if generates:
                    made = await _open(made, opened)
                elif type(made) is CoroutineType:
                    made = await made
                values.append(made)
            result = await invoke(frame, value)
        except GeneratorExit:  # the coroutine is being thrown away: nothing can be awaited any more
            raise
        except BaseException as error:
            kept = _accepting(error)
            if opened:
                await _close(opened, error if kept is None else None)
            if kept is None or frame._later is None:
                raise
            return Later(kept, frame._later)
        if opened:
            await _close_by_result(opened, result)
        return result if frame._later is None else Later(result, frame._later)

    return run


def _accepting(error: BaseException) -> Outcome | None:
    """The Ack or Skip that was raised, alone or as the strongest of a group; None for everything else."""
    outcome = strongest(error) if isinstance(error, BaseExceptionGroup) else error
    return outcome if isinstance(outcome, Ack | Skip) else None


def _refusing(result: Any) -> Outcome | None:
    """The returned outcome that undoes the handler's work; None where its work stands."""
    if isinstance(result, type) and issubclass(result, Outcome):
        result = result()
    return result if isinstance(result, Outcome) and not isinstance(result, Ack | Skip) else None


async def _open(made: _Opened, opened: list[_Opened]) -> Any:
    try:
        value = await made.__anext__() if isinstance(made, AsyncGeneratorType) else next(made)  # type: ignore[arg-type]
    except (StopIteration, StopAsyncIteration):
        raise RuntimeError(f"Depends factory {_name(made)!r} ended without a yield") from None
    opened.append(made)
    return value


async def _close_by_result(opened: list[_Opened], result: Any) -> None:
    outcome = _refusing(result)
    await _close(opened, outcome)
    if outcome is not None:  # often one instance for many messages: it must not collect their tracebacks
        outcome.__traceback__ = outcome.__context__ = None


async def _close(opened: list[_Opened], error: BaseException | None) -> None:
    """Close the last opened first.

    Raises:
        BaseException: what closing raised in place of `error`. A cancellation is never replaced.
    """
    failure = error
    while opened:
        generator = opened.pop()
        try:
            await _finish(generator, failure)
        except BaseException as raised:
            if raised is failure or _carries(raised, failure):
                continue
            if isinstance(error, asyncio.CancelledError):
                error.add_note(f"while closing Depends factory {_name(generator)!r}: {type(raised).__name__}")
            else:
                failure = raised
    if failure is not error and failure is not None:
        raise failure


def _carries(raised: BaseException, failure: BaseException | None) -> bool:
    """Whether Python only wrapped it: a generator cannot let a Stop(Async)Iteration through."""
    return isinstance(failure, StopIteration | StopAsyncIteration) and raised.__cause__ is failure


async def _finish(generator: _Opened, error: BaseException | None) -> None:
    try:
        if isinstance(generator, AsyncGeneratorType):
            await (generator.__anext__() if error is None else generator.athrow(error))
        elif error is None:
            next(generator)  # type: ignore[arg-type]
        else:
            generator.throw(error)  # type: ignore[union-attr]
    except (StopIteration, StopAsyncIteration):
        return
    if isinstance(generator, AsyncGeneratorType):
        await generator.aclose()
    else:
        generator.close()  # type: ignore[union-attr]
    raise RuntimeError(f"Depends factory {_name(generator)!r} yields more than once")


def _name(generator: Any) -> str:
    return str(getattr(generator, "__qualname__", generator))
