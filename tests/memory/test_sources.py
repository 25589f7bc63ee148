"""Names, descriptors and URLs of the in-memory transport."""

from __future__ import annotations

from typing import Any

import pytest

from ruststream_core.abc import Demand, PublishOptions, Source
from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.memory import MemoryBroker, MemoryLog, MemoryQueue
from ruststream_core.settlement import ACK
from ruststream_core.wire import Outgoing


@pytest.mark.parametrize(
    ("url", "name", "limit"),
    [
        ("memory:", "memory", 1_000_000),
        ("memory://", "memory", 1_000_000),
        ("memory://audit", "audit", 1_000_000),
        ("memory://audit?limit=5", "audit", 5),
    ],
)
def test_url(url: str, name: str, limit: int) -> None:
    broker = MemoryBroker.from_url(url)
    assert (broker.name, broker.limit) == (name, limit)
    assert broker.describe().host == name


@pytest.mark.parametrize(
    "url", ["nats://x", "memory://user:secret@x", "memory://x/path", "memory://x?limti=1", "memory://?limit=many"]
)
def test_a_url_that_is_not_understood_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MemoryBroker.from_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match="limit"):
        MemoryBroker(limit=limit)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "needs a name"),
        ("orders.x{region}", "whole token"),
        (MemoryQueue("q", window=0), "window=0"),
        (MemoryQueue("q", max_deliveries=0), "max_deliveries=0"),
        (MemoryQueue("q", dead_letter=""), "plain name"),
        (MemoryQueue("q", dead_letter="dead.*"), "plain name"),
        (MemoryQueue("q.*", dead_letter="q.dead"), "back into the same queue"),
        (MemoryLog("l", group=""), "group"),
        (MemoryLog("l", start=-1), "start=-1"),
        (MemoryLog("l", start="middle"), "start='middle'"),  # type: ignore[arg-type]
        (MemoryLog("l", start=True), "start=True"),
        (Source(), "Source"),
    ],
)
def test_a_wrong_source_is_a_config_error(source: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        MemoryBroker().source(source)


def test_prefixes_join_names() -> None:
    assert MemoryQueue("orders", window=3).prefixed("eu.") == MemoryQueue("eu.orders", window=3)
    assert MemoryLog("orders", group="g").prefixed("eu.") == MemoryLog("eu.orders", group="g")


async def test_a_window_below_the_demand_is_refused(memory: Any) -> None:
    """Workers without deliveries would wait for each other for ever."""
    with pytest.raises(ConfigError, match="at least 12"):
        await memory.open(MemoryQueue("q", window=11), workers=4, batch=3)
    assert (await memory.open(MemoryQueue("q", window=12), workers=4, batch=3)).window == 12
    assert (await memory.open("q", workers=100, batch=100)).window == 10_000


async def test_two_settings_for_one_queue_are_refused(memory: Any) -> None:
    """Whichever came last would win, and nobody would see it."""
    first = await memory.open(MemoryQueue("q", max_deliveries=2))
    with pytest.raises(ConfigError, match="max_deliveries=2.*max_deliveries=3"):
        await memory.open(MemoryQueue("q", max_deliveries=3))
    await first.aclose(1.0)
    await memory.open(MemoryQueue("q", max_deliveries=3))


async def test_publish_options_are_refused(memory: Any) -> None:
    with pytest.raises(ConfigError, match="no publish options"):
        await memory.connection.sender(PublishOptions())
    with pytest.raises(PublishError, match="no publish options"):
        memory.sender.send(Outgoing(b"x", "q", options=PublishOptions()))


@pytest.mark.parametrize("name", ["", " ", "a.*", "a.>", "#", "a.{b}"])
async def test_what_is_no_destination_is_refused(memory: Any, name: str) -> None:
    with pytest.raises(PublishError, match="no destination"):
        memory.sender.send(Outgoing(b"x", name))


# ------------------------------------------------------------------------------------------------ where names lead


async def test_placeholders_and_wildcards_take_every_name_that_fits(memory: Any, payloads: Any) -> None:
    one = await memory.open("orders.{region}.placed")
    rest = await memory.open("orders.>")
    for name in ("orders.eu.placed", "orders.us.placed", "orders.eu.gone", "orders", "x.eu.placed"):
        memory.send(name, name.encode())
    assert payloads(await one.receive(10)) == [b"orders.eu.placed", b"orders.us.placed"]
    assert payloads(await rest.receive(10)) == [b"orders.eu.placed", b"orders.us.placed", b"orders.eu.gone"]


async def test_placeholders_of_other_names_are_one_queue(memory: Any) -> None:
    """Two routes that write the placeholder differently share the work, they do not double it."""
    first, second = await memory.open("orders.{region}"), await memory.open("orders.{country}")
    memory.send("orders.eu", b"1")
    assert len(await first.receive(10)) == 1
    second.stop()
    assert await second.receive(10) == ()


async def test_what_nobody_reads_waits_for_the_first_pattern_that_fits(memory: Any, payloads: Any) -> None:
    memory.send("orders.eu", b"1")
    memory.send("orders.us", b"2")
    memory.send("orders.eu", b"3")
    assert payloads(await (await memory.open("orders.*")).receive(10)) == [b"1", b"2", b"3"]


async def test_a_log_begins_with_what_waited_under_its_name(memory: Any, payloads: Any) -> None:
    memory.send("audit", b"1", b"2")
    log = await memory.open(MemoryLog("audit"))
    memory.send("audit", b"3")
    chunk = await log.receive(10)
    assert payloads(chunk) == [b"1", b"2", b"3"]
    assert [log.position(delivery) for delivery in chunk] == [0, 1, 2]


async def test_a_queue_and_a_log_of_one_name_get_everything_both(memory: Any, payloads: Any) -> None:
    queue, log = await memory.open("orders"), await memory.open(MemoryLog("orders"))
    memory.send("orders", b"1")
    assert payloads(await queue.receive(1)) == payloads(await log.receive(1)) == [b"1"]


async def test_many_names_are_routed_right_beyond_what_is_remembered(memory: Any, monkeypatch: Any) -> None:
    """The memory of ways is bounded; what falls out of it must be found again."""
    monkeypatch.setattr("ruststream_core.memory._store.ROUTES", 3)
    subscription = await memory.open("orders.*")
    for number in (*range(6), 0, 1):
        memory.send(f"orders.{number}", b"%d" % number)
    assert len(await subscription.receive(100)) == 8


async def test_brokers_share_nothing() -> None:
    first, second = MemoryBroker("a"), MemoryBroker("a")
    sender = await (await first.connect()).sender()
    sender.send(Outgoing(b"x", "q"))

    class Silent:
        def lost(self, *_: Any) -> None: ...
        def state(self, *_: Any) -> None: ...

    connection = await second.connect()
    subscription = await connection.subscribe(second.source("q"), Demand(), Silent())
    assert subscription.statistics().lag == 0
    own = await (await first.connect()).subscribe(first.source("q"), Demand(), Silent())
    for delivery in await own.receive(1):
        assert delivery.settle(ACK) is None
