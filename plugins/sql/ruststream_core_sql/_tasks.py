"""Work that a cancellation must not cut in the middle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

__all__ = ["background", "shielded", "spawn"]

T = TypeVar("T")

log: Final = logging.getLogger("ruststream.sql")

_RUNNING: set[asyncio.Task[Any]] = set()
"""The loop itself holds tasks weakly."""


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task that is held until it is done."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    return task


def background(work: Coroutine[Any, Any, object], name: str) -> None:
    """As `spawn`, where nobody waits for the end."""
    task = spawn(work, name)
    task.add_done_callback(_report)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed", task.get_name(), exc_info=error)


async def shielded(work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
    """Await `work` in a task of its own.

    Where the caller is cancelled, the work goes on to its end all the same, and `undo` is given what it returned:
    a driver that is cut in the middle of a statement leaves a row held, or its connection unusable.
    """
    task = spawn(work, "sql:shielded")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: _abandon(done, undo))
        raise


def _abandon(task: asyncio.Task[T], undo: Callable[[T], object] | None) -> None:
    if not task.cancelled() and task.exception() is None and undo is not None:
        undo(task.result())
