"""Lost sessions, lost leases, and what listens."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_core.errors import LeaseLost
from ruststream_core.settlement import ACK
from ruststream_core.wire import Outgoing
from ruststream_core_sql._table import table_of


async def kill_sessions(db: Any) -> None:
    """End every session of the database but the one that asks."""
    if db.name == "postgresql":
        await db.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        return
    for (number,) in await db.run(
        "SELECT id FROM information_schema.processlist "
        "WHERE id <> CONNECTION_ID() AND user <> 'system user' AND db = DATABASE()"
    ):
        await db.run(f"KILL {number}")


@pytest.mark.parametrize("form", ["lease", "time"])
async def test_a_lease_outlives_the_connection(
    server_db: Any, form: str, take: Any, settled: Any, watcher: Any
) -> None:
    """Wrong: an outage costs a lease's deliveries, or counts their attempts."""
    row_type = await server_db.table(form=form)
    await server_db.fill(row_type, [b"1", b"2"])
    subscription = await server_db.subscribe(await server_db.connect(), row_type, watch=watcher, workers=2)
    deliveries = await take(subscription, 2)
    await kill_sessions(server_db)
    await settled(*[delivery.settle(ACK) for delivery in deliveries])
    assert watcher.losses == []
    assert await server_db.rows(row_type) == []
    await server_db.fill(row_type, [b"3"])
    (delivery,) = await take(subscription, 1)
    assert (delivery.payload, delivery.attempt) == (b"3", 1)
    await settled(delivery.settle(ACK))


@pytest.mark.parametrize("form", ["lock", "advisory"])
async def test_a_held_row_is_lost_with_its_session_and_comes_again(
    server_db: Any, form: str, take: Any, settled: Any, watcher: Any
) -> None:
    """Wrong: a handler goes on with a row that another may have, or the row is stuck."""
    row_type = await server_db.table(form=form)
    await server_db.fill(row_type, [b"1"])
    subscription = await server_db.subscribe(await server_db.connect(), row_type, watch=watcher)
    (delivery,) = await take(subscription, 1)
    await kill_sessions(server_db)
    if server_db.name == "mysql":  # the driver tells of it at the next statement
        await subscription._probe(list(subscription._holders))
    await watcher.until(lambda: bool(watcher.losses))
    assert delivery.lost is not None
    assert delivery.settle(ACK) is None
    (again,) = await take(subscription, 1)
    assert (again.payload, again.attempt) == (b"1", 1)
    await settled(again.settle(ACK))
    assert await server_db.rows(row_type) == []


@pytest.mark.parametrize("form", ["lease", "time"])
async def test_a_stolen_lease_is_told_and_settles_nothing(
    db: Any, form: str, take: Any, settled: Any, watcher: Any
) -> None:
    """Wrong: a settlement under an old token touches the row of its new holder."""
    row_type = await db.table(form=form)
    await db.fill(row_type, [b"1", b"2"])
    subscription = await db.subscribe(await db.connect(), row_type, watch=watcher, workers=2)
    first, second = await take(subscription, 2)
    table = table_of(row_type).name
    later = "'2099-01-01 00:00:00'"
    token = ", lease_token = 1" if form == "lease" else ""
    await db.run(f"UPDATE {table} SET locked_until = {later}{token} WHERE job_id = {first.id}")
    await settled(first.settle(ACK), second.settle(ACK))
    ((lost, error, verdict),) = watcher.losses
    assert lost is first
    assert isinstance(error, LeaseLost)
    assert verdict is ACK
    assert [row[0] for row in await db.rows(row_type, "job_id")] == [first.id]
    assert subscription.statistics().unsettled == 0


@pytest.mark.parametrize("form", ["lease", "time"])
async def test_a_long_handler_keeps_its_lease(db: Any, form: str, take: Any, settled: Any, watcher: Any) -> None:
    """Wrong: a lease that is not renewed, so that another gets the row while the handler runs."""
    row_type = await db.table(form=form)
    await db.fill(row_type, [b"1"])
    connection = await db.connect()
    subscription = await db.subscribe(connection, row_type, watch=watcher, lease=1.0)
    (delivery,) = await take(subscription, 1)
    other = await db.subscribe(await db.connect(), row_type, lease=1.0, poll=0.05)
    waiting = asyncio.ensure_future(other.receive(1))
    await asyncio.sleep(2.6)
    assert not waiting.done()
    assert watcher.losses == []
    await settled(delivery.settle(ACK))
    other.stop()
    await waiting
    assert await db.rows(row_type) == []


