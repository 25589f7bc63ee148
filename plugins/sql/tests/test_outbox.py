"""Record, send, relay; and once at the receiver."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

import asyncio
import itertools
import os
from datetime import datetime
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.settlement import Ack, Retry, Skip
from ruststream_core.wire import Headers, Outgoing
from ruststream_core_sql import Inbox, InboxTransaction, Outbox, Role, outbox

NUMBERS = itertools.count(1)
OUTBOX_ID = "x-ruststream-outbox-id"


@pytest.fixture
async def orders(db: Any) -> Any:
    """A table of outgoing orders."""

    class Record(msgspec.Struct, kw_only=True):
        name: Annotated[str, Role.NAME]
        payload: Annotated[bytes, Role.PAYLOAD]
        headers: Annotated[str | None, Role.HEADERS] = None
        key: Annotated[str | None, Role.PARTITION_KEY] = None
        record_id: Annotated[int | UnsetType, Role.ID, Role.GENERATED] = UNSET
        attempt: Annotated[int | UnsetType, Role.ATTEMPT, Role.GENERATED] = UNSET
        processed_at: Annotated[datetime | UnsetType | None, Role.PROCESSED_AT, Role.GENERATED] = UNSET
        locked_until: Annotated[datetime | UnsetType | None, Role.LOCKED_UNTIL, Role.GENERATED] = UNSET

    row_type = outbox(f"out_{os.getpid()}_{next(NUMBERS)}")(Record)
    await db.create(row_type)
    return row_type


async def rows(db: Any, row_type: Any, columns: str = "processed_at IS NULL") -> list[Any]:
    from ruststream_core_sql._table import table_of

    found = await db.run(f"SELECT {columns} FROM {table_of(row_type).name} ORDER BY record_id")
    return [row[0] for row in found]


class Bus:
    """A publisher that remembers, and fails when told."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, str, dict[str, str], bytes | None]] = []
        self.failing: set[bytes] = set()
        self.changed = asyncio.Event()

    async def publish(self, value: bytes, *, to: str, headers: dict[str, str], key: bytes | None) -> None:
        await asyncio.sleep(0)
        if value in self.failing:
            self.changed.set()
            raise PublishError("no")
        self.sent.append((value, to, headers, key))
        self.changed.set()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def eventually(probe: Any, expected: Any) -> None:
    """Ask until the answer is right: for what happens beside us."""
    async with asyncio.timeout(20):
        while await probe() != expected:
            await asyncio.sleep(0.02)


async def test_a_publish_is_recorded_before_it_is_sent_and_finished_after(db: Any, orders: Any) -> None:
    """Wrong: a message sent that was never recorded, or a record finished that the broker has not confirmed."""
    box = Outbox(db.url, {"orders": orders})
    seen: list[Any] = []

    async def send(out: Outgoing) -> None:
        seen.append((out.headers[OUTBOX_ID], await rows(db, orders)))

    layered = box.middleware().publish(send, "default")
    await layered(Outgoing(b"1", "orders", Headers({"a": "b"}), b"k"))
    ((record_id, then),) = seen
    assert [bool(x) for x in then] == [True]
    assert record_id == str((await rows(db, orders, "record_id"))[0])
    await eventually(lambda: rows(db, orders, "CASE WHEN processed_at IS NULL THEN 1 ELSE 0 END"), [0])
    await layered(Outgoing(b"2", "orders", Headers({OUTBOX_ID: "7"})))  # a relay's own: recorded already
    assert len(await rows(db, orders)) == 1
    await box.aclose()


async def test_a_failed_recording_sends_nothing(db: Any, orders: Any) -> None:
    """Wrong: the message leaves though its record could not be written."""
    box = Outbox(db.url, {"orders": orders})
    sent: list[Outgoing] = []

    async def send(out: Outgoing) -> None:
        sent.append(out)

    layered = box.middleware().publish(send, "default")
    with pytest.raises(PublishError):
        await layered(Outgoing(b"1", "orders", Headers([("a", "1"), ("a", "2")])))
    assert sent == []
    await box.aclose()


