"""The in-process broker for tests: SQLite in memory, through the same statements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from ruststream_core.abc import Broker, Clock, Demand, Features, ServerInfo, Source, Watch
from ruststream_core_sql._broker import SqlBroker, SqlConnection
from ruststream_core_sql._database import Database
from ruststream_core_sql._ddl import create_table
from ruststream_core_sql._dialects._base import Queue, Session, Store
from ruststream_core_sql._dialects._sqlite import SqliteDialect
from ruststream_core_sql._dialects._sqlite_session import SqliteOpener
from ruststream_core_sql._subscription._base import SqlSubscription
from ruststream_core_sql._table import Table, table_of
from ruststream_core_sql.config import InboxQueue, Routes

__all__ = ["StandIn"]

LEASE: Final = 10 * 365 * 86_400.0
"""A test that moves its clock by a day means its timers, not that its own handlers lose their rows."""
SIZE: Final = 1000


class StandIn(SqlBroker):
    """A broker in memory.

    Differs from the real thing so: a row lock is a lock of the process on the row's id, leases do not run out,
    isolation levels are SQLite's, and each start begins with empty tables.

    Args:
        broker: what it stands in for.
        clock: what delays run on.
    """

    def __init__(self, broker: SqlBroker, clock: Clock) -> None:
        super().__init__("sqlite://", pool_size=SIZE)
        self._real = broker
        self._clock = clock
        self.routes: Routes = broker.routes

    def __repr__(self) -> str:
        return f"StandIn({self._real!r})"

    def source(self, source: str | Source) -> InboxQueue:
        return self._real.source(source)

    def features(self, source: InboxQueue) -> Features:
        return self._real.features(source)

    def describe(self) -> ServerInfo:
        return self._real.describe()

    def stand_in(self, clock: Clock) -> Broker[InboxQueue]:
        return StandIn(self._real, clock)

    async def connect(self) -> SqlConnection:
        base = datetime.now(UTC)
        start = self._clock.time()
        opener = SqliteOpener(
            "", 30.0, {}, inline=True, now=lambda: base + timedelta(seconds=self._clock.time() - start)
        )
        database = Database(opener, SIZE)
        await database.start()
        connection = StandInConnection(database, self.routes, self._clock)
        for table in self.routes.tables():
            await connection.create(table)
        # The service's repositories know the real broker only.
        self._real.adopt(connection)
        return connection


class StandInConnection(SqlConnection):
    """Creates the tables that it is asked about, and rows are held in ways that SQLite knows."""

    def __init__(self, database: Database, routes: Routes, clock: Clock) -> None:
        super().__init__(database, routes, clock)
        self._created: set[str] = set()

    async def create(self, table: Table) -> None:
        """The table, unless it is there."""
        if table.full_name not in self._created:
            self._created.add(table.full_name)
            async with self.database.session() as session:
                await _create(session, table)

    async def store(self, table: Table) -> Store:
        await self.create(table)
        return await super().store(table)

    async def subscribe(self, source: InboxQueue, demand: Demand, watch: Watch) -> SqlSubscription:
        await self.create(source.table)
        if isinstance(source.dead_letter, type):
            await self.create(table_of(source.dead_letter))
        return await super().subscribe(source, demand, watch)

    def _queue(self, source: InboxQueue) -> Queue:
        queue = super()._queue(source)
        table = queue.table
        if table.form == "lock":
            key = "id" if not table.fifo else "group"
            column = table.name_of(key)
            plain = msgspec.structs.replace(
                table, advisory_lock=f"{table.name}-{{{column}}}", isolation=None, count_crashes=False
            )
            return msgspec.structs.replace(queue, table=plain)
        return msgspec.structs.replace(queue, lease=LEASE, table=msgspec.structs.replace(table, isolation=None))


async def _create(session: Session, table: Table) -> None:
    plain = msgspec.structs.replace(table, schema=None)
    for statement in create_table(plain, SqliteDialect()):
        await session.execute(statement)
