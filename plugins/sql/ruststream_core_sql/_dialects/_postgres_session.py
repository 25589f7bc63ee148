"""Sessions of PostgreSQL through asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ruststream_core_sql._dialects._base import Session
from ruststream_core_sql._dialects._postgres import PostgresDialect

__all__ = ["PostgresSession"]


class PostgresSession(Session):
    """One asyncpg connection.

    Args:
        native: the connection, or a pool's proxy of one.
        pool: the application's pool that it goes back to, None where it is ours to close.
        deadline: seconds for one statement; when they are over, the session is broken off, because a half-open
            connection would hang for ever.
    """

    def __init__(self, native: Any, pool: Any = None, deadline: float | None = 30.0) -> None:
        self.native = native
        self._pool = pool
        self._deadline = deadline
        self._listener: Callable[[Any], object] | None = None

    async def fetch(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Any]:
        try:
            rows: Sequence[Any] = await self.native.fetch(sql, *args, timeout=self._deadline)
        except TimeoutError:
            self.abort()
            raise
        return rows

    async def execute(self, sql: str, args: Sequence[Any] = ()) -> int:
        try:
            status: str = await self.native.execute(sql, *args, timeout=self._deadline)
        except TimeoutError:
            self.abort()
            raise
        count = status.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    async def begin(self) -> None:
        await self.execute("BEGIN")

    async def isolate(self, level: str) -> None:
        await self.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level.upper()}")
        self.isolated = True

    def on_lost(self, callback: Callable[[], object] | None) -> None:
        previous, self._listener = self._listener, None
        if previous is not None and not self.native.is_closed():
            self.native.remove_termination_listener(previous)
        if callback is not None and not self.native.is_closed():
            self._listener = lambda _: callback()
            self.native.add_termination_listener(self._listener)

    @property
    def broken(self) -> bool:
        closed: bool = self.native.is_closed()
        return closed

    @property
    def in_transaction(self) -> bool:
        inside: bool = not self.native.is_closed() and self.native.is_in_transaction()
        return inside

    def abort(self) -> None:
        # A proxy whose connection the pool took back already raises InterfaceError: nothing to break off then.
        if not self.native.is_closed():
            self.native.terminate()

    async def aclose(self) -> None:
        if self._pool is not None:
            await asyncio.shield(self._pool.release(self.native))
        elif not self.native.is_closed():
            try:
                await self.native.close(timeout=5)
            except Exception:  # the server is gone, or does not answer: nothing is left to say to it
                self.native.terminate()


class PostgresOpener:
    """See `Opener`. `target` is a URL or the application's `asyncpg.Pool`."""

    def __init__(self, target: Any, where: str, deadline: float) -> None:
        import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415  imported when it is needed

        self._asyncpg = asyncpg
        self._target = target
        self._deadline = deadline
        self.where = where
        self.dialect = PostgresDialect()

    async def start(self) -> None:
        """Nothing before the first session."""

    async def open(self) -> Session:
        if not isinstance(self._target, str):
            native = await self._target.acquire(timeout=self._deadline)
            return PostgresSession(native, self._target, self._deadline)
        url = "postgresql" + self._target[self._target.index(":") :]
        native = await self._asyncpg.connect(url, timeout=min(self._deadline, 10.0))
        return PostgresSession(native, None, self._deadline)

    async def aclose(self) -> None:
        """The pool is the application's."""
