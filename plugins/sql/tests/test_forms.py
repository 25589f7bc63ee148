"""What every way to hold a row has to do, on every database."""

from __future__ import annotations

import asyncio
from typing import Any

from ruststream_core.settlement import ACK, RELEASE, Drop, Retry


async def test_acked_rows_are_gone_and_came_in_order(held: Any, take: Any, settled: Any) -> None:
    """Wrong: a row left behind by an ack, or rows out of the order of their ids."""
    db, form = held
    row_type = await db.table(form=form)
    await db.fill(row_type, [b"1", b"2", b"3"])
    subscription = await db.subscribe(await db.connect(), row_type, workers=4)
    for expected in (b"1", b"2", b"3"):
        (delivery,) = await take(subscription, 1)
        assert delivery.payload == expected
        assert (delivery.name, delivery.attempt) == ("emails", 1)
        await settled(delivery.settle(ACK))
    assert await db.rows(row_type) == []
    assert subscription.statistics().unsettled == 0


async def test_marking_keeps_the_row_and_never_delivers_it_again(held: Any, take: Any, settled: Any) -> None:
    """Wrong: with a processed_at column the row is deleted, or comes again."""
    db, form = held
    row_type = await db.table(form=form, roles=("group", "processed_at"))
    await db.fill(row_type, [b"1", b"2"])
    subscription = await db.subscribe(await db.connect(), row_type, workers=2)
    first, second = await take(subscription, 2)
    await settled(first.settle(ACK), second.settle(Drop()))
    assert len(await db.rows(row_type, where="processed_at IS NOT NULL")) == 2
    waiting = asyncio.ensure_future(subscription.receive(1))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    subscription.stop()
    assert list(await waiting) == []


async def test_retry_counts_and_release_does_not(held: Any, take: Any, settled: Any) -> None:
    """Wrong: an attempt counted for a delivery that no handler worked on, or none for one that failed."""
    db, form = held
    row_type = await db.table(form=form)
    await db.fill(row_type, [b"x"])
    subscription = await db.subscribe(await db.connect(), row_type)
    attempts = []
    for verdict in (RELEASE, Retry(), RELEASE, Retry(after=0), ACK):
        (delivery,) = await take(subscription, 1)
        attempts.append(delivery.attempt)
        await settled(delivery.settle(verdict))
    assert attempts == [1, 1, 2, 2, 3]
    assert await db.rows(row_type) == []


async def test_a_delayed_retry_lets_others_pass_and_comes_back(held: Any, take: Any, settled: Any) -> None:
    """Wrong: the delay is lost, or blocks the queue."""
    db, form = held
    row_type = await db.table(form=form)
    await db.fill(row_type, [b"late", b"next"])
    subscription = await db.subscribe(await db.connect(), row_type, workers=1, poll=0.2)
    loop = asyncio.get_running_loop()
    (late,) = await take(subscription, 1)
    started = loop.time()
    await settled(late.settle(Retry(after=0.6)))
    (other,) = await take(subscription, 1)
    assert other.payload == b"next"
    await settled(other.settle(ACK))
    (again,) = await take(subscription, 1)
    assert (again.payload, again.attempt) == (b"late", 2)
    assert loop.time() - started >= 0.55
    await settled(again.settle(ACK))


async def test_dead_letter_by_group_starts_afresh(held: Any, take: Any, settled: Any) -> None:
    """Wrong: a dropped row vanishes though a dead letter is set, or arrives there with its attempts used up."""
    db, form = held
    row_type = await db.table(form=form)
    await db.fill(row_type, [b"bad", b"worse"])
    connection = await db.connect()
    subscription = await db.subscribe(connection, row_type, dead_letter="dead", max_attempts=2, workers=2)
    first, second = sorted(await take(subscription, 2), key=lambda d: d.payload)
    await settled(first.settle(Drop("no")), second.settle(Retry()))
    (second,) = await take(subscription, 1)
    assert second.attempt == 2
    await settled(second.settle(Retry()))  # the second attempt of two: moved as well
    dead = await db.subscribe(connection, row_type, "dead", workers=2)
    found = await take(dead, 2)
    assert sorted(d.payload for d in found) == [b"bad", b"worse"]
    assert {d.attempt for d in found} == {1}
    await settled(*[d.settle(ACK) for d in found])


async def test_dead_letter_by_table(held: Any, take: Any, settled: Any) -> None:
    """Wrong: without a group a dead letter is lost, stays, or is copied twice."""
    db, form = held
    row_type = await db.table(form=form, roles=("retry_after", "attempt"))
    dead_type = await db.table(form=form, roles=("retry_after", "attempt"))
    connection = await db.connect(routes={"all": row_type})
    sender = await connection.sender()
    from ruststream_core.wire import Outgoing

    await sender.send_many([Outgoing(b"1", "all"), Outgoing(b"2", "all")])
    subscription = await db.subscribe(connection, row_type, None, dead_letter=dead_type, workers=2)
    first, second = await take(subscription, 2)
    await settled(first.settle(Drop()), second.settle(ACK))
    assert await db.rows(row_type) == []
    assert [bytes(row[0]) for row in await db.rows(dead_type, "payload")] == [first.payload]


