"""Order, routing, publishing and waking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ruststream_core.abc import Demand
from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.settlement import ACK, Retry
from ruststream_core.wire import Headers, Outgoing
from ruststream_core_sql import InboxQueue, Repository, SqlBroker, SqlPublish
from ruststream_core_sql._table import table_of


@pytest.mark.parametrize("form", ["lease", "lock"])
async def test_fifo_has_one_row_in_work_over_all_processes(db: Any, form: str, take: Any, settled: Any) -> None:
    """Wrong: the second row of a group handed out while the first is in work, or out of order after a retry."""
    row_type = await db.table(form=form, roles=("fifo", "retry_after", "attempt"))
    if (db.name, form) == ("sqlite", "lock"):
        with pytest.raises(ConfigError):  # it locks no rows
            await db.subscribe(await db.connect(), row_type)
        return
    await db.fill(row_type, [b"1", b"2", b"3"])
    one = await db.subscribe(await db.connect(), row_type, poll=0.05)
    (first,) = await take(one, 1)
    assert first.payload == b"1"
    two = await db.subscribe(await db.connect(), row_type, poll=0.05)
    waiting = asyncio.ensure_future(two.receive(1))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    one.stop()
    await settled(first.settle(Retry()))  # keeps the head
    (again,) = await waiting
    assert (again.payload, again.attempt) == (b"1", 2)
    await settled(again.settle(Retry(after=0.3)))  # moves it back
    order = []
    for _ in range(3):
        (delivery,) = await take(two, 1)
        order.append(delivery.payload)
        await settled(delivery.settle(ACK))
    assert order == [b"2", b"3", b"1"]


async def test_smaller_priorities_come_first(held: Any, take: Any, settled: Any) -> None:
    """Wrong: rows in the order of their ids though they have priorities."""
    db, form = held
    row_type = await db.table(form=form, roles=("group", "priority"))
    connection = await db.connect(routes={"emails": row_type})
    sender = await connection.sender()
    for priority in (3, 1, 2):
        await sender.send(Outgoing(str(priority).encode(), "emails", options=SqlPublish(priority=priority)))
    subscription = await db.subscribe(connection, row_type, workers=1)
    got = []
    for _ in range(3):
        (delivery,) = await take(subscription, 1)
        got.append(delivery.payload)
        await settled(delivery.settle(ACK))
    assert got == [b"1", b"2", b"3"]


async def test_what_is_published_arrives_unchanged(held: Any, take: Any, settled: Any) -> None:
    """Wrong: a payload, key, header or name that is not what was sent, whatever the database thinks of its bytes."""
    db, form = held
    row_type = await db.table(form=form, roles=("group", "headers", "partition_key"))
    connection = await db.connect(routes={"a.*": row_type})
    sender = await connection.sender()
    sent = {
        b"": "empty",
        bytes(range(256)): "binary",
        "naïve \U0001f600 '\\\" % %s {x}".encode(): "quotes ' \" \\ % {} \U0001f600",
        b"\0" * 5: "nul",
        b"x" * 300_000: "large",
    }
    for payload, text in sent.items():
        await sender.send(Outgoing(payload, "a.b", Headers({"X-Text": text, "": "no name"}), "ключ'".encode()))
    subscription = await db.subscribe(connection, row_type, "a.b", workers=8)
    got = {}
    for delivery in await take(subscription, len(sent)):
        got[delivery.payload] = delivery.headers["x-text"]
        assert (delivery.key, delivery.name, delivery.lane) == ("ключ'".encode(), "a.b", "ключ'".encode())
        assert delivery.headers[""] == "no name"
        await settled(delivery.settle(ACK))
    assert got == sent


async def test_a_publish_wakes_its_queue_in_this_process(held: Any, take: Any, settled: Any) -> None:
    """Wrong: a message that waits for the poll, though the process that published it has the subscription."""
    db, form = held
    row_type = await db.table(form=form)
    connection = await db.connect(routes={"emails": row_type})
    sender = await connection.sender()
    subscription = await db.subscribe(connection, row_type, poll=3600.0)
    waiting = asyncio.ensure_future(take(subscription, 1))
    await asyncio.sleep(0.3)  # it has looked, and waits
    assert not waiting.done()
    await sender.send(Outgoing(b"x", "emails"))
    async with asyncio.timeout(5):
        (delivery,) = await waiting
    await settled(delivery.settle(ACK))


async def test_a_publish_that_cannot_be_stored_says_so_and_hurts_no_other(db: Any) -> None:
    """Wrong: one refused message takes its neighbours with it, or is lost in silence."""
    row_type = await db.table(roles=("group", "headers"))
    connection = await db.connect(routes={"emails": row_type})
    sender = await connection.sender()
    outs = [
        Outgoing(b"1", "emails"),
        Outgoing(b"2", "nowhere"),
        Outgoing(b"3", "emails", Headers([("a", "1"), ("a", "2")])),
        Outgoing(b"4", "emails", Headers({"a": "\0"})),
        Outgoing(b"5", "emails", Headers({"a": b"\xff"})),
        Outgoing(b"6", "emails", options=SqlPublish(priority=1)),
        Outgoing(b"7", "emails"),
    ]
    with pytest.raises(PublishError) as caught:
        await sender.send_many(outs)
    assert sorted(caught.value.failed) == [1, 2, 3, 4, 5]
    assert "no route for 'nowhere'" in str(caught.value.failed[1])
    assert "'a'" in str(caught.value.failed[3])
    assert [bytes(row[0]) for row in await db.rows(row_type, "payload")] == [b"1", b"7"]


async def test_five_thousand_in_one_call_and_out_again(db: Any, take: Any, settled: Any) -> None:
    """Wrong: a limit of bound parameters, or of the size of a statement, shows through."""
    row_type = await db.table()
    connection = await db.connect(routes={"emails": row_type})
    sender = await connection.sender()
    await sender.send_many([Outgoing(b"x" * 2000, "emails") for _ in range(5000)])
    subscription = await db.subscribe(connection, row_type, workers=1)
    count = 0
    futures = set()
    async with asyncio.timeout(60):
        while count < 5000:
            for delivery in await subscription.receive(1000):
                count += 1
                futures.add(delivery.settle(ACK))
        await settled(*futures)
    assert await db.rows(row_type, "count(*)", "1 = 1 GROUP BY name, job_id") == []
    assert len(futures) < 500  # gathered: many rows share the future of one statement


async def test_rows_as_objects(held: Any, take: Any, settled: Any) -> None:
    """Wrong: in row mode a column is missing, or of another type than the row type says."""
    import msgspec

    db, form = held
    row_type = await db.table(form=form, payload=None, extra=[("address", str), ("count", int), ("vip", bool)])
    connection = await db.connect()
    repository = Repository(row_type, connection.broker)
    await repository.publish(row_type(name="emails", address="a@b", count=3, vip=True))
    subscription = await db.subscribe(connection, row_type)
    (delivery,) = await take(subscription, 1)
    row = delivery.row
    assert (row.name, row.address, row.count, row.vip) == ("emails", "a@b", 3, True)
    assert msgspec.json.decode(delivery.payload, type=row_type) == row
    await settled(delivery.settle(ACK))


async def test_own_columns_are_headers_where_there_is_no_headers_column(db: Any, take: Any, settled: Any) -> None:
    """Wrong: the service's own columns are not seen by a handler."""
    row_type = await db.table(extra=[("tenant", str), ("weight", int | None, None)])
    connection = await db.connect(routes={"emails": row_type})
    await (await connection.sender()).send(Outgoing(b"x", "emails", Headers({"tenant": "t1", "unknown": "y"})))
    subscription = await db.subscribe(connection, row_type)
    (delivery,) = await take(subscription, 1)
    assert dict(delivery.headers) == {"tenant": "t1"}
    await settled(delivery.settle(ACK))


