"""The statements of SQLite. Each is one piece of work on the connection's thread."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

import secrets
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, TypeVar

import msgspec

from ruststream_core.errors import ConfigError
from ruststream_core_sql._dialects._base import Dialect, Item, Kind, Queue, Session, Store, layout_of
from ruststream_core_sql._dialects._names import Names
from ruststream_core_sql._dialects._sqlite_sql import build
from ruststream_core_sql._table import Column, Table

__all__ = ["SqliteDialect", "SqliteStore"]

T = TypeVar("T")


class SqliteDialect(Dialect):
    """SQLite 3.35 and later (RETURNING)."""

    name: ClassVar[str] = "sqlite"
    isolations: ClassVar[frozenset[str]] = frozenset({"deferred", "immediate", "exclusive"})
    longest_name: ClassVar[int] = 1000
    # A double-quoted name that does not exist is read as a string.
    quote_mark: ClassVar[str] = "`"

    def suits(self, queue: Queue) -> None:
        super().suits(queue)
        if queue.table.form == "lock":
            raise ConfigError(
                f"table {queue.table.full_name!r}: SQLite locks no rows; add a column with Role.LOCKED_UNTIL for a "
                "lease, or @inbox(advisory_lock=)"
            )
        if sqlite3.sqlite_version_info < (3, 35):
            raise ConfigError(f"SQLite {sqlite3.sqlite_version}: 3.35 or later is needed")

    def store(self, queue: Queue) -> SqliteStore:
        return SqliteStore(self, queue)

    def to_column(self, value: Any, column: Column) -> Any:
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, datetime):
            return stamp(value)
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, uuid.UUID | Decimal):
            return str(value)
        if isinstance(value, dict | list | msgspec.Struct):
            return msgspec.json.encode(value).decode()
        return value

    def from_column(self, value: Any, column: Column) -> Any:
        if value is None or column.type is Any:
            return value
        if column.type is datetime:
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        if isinstance(column.type, type) and isinstance(value, column.type):
            return value
        if isinstance(value, str) and column.type not in (uuid.UUID, Decimal) and not _is_enum(column.type):
            return msgspec.json.decode(value, type=column.type)
        return msgspec.convert(value, column.type, strict=False)

    def wrap(self, connection: Any) -> Session:
        raise ConfigError("a transaction on SQLite is passed in as the session that a transactional handler is given")


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def stamp(moment: datetime) -> str:
    """A moment as the statements compare it: UTC, to the microsecond, of fixed width."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


