"""Rows into a known table, by the row type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from ruststream_core.errors import ConfigError
from ruststream_core_sql._broker import SqlBroker
from ruststream_core_sql._callers import caller_session
from ruststream_core_sql._dialects._base import Queue, Store
from ruststream_core_sql._records import Record, Recorder, utc_now
from ruststream_core_sql._table import table_of
from ruststream_core_sql._tasks import shielded
from ruststream_core_sql.config import Routes

__all__ = ["Repository"]

T = TypeVar("T")


class Repository(Generic[T]):
    """Publishes objects of one row type.

    Args:
        row_type: a class decorated with `@inbox`.
        broker: whose connection is used while the app runs; may be left out where every publish brings a
            connection.

    Raises:
        ConfigError: the class is no row type.
    """

    def __init__(self, row_type: type[T], broker: SqlBroker | None = None) -> None:
        self.row_type = row_type
        self._table = table_of(row_type)
        self._broker = broker
        self._stores: dict[str, Store] = {}

    def __repr__(self) -> str:
        return f"Repository({self.row_type.__name__})"

    async def publish(self, value: T, *, connection: Any = None) -> None:
        """Add one row; what the database generates, and what is UNSET, is left to it.

        Args:
            value: the row.
            connection: the caller's own connection or session with a transaction open: asyncpg, asyncmy, SQLAlchemy's
                AsyncConnection or AsyncSession, or what a transactional handler was given. The row then becomes
                visible with the caller's commit. Without it the row is committed at once.

        Raises:
            ConfigError: the connection has no open transaction, or there is neither broker nor connection.
            PublishError: the row was not stored.
            Closed: the broker's app does not run.
        """
        await self.publish_many([value], connection=connection)

    async def publish_many(self, values: Iterable[T], *, connection: Any = None) -> None:
        """As `publish`, for several: all or none."""
        rows = list(values)
        if not rows:
            return
        if connection is None:
            await self._publish(rows)
            return
        async with caller_session(connection) as session:
            dialect = session.dialect
            recorder = Recorder(Routes({}), dialect.to_column, utc_now)
            store = self._stores.get(dialect.name)
            if store is None:
                store = dialect.store(Queue(table=self._table))
                await store.inspect(session)
                self._stores[dialect.name] = store
            for run in _runs([recorder.of_object(self._table, row) for row in rows]):
                await store.insert(session, run[0].columns, [record.values for record in run])

    async def _publish(self, rows: list[T]) -> None:
        if self._broker is None:
            raise ConfigError(f"{self!r} has no broker: Repository({self.row_type.__name__}, broker), or connection=")
        connection = self._broker.running()
        await connection.store(self._table)
        records = [connection.recorder.of_object(self._table, row) for row in rows]
        await shielded(connection.inserter.store(records))


def _runs(records: list[Record]) -> Iterable[list[Record]]:
    """Neighbours with the same columns."""
    run: list[Record] = []
    for record in records:
        if run and record.columns != run[0].columns:
            yield run
            run = []
        run.append(record)
    yield run