async def test_what_could_not_be_sent_is_sent_by_the_relay(db: Any, orders: Any) -> None:
    """Wrong: a publish during an outage of the broker is lost, or sent twice."""
    box = Outbox(db.url, {"orders": orders})

    async def send(out: Outgoing) -> None:
        raise PublishError("the broker is away")

    await box.middleware().publish(send, "default")(Outgoing(b"1", "orders", Headers({"a": "b"}), b"k"))
    bus = Bus()
    async with box.relaying(bus, poll=0.05) as relay:
        await bus.until(lambda: bool(bus.sent))
        await eventually(lambda: rows(db, orders, "CASE WHEN processed_at IS NULL THEN 1 ELSE 0 END"), [0])
        assert relay.sent == 1
    ((value, to, headers, key),) = bus.sent
    assert (value, to, key, headers["a"]) == (b"1", "orders", b"k", "b")
    assert headers[OUTBOX_ID] == str((await rows(db, orders, "record_id"))[0])
    await box.aclose()


async def test_two_relays_share_the_work_in_the_order_of_each_key(db: Any, orders: Any) -> None:
    """Wrong: a record sent twice, or two of a key in another order, though a send fails on the way."""
    box = Outbox(db.url, {"orders": orders}, pool_size=16)
    for k in range(60):
        await box.publish(f"{k % 3}-{k}".encode(), to="orders", key=str(k % 3))
    bus = Bus()
    bus.failing = {b"1-4"}
    other = Outbox(db.url, {"orders": orders}, pool_size=16)
    async with box.relaying(bus, batch=7, poll=0.05), other.relaying(bus, batch=7, poll=0.05) as second:
        await bus.until(lambda: len(bus.sent) >= 41)
        bus.failing = set()
        await bus.until(lambda: len(bus.sent) >= 60)
        assert second.sent + 0 >= 0
    values = [value for value, *_ in bus.sent]
    assert len(values) == len(set(values)) == 60
    for key in (b"0", b"1", b"2"):
        numbers = [int(value.partition(b"-")[2]) for value in values if value.startswith(key)]
        assert numbers == sorted(numbers)
    await box.aclose()
    await other.aclose()


async def test_a_record_in_the_callers_transaction_lives_and_dies_with_it(db: Any, orders: Any) -> None:
    """Wrong: a record of a transaction that was rolled back is sent, or none of one that was committed."""
    if db.name == "sqlite":
        pytest.skip("no foreign connection is accepted on SQLite, see the test of transactional handlers")
    box = Outbox(db.url, {"orders": orders})
    connection, begin, end, close = await _driver(db)
    with pytest.raises(ConfigError, match="no transaction is open"):
        await box.publish({"a": 1}, to="orders", connection=connection)
    for command in ("ROLLBACK", "COMMIT"):
        await begin()
        await box.publish({"a": command}, to="orders", connection=connection)
        await end(command)
    await close()
    bus = Bus()
    async with box.relaying(bus, poll=0.05):
        await bus.until(lambda: bool(bus.sent))
    assert [value for value, *_ in bus.sent] == [b'{"a":"COMMIT"}']
    assert bus.sent[0][2]["content-type"] == "application/json"
    await box.aclose()


async def _driver(db: Any) -> Any:
    if db.name == "postgresql":
        import asyncpg  # type: ignore[import-untyped]

        connection = await asyncpg.connect(db.url)
        return connection, lambda: connection.execute("BEGIN"), connection.execute, connection.close
    import asyncmy

    from ruststream_core_sql._openers import opener_of

    connection = await asyncmy.connect(**opener_of(db.url, 30.0)._settings)  # type: ignore[attr-defined]

    async def end(command: str) -> None:
        await connection.cursor().execute(command)

    return connection, connection.begin, end, connection.ensure_closed


