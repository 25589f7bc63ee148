"""What the contract leaves to the transport: queues."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from ruststream_core.errors import Closed, ConfigError, PublishError, Revoked, SettleError
from ruststream_core.memory import MemoryBroker, MemoryQueue
from ruststream_core.settlement import ACK, RELEASE, Drop, Retry
from ruststream_core.wire import Outgoing


async def test_a_full_queue_refuses_and_keeps_what_it_has(memory: Any) -> None:
    """Memory has to stay flat whatever is published."""
    subscription = await memory.open("q")
    memory.send("q", *[b"x"] * 100)
    with pytest.raises(PublishError, match="'q' is full: 100"):
        memory.send("q", b"one too many")
    for delivery in await subscription.receive(1):
        delivery.settle(ACK)
    memory.send("q", b"room again")
    assert subscription.statistics().lag == 100


async def test_delayed_messages_count_towards_the_limit(memory: Any) -> None:
    """A backlog of retries is a backlog."""
    subscription = await memory.open("q")
    memory.send("q", *[b"x"] * 100)
    for delivery in await subscription.receive(100):
        delivery.settle(Retry(after=60))
    with pytest.raises(PublishError, match="full"):
        memory.send("q", b"one too many")
    assert subscription.statistics().lag == 0


async def test_a_message_for_several_queues_goes_to_all_or_none(memory: Any) -> None:
    """A message that one of them refuses would be there and not there."""
    full, free = await memory.open("q.*"), await memory.open("q.>")
    memory.send("q.1", *[b"x"] * 100)
    for delivery in await free.receive(100):
        delivery.settle(ACK)
    with pytest.raises(PublishError, match="full"):
        memory.send("q.1", b"one too many")
    assert (full.statistics().lag, free.statistics().lag) == (100, 0)


async def test_a_retry_goes_behind_what_waits(memory: Any, payloads: Any) -> None:
    """A message that always fails must not keep the others waiting."""
    subscription = await memory.open("q")
    memory.send("q", b"bad", b"good")
    (bad,) = await subscription.receive(1)
    bad.settle(Retry())
    assert payloads(await subscription.receive(10)) == [b"good", b"bad"]


async def test_released_messages_keep_their_order(memory: Any, payloads: Any) -> None:
    subscription = await memory.open("q")
    memory.send("q", *[b"%d" % number for number in range(6)])
    chunk = await subscription.receive(4)
    for delivery in chunk:
        delivery.settle(RELEASE)
    again = await subscription.receive(10)
    assert payloads(again) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert {delivery.attempt for delivery in again} == {1}


async def test_max_deliveries_drops_to_the_dead_letter(memory: Any) -> None:
    subscription = await memory.open(MemoryQueue("q", max_deliveries=2, dead_letter="dead"))
    dead = await memory.open("dead")
    memory.send("q", b"bad", key=b"k")
    for attempt in (1, 2):
        (delivery,) = await subscription.receive(1)
        assert delivery.attempt == attempt
        delivery.settle(Retry())
    (delivery,) = await dead.receive(1)
    assert (delivery.payload, delivery.key, delivery.attempt) == (b"bad", b"k", 1)
    assert subscription.statistics().lag == 0


async def test_the_dead_letter_takes_more_than_the_limit(memory: Any) -> None:
    """What was stored already is not thrown away for want of room."""
    subscription = await memory.open(MemoryQueue("q", dead_letter="dead"))
    dead = await memory.open("dead")
    memory.send("dead", *[b"x"] * 100)
    memory.send("q", b"bad")
    (delivery,) = await subscription.receive(1)
    delivery.settle(Drop())
    assert dead.statistics().lag == 101


async def test_a_second_settlement_changes_nothing(memory: Any) -> None:
    subscription = await memory.open("q")
    memory.send("q", b"1")
    (delivery,) = await subscription.receive(1)
    delivery.settle(ACK)
    delivery.settle(Retry())
    assert (subscription.statistics().unsettled, subscription.statistics().lag) == (0, 0)


async def test_closing_with_deliveries_in_hand_reports_them_lost(memory: Any, watching: Any) -> None:
    subscription = await memory.open("q", watching)
    memory.send("q", b"1", b"2")
    first, second = await subscription.receive(2)
    first.settle(ACK)
    await subscription.aclose(1.0)
    ((lost, error, verdict),) = watching.losses
    assert lost is second
    assert isinstance(error, Revoked)
    assert verdict is None
    (again,) = await (await memory.open("q")).receive(10)
    assert (again.payload, again.attempt) == (b"2", 2)


async def test_a_delivery_shows_no_content(memory: Any) -> None:
    """It may be logged."""
    subscription = await memory.open("q")
    memory.send("q", b"confidential")
    assert "confidential" not in repr(await subscription.receive(1))


async def test_delivery_tells_its_order(memory: Any) -> None:
    subscription = await memory.open("q")
    memory.send("q", b"1", b"2")
    first, second = await subscription.receive(2)
    assert second.transport("memory.order") == first.transport("memory.order") + 1


async def test_receive_is_for_one_caller_at_a_time(memory: Any) -> None:
    """`receivers` is 1; a second caller would steal the first one's wake-up."""
    subscription = await memory.open("q")
    first = asyncio.create_task(subscription.receive(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one caller"):
        await subscription.receive(1)
    subscription.stop()
    assert await first == ()


async def test_work_that_one_leaves_wakes_another(memory: Any) -> None:
    """A subscription that takes less than there is must not keep the rest to itself."""
    first, second = await memory.open("q", prefetch=1), await memory.open("q")
    waiting = [asyncio.create_task(subscription.receive(10)) for subscription in (first, second)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    memory.send("q", b"1")
    memory.send("q", b"2", b"3")
    chunks = await asyncio.gather(*waiting)
    assert sorted(d.payload for chunk in chunks for d in chunk) == [b"1", b"2", b"3"]


async def test_a_wake_up_is_not_lost_with_the_one_that_leaves(memory: Any) -> None:
    """A subscription may be woken and stopped in one turn: its message is another's."""
    leaving, staying = await memory.open("q"), await memory.open("q")
    first = asyncio.create_task(leaving.receive(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(staying.receive(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    memory.send("q", b"1")
    await leaving.aclose(1.0)
    assert await first == ()
    assert [delivery.payload for delivery in await second] == [b"1"]


async def test_settled_deliveries_are_not_kept(memory: Any) -> None:
    """What a subscription remembers of its deliveries is bounded by its window."""
    subscription = await memory.open("q", prefetch=5)
    for _ in range(50):
        memory.send("q", *[b"x"] * 5)
        for delivery in await subscription.receive(5):
            delivery.settle(ACK)
    assert len(subscription._hand) <= 2 * 5 + 5


async def test_a_closed_subscription_is_forgotten(memory: Any) -> None:
    """A service that subscribes and leaves again must not grow."""
    subscription = await memory.open("q")
    memory.send("q", b"1")
    (delivery,) = await subscription.receive(1)
    await subscription.aclose(1.0)
    memory.connection._subscriptions.clear()
    gone = weakref.ref(subscription)
    del subscription, delivery
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------------------------------------------- transactions


async def test_a_unit_with_a_lost_delivery_loses_all_of_them(memory: Any, watching: Any) -> None:
    subscription = await memory.open("q", watching)
    memory.send("q", b"1", b"2")
    first, second = await subscription.receive(2)
    unit = await subscription.begin([first, second])
    unit.send(Outgoing(b"out", "other"))
    first.settle(ACK)
    with pytest.raises(SettleError, match="1 of 2"):
        await unit.commit([(first, ACK), (second, ACK)])
    assert [delivery for delivery, _, _ in watching.losses] == [second]
    assert (await memory.open("other")).statistics().lag == 0
    assert subscription.statistics().lag == 1


async def test_a_unit_without_room_for_its_messages_commits_nothing(memory: Any) -> None:
    subscription = await memory.open("q")
    other = await memory.open("other")
    memory.send("q", b"1")
    chunk = await subscription.receive(1)
    unit = await subscription.begin(chunk)
    unit.send(Outgoing(b"out", "other"))
    memory.send("other", *[b"x"] * 100)
    with pytest.raises(SettleError, match="full"):
        await unit.commit([(chunk[0], ACK)])
    assert (subscription.statistics().lag, other.statistics().lag) == (1, 100)


async def test_a_crash_before_the_settlement_rolls_a_unit_back(memory: Any, watching: Any) -> None:
    subscription = await memory.open("q", watching)
    memory.broker.inject("crash_before_settle", 1)
    memory.send("q", b"1")
    chunk = await subscription.receive(1)
    unit = await subscription.begin(chunk)
    unit.send(Outgoing(b"out", "other"))
    with pytest.raises(SettleError):
        await unit.commit([(chunk[0], ACK)])
    assert len(watching.losses) == 1
    assert (await subscription.receive(1))[0].attempt == 2


async def test_a_publish_transaction_reports_want_of_room(memory: Any) -> None:
    await memory.open("other")
    unit = await memory.sender.begin()
    unit.send(Outgoing(b"out", "other"))
    memory.send("other", *[b"x"] * 100)
    with pytest.raises(PublishError, match="full"):
        await unit.commit([])


# ---------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("limit", [1, 10])
async def test_a_reordered_message_comes_after_the_next_whatever_the_limit(memory: Any, limit: int) -> None:
    subscription = await memory.open("q")
    memory.broker.inject("reorder", 1)
    memory.send("q", b"1", b"2", b"3")
    came: list[bytes] = []
    while len(came) < 3:
        chunk = await subscription.receive(limit)
        assert len(chunk) <= limit
        came += [delivery.payload for delivery in chunk]
    assert came.index(b"1") > came.index(b"2")


async def test_a_message_held_back_when_the_subscription_stops_goes_back(memory: Any) -> None:
    subscription = await memory.open("q")
    memory.broker.inject("reorder", 1)
    memory.send("q", b"1")
    waiting = asyncio.create_task(subscription.receive(1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    subscription.stop()
    assert await waiting == ()
    statistics = subscription.statistics()
    assert (statistics.unsettled, statistics.released, statistics.lag) == (0, 1, 1)


async def test_faults_reach_what_a_lingering_receive_collects(memory: Any, watching: Any) -> None:
    subscription = await memory.open("q", watching, batch=3)
    waiting = asyncio.create_task(subscription.receive(3, 60.0))
    memory.send("q", b"1")
    for _ in range(3):
        await asyncio.sleep(0)
    memory.broker.inject("duplicate", 1)
    memory.send("q", b"2")
    assert [delivery.payload for delivery in await waiting] == [b"1", b"2", b"2"]


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ConfigError, match="duplicate"):
        MemoryBroker().inject("dupliacte", 1)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- loops


class Silent:
    def lost(self, *_: Any) -> None: ...
    def state(self, *_: Any) -> None: ...


def test_a_broker_goes_on_in_another_loop() -> None:
    """A broker made at import is used by one event loop after the other: tests do that. Nothing may hang there."""
    from ruststream_core.abc import Demand

    broker = MemoryBroker()

    async def leave_in_the_middle() -> None:
        connection = await broker.connect()
        subscription = await connection.subscribe(broker.source("q"), Demand(), Silent())
        sender = await connection.sender()
        for payload in (b"in hand", b"delayed", b"waiting"):
            sender.send(Outgoing(payload, "q"))
        _, delayed = await subscription.receive(2)
        delayed.settle(Retry(after=0.001))
        waiting = asyncio.create_task(
            (await connection.subscribe(broker.source("other"), Demand(), Silent())).receive(1)
        )
        await asyncio.sleep(0)
        waiting.cancel()

    async def go_on() -> list[bytes]:
        connection = await broker.connect()
        subscription = await connection.subscribe(broker.source("q"), Demand(), Silent())
        (await connection.sender()).send(Outgoing(b"for a reader that is gone", "other"))
        came: list[bytes] = []
        while len(came) < 3:
            came += [delivery.payload for delivery in await subscription.receive(10)]
        return sorted(came)

    asyncio.run(leave_in_the_middle())
    assert asyncio.run(go_on()) == [b"delayed", b"in hand", b"waiting"]


async def test_closing_a_connection_ends_its_requests(memory: Any) -> None:
    request = asyncio.create_task(memory.connection.request(Outgoing(b"?", "service"), 60.0))
    await asyncio.sleep(0)
    await memory.connection.aclose(1.0)
    with pytest.raises(Closed, match="request"):
        await request