async def test_a_lease_that_cannot_be_renewed_is_lost_before_it_ends(db: Any, take: Any, watcher: Any) -> None:
    """Wrong: a handler that still runs when somebody else may have its row."""
    row_type = await db.table()
    await db.fill(row_type, [b"1"])
    subscription = await db.subscribe(await db.connect(), row_type, watch=watcher, lease=1.0)

    async def fail(*_: Any) -> Any:
        raise ConnectionError("no way")

    subscription._store.extend = fail
    (delivery,) = await take(subscription, 1)
    began = delivery.holder.expires
    await watcher.until(lambda: bool(watcher.losses))
    assert isinstance(delivery.lost, LeaseLost)
    assert asyncio.get_running_loop().time() < began


async def test_a_crashed_process_loses_no_row(db: Any, take: Any, settled: Any) -> None:
    """Wrong: rows that a dead worker had claimed need somebody to set them free."""
    row_type = await db.table()
    await db.fill(row_type, [b"1"])
    table = table_of(row_type).name
    # What a process leaves that was killed: a lease of the past, an attempt counted.
    await db.run(f"UPDATE {table} SET locked_until = '2000-01-01 00:00:00', lease_token = 5, attempt = 2")
    subscription = await db.subscribe(await db.connect(), row_type)
    (delivery,) = await take(subscription, 1)
    assert delivery.attempt == 2
    await settled(delivery.settle(ACK))


async def test_listening_wakes_another_process_also_after_its_connection_was_lost(
    request: pytest.FixtureRequest, tmp_path: Any, take: Any, settled: Any
) -> None:
    """Wrong: notifications stop for ever after the connection died, or what came meanwhile is not looked for."""
    conftest = request.config.pluginmanager.get_plugin("conftest") or __import__("sys").modules[take.__module__]
    database = conftest._database(request, "postgresql", tmp_path)
    row_type = await database.table(form="lease")
    receiving = await database.connect(listen=True, routes={"emails": row_type})
    subscription = await database.subscribe(receiving, row_type, poll=3600.0)
    sending = await database.connect(listen=True, routes={"emails": row_type})
    sender = await sending.sender()
    try:
        for round_ in range(3):
            waiting = asyncio.ensure_future(take(subscription, 1))
            await asyncio.sleep(0.2)
            await sender.send(Outgoing(str(round_).encode(), "emails"))
            async with asyncio.timeout(10):
                (delivery,) = await waiting
            assert delivery.payload == str(round_).encode()
            await settled(delivery.settle(ACK))
            connects = receiving._listener.connects
            await kill_sessions(database)
            await database.fill(row_type, [b"meanwhile"])  # nobody notifies
            async with asyncio.timeout(10):
                (delivery,) = await take(subscription, 1)
                await settled(delivery.settle(ACK))
                while receiving._listener.connects == connects:
                    await asyncio.sleep(0.01)
            await (await sending.sender()).flush()
    finally:
        await subscription.aclose(5)
        await receiving.aclose(5)
        await sending.aclose(5)


async def test_a_storm_of_cancellations_costs_no_session(db: Any, cancelled_at: Any) -> None:
    """Wrong: a session or a place in the pool is lost with each borrower that is cancelled, until all wait for ever."""
    database = (await db.connect(pool_size=2)).database

    async def borrow() -> None:
        async with database.session() as session:
            await session.begin()
            await session.fetch("SELECT 1")
            await session.commit()

    for step in range(60):
        reached, _ = await cancelled_at(borrow(), step)
        if not reached:
            break
    async with asyncio.timeout(10):
        both = [await database.acquire() for _ in range(2)]
        assert [len(await session.fetch("SELECT 1")) for session in both] == [1, 1]
        assert not any(session.in_transaction for session in both)
        for session in both:
            database.release(session)


async def test_cancelling_a_publish_or_a_commit_anywhere_leaves_it_whole(
    db: Any, take: Any, settled: Any, cancelled_at: Any
) -> None:
    """Wrong: half a transaction, a row that is held by nobody, or a session that is of no use afterwards."""
    row_type = await db.table()
    notes = await db.table()
    connection = await db.connect(routes={"emails": row_type, "notes": notes}, pool_size=8)
    sender = await connection.sender()
    subscription = await db.subscribe(connection, row_type)
    for step in range(60):
        await sender.send(Outgoing(b"x", "emails"))
        (delivery,) = await take(subscription, 1)
        unit = await subscription.begin([delivery])
        unit.send(Outgoing(b"note", "notes"))
        reached, _ = await cancelled_at(unit.commit([(delivery, ACK)]), step)
        await unit.rollback()  # waits for a commit that is under way, and is nothing after it
        assert len(await db.rows(notes)) == step + 1
        assert await db.rows(row_type) == []
        reached_send, _ = await cancelled_at(sender.send_many([Outgoing(b"late", "emails")]), step)
        await sender.flush()
        (late,) = await take(subscription, 1)
        await settled(late.settle(ACK))
        if not reached and not reached_send:
            break
    assert subscription.statistics().unsettled == 0