@pytest.mark.parametrize("kind", ["connection", "session"])
async def test_a_record_through_sqlalchemy(db: Any, orders: Any, kind: str) -> None:
    """Wrong: the record survives SQLAlchemy's rollback, because no statement had begun its transaction."""
    if db.name == "sqlite":
        pytest.skip("SQLAlchemy on SQLite has no connection of ours")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    dialect = "postgresql+asyncpg" if db.name == "postgresql" else "mysql+asyncmy"
    engine = create_async_engine(dialect + db.url[db.url.index(":") :])
    box = Outbox(db.url, {"orders": orders})
    for keep in (False, True):
        opened = AsyncSession(engine) if kind == "session" else engine.connect()
        async with opened as mine:
            await box.publish(str(keep).encode(), to="orders", connection=mine)
            await (mine.commit() if keep else mine.rollback())
    await engine.dispose()
    assert [bytes(row) for row in await rows(db, orders, "payload")] == [b"True"]
    await box.aclose()


class Incoming:
    """Just what a middleware reads of a delivery."""

    def __init__(self, name: str, headers: dict[str, str]) -> None:
        self.name = name
        self.headers = Headers(headers)


async def test_the_receiver_handles_a_record_once_and_finishes_it(db: Any, orders: Any) -> None:
    """Wrong: a duplicate reaches the handler, or a record is finished though its handler failed."""
    box = Outbox(db.url, {"orders": orders}, finish="handled", resend=0.2)
    sent: list[Outgoing] = []

    async def send(out: Outgoing) -> None:
        sent.append(out)

    await box.middleware().publish(send, "default")(Outgoing(b"1", "orders"))
    results: list[Any] = [ValueError("boom"), Retry(), None, None]
    calls = []

    async def handler(delivery: Any) -> Any:
        calls.append(delivery)
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    once = box.middleware().consume(handler, "route")
    incoming: Any = Incoming("orders", {OUTBOX_ID: sent[0].headers[OUTBOX_ID]})
    with pytest.raises(ValueError, match="boom"):
        await once(incoming)
    assert isinstance(await once(incoming), Retry)
    assert await once(incoming) is None
    assert isinstance(await once(incoming), Skip)
    assert len(calls) == 3
    assert await rows(db, orders, "CASE WHEN processed_at IS NULL THEN 1 ELSE 0 END") == [0]
    unregistered: Any = Incoming("others", {})
    assert await once(unregistered) is None
    await box.aclose()


async def test_the_relay_sends_again_what_no_handler_has_acked(db: Any, orders: Any) -> None:
    """Wrong: with `handled` a confirmed record that nobody handled is never sent again."""
    box = Outbox(db.url, {"orders": orders}, finish="handled", resend=0.1)
    await box.publish(b"1", to="orders")
    bus = Bus()
    async with box.relaying(bus, poll=0.05):
        await bus.until(lambda: len(bus.sent) >= 2)
    assert {value for value, *_ in bus.sent} == {b"1"}
    await box.aclose()


async def test_an_inbox_makes_a_handler_take_effect_once(db: Any) -> None:
    """Wrong: a duplicate's writes are kept, or a failed handler's message counts as seen."""
    seen = Inbox(db.url, f"inbox_{os.getpid()}_{next(NUMBERS)}")
    for statement in seen.ddl():
        await db.run(statement)
    notes = f"notes_{os.getpid()}_{next(NUMBERS)}"
    await db.run(f"CREATE TABLE {notes} (id integer)")
    transaction = InboxTransaction().bind("tx", Any)
    outcomes: list[Any] = [ValueError("boom"), Retry(), Ack, None]

    async def handler(delivery: Any) -> Any:
        tx = transaction(delivery)
        if db.name == "mysql":
            await tx.cursor().execute(f"INSERT INTO {notes} VALUES (1)")
        else:
            await tx.execute(f"INSERT INTO {notes} VALUES (1)")
        result = outcomes.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    once = seen.consume(handler, "route")
    message: Any = Incoming("orders", {"message-id": "m-1"})
    with pytest.raises(ValueError, match="boom"):
        await once(message)
    assert isinstance(await once(message), Retry)
    assert await once(message) is Ack
    assert isinstance(await once(message), Skip)
    assert await db.run(f"SELECT count(*) FROM {notes}") == [(1,)]
    again: Any = Incoming("orders", {"message-id": "m-2"})
    together = await asyncio.gather(*(once(again) for _ in range(3)))
    assert sorted(type(result).__name__ for result in together) == ["NoneType", "Skip", "Skip"]
    assert await db.run(f"SELECT count(*) FROM {notes}") == [(2,)]
    await seen.aclose()
