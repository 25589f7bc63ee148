"""Messages and row objects as rows, and rows into tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final

import msgspec

from ruststream_core.errors import ConnectError, PublishError
from ruststream_core.kit import backoff
from ruststream_core.wire import Outgoing
from ruststream_core_sql._convert import headers_to_json, key_value, payload_value
from ruststream_core_sql._database import Database
from ruststream_core_sql._dialects._base import Session, Store
from ruststream_core_sql._table import Column, Table
from ruststream_core_sql._wake import Hub
from ruststream_core_sql.config import Routes, SqlPublish
from ruststream_core_sql.errors import brief, is_conflict, is_passing

__all__ = ["Inserter", "Record", "Recorder", "utc_now"]

CONFLICTS: Final = 10
"""How often a deadlock or a busy database is tried again before the publish fails."""


class Record(msgspec.Struct):
    """One row on its way into a table."""

    table: Table
    queue: str | None
    columns: tuple[Column, ...]
    values: tuple[Any, ...]
    size: int = 0
    done: asyncio.Future[None] | None = None


class Recorder:
    """Turns messages and row objects into rows."""

    def __init__(self, routes: Routes, to_column: Callable[[Any, Column], Any], now: Callable[[], datetime]) -> None:
        self.routes = routes
        self._to_column = to_column
        self._now = now

    def of_message(self, out: Outgoing, options: object = None) -> Record:
        """The row of a message.

        Raises:
            PublishError: no route, or something in it that the table cannot hold.
        """
        table = self.routes.find(out.name)
        if table is None:
            raise PublishError(f"no route for {out.name!r}: routes={{...}} of the broker has {self.routes.describe()}")
        given = out.options if out.options is not None else options
        values = self._values(table, out, given)
        payload = table.get("payload")
        assert payload is not None
        columns = tuple(values)
        to_column = self._to_column
        row = tuple([to_column(values[column], column) for column in columns])
        return Record(table, out.name if table.get("group") else None, columns, row, len(out.payload))

    def _values(self, table: Table, out: Outgoing, options: object) -> dict[Column, Any]:
        where = f"table {table.full_name!r}"
        values: dict[Column, Any] = {}
        for column in table.columns:
            if column.has("payload"):
                values[column] = payload_value(out.payload, column.type, where)
            elif column.has("group"):
                values[column] = out.name
            elif column.has("headers"):
                values[column] = headers_to_json(out.headers, where)
            elif column.has("partition_key") and (out.key is not None or column.nullable):
                values[column] = key_value(out.key, column.type, where)
        if table.get("headers") is None and out.headers:
            self._from_headers(table, out, values)
        if options is not None:
            self._from_options(table, options, values, where)
        return values

    @staticmethod
    def _from_headers(table: Table, out: Outgoing, values: dict[Column, Any]) -> None:
        """Without a headers column the service's own columns stand for the headers of their name."""
        for column in table.others:
            if column.name in out.headers and not column.has("generated"):
                text = out.headers[column.name]
                values[column] = text if column.type is str else msgspec.convert(text, column.type, strict=False)

    def _from_options(self, table: Table, options: object, values: dict[Column, Any], where: str) -> None:
        if not isinstance(options, SqlPublish):
            raise PublishError(f"{where}: options={options!r}: this broker takes SqlPublish(...)")
        if options.priority is not None:
            values[_needed(table, "priority", where)] = options.priority
        if options.delay is not None:
            values[_needed(table, "retry_after", where)] = self._now() + timedelta(seconds=options.delay)
        by_name = {column.name: column for column in table.columns}
        for name, value in (options.columns or {}).items():
            if name not in by_name:
                raise PublishError(f"{where} has no column {name!r}; it has {', '.join(by_name)}")
            values[by_name[name]] = value

    def of_object(self, table: Table, value: object) -> Record:
        """The row of an object of the row type; what is generated or UNSET is left to the database.

        Raises:
            PublishError: the object is of another type.
        """
        if not isinstance(value, table.row_type):
            raise PublishError(f"table {table.full_name!r} takes {table.row_type.__name__}, not {type(value).__name__}")
        present = [(c, v) for c in table.inserted if (v := getattr(value, c.field)) is not msgspec.UNSET]
        group = table.get("group")
        queue = None if group is None else str(getattr(value, group.field))
        columns = tuple(column for column, _ in present)
        return Record(table, queue, columns, tuple(self._to_column(v, c) for c, v in present))


def _needed(table: Table, role: str, where: str) -> Column:
    column = table.get(role)
    if column is None:
        raise PublishError(f"{where} has no Role.{role.upper()}")
    return column


def utc_now() -> datetime:
    """The host's time, for delays of a publish."""
    return datetime.now(UTC)


class Inserter:
    """Adds rows, and tells whoever waits for them.

    Args:
        database: where sessions come from.
        store_of: the statements of a table, inspected.
        hub: told of every queue that got rows, once they are committed.
        notify: whether to NOTIFY other processes, in the same transaction.
    """

    def __init__(self, database: Database, store_of: Callable[[Table], Store], hub: Hub, *, notify: bool) -> None:
        self._database = database
        self._store_of = store_of
        self._hub = hub
        self._notify = notify

    async def insert(self, session: Session, records: Sequence[Record]) -> None:
        """Add rows in order, on that session; nobody is told."""
        for (_, columns), run in groupby(records, key=lambda record: (record.table.row_type, record.columns)):
            rows = list(run)
            news = sorted({record.queue or "" for record in rows}) if self._notify else []
            await self._store_of(rows[0].table).insert(session, columns, [record.values for record in rows], news)

    def tell(self, records: Iterable[Record]) -> None:
        """Wake the subscriptions of this process."""
        for table, queue in {(record.table.full_name, record.queue) for record in records}:
            self._hub.news(table, queue)

    async def store(self, records: Sequence[Record]) -> None:
        """Add rows in one transaction of their own.

        Raises:
            PublishError: none of them was stored; or, where the connection broke, it is unknown whether they were.
        """
        waits = backoff(0.01, most=0.5)
        for turn in range(CONFLICTS):
            try:
                async with self._database.session() as session:
                    await self._in_one(session, records)
            except ConnectError as exc:
                raise PublishError(f"not stored: {exc}") from exc
            except Exception as exc:
                if is_conflict(exc) and turn < CONFLICTS - 1:
                    await asyncio.sleep(next(waits))
                    continue
                what = "the connection broke, it may or may not be stored" if is_passing(exc) else "not stored"
                raise PublishError(f"table {records[0].table.full_name!r}: {what}: {brief(exc)}") from exc
            self.tell(records)
            return

    async def _in_one(self, session: Session, records: Sequence[Record]) -> None:
        if len({(record.table.row_type, record.columns) for record in records}) == 1:
            await self.insert(session, records)
            return
        await session.begin()
        try:
            await self.insert(session, records)
            await session.commit()
        except BaseException:
            # A session that goes back with a transaction open is thrown away.
            if not session.broken:
                await session.rollback()
            raise
