"""The statements of MySQL and MariaDB.

Values stand in the text, written by the driver: a list of ids is as long as it is, and several statements then go to
the server in one round trip.
"""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar

import msgspec

from ruststream_core.errors import ConfigError
from ruststream_core_sql._dialects._base import Dialect, Item, Kind, Queue, Session, Store, layout_of
from ruststream_core_sql._dialects._mysql_sql import Text
from ruststream_core_sql._dialects._names import Names
from ruststream_core_sql._table import Column, Table

__all__ = ["MySqlDialect", "MySqlStore"]

NOW = "UTC_TIMESTAMP(6)"


class MySqlDialect(Dialect):
    """MySQL 8.0.1, MariaDB 10.6 and later."""

    name: ClassVar[str] = "mysql"
    isolations: ClassVar[frozenset[str]] = frozenset(
        {"read uncommitted", "read committed", "repeatable read", "serializable"}
    )
    longest_name: ClassVar[int] = 64
    quote_mark: ClassVar[str] = "`"

    def suits(self, queue: Queue) -> None:
        super().suits(queue)
        table = queue.table
        if table.fifo and table.form == "lock" and table.isolation == "serializable":
            raise ConfigError(
                f"table {table.full_name!r}: FIFO with the row lock at SERIALIZABLE locks the whole group for every "
                "reader; take 'read committed' or a lease"
            )

    def store(self, queue: Queue) -> MySqlStore:
        return MySqlStore(self, queue)

    def to_column(self, value: Any, column: Column) -> Any:
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, datetime):
            # DATETIME knows no zone, and the driver would drop it without a word.
            return value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, uuid.UUID):
            return str(value)
        if isinstance(value, dict | list | msgspec.Struct):
            return msgspec.json.encode(value).decode()
        return value

    def from_column(self, value: Any, column: Column) -> Any:
        kind = column.type
        if value is None or kind is Any:
            return value
        if kind is datetime:
            return value.replace(tzinfo=UTC)
        if kind is bytes and isinstance(value, str):
            return value.encode()
        if isinstance(kind, type) and isinstance(value, kind):
            return value
        if isinstance(value, str) and not (isinstance(kind, type) and issubclass(kind, uuid.UUID | Decimal | Enum)):
            return msgspec.json.decode(value, type=kind)
        return msgspec.convert(value, kind, strict=False)

    def wrap(self, connection: Any) -> Session:
        from ruststream_core_sql._dialects._mysql_session import MySqlSession  # noqa: PLC0415  imports this module

        return MySqlSession(connection)


def lock_name(key: str) -> str:
    """A key as GET_LOCK takes it: 64 characters at most."""
    return key if len(key) <= 64 else hashlib.sha256(key.encode()).hexdigest()