async def test_two_processes_share_the_rows(held: Any, take: Any, settled: Any) -> None:
    """Wrong: a row handed to both, or rows that neither gets."""
    db, form = held
    row_type = await db.table(form=form)
    payloads = [str(k).encode() for k in range(20)]
    await db.fill(row_type, payloads)
    seen: list[bytes] = []

    async def work() -> None:
        subscription = await db.subscribe(
            await db.connect(), row_type, workers=2, prefetch=2 if form in ("lease", "time") else None
        )
        while len(seen) < 20:
            for delivery in await subscription.receive(2):
                seen.append(delivery.payload)
                await settled(delivery.settle(ACK))
            if len(seen) >= 20:
                break

    tasks = [asyncio.ensure_future(work()) for _ in range(2)]
    async with asyncio.timeout(20):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for thing in db.closing:
        if hasattr(thing, "stop"):
            thing.stop()
    await asyncio.gather(*tasks)
    assert sorted(seen) == sorted(payloads)
    assert await db.rows(row_type) == []


async def test_what_is_in_hand_at_the_end_comes_again_at_once(held: Any, take: Any, settled: Any, watcher: Any) -> None:
    """Wrong: a row stuck until its lease ends, or a settlement after the end that does something."""
    db, form = held
    row_type = await db.table(form=form)
    await db.fill(row_type, [b"1", b"2"])
    subscription = await db.subscribe(await db.connect(), row_type, watch=watcher)
    (first,) = await take(subscription, 1)
    await subscription.aclose(5.0)
    assert [loss[0] for loss in watcher.losses] == [first]
    assert first.settle(ACK) is None
    other = await db.subscribe(await db.connect(), row_type, workers=2)
    found = await take(other, 2)
    assert sorted((d.payload, d.attempt) for d in found) == [(b"1", 1), (b"2", 1)]
    await settled(*[d.settle(ACK) for d in found])


async def test_stop_ends_a_waiting_receive(held: Any) -> None:
    """Wrong: a drain that hangs on an empty queue."""
    db, form = held
    row_type = await db.table(form=form)
    subscription = await db.subscribe(await db.connect(), row_type, workers=3)
    waiting = [asyncio.ensure_future(subscription.receive(5)) for _ in range(subscription.receivers)]
    await asyncio.sleep(0.1)
    subscription.stop()
    async with asyncio.timeout(5):
        assert [list(got) for got in await asyncio.gather(*waiting)] == [[]] * len(waiting)


async def test_a_transaction_settles_with_the_handlers_writes(held: Any, take: Any, settled: Any) -> None:
    """Wrong: the ack without the writes, or the writes without the ack."""
    db, form = held
    row_type = await db.table(form=form)
    notes = await db.table(form="lease")
    await db.fill(row_type, [b"x"])
    connection = await db.connect(routes={"notes": notes})
    await connection.sender()
    subscription = await db.subscribe(connection, row_type)
    from ruststream_core.wire import Outgoing

    (delivery,) = await take(subscription, 1)
    unit = await subscription.begin([delivery])
    unit.send(Outgoing(b"undone", "notes"))
    await unit.rollback()
    await settled(delivery.settle(Retry()))
    assert await db.rows(notes) == []
    (delivery,) = await take(subscription, 1)
    unit = await subscription.begin([delivery])
    unit.send(Outgoing(b"done", "notes"))
    await unit.commit([(delivery, ACK)])
    assert [bytes(row[0]) for row in await db.rows(notes, "payload")] == [b"done"]
    assert await db.rows(row_type) == []
    assert subscription.statistics().unsettled == 0


async def test_cancelling_receive_anywhere_loses_no_row(held: Any, take: Any, settled: Any, cancelled_at: Any) -> None:
    """Wrong: a receive that is cancelled at its n-th suspension takes a row with it, or leaves a lock."""
    db, form = held
    row_type = await db.table(form=form)
    subscription = await db.subscribe(await db.connect(), row_type)
    for step in range(100):
        await db.fill(row_type, [b"x"])
        reached, got = await cancelled_at(subscription.receive(1), step)
        deliveries = list(got) if got else await take(subscription, 1)
        assert [(d.payload, d.attempt) for d in deliveries] == [(b"x", 1)]
        await settled(*[d.settle(ACK) for d in deliveries])
        assert await db.rows(row_type) == []
        if not reached:
            break
    else:
        raise AssertionError("receive has no end")
