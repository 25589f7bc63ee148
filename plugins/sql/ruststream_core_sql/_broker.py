"""Broker and connection: the wiring of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from ruststream_core.abc import (
    Broker,
    Clock,
    Connection,
    Demand,
    Features,
    PublishOptions,
    ServerInfo,
    Source,
    Watch,
)
from ruststream_core.errors import Closed, ConfigError, ConnectError
from ruststream_core.kit import LoopClock
from ruststream_core_sql._check import check_store
from ruststream_core_sql._database import Database, Opener
from ruststream_core_sql._dialects._base import Queue, Store
from ruststream_core_sql._listen import Listener
from ruststream_core_sql._openers import dialect_of_url, opener_of, server_info
from ruststream_core_sql._publisher import SqlSender
from ruststream_core_sql._records import Inserter, Recorder, utc_now
from ruststream_core_sql._subscription import Opening, SqlSubscription, open_subscription
from ruststream_core_sql._table import Table
from ruststream_core_sql._wake import Hub
from ruststream_core_sql.config import WINDOW, InboxQueue, Routes
from ruststream_core_sql.errors import brief, is_passing

__all__ = ["SqlBroker", "SqlConnection"]


class SqlBroker(Broker[InboxQueue]):
    """Queues in the tables of a PostgreSQL, MySQL, MariaDB or SQLite database.

    Args:
        database: a URL (`postgresql://`, `mysql://`, `sqlite:///path`, `sqlite://` in memory), or the application's
            own pool, an `asyncpg.Pool` or `asyncmy.Pool`, which is used and never closed.
        routes: which table a name belongs to, for subscribing and publishing by name: `{"emails": EmailJob}`; a name
            that ends in `*` stands for all that begin so.
        pool_size: most sessions that are open at once. A lease subscription holds two, a row lock or advisory lock
            one for each delivery in work; one is kept for publishing.
        deadline: seconds for one statement; a session that needs longer is broken off.
        listen: PostgreSQL: NOTIFY at every publish and LISTEN, so that other processes are woken at once. Polling
            stays as the floor.

    Raises:
        ConfigError: the URL or a route is not understood.
    """

    separator: ClassVar[str] = "."

    def __init__(
        self,
        database: Any,
        *,
        routes: Mapping[str, type] | None = None,
        pool_size: int = 16,
        deadline: float = 30.0,
        listen: bool = False,
    ) -> None:
        self.target = database
        self.dialect = dialect_of_url(database)
        self.routes = Routes(routes or {})
        self.pool_size = pool_size
        self.deadline = deadline
        self.listen = listen
        self._running: list[SqlConnection] = []
        if listen and self.dialect.name != "postgresql":
            raise ConfigError(f"listen=True: {self.dialect.name} has no LISTEN; leave it out, polling works everywhere")

    def __repr__(self) -> str:
        return f"SqlBroker({self.dialect.name}, {server_info(self.target).host!r}, routes={self.routes.describe()})"

    @classmethod
    def from_url(cls, url: str) -> Self:
        return cls(url)

    def source(self, source: str | Source) -> InboxQueue:
        if isinstance(source, str):
            table = self.routes.find(source)
            if table is None:
                raise ConfigError(
                    f"no route for {source!r}: give SqlBroker(routes={{{source!r}: RowType}}), which has "
                    f"{self.routes.describe()}, or subscribe to InboxQueue(RowType, {source!r})"
                )
            source = InboxQueue(table.row_type, source if table.get("group") is not None else None)
        if not isinstance(source, InboxQueue):
            raise ConfigError(f"{type(source).__name__} is no source of a SQL database: give a name or InboxQueue(...)")
        self._suits(source)
        return source

    def _suits(self, source: InboxQueue) -> None:
        table = source.table
        if table.isolation is not None and table.isolation not in self.dialect.isolations:
            raise ConfigError(
                f"{source!r}: isolation={table.isolation!r}: {self.dialect.name} has "
                f"{', '.join(sorted(self.dialect.isolations))}"
            )
        self.dialect.suits(source.as_queue())

    def features(self, source: InboxQueue) -> Features:
        return source.features()

    def describe(self) -> ServerInfo:
        return server_info(self.target)

    def stand_in(self, clock: Clock) -> Broker[InboxQueue]:
        from ruststream_core_sql._stand_in import StandIn  # noqa: PLC0415  only tests need it

        return StandIn(self, clock)

    async def connect(self) -> SqlConnection:
        opener = opener_of(self.target, self.deadline)
        return await self._connected(opener, LoopClock())

    async def _connected(self, opener: Opener, clock: Clock) -> SqlConnection:
        database = Database(opener, self.pool_size)
        try:
            await database.start()
        except BaseException:
            await database.aclose()
            raise
        return self.adopt(SqlConnection(database, self.routes, clock, listen=self.listen))

    def adopt(self, connection: SqlConnection) -> SqlConnection:
        """The newest connection is what repositories use."""
        self._running.append(connection)
        connection.on_close = lambda: self._ended(connection)
        return connection

    def _ended(self, connection: SqlConnection) -> None:
        if connection in self._running:
            self._running.remove(connection)

    def running(self) -> SqlConnection:
        """The connection of the app that runs.

        Raises:
            Closed: none does.
        """
        if not self._running:
            raise Closed(f"{self!r} is not connected: start the app first, or pass connection=")
        return self._running[-1]


class SqlConnection(Connection[InboxQueue]):
    """The sessions of one running app."""

    def __init__(self, database: Database, routes: Routes, clock: Clock, *, listen: bool = False) -> None:
        self.database = database
        self.hub = Hub()
        self._routes = routes
        self._clock = clock
        self._stores: dict[type, Store] = {}
        self._open: set[tuple[str, str | None]] = set()
        self._subscriptions: set[SqlSubscription] = set()
        self._senders: list[SqlSender] = []
        self.recorder = Recorder(routes, database.dialect.to_column, utc_now)
        self._listener = Listener(database, self.hub) if listen else None
        self.on_close: Callable[[], object] | None = None
        self.inserter = Inserter(database, self._store_of, self.hub, notify=listen)

    def _store_of(self, table: Table) -> Store:
        return self._stores[table.row_type]

    async def store(self, table: Table) -> Store:
        """The statements of a table for publishing, inspected once.

        Raises:
            ConfigError: the table or a column is missing.
            ConnectError: not now.
        """
        store = self._stores.get(table.row_type)
        if store is None:
            store = self.database.dialect.store(Queue(table=table))
            await self._inspect(store)
            self._stores[table.row_type] = store
        return store

    async def _inspect(self, store: Store) -> None:
        try:
            async with self.database.session() as session:
                await store.inspect(session)
                await check_store(store, session)
        except (Closed, ConfigError, ConnectError):
            raise
        except Exception as exc:
            if is_passing(exc):
                raise ConnectError(f"{self.database.opener.where}: {brief(exc)}") from exc
            raise ConfigError(f"table {store.queue.table.full_name!r}: {brief(exc)}") from exc

    def _queue(self, source: InboxQueue) -> Queue:
        return source.as_queue()

    async def subscribe(self, source: InboxQueue, demand: Demand, watch: Watch) -> SqlSubscription:
        queue = self._queue(source)
        place = (queue.table.full_name, queue.name)
        if place in self._open:
            raise ConfigError(f"{source!r} is subscribed already: one subscription per queue and process")
        store = self.database.dialect.store(queue)
        await self._inspect(store)
        if self._listener is not None:
            await self._listener.listen(queue.table)
        opening = Opening(
            database=self.database,
            store=store,
            queue=queue,
            demand=demand,
            watch=watch,
            hub=self.hub,
            clock=self._clock,
            features=source.features(),
            poll=source.poll,
            window=self._window(source, demand),
            max_attempts=source.max_attempts,
            inserter=self.inserter,
            recorder=self.recorder,
        )
        subscription = await open_subscription(opening)
        self._open.add(place)
        self._subscriptions.add(subscription)
        subscription.on_detach(lambda: self._open.discard(place))
        subscription.on_detach(lambda: self._subscriptions.discard(subscription))
        return subscription

    @staticmethod
    def _window(source: InboxQueue, demand: Demand) -> int:
        taken = demand.workers * demand.batch
        if source.table.fifo and source.table.form != "lease":
            return 1
        wanted = demand.prefetch or source.prefetch
        if wanted is not None and wanted < taken:
            raise ConfigError(f"{source!r}: workers times batch is {taken}, prefetch is {wanted}: set {taken} or more")
        return wanted or (max(WINDOW, 2 * taken) if source.table.form == "lease" else taken)

    async def sender(self, options: PublishOptions | None = None) -> SqlSender:
        if self.database.closed:
            raise Closed(f"{self.database.opener.where}: the connection is closed")
        sender = SqlSender(self.recorder, self.inserter, options)
        for table in self._routes.tables():
            await self.store(table)
        self._senders.append(sender)
        return sender

    async def ping(self) -> None:
        try:
            async with self.database.session() as session:
                await session.fetch("SELECT 1")
        except ConnectError:
            raise
        except Exception as exc:
            raise ConnectError(f"{self.database.opener.where}: {brief(exc)}") from exc

    async def aclose(self, grace: float) -> None:
        # What was not closed by its owner must not wait for ever.
        for subscription in list(self._subscriptions):
            await subscription.aclose(grace)
        senders, self._senders = self._senders, []
        if senders:
            await asyncio.wait([asyncio.ensure_future(sender.aclose(grace)) for sender in senders])
        if self._listener is not None:
            await self._listener.aclose()
            self._listener = None
        await self.database.aclose()
        if self.on_close is not None:
            self.on_close()