class MySqlStore(Store):
    """See `Store`."""

    shows_next = False  # the rows are read first and held second

    def __init__(self, dialect: MySqlDialect, queue: Queue) -> None:
        self.queue = queue
        self.layout = layout_of(queue.table)
        self._dialect = dialect
        self._names = Names(queue, dialect.quote, NOW)
        self._text = Text(queue, self._names, self.layout.columns, "")
        self._guard = lock_name(f"ruststream:{queue.table.full_name}:{queue.name}")

    async def inspect(self, session: Any) -> None:
        await self._check(session, self.queue.table)
        if self.queue.dead_table is not None:
            await self._check(session, self.queue.dead_table)
        index = await self._index(session)
        self._text = Text(self.queue, self._names, self.layout.columns, index)
        if self.queue.name is not None:
            self._text.group = session.literal(self.queue.name)

    async def _check(self, session: Any, table: Table) -> None:
        schema = "DATABASE()" if table.schema is None else session.literal(table.schema)
        rows = await session.fetch(
            "SELECT column_name FROM information_schema.columns "
            f"WHERE table_schema = {schema} AND table_name = {session.literal(table.name)}"
        )
        known = [row[0] for row in rows]
        if not known:
            raise ConfigError(f"table {table.full_name!r} does not exist in this database")
        missing = [column.name for column in table.columns if column.name not in known]
        if missing:
            raise ConfigError(
                f"table {table.full_name!r} has no column {', '.join(missing)}; it has {', '.join(known)}"
            )

    async def _index(self, session: Any) -> str:
        """The index that holds the rows in the order of a claim. A sort would lock every row that it reads."""
        table = self.queue.table
        roles = ("group" if self._names.grouped else "", "priority", "retry_after", "id")
        wanted = [name for role in roles if role and (name := table.name_of(role)) is not None]
        schema = "DATABASE()" if table.schema is None else session.literal(table.schema)
        rows = await session.fetch(
            "SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = "
            f"{schema} AND table_name = {session.literal(table.name)} ORDER BY index_name, seq_in_index"
        )
        indexes: dict[str, list[str]] = {}
        for name, column in rows:
            indexes.setdefault(name, []).append(column)
        # The primary key is part of every secondary index, at its end.
        serving = [name for name, columns in indexes.items() if [*columns, table.id.name][: len(wanted)] == wanted]
        return f" FORCE INDEX ({self._dialect.quote(serving[0])})" if serving else ""

    def statements(self) -> Mapping[str, str]:
        return self._text.samples()

    async def prepare(self, session: Any, sql: str) -> None:
        statement = await session.native.prepare(sql)
        await statement.close()

    # ------------------------------------------------------------------------------------------------- claims

    def _fresh_token(self) -> Any:
        column = self.queue.table.get("lease_token")
        if column is None:
            until = datetime.now(UTC) + timedelta(seconds=self.queue.lease + 0.999999)
            return until.replace(microsecond=0, tzinfo=None)
        if column.type is int:
            return secrets.randbits(62)
        return secrets.token_hex(16) if column.type is str else str(uuid.uuid4())

    async def claim(self, session: Any, limit: int) -> tuple[Any, Sequence[Any]]:
        token = self._fresh_token()
        guarded = self.queue.table.guarded
        if guarded and not await self.try_lock(session, self._guard):
            return token, ()
        try:
            rows = await session.fetch(f"START TRANSACTION; {self._text.select(limit)}")
            if rows:
                ids = self._list(session, (row[0] for row in rows))
                await session.execute(f"{self._text.hold(ids, session.literal(token))}; COMMIT")
            else:
                await session.commit()
            if guarded:
                await self.unlock(session, self._guard)
        except BaseException:
            session.abort()
            raise
        return token, rows

    def _list(self, session: Any, ids: Iterable[Any]) -> str:
        return ", ".join(map(session.literal, ids))

    async def lock(self, session: Any, limit: int) -> Sequence[Any]:
        if self.queue.table.fifo and not await self.try_lock(session, self._guard):
            return ()
        if self.queue.table.count_crashes:
            return await self._lock_counted(session, limit)
        rows: Sequence[Any] = await session.fetch(self._text.select(limit))
        return rows

    async def _lock_counted(self, session: Any, limit: int) -> Sequence[Any]:
        rows = await session.fetch(self._text.select(limit))
        if not rows:
            return ()
        ids = self._list(session, (row[0] for row in rows))
        # Committed before the row is locked again, so that a crash counts.
        await session.execute(f"{self._text.count(ids)}; COMMIT; START TRANSACTION")
        again: Sequence[Any] = await session.fetch(self._text.select(limit, ids))
        return again

    async def begin_lock(self, session: Any, limit: int) -> Sequence[Any]:
        if self.queue.table.fifo or self.queue.table.count_crashes:
            return await super().begin_lock(session, limit)
        rows: Sequence[Any] = await session.fetch(f"START TRANSACTION; {self._text.select(limit)}")
        return rows

    async def end_lock(self, session: Any) -> None:
        await session.rollback()
        await self._release_guard(session)

    async def settle_commit(self, session: Any, kinds: Sequence[tuple[Kind, Sequence[Item]]], *, again: bool) -> None:
        last_kind, last = kinds[-1]
        for kind, items in kinds[:-1]:
            await self.settle(session, kind, items)
        if last_kind == "retry":
            await self.settle(session, last_kind, last)
            await session.commit()
        else:
            mine = self._text.mine(self._list(session, (item.id for item in last)), None)
            await session.execute("; ".join([*self._text.settle(last_kind, mine), "COMMIT"]))
        await self._release_guard(session)

    async def _release_guard(self, session: Any) -> None:
        if self.queue.table.fifo:
            await session.execute(f"DO RELEASE_LOCK({session.literal(self._guard)})")

    async def candidates(self, session: Any, limit: int) -> Sequence[Any]:
        rows: Sequence[Any] = await session.fetch(self._text.candidates(limit))
        return rows

    async def take(self, session: Any, row_id: Any) -> Any | None:
        rows = await session.fetch(self._text.take(session.literal(row_id)))
        return rows[0] if rows else None

    async def try_lock(self, session: Any, key: str) -> bool:
        rows = await session.fetch(f"SELECT GET_LOCK({session.literal(lock_name(key))}, 0)")
        return bool(rows[0][0])

    async def unlock(self, session: Any, key: str) -> bool:
        rows = await session.fetch(f"SELECT RELEASE_LOCK({session.literal(lock_name(key))})")
        return bool(rows[0][0])

    # -------------------------------------------------------------------------------------------- settlements

    async def settle(self, session: Any, kind: Kind, items: Sequence[Item]) -> set[Any] | None:
        if kind == "retry" and not self._names.retry_after:
            return await self._postpone(session, items)
        if kind != "retry" or not any(item.delay is not None for item in items):
            return await self._each(session, items, lambda mine, _: self._text.settle(kind, mine))
        delays = {id(item): item.delay for item in items}
        return await self._each(
            session, items, lambda mine, some: self._text.retry(mine, self._delay(session, some, delays))
        )

    async def _postpone(self, session: Any, items: Sequence[Item]) -> set[Any] | None:
        """Without a column for the due time: one statement for each delay."""
        ours: set[Any] = set()
        for delay in {item.delay for item in items}:
            some = [item for item in items if item.delay == delay]
            due = None if delay is None else f"{NOW} + INTERVAL {int(delay * 1e6)} MICROSECOND"
            got = await self._each(session, some, lambda mine, _, due=due: self._text.retry(mine, due))
            ours.update([item.id for item in some] if got is None else got)
        return None if len(ours) == len(items) else ours

    def _delay(self, session: Any, items: Sequence[Item], delays: Mapping[int, float | None]) -> str:
        """The new due time of each row; those without a delay keep theirs."""
        n = self._names
        cases = " ".join(
            f"WHEN {session.literal(item.id)} THEN {NOW} + INTERVAL {int(delay * 1e6)} MICROSECOND"
            for item in items
            if (delay := delays[id(item)]) is not None
        )
        return f"CASE {n.id} {cases} ELSE {n.retry_after} END"

    async def _each(self, session: Any, items: Sequence[Item], statements: Any) -> set[Any] | None:
        """Settle rows together that share a token; whole transactions, or inside the one that is open."""
        inside = session.in_transaction
        groups: dict[Any, list[Item]] = {}
        for item in items:
            groups.setdefault(item.token, []).append(item)
        ours: set[Any] = set()
        for token, some in groups.items():
            ours |= await self._group(session, token, some, statements, inside=inside)
        return None if len(ours) == len(items) else ours

    async def _group(
        self, session: Any, token: Any, items: Sequence[Item], statements: Any, *, inside: bool
    ) -> set[Any]:
        leased = self.queue.table.form == "lease"
        mine = self._text.mine(
            self._list(session, (item.id for item in items)), session.literal(token) if leased else None
        )
        sqls = statements(mine, items)
        if not sqls:
            return {item.id for item in items}
        if not leased:  # locked by this very session
            whole = not inside and len(sqls) > 1
            await session.execute("; ".join(["START TRANSACTION", *sqls, "COMMIT"] if whole else sqls))
            return {item.id for item in items}
        begin = "" if inside else "START TRANSACTION; "
        try:
            count = await session.execute(begin + "; ".join(sqls))
            if count == len(items):
                if not inside:
                    await session.commit()
                return {item.id for item in items}
            # Some are not ours any more. Which, is only known by asking first.
            if not inside:
                await session.rollback()
            return await self._one_by_one(session, token, items, statements, inside=inside)
        except BaseException:
            if not inside and session.in_transaction:
                session.abort()
            raise

    async def _one_by_one(
        self, session: Any, token: Any, items: Sequence[Item], statements: Any, *, inside: bool
    ) -> set[Any]:
        begin = "" if inside else "START TRANSACTION; "
        mine = self._text.mine(self._list(session, (item.id for item in items)), session.literal(token))
        rows = await session.fetch(f"{begin}{self._text.held(mine)}")
        held = {row[0] for row in rows}
        if kept := [item for item in items if item.id in held]:
            only = self._text.mine(self._list(session, held), session.literal(token))
            await session.execute("; ".join(statements(only, kept)))
        if not inside:
            await session.commit()
        return held

    async def extend(self, session: Any, items: Sequence[Item]) -> tuple[set[Any] | None, Any]:
        token = self._fresh_token() if self.queue.table.get("lease_token") is None else None
        until = self._text.until if token is None else session.literal(token)
        return await self._each(session, items, lambda mine, _: [self._text.renew(mine, until)]), token

    # ------------------------------------------------------------------------------------------------ inserts

    async def insert(
        self, session: Any, columns: Sequence[Column], rows: Sequence[Sequence[Any]], news: Sequence[str] = ()
    ) -> None:
        literal = session.literal
        values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)
        await session.execute(f"INSERT INTO {self._names.table} ({self._names.listed(columns)}) VALUES {values}")

    async def record(self, session: Any, columns: Sequence[Column], row: Sequence[Any]) -> Any:
        values = ", ".join(map(session.literal, row))
        insert = f"INSERT INTO {self._names.table} ({self._names.listed(columns)}) VALUES ({values})"
        own = next((value for column, value in zip(columns, row, strict=True) if column.has("id")), None)
        if own is not None:
            await session.execute(insert)
            return own
        return (await session.fetch(f"{insert}; SELECT LAST_INSERT_ID()"))[0][0]

    async def unfinished(self, session: Any, row_id: Any) -> bool:
        return bool(await session.fetch(self._text.look(session.literal(row_id))))

    async def finish_by_id(self, session: Any, row_id: Any) -> None:
        n = self._names
        await session.execute(self._text.settle("finish", f"{n.id} = {session.literal(row_id)}")[0])

    async def purge(self, session: Any, age: float, limit: int) -> int:
        count: int = await session.execute(self._text.purge(age, limit))
        return count

    async def depth(self, session: Any) -> int:
        rows = await session.fetch(self._text.depth())
        count: int = rows[0][0]
        return count
