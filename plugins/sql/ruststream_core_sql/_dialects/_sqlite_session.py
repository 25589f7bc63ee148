"""Sessions of SQLite: the standard library's module on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from ruststream_core.errors import Closed, ConfigError
from ruststream_core_sql._dialects._base import Session
from ruststream_core_sql._dialects._sqlite import SqliteDialect

__all__ = ["SqliteOpener", "SqliteSession", "SqliteWorker"]

T = TypeVar("T")

_KEYS: Final[dict[str, set[str]]] = {}
PRAGMAS: Final = {"journal_mode": "wal", "synchronous": "normal", "foreign_keys": "on"}


class SqliteWorker:
    """One connection, and the thread that alone uses it.

    SQLite has one writer at a time. All sessions of a process share this one, so that they queue here, in order and
    without polling for the lock; other processes are waited for by the connection's own busy timeout.

    Args:
        path: the file; empty for a database in memory.
        deadline: seconds for one piece of work, its waiting for other processes included.
        pragmas: settings of the connection, over the defaults.
        inline: run on the loop's own thread, for a database in memory in tests.
        now: the time that rows become due by.
    """

    def __init__(
        self,
        path: str,
        deadline: float,
        pragmas: Mapping[str, str],
        *,
        inline: bool = False,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.path = path
        # Advisory locks of this process, shared by everyone who has the same file open.
        self.keys = _KEYS.setdefault(os.path.realpath(path), set()) if path else set[str]()
        self.deadline = deadline
        self.now = now or (lambda: datetime.now(UTC))
        self.owner: SqliteSession | None = None
        self.connection: sqlite3.Connection | None = None
        self._pragmas = PRAGMAS | dict(pragmas)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.inline = inline
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Open the file; the driver's own errors."""
        if self.connection is not None:
            return
        if not self.inline:
            # A daemon: a database that nobody closed must not keep the process alive.
            self._thread = threading.Thread(target=self._serve, name=f"sqlite {self.path}", daemon=True)
            self._thread.start()
        try:
            self.connection = await self.run(self._connect)
        except BaseException:
            self.stop()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path or ":memory:", timeout=self.deadline / 2, isolation_level=None, check_same_thread=False
        )
        for name, value in self._pragmas.items():
            if not (name.isidentifier() and value.replace("-", "").isalnum()):
                connection.close()
                raise ConfigError(f"sqlite: {name}={value!r} is no setting")
            if self.path or name != "journal_mode":
                connection.execute(f"PRAGMA {name} = {value}")
        return connection

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` on the thread. Where the caller is cancelled, it is done all the same.

        Raises:
            TimeoutError: it took longer than the deadline; it was interrupted.
        """
        if self.inline:
            await asyncio.sleep(0)
            return work()
        if self._thread is None:
            raise Closed(f"sqlite {self.path!r} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._work.put(lambda: _answer(loop, future, work))
        timer = loop.call_later(self.deadline, self._overdue, future)
        try:
            return await future
        finally:
            timer.cancel()

    def put(self, work: Callable[[], None]) -> None:
        """Do `work` behind whatever is on the thread already; nobody waits for it."""
        if self.inline:
            work()
        else:
            self._work.put(work)

    def _overdue(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            if self.connection is not None:
                self.connection.interrupt()
            future.set_exception(TimeoutError(f"sqlite {self.path!r}: no answer in {self.deadline:g} seconds"))

    async def turn(self, session: SqliteSession) -> None:
        """Wait until no other session has a transaction open."""
        while self.owner is not None and self.owner is not session:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await asyncio.wait_for(waiter, self.deadline)
            except TimeoutError:
                raise TimeoutError(f"sqlite {self.path!r}: a transaction is open for too long") from None

    def free(self) -> None:
        """A transaction has ended."""
        self.owner = None
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def stop(self) -> None:
        """Close the file when all work is done. Never waits."""
        connection, self.connection = self.connection, None
        thread, self._thread = self._thread, None
        if thread is None:
            if connection is not None:
                connection.close()
            return
        if connection is not None:
            self._work.put(connection.close)
        self._work.put(None)


def _answer(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], work: Callable[[], T]) -> None:
    result: T | None = None
    error: BaseException | None = None
    try:
        result = work()
    except BaseException as exc:
        error = exc
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_deliver, future, result, error)


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class SqliteSession(Session):
    """A session of the shared worker. `native` is itself: what a transactional handler is given.

    A piece of work is done in one go on the thread, in a transaction of its own unless this session has one open.
    """

    def __init__(self, worker: SqliteWorker) -> None:
        self.worker = worker
        self.native = self
        self.held: set[str] = set()
        self._broken = False

    async def isolate(self, level: str) -> None:
        """The level is in each BEGIN: nothing to set."""

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` with the connection on its thread, when no other session's transaction is open."""
        worker = self.worker
        if worker.owner is not None and worker.owner is not self:
            await worker.turn(self)
        connection = worker.connection
        if connection is None or self._broken:
            raise Closed(f"sqlite {worker.path!r} is closed")
        return await worker.run(lambda: work(connection))

    async def fetch(self, sql: str, args: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        return await self.run(lambda connection: connection.execute(sql, args).fetchall())

    async def execute(self, sql: str, args: Sequence[Any] | Mapping[str, Any] = ()) -> int:
        return await self.run(lambda connection: connection.execute(sql, args).rowcount)

    async def begin(self, kind: str = "immediate") -> None:
        await self.worker.turn(self)
        self.worker.owner = self
        try:
            await self.run(lambda connection: connection.execute(f"BEGIN {kind}"))
        except BaseException:
            self._undo()
            raise

    async def commit(self) -> None:
        await self.run(lambda connection: connection.execute("COMMIT"))
        self.worker.free()

    async def rollback(self) -> None:
        await self.run(_rollback)
        self.worker.free()

    def _undo(self) -> None:
        """Behind whatever is on the thread already."""
        worker = self.worker
        connection = worker.connection
        if connection is None:
            worker.free()
        else:
            worker.put(lambda: _rollback(connection))
            worker.free()

    @property
    def broken(self) -> bool:
        return self._broken or self.worker.connection is None

    @property
    def in_transaction(self) -> bool:
        return self.worker.owner is self

    def take_key(self, key: str) -> bool:
        """Lock `key` for this session, unless somebody in this process has it."""
        if key in self.worker.keys:
            return False
        self.worker.keys.add(key)
        self.held.add(key)
        return True

    def release_keys(self, key: str | None = None) -> bool:
        """Unlock one key of this session, or all; whether it had any of them."""
        keys = set(self.held) if key is None else {key} & self.held
        self.held -= keys
        self.worker.keys -= keys
        return bool(keys)

    def abort(self) -> None:
        self._broken = True
        self.release_keys()
        if self.worker.owner is self:
            self._undo()

    async def aclose(self) -> None:
        self.abort()


def _rollback(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class SqliteOpener:
    """See `Opener`."""

    def __init__(self, path: str, deadline: float, pragmas: Mapping[str, str], **options: Any) -> None:
        self.dialect = SqliteDialect()
        self.where = f"sqlite {path or 'in memory'!r}"
        self.worker = SqliteWorker(path, deadline, pragmas, **options)

    async def start(self) -> None:
        await self.worker.start()

    async def open(self) -> SqliteSession:
        return SqliteSession(self.worker)

    async def aclose(self) -> None:
        self.worker.stop()
