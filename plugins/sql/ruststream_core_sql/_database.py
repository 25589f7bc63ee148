"""Where sessions come from: a URL, or a pool that the application brings."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from ruststream_core.errors import Closed, ConfigError, ConnectError
from ruststream_core_sql._dialects._base import Dialect, Session
from ruststream_core_sql._tasks import background, shielded
from ruststream_core_sql.errors import is_passing, to_connect_error

__all__ = ["Database", "Line", "Opener"]


class Opener(Protocol):
    """Opens sessions of one database."""

    where: str
    """The server and the user, for messages; never a password."""

    @property
    def dialect(self) -> Dialect:
        """The kind of database."""

    async def open(self) -> Session:
        """A fresh session; the driver's own errors."""

    async def start(self) -> None:
        """Before the first session."""

    async def aclose(self) -> None:
        """After the last one; leaves alone what is the application's."""


class Database:
    """The sessions of one running connection, never more than `size`.

    A session serves one task at a time. Lines hold theirs for as long as they live, all else borrows one for a
    moment. A session that comes back broken, or with a transaction open, is thrown away: this costs a connect,
    and whatever else it might have left behind is gone.
    """

    def __init__(self, opener: Opener, size: int) -> None:
        self.opener = opener
        self.dialect = opener.dialect
        self.size = size
        self.reserved = 0
        self._out = 0
        self._free: list[Session] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def start(self) -> None:
        """Reach the server.

        Raises:
            ConnectError: not now.
            ConfigError: never with these settings.
        """
        await self.opener.start()
        async with self.session():
            pass

    def reserve(self, count: int, what: str) -> None:
        """Set `count` sessions aside for somebody who holds them for long.

        Raises:
            ConfigError: the pool is too small; says how large it has to be.
        """
        # One is left for what is done in passing: publishing, checks, the depth of a queue.
        if (needed := self.reserved + count + 1) > self.size:
            raise ConfigError(
                f"{what} holds {count} sessions, {self.reserved} are held already and one is kept for publishing: "
                f"pool_size={needed} or more, it is {self.size}"
            )
        self.reserved += count

    def unreserve(self, count: int) -> None:
        """Give them back."""
        self.reserved -= count

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Borrow a session.

        Raises:
            ConnectError: the server cannot be reached now.
            ConfigError: it never can, with these settings.
        """
        session = await self.acquire()
        try:
            yield session
        finally:
            self.release(session)

    async def acquire(self) -> Session:
        """Borrow a session until `release`; raises as `session` does."""
        while self._out >= self.size and not self._free:
            await self._turn()
        if self._closed:
            raise Closed("the database is closed")
        self._out += 1
        while self._free:
            session = self._free.pop()
            if not session.broken:
                return session
            background(_quietly(session), "sql:close")
        # Where the caller is cancelled, the opening goes on and what it gets is released.
        return await shielded(self._open(), self.release)

    async def _turn(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._next()
            raise

    async def _open(self) -> Session:
        try:
            return await self.opener.open()
        except BaseException as exc:
            self._gone()
            if isinstance(exc, ConfigError | ConnectError) or not isinstance(exc, Exception):
                raise
            if is_passing(exc):
                raise to_connect_error(exc, self.opener.where) from exc
            raise ConfigError(f"{self.opener.where}: {exc}") from exc

    def release(self, session: Session) -> None:
        """Give a session back. Never waits."""
        if session.broken or session.in_transaction or session.isolated or self._closed:
            if session.in_transaction and not self._closed:
                session.abort()
            background(_quietly(session), "sql:close")
            self._gone()
            return
        self._free.append(session)
        self._out -= 1
        self._next()

    def _gone(self) -> None:
        self._out -= 1
        self._next()

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def aclose(self) -> None:
        """Close what is free, and what is borrowed when it comes back."""
        self._closed = True
        while self._waiting:
            self._next()
        free, self._free = self._free, []
        for session in free:
            await shielded(_quietly(session))
        await self.opener.aclose()


class Line:
    """One session that its owner keeps, opened again when it broke. For one task at a time.

    Args:
        database: where it comes from.
        isolation: the level that every transaction on it has.
    """

    def __init__(self, database: Database, isolation: str | None = None) -> None:
        self._database = database
        self._isolation = isolation
        self._session: Session | None = None

    async def get(self) -> Session:
        """The session; raises as `Database.session` does."""
        session = self._session
        if session is not None:
            if not session.broken:
                return session
            self.drop()
        session = await self._database.acquire()
        if self._isolation is not None:
            try:
                await session.isolate(self._isolation)
            except BaseException:
                session.abort()
                self._database.release(session)
                raise
        self._session = session
        return session

    def drop(self, *, abort: bool = False) -> None:
        """Let it go: back to the pool where it is clean, broken off with `abort`."""
        session, self._session = self._session, None
        if session is not None:
            if abort:
                session.abort()
            self._database.release(session)


async def _quietly(session: Session) -> None:
    with contextlib.suppress(Exception):
        await session.aclose()
