"""The statements of PostgreSQL."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, ClassVar

import msgspec

from ruststream_core.errors import ConfigError
from ruststream_core_sql._dialects._base import Dialect, Item, Kind, Queue, Session, Store, layout_of
from ruststream_core_sql._dialects._names import Names
from ruststream_core_sql._dialects._postgres_sql import Builder
from ruststream_core_sql._table import Column, Table

__all__ = ["PostgresDialect", "PostgresStore"]

_TYPES = """
SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped"""


class PostgresDialect(Dialect):
    """PostgreSQL 11 and later."""

    name: ClassVar[str] = "postgresql"
    isolations: ClassVar[frozenset[str]] = frozenset({"read committed", "repeatable read", "serializable"})
    longest_name: ClassVar[int] = 63
    quote_mark: ClassVar[str] = '"'
    unit: ClassVar[str] = "bytes"

    def length(self, name: str) -> int:
        return len(name.encode())

    def store(self, queue: Queue) -> PostgresStore:
        return PostgresStore(self, queue)

    def to_column(self, value: Any, column: Column) -> Any:
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, bytes | bytearray | memoryview) and column.type is not str:
            return bytes(value)
        if isinstance(value, dict | list | msgspec.Struct):
            return msgspec.json.encode(value).decode()
        return value

    def from_column(self, value: Any, column: Column) -> Any:
        return value

    def wrap(self, connection: Any) -> Session:
        from ruststream_core_sql._dialects._postgres_session import PostgresSession  # noqa: PLC0415  imports this module

        return PostgresSession(connection)


class PostgresStore(Store):
    """See `Store`. Settlements carry arrays, so that one prepared statement serves any number of rows."""

    def __init__(self, dialect: PostgresDialect, queue: Queue) -> None:
        self.queue = queue
        self.layout = layout_of(queue.table)
        self._dialect = dialect
        self._sql: dict[str, str] = {}
        self._inserts: dict[tuple[tuple[str, ...], bool], str] = {}
        self._types: Mapping[str, str] = {}
        self._guard = (f"ruststream:{queue.table.full_name}:{queue.name}",)
        self._group = () if not Names(queue, dialect.quote, "now()").grouped else (queue.name,)
        self._whole_seconds = queue.table.get("lease_token") is None

    # ------------------------------------------------------------------------------------------- statements

    async def inspect(self, session: Session) -> None:
        names = Names(self.queue, self._dialect.quote, "now()", " NULLS FIRST")
        types = await self._types_of(session, self.queue.table)
        self._types = types
        if self.queue.dead_table is not None:
            await self._types_of(session, self.queue.dead_table)
        self._sql = Builder(self.queue, names, types, self.layout.columns).build()

    async def _types_of(self, session: Session, table: Table) -> dict[str, str]:
        quoted = Names(Queue(table=table), self._dialect.quote, "").table
        rows = await session.fetch(_TYPES, (quoted,))
        types = {row[0]: row[1] for row in rows}
        if not types:
            raise ConfigError(f"table {table.full_name!r} does not exist, or is outside the search path")
        missing = [column.name for column in table.columns if column.name not in types]
        if missing:
            raise ConfigError(
                f"table {table.full_name!r} has no column {', '.join(missing)}; it has {', '.join(types)}"
            )
        return types

    def statements(self) -> Mapping[str, str]:
        return self._sql

    async def prepare(self, session: Session, sql: str) -> None:
        await session.native.prepare(sql)

    # ---------------------------------------------------------------------------------------------- claims

    def _fresh_token(self) -> Any:
        column = self.queue.table.get("lease_token")
        if column is None:
            return (datetime.now(UTC) + timedelta(seconds=self.queue.lease + 0.999999)).replace(microsecond=0)
        if column.type is int:
            return secrets.randbits(62)
        return secrets.token_hex(16) if column.type is str else uuid.uuid4()

    async def claim(self, session: Session, limit: int) -> tuple[Any, Sequence[Any]]:
        token = self._fresh_token()
        if not self.queue.table.guarded:
            return token, await session.fetch(self._sql["claim"], (limit, token, *self._group))
        await session.begin()
        try:
            rows: Sequence[Any] = ()
            if await self._guarded(session):
                limit = 1 if self.queue.table.fifo else limit
                rows = await session.fetch(self._sql["claim"], (limit, token, *self._group))
            await session.commit()
        except BaseException:
            await _undo(session)
            raise
        return token, rows

    async def _guarded(self, session: Session) -> bool:
        rows = await session.fetch(self._sql["guard"], self._guard)
        free: bool = rows[0][0]
        return free

    async def lock(self, session: Session, limit: int) -> Sequence[Any]:
        if self.queue.table.fifo:
            if not await self._guarded(session):
                return ()
            limit = 1
        if "count" in self._sql:
            # Committed before the row is locked, so that a crash counts; whoever locks a row counts again.
            return await self._lock_counted(session, limit)
        return await session.fetch(self._sql["lock"], (limit, *self._group))

    async def _lock_counted(self, session: Session, limit: int) -> Sequence[Any]:
        rows = await session.fetch(self._sql["count"], (limit, *self._group))
        await session.commit()
        await session.begin()
        if self.queue.table.fifo and not await self._guarded(session):
            return ()
        return await session.fetch(self._sql["relock"], ([row[0] for row in rows], *self._group)) if rows else ()

    async def begin_lock(self, session: Session, limit: int) -> Sequence[Any]:
        if not session.in_transaction:
            await session.begin()
        return await self.lock(session, limit)

    async def settle_commit(
        self, session: Session, kinds: Sequence[tuple[Kind, Sequence[Item]]], *, again: bool
    ) -> None:
        for kind, items in kinds:
            if kind == "finish" and len(items) == 1:
                await session.execute(self._sql["finish_one"], (items[0].id,))
            else:
                await self.settle(session, kind, items)
        # One round trip less for the next row.
        await session.execute("COMMIT; BEGIN" if again else "COMMIT")

    async def candidates(self, session: Session, limit: int) -> Sequence[Any]:
        return await session.fetch(self._sql["candidates"], (limit, *self._group))

    async def take(self, session: Session, row_id: Any) -> Any | None:
        rows = await session.fetch(self._sql["take"], (row_id, *self._group))
        return rows[0] if rows else None

    async def try_lock(self, session: Session, key: str) -> bool:
        rows = await session.fetch(self._sql["try_lock"], (key,))
        got: bool = rows[0][0]
        return got

    async def unlock(self, session: Session, key: str) -> bool:
        rows = await session.fetch(self._sql["unlock"], (key,))
        held: bool = rows[0][0]
        return held

    # ----------------------------------------------------------------------------------------- settlements

    async def settle(self, session: Session, kind: Kind, items: Sequence[Item]) -> set[Any] | None:
        leased = "claim" in self._sql
        args: list[Any] = [[item.id for item in items]]
        if leased:
            args.append([item.token for item in items])
        if kind == "retry" and "delay" in self._sql and any(item.delay is not None for item in items):
            return await self._retry_each(session, items)
        if kind == "bury" and self.queue.dead_group is not None:
            args.append(self.queue.dead_group)
        if (sql := self._sql.get(kind)) is None:
            return None  # nothing about the row changes
        rows = await session.fetch(sql, args)
        return None if len(rows) == len(items) else {row[0] for row in rows}

    async def _retry_each(self, session: Session, items: Sequence[Item]) -> set[Any] | None:
        """Some now and some later: two statements, because a plain retry leaves the due time as it is."""
        ours: set[Any] = set()
        now = [item for item in items if item.delay is None]
        later = [item for item in items if item.delay is not None]
        args: list[Any] = [[item.id for item in later], [timedelta(seconds=item.delay or 0.0) for item in later]]
        if "claim" in self._sql:
            args.append([item.token for item in later])
        ours.update(row[0] for row in await session.fetch(self._sql["delay"], args))
        if now:
            got = await self.settle(session, "retry", now)
            ours.update([item.id for item in now] if got is None else got)
        return None if len(ours) == len(items) else ours

    async def extend(self, session: Session, items: Sequence[Item]) -> tuple[set[Any] | None, Any]:
        args: list[Any] = [[item.id for item in items], [item.token for item in items]]
        token = None
        if self._whole_seconds:
            token = self._fresh_token()
            args.append(token)
        rows = await session.fetch(self._sql["extend"], args)
        return (None if len(rows) == len(items) else {row[0] for row in rows}), token

    # --------------------------------------------------------------------------------------------- inserts

    async def insert(
        self, session: Session, columns: Sequence[Column], rows: Sequence[Sequence[Any]], news: Sequence[str] = ()
    ) -> None:
        sql = self._inserts.get(key := (tuple(c.name for c in columns), bool(news)))
        if sql is None:
            sql = self._inserts[key] = self._insert_sql(columns, notify=bool(news))
        if not columns:  # a row of defaults alone cannot be told from another
            for _ in rows:
                await session.execute(sql)
            return
        args: list[Any] = [list(values) for values in zip(*rows, strict=True)]
        await session.execute(sql, [*args, channel_of(self.queue.table), list(news)] if news else args)

    def _insert_sql(self, columns: Sequence[Column], *, notify: bool) -> str:
        names = Names(self.queue, self._dialect.quote, "")
        if not columns:
            return f"INSERT INTO {names.table} DEFAULT VALUES"
        arrays = ", ".join(f"${k}::{self._types[column.name]}[]" for k, column in enumerate(columns, 1))
        listed = names.listed(columns)
        insert = (
            f"INSERT INTO {names.table} ({listed}) SELECT {listed} "
            f"FROM unnest({arrays}) WITH ORDINALITY AS u({listed}, ordinality__) ORDER BY ordinality__"
        )
        if not notify:
            return insert
        k = len(columns)
        return f"WITH put AS ({insert}) SELECT pg_notify(${k + 1}, queue) FROM unnest(${k + 2}::text[]) AS q(queue)"

    async def record(self, session: Session, columns: Sequence[Column], row: Sequence[Any]) -> Any:
        names = Names(self.queue, self._dialect.quote, "")
        marks = ", ".join(f"${k}" for k in range(1, len(columns) + 1))
        sql = f"INSERT INTO {names.table} ({names.listed(columns)}) VALUES ({marks}) RETURNING {names.id}"
        return (await session.fetch(sql, row))[0][0]

    async def unfinished(self, session: Session, row_id: Any) -> bool:
        return bool(await session.fetch(self._sql["look"], (row_id,)))

    async def finish_by_id(self, session: Session, row_id: Any) -> None:
        await session.execute(self._sql["finish_one"], (row_id,))

    async def purge(self, session: Session, age: float, limit: int) -> int:
        return await session.execute(self._sql["purge"], (timedelta(seconds=age), limit))

    async def depth(self, session: Session) -> int:
        rows = await session.fetch(self._sql["depth"], self._group)
        count: int = rows[0][0]
        return count


def channel_of(table: Table) -> str:
    """The channel on which news of a table's queues are notified; the queue's name is the payload.

    Raises:
        ConfigError: the table's name is too long for a channel.
    """
    channel = f"ruststream:{table.full_name}"
    if len(channel.encode()) > PostgresDialect.longest_name:
        raise ConfigError(f"listen=True: the channel {channel!r} is longer than {PostgresDialect.longest_name} bytes")
    return channel


async def _undo(session: Session) -> None:
    """Roll back what failed half way; a session that cannot is broken off."""
    try:
        await session.rollback()
    except Exception:
        session.abort()
