"""Servers, tables and watchers for the tests of the SQL transport."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import asyncmy
import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest
import pytest_asyncio
from msgspec import UNSET, UnsetType

from ruststream_core.abc import Demand, State
from ruststream_core.errors import SettleError
from ruststream_core.settlement import Verdict
from ruststream_core.testing.servers import MariaDBServer, PostgresServer, ServerMissing
from ruststream_core.wire import Delivery
from ruststream_core_sql import InboxQueue, Role, SqlBroker, inbox
from ruststream_core_sql._ddl import create_table
from ruststream_core_sql._openers import dialect_of_name, opener_of
from ruststream_core_sql._table import table_of

NUMBERS = itertools.count(1)


def server(kind: type[Any]) -> Iterator[Any]:
    """A server for the whole session; in CI a missing one is a failure."""
    try:
        with kind(durable=False) as running:
            yield running
    except ServerMissing as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    yield from server(PostgresServer)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    yield from server(MariaDBServer)


class Watcher:
    """A `Watch` that remembers."""

    def __init__(self) -> None:
        self.losses: list[tuple[Delivery, SettleError, Verdict | None]] = []
        self.states: list[State] = []
        self.changed = asyncio.Event()

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        self.losses.append((delivery, error, verdict))
        self.changed.set()

    def state(self, state: State, cause: BaseException | None) -> None:
        self.states.append(state)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that the watch is told of makes the condition true."""
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Database:
    """One kind of database under test."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.closing: list[Any] = []

    def row_type(
        self,
        *,
        form: str = "lease",
        payload: Any = bytes,
        roles: Sequence[str] = ("group", "retry_after", "attempt"),
        extra: Sequence[tuple[Any, ...]] = (),
        **settings: Any,
    ) -> type[Any]:
        """A fresh row type with a table name of its own."""
        generated = Role.GENERATED
        moment = datetime | None | UnsetType
        known: dict[str, tuple[Any, ...]] = {
            "group": ("name", Annotated[str, Role.GROUP]),
            "fifo": ("name", Annotated[str, Role.GROUP, Role.FIFO]),
            "priority": ("priority", Annotated[int | UnsetType, Role.PRIORITY, generated], UNSET),
            "partition_key": ("customer", Annotated[str | None, Role.PARTITION_KEY], None),
            "headers": ("headers", Annotated[str | None, Role.HEADERS], None),
            "retry_after": ("retry_after", Annotated[moment, Role.RETRY_AFTER, generated], UNSET),
            "attempt": ("attempt", Annotated[int | UnsetType, Role.ATTEMPT, generated], UNSET),
            "processed_at": ("processed_at", Annotated[moment, Role.PROCESSED_AT, generated], UNSET),
            "locked_until": ("locked_until", Annotated[moment, Role.LOCKED_UNTIL, generated], UNSET),
            "lease_token": ("lease_token", Annotated[int | UnsetType | None, Role.LEASE_TOKEN, generated], UNSET),
        }
        fields = [known[role] for role in roles]
        if payload is not None:
            fields.append(("payload", Annotated[payload, Role.PAYLOAD]))
        fields.append(("job_id", Annotated[int | UnsetType, Role.ID, generated], UNSET))
        if form in ("lease", "time"):
            fields.append(known["locked_until"])
        if form == "lease":
            fields.append(known["lease_token"])
        if form == "advisory" and "advisory_lock" not in settings:
            settings["advisory_lock"] = f"job-{os.getpid()}-{{job_id}}"
        number = next(NUMBERS)
        kind = msgspec.defstruct(f"Job{number}", [*fields, *extra], kw_only=True)
        return inbox(f"job_{os.getpid()}_{number}", **settings)(kind)

    async def create(self, *row_types: type[Any]) -> None:
        """Create their tables from the printed DDL."""
        dialect = dialect_of_name(self.name)
        for row_type in row_types:
            for statement in create_table(table_of(row_type), dialect):
                await self.run(statement)

    async def table(self, **options: Any) -> type[Any]:
        """A fresh row type, and its table."""
        row_type = self.row_type(**options)
        await self.create(row_type)
        return row_type

    async def run(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """One statement on a connection of its own, with the plain driver."""
        if self.name == "postgresql":
            connection = await asyncpg.connect(self.url)
            try:
                return [tuple(row) for row in await connection.fetch(sql, *args)]
            finally:
                await connection.close()
        if self.name == "sqlite":
            with sqlite3.connect(self.path) as lite:
                rows = lite.execute(sql, args).fetchall()
            lite.close()
            return rows
        return await self._run_mysql(sql)

    async def _run_mysql(self, sql: str) -> list[tuple[Any, ...]]:
        settings = opener_of(self.url, 30.0)._settings  # type: ignore[attr-defined]
        connection = await asyncmy.connect(**settings)
        try:
            cursor = connection.cursor()
            await cursor.execute(sql)
            rows: Any = getattr(cursor, "_rows", None)
            return list(rows or ())
        finally:
            await connection.ensure_closed()

    @property
    def path(self) -> str:
        """SQLite's file."""
        return self.url.removeprefix("sqlite:///")

    async def connect(self, **settings: Any) -> Any:
        """A connection that is closed at the end of the test."""
        broker = SqlBroker(self.url, **{"pool_size": 40, **settings})
        connection: Any = await broker.connect()
        connection.broker = broker
        self.closing.append(connection)
        return connection

    async def subscribe(
        self, connection: Any, row_type: type[Any], name: str | None = "emails", watch: Any = None, **options: Any
    ) -> Any:
        """A subscription on a queue of that table."""
        demand = Demand(
            **{key: options.pop(key) for key in ("workers", "batch", "linger", "prefetch") if key in options}
        )
        source = connection.broker.source(InboxQueue(row_type, name, **{"poll": 0.1, **options}))
        subscription = await connection.subscribe(source, demand, watch or Watcher())
        self.closing.insert(0, subscription)
        return subscription

    async def fill(self, row_type: type[Any], payloads: Sequence[bytes], name: str = "emails") -> None:
        """Rows, through the plain driver."""
        table = table_of(row_type).name
        for payload in payloads:
            text = payload.decode()
            if self.name == "postgresql":
                await self.run(f"INSERT INTO {table} (name, payload) VALUES ($1, $2)", name, payload)
            elif self.name == "sqlite":
                await self.run(f"INSERT INTO {table} (name, payload) VALUES (?, ?)", name, payload)
            else:
                await self.run(f"INSERT INTO {table} (name, payload) VALUES ('{name}', '{text}')")

    async def rows(self, row_type: type[Any], columns: str = "*", where: str = "1 = 1") -> list[tuple[Any, ...]]:
        """What the table holds."""
        table = table_of(row_type).name
        return await self.run(f"SELECT {columns} FROM {table} WHERE {where} ORDER BY job_id")


