"""The database of an outbox or inbox: opened when it is first needed, in the loop that needs it."""

from __future__ import annotations

import asyncio
from typing import Any

from ruststream_core_sql._broker import SqlBroker
from ruststream_core_sql._check import check_store
from ruststream_core_sql._database import Database
from ruststream_core_sql._dialects._base import Dialect, Queue, Store
from ruststream_core_sql._openers import dialect_of_url, opener_of
from ruststream_core_sql._table import Table
from ruststream_core_sql._tasks import spawn
from ruststream_core_sql._wake import Hub

__all__ = ["Home"]


class Home:
    """Sessions and statements.

    Args:
        target: a URL, an asyncpg or asyncmy pool, or a SqlBroker, whose settings are taken.
        pool_size: most sessions at once.
    """

    def __init__(self, target: Any, pool_size: int) -> None:
        broker = isinstance(target, SqlBroker)
        self._target = target.target if broker else target
        self._deadline = target.deadline if broker else 30.0
        self._size = pool_size
        self.dialect: Dialect = target.dialect if broker else dialect_of_url(target)
        self.hub = Hub()
        self._opening: asyncio.Task[Database] | None = None
        self._stores: dict[type, Store] = {}

    async def database(self) -> Database:
        """The open database; raises as `Database.start`."""
        opening = self._opening
        if opening is None:
            opening = self._opening = spawn(self._open(), "sql:outbox")
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None
            raise

    async def _open(self) -> Database:
        database = Database(opener_of(self._target, self._deadline), self._size)
        try:
            await database.start()
        except BaseException:
            await database.aclose()
            raise
        return database

    async def store(self, table: Table) -> Store:
        """The statements of a table, inspected and prepared once.

        Raises:
            ConfigError: the table is not as the row type says.
        """
        store = self._stores.get(table.row_type)
        if store is None:
            database = await self.database()
            store = database.dialect.store(Queue(table=table, lease=table.lease))
            async with database.session() as session:
                await store.inspect(session)
                await check_store(store, session)
            self._stores[table.row_type] = store
        return store

    async def aclose(self) -> None:
        """Close the sessions; a later use opens them again."""
        opening, self._opening = self._opening, None
        self._stores.clear()
        if opening is not None:
            await asyncio.wait([opening])
            if opening.exception() is None:
                await opening.result().aclose()