class SqliteStore(Store):
    """See `Store`. Time is the host's, which for SQLite is the database's."""

    def __init__(self, dialect: SqliteDialect, queue: Queue) -> None:
        self.queue = queue
        self.layout = layout_of(queue.table)
        self._dialect = dialect
        self._names = Names(queue, dialect.quote, ":now")
        self._sql: dict[str, str] = {}
        self._begin = f"BEGIN {queue.table.isolation or 'immediate'}"
        self._idle = False
        self._width = len(self.layout.columns)

    async def inspect(self, session: Session) -> None:
        await self._check(session, self.queue.table)
        if self.queue.dead_table is not None:
            await self._check(session, self.queue.dead_table)
        self._sql = build(self.queue, self._names, self.layout.columns)

    async def _check(self, session: Session, table: Table) -> None:
        schema = "" if table.schema is None else f"{self._dialect.quote(table.schema)}."
        rows = await session.fetch(f"PRAGMA {schema}table_info({self._dialect.quote(table.name)})")
        known = [row[1] for row in rows]
        if not known:
            raise ConfigError(f"table {table.full_name!r} does not exist")
        missing = [column.name for column in table.columns if column.name not in known]
        if missing:
            raise ConfigError(
                f"table {table.full_name!r} has no column {', '.join(missing)}; it has {', '.join(known)}"
            )

    def statements(self) -> Mapping[str, str]:
        return self._sql

    async def prepare(self, session: Any, sql: str) -> None:
        names = ("now", "limit", "group", "token", "until", "id", "due", "dead", "old")
        await session.fetch(f"EXPLAIN {sql}", dict.fromkeys(names))

    # ------------------------------------------------------------------------------------------------ helpers

    def _args(self, session: Any, **more: Any) -> dict[str, Any]:
        return {"now": stamp(session.worker.now()), "group": self.queue.name, **more}

    def _fresh_token(self, until: str) -> Any:
        column = self.queue.table.get("lease_token")
        if column is None:
            return until
        return secrets.randbits(62) if column.type is int else secrets.token_hex(16)

    def _until(self, session: Any) -> str:
        until: datetime = session.worker.now() + timedelta(seconds=self.queue.lease)
        if self.queue.table.get("lease_token") is None:  # the token then, whole seconds
            return stamp((until + timedelta(seconds=0.999999)).replace(microsecond=0))[:19]
        return stamp(until)

    def _atomic(self, session: Any, work: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
        """`work` in a transaction, unless the session has one open."""
        if session.in_transaction:
            return work

        def whole(connection: sqlite3.Connection) -> T:
            connection.execute(self._begin)
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

        return whole

    # ------------------------------------------------------------------------------------------------- claims

    async def claim(self, session: Any, limit: int) -> tuple[Any, Sequence[Any]]:
        until = self._until(session)
        token = self._fresh_token(until)
        args = self._args(session, limit=limit, token=token, until=until)
        rows = await session.run(lambda connection: self._claim(connection, args))
        if not rows:
            await self._ask_due(session)
        return token, rows

    async def _ask_due(self, session: Any) -> None:
        """In a test that moves the clock nobody polls in between, so the next due time has to be known."""
        self.next_due = None
        if session.worker.inline and "next" in self._sql:
            ((due,),) = await session.fetch(self._sql["next"], self._args(session))
            if due is not None:
                moment = datetime.fromisoformat(due).replace(tzinfo=UTC)
                self.next_due = max(0.0, (moment - session.worker.now()).total_seconds())

    def _claim(self, connection: sqlite3.Connection, args: dict[str, Any]) -> list[Any]:
        # An empty queue is looked at without taking the write lock.
        if self._idle and connection.execute(self._sql["peek"], args).fetchone() is None:
            return []
        rows = connection.execute(self._sql["claim"], args).fetchall()
        self._idle = not rows
        # RETURNING gives rows in the order of their ids; the order's own columns come after those shown.
        width = self._width
        if len(rows) > 1:
            rows.sort(key=lambda row: tuple((value is not None, value) for value in row[width:]))
        return rows

    async def lock(self, session: Session, limit: int) -> Sequence[Any]:
        raise ConfigError("SQLite locks no rows")

    async def candidates(self, session: Any, limit: int) -> Sequence[Any]:
        rows: list[Any] = await session.fetch(self._sql["candidates"], self._args(session, limit=limit))
        if not rows:
            await self._ask_due(session)
        return rows

    async def take(self, session: Any, row_id: Any) -> Any | None:
        rows = await session.fetch(self._sql["take"], self._args(session, id=row_id))
        return rows[0] if rows else None

    async def try_lock(self, session: Any, key: str) -> bool:
        taken: bool = session.take_key(key)
        return taken

    async def unlock(self, session: Any, key: str) -> bool:
        held: bool = session.release_keys(key)
        return held

    # -------------------------------------------------------------------------------------------- settlements

    async def settle(self, session: Any, kind: Kind, items: Sequence[Item]) -> set[Any] | None:
        now = session.worker.now()
        text = stamp(now)
        # Rounded down, so that a timer of the same length finds the row due.
        due = [None if i.delay is None else stamp(now + timedelta(microseconds=int(i.delay * 1e6) - 1)) for i in items]
        dead = self.queue.dead_group
        args = [
            {"now": text, "id": i.id, "token": i.token, "due": d, "dead": dead} for i, d in zip(items, due, strict=True)
        ]
        steps = [sql for key in (f"{kind}_first", kind) if (sql := self._sql.get(key)) is not None]
        if not steps:
            return None
        ours: set[Any] | None = await session.run(self._atomic(session, lambda c: _settle(c, steps, args)))
        return ours

    async def extend(self, session: Any, items: Sequence[Item]) -> tuple[set[Any] | None, Any]:
        until = self._until(session)
        args = [{"now": "", "id": item.id, "token": item.token, "until": until} for item in items]
        ours = await session.run(self._atomic(session, lambda c: _settle(c, [self._sql["extend"]], args)))
        return ours, until if self.queue.table.get("lease_token") is None else None

    # ------------------------------------------------------------------------------------------------ inserts

    async def insert(
        self, session: Any, columns: Sequence[Column], rows: Sequence[Sequence[Any]], news: Sequence[str] = ()
    ) -> None:
        names = self._names
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {names.table} ({names.listed(columns)}) VALUES ({marks})"
        if not columns:
            sql = f"INSERT INTO {names.table} DEFAULT VALUES"
        await session.run(self._atomic(session, lambda connection: connection.executemany(sql, rows)))

    async def record(self, session: Any, columns: Sequence[Column], row: Sequence[Any]) -> Any:
        names = self._names
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {names.table} ({names.listed(columns)}) VALUES ({marks}) RETURNING {names.id}"
        return (await session.fetch(sql, row))[0][0]

    async def unfinished(self, session: Any, row_id: Any) -> bool:
        return bool(await session.fetch(self._sql["look"], {"id": row_id}))

    async def finish_by_id(self, session: Any, row_id: Any) -> None:
        await session.execute(self._sql["finish_one"], self._args(session, id=row_id))

    async def purge(self, session: Any, age: float, limit: int) -> int:
        old = stamp(session.worker.now() - timedelta(seconds=age))
        count: int = await session.execute(self._sql["purge"], {"old": old, "limit": limit})
        return count

    async def depth(self, session: Any) -> int:
        rows = await session.fetch(self._sql["depth"], self._args(session))
        count: int = rows[0][0]
        return count


def _settle(connection: sqlite3.Connection, steps: Sequence[str], args: Sequence[dict[str, Any]]) -> set[Any] | None:
    """Run all; only where a row turns out not to be ours, undo and go row by row."""
    count = touched = 0
    connection.execute("SAVEPOINT settle")
    for sql in steps:
        count = connection.executemany(sql, args).rowcount
    if count == len(args):
        connection.execute("RELEASE settle")
        return None
    connection.execute("ROLLBACK TO settle")
    ours = set()
    for each in args:
        for sql in steps:
            touched = connection.execute(sql, each).rowcount
        if touched:
            ours.add(each["id"])
    connection.execute("RELEASE settle")
    return ours