def _database(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> Database:
    if name == "postgresql":
        return Database(name, request.getfixturevalue("postgres_server").url)
    if name == "mysql":
        return Database(name, request.getfixturevalue("mariadb_server").url)
    return Database(name, f"sqlite:///{tmp_path / 'test.db'}")


@pytest_asyncio.fixture(params=["postgresql", "mysql", "sqlite"])
async def db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """Each database in turn."""
    database = _database(request, request.param, tmp_path)
    yield database
    for thing in database.closing:
        await thing.aclose(5.0)


@pytest_asyncio.fixture(params=["postgresql", "mysql"])
async def server_db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """Each database that is a server."""
    database = _database(request, request.param, tmp_path)
    yield database
    for thing in database.closing:
        await thing.aclose(5.0)


FORMS = [
    (name, form)
    for name in ("postgresql", "mysql", "sqlite")
    for form in ("lease", "time", "lock", "advisory")
    if (name, form) != ("sqlite", "lock")
]


@pytest_asyncio.fixture(params=FORMS, ids=["-".join(pair) for pair in FORMS])
async def held(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Database, str]]:
    """Each database with each way to hold a row that it has; `time` is a lease without a token column."""
    name, form = request.param
    database = _database(request, name, tmp_path)
    yield database, form
    for thing in database.closing:
        await thing.aclose(5.0)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


async def take(subscription: Any, count: int) -> list[Any]:
    """That many deliveries, however many receives they take."""
    out: list[Any] = []
    async with asyncio.timeout(20):
        while len(out) < count:
            out.extend(await subscription.receive(count - len(out)))
    return out


async def settled(*futures: Any) -> None:
    """Wait until these settlements are decided."""
    async with asyncio.timeout(20):
        for future in futures:
            if future is not None:
                await future


@pytest.fixture(name="take")
def _take() -> Any:
    return take


@pytest.fixture(name="settled")
def _settled() -> Any:
    return settled


class _CancelAt:
    """Awaits a coroutine, and has its task cancelled at the n-th suspension."""

    def __init__(self, work: Any, step: int) -> None:
        self._work = work
        self._step = step
        self.reached = False

    def __await__(self) -> Any:
        inner = self._work.__await__()
        task = asyncio.current_task()
        assert task is not None
        count = 0
        send, value = inner.send, None
        while True:
            try:
                waiting = send(value)
            except StopIteration as end:
                return end.value
            if count == self._step:
                self.reached = True
                asyncio.get_running_loop().call_soon(task.cancel)
            count += 1
            try:
                value = yield waiting
                send = inner.send
            except BaseException as exc:
                send, value = inner.throw, exc


async def cancelled_at(work: Any, step: int) -> tuple[bool, Any]:
    """Run `work`, cancelled at its n-th suspension; whether it has one, and what it returned all the same."""
    cut = _CancelAt(work, step)

    async def run() -> Any:
        return await cut

    results: list[Any] = list(await asyncio.gather(asyncio.ensure_future(run()), return_exceptions=True))
    result = results[0]
    if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
        raise result
    return cut.reached, None if isinstance(result, BaseException) else result


@pytest.fixture(name="cancelled_at")
def _cancelled_at() -> Any:
    return cancelled_at
