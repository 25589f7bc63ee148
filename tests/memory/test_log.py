"""What the contract leaves to the transport: logs, groups and positions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.memory import MemoryLog
from ruststream_core.memory._sinks import Log
from ruststream_core.settlement import ACK, RELEASE, Drop
from ruststream_core.wire import Outgoing, Template


async def test_every_group_gets_everything(memory: Any, payloads: Any) -> None:
    readers = [await memory.open(MemoryLog("log", group=group)) for group in ("a", "b")]
    memory.send("log", b"1", b"2")
    for reader in readers:
        assert payloads(await reader.receive(10)) == [b"1", b"2"]


async def test_a_group_goes_on_where_it_was(memory: Any, payloads: Any) -> None:
    reader = await memory.open(MemoryLog("log", group="g"))
    memory.send("log", b"1", b"2", b"3")
    for delivery in await reader.receive(2):
        delivery.settle(ACK)
    await reader.aclose(1.0)
    memory.send("log", b"4")
    later = await memory.open(MemoryLog("log", group="g", start="latest"))
    assert payloads(await later.receive(10)) == [b"3", b"4"]


async def test_a_reader_without_a_group_leaves_nothing_behind(memory: Any, payloads: Any) -> None:
    for _ in range(3):
        reader = await memory.open(MemoryLog("log"))
        if not reader.statistics().lag:
            memory.send("log", b"1")
        for delivery in await reader.receive(10):
            delivery.settle(ACK)
        log = reader._feed.log
        await reader.aclose(1.0)
        assert log.readers == []


@pytest.mark.parametrize(("start", "came"), [("earliest", [0, 1, 2]), (1, [1, 2]), (3, []), (99, []), ("latest", [])])
async def test_a_reader_begins_where_it_says(memory: Any, start: Any, came: list[int]) -> None:
    first = await memory.open(MemoryLog("log"))
    memory.send("log", b"0", b"1", b"2")
    assert len(await first.receive(10)) == 3
    reader = await memory.open(MemoryLog("log", start=start))
    memory.send("log", b"3")
    assert [reader.position(delivery) for delivery in await reader.receive(10)] == [*came, 3]


async def test_what_is_released_comes_again_and_nothing_else(memory: Any, payloads: Any) -> None:
    reader = await memory.open(MemoryLog("log", group="g"))
    memory.send("log", b"0", b"1", b"2")
    zero, one, two = await reader.receive(10)
    two.settle(ACK)
    zero.settle(Drop())
    one.settle(RELEASE)
    assert payloads(await reader.receive(10)) == [b"1"]
    assert reader._feed.committed == 1


async def test_seeking_moves_every_member_of_the_group(memory: Any) -> None:
    first, second = [await memory.open(MemoryLog("log", group="g")) for _ in range(2)]
    memory.send("log", b"0", b"1")
    (zero,) = await first.receive(1)
    (one,) = await second.receive(1)
    await first.seek("earliest")
    assert zero.lost is not None
    assert one.lost is not None
    one.settle(ACK)
    assert [first.position(delivery) for delivery in await first.receive(10)] == [0, 1]


@pytest.mark.parametrize("position", [-1, 3, "middle", None, True, 1.0])
async def test_no_such_position(memory: Any, position: Any) -> None:
    reader = await memory.open(MemoryLog("log"))
    memory.send("log", b"0", b"1")
    with pytest.raises(ConfigError, match="0 to 2"):
        await reader.seek(position)


async def test_seeking_to_the_end_waits_for_what_comes(memory: Any, payloads: Any) -> None:
    reader = await memory.open(MemoryLog("log"))
    memory.send("log", b"0")
    await reader.seek("latest")
    memory.send("log", b"1")
    assert payloads(await reader.receive(10)) == [b"1"]


async def test_a_full_log_forgets_what_every_group_has_finished(memory: Any) -> None:
    """Memory has to stay flat, and nothing that somebody still needs may go."""
    fast, slow = [await memory.open(MemoryLog("log", group=group)) for group in ("fast", "slow")]
    for number in range(100):
        memory.send("log", b"%d" % number)
    for delivery in await fast.receive(100):
        delivery.settle(ACK)
    with pytest.raises(PublishError, match="full"):
        memory.send("log", b"no room")
    for delivery in (await slow.receive(100))[:10]:
        delivery.settle(ACK)
    memory.send("log", *[b"more"] * 10)
    with pytest.raises(PublishError, match="full"):
        memory.send("log", b"no room")
    await slow.seek("earliest")
    assert [slow.position(delivery) for delivery in await slow.receive(1)] == [10]


@settings(max_examples=200)
@given(st.data())
def test_a_group_finishes_each_message_once_and_never_skips(data: st.DataObject) -> None:
    """Whatever the order of takes, acks and releases: the committed position covers finished messages only."""
    log = Log(Template("log"), 1000)
    group = log.group("g", "earliest")
    held: list[Any] = []
    done: set[int] = set()
    for _ in range(data.draw(st.integers(1, 60))):
        action = data.draw(st.sampled_from(["put", "take", "ack", "release"]))
        if action == "put":
            log.put(Outgoing(b"", "log"))
        elif action == "take":
            taken = group.take(data.draw(st.integers(1, 4)))
            assert not {delivery.order for delivery in taken} & done
            assert not {delivery.order for delivery in taken} & {delivery.order for delivery in held}
            held += taken
        elif held:
            delivery = held.pop(data.draw(st.integers(0, len(held) - 1)))
            group.end(delivery, ACK if action == "ack" else RELEASE)
            if action == "ack":
                done.add(delivery.order)
        assert set(range(group.committed)) <= done
        assert group.committed not in done
        assert group.lag == log.end - len(done) - len(held)