async def test_wiring_errors_are_found_before_a_message_flows(db: Any, watcher: Any) -> None:
    """Wrong: a missing table or column is found by the first message."""
    row_type = db.row_type()
    connection = await db.connect()
    with pytest.raises(ConfigError, match=table_of(row_type).name):
        await connection.subscribe(connection.broker.source(InboxQueue(row_type, "emails")), Demand(), watcher)
    table = table_of(row_type).name
    await db.run(f"CREATE TABLE {table} (job_id integer, name varchar(20))")
    with pytest.raises(ConfigError, match="payload"):
        await connection.subscribe(connection.broker.source(InboxQueue(row_type, "emails")), Demand(), watcher)
    with pytest.raises(ConfigError, match="no route for 'nothing'"):
        connection.broker.source("nothing")


async def test_a_pool_too_small_is_refused(db: Any) -> None:
    """Wrong: workers that wait for sessions for ever."""
    row_type = await db.table(form="advisory")
    with pytest.raises(ConfigError, match="pool_size=9"):
        await db.subscribe(await db.connect(pool_size=4), row_type, workers=8)


async def test_one_subscription_per_queue_and_process(db: Any) -> None:
    """Wrong: two subscriptions that take each other's rows without anybody having said so."""
    row_type = await db.table()
    connection = await db.connect()
    subscription = await db.subscribe(connection, row_type)
    with pytest.raises(ConfigError, match="subscribed already"):
        await db.subscribe(connection, row_type)
    await subscription.aclose(5)
    await db.subscribe(connection, row_type)


def test_credentials_are_nowhere_to_be_seen() -> None:
    """Wrong: a password in a repr, a document or an error."""
    broker = SqlBroker("postgresql://app:s3cret@db.example/app?sslmode=disable")
    assert "s3cret" not in repr(broker) + repr(broker.describe()) + repr(broker.features)


async def test_a_refused_connection_names_server_and_user_only() -> None:
    """Wrong: a password in the error of a failed start."""
    from ruststream_core.errors import ConnectError

    for scheme in ("postgresql", "mysql"):
        with pytest.raises(ConnectError) as caught:
            await SqlBroker(f"{scheme}://app:s3cret@127.0.0.1:1/app").connect()
        assert "127.0.0.1:1" in str(caught.value)
        assert "s3cret" not in str(caught.value)
