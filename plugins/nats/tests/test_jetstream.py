"""Streams and consumers as a service writes them down, and what JetStream does with its messages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ruststream_core.abc import Seekable
from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.settlement import ACK, Drop, Retry
from ruststream_core.testing.servers import NatsServer
from ruststream_core.wire import Headers
from ruststream_core_nats import JetStream, JetStreamPublish, KeyValueWatch


async def test_nothing_is_created_unless_asked(lab: Any, server: NatsServer) -> None:
    """A typing error in a name would create a stream that nobody writes to."""
    connection, name = await lab.connect(server.url), lab.name("S")
    with pytest.raises(ConfigError, match=f"no stream '{name}'"):
        await lab.open(connection, JetStream(f"{name}.>", stream=name, durable="d"))
    with pytest.raises(ConfigError, match="no stream covers it"):
        await lab.open(connection, JetStream(f"{name}.>"))
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"])
    with pytest.raises(ConfigError, match="has no consumer 'd'"):
        await lab.open(connection, JetStream(f"{name}.>", stream=name, durable="d"))
    await lab.open(connection, JetStream(f"{name}.>", stream=name, durable="d", create=True))
    await lab.open(connection, JetStream(f"{name}.>", stream=name, durable="d"))


async def test_the_stream_is_found_by_its_subject(lab: Any, server: NatsServer) -> None:
    """A service would have to know what the operators called a stream."""
    connection, name = await lab.connect(server.url), lab.name("S")
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.a.>", f"{name}.b"])
    subscription = await lab.open(connection, JetStream(f"{name}.a.{{region}}"))
    await lab.publish(connection, f"{name}.a.eu", b"x")
    (delivery,) = await lab.take(subscription, 1)
    assert (delivery.name, delivery.transport("nats.stream")) == (f"{name}.a.eu", name)
    with pytest.raises(ConfigError, match="does not cover"):
        await lab.open(connection, JetStream("elsewhere.>", stream=name))


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"ack_wait": 30.0}, "ack_wait is 30 s here and 2 s at the server"),
        ({"max_deliver": 7}, "max_deliver is 7 here and -1 at the server"),
        ({"max_ack_pending": 10}, "max_ack_pending is 10 here and 1000 at the server"),
        ({"subject": "b"}, r"filter_subjects are \['NAME.b'\] here and \['NAME.a'\] at the server"),
        ({"filter_subjects": ("a", "b")}, r"filter_subjects are \['NAME.a', 'NAME.b'\] here"),
        ({"deliver_policy": "new"}, "deliver_policy is new here and all at the server"),
        ({"push": True}, "push is True here and False at the server"),
    ],
    ids=str,
)
async def test_a_consumer_with_other_settings_is_an_error(
    lab: Any, server: NatsServer, changed: dict[str, Any], difference: str
) -> None:
    """NATS-10: the settings of the service would be ignored, or those of the server overwritten."""
    connection, name = await lab.connect(server.url), lab.name("S")
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"])
    settings: dict[str, Any] = {"subject": "a", "ack_wait": 2.0}
    await lab.open(connection, _source(name, settings))
    before = await lab.call(connection, f"CONSUMER.INFO.{name}.d")
    with pytest.raises(ConfigError, match=difference.replace("NAME", name)):
        await lab.open(connection, _source(name, {**settings, **changed}))
    assert (await lab.call(connection, f"CONSUMER.INFO.{name}.d"))["config"] == before["config"]


def _source(name: str, settings: dict[str, Any]) -> JetStream:
    rest = dict(settings)
    rest["subject"] = f"{name}.{rest['subject']}"
    rest["filter_subjects"] = tuple(f"{name}.{subject}" for subject in rest.pop("filter_subjects", ()))
    return JetStream(stream=name, durable="d", create=True, **rest)


async def test_what_is_declared_is_what_the_server_has(lab: Any, server: NatsServer) -> None:
    """NATS-10: a setting that is sent to the wrong place is lost without a word."""
    connection, name = await lab.connect(server.url), lab.name("S")
    at = datetime.now(UTC) - timedelta(hours=1)
    source = JetStream(
        f"{name}.*", stream=name, durable="d", create=True, ack_wait=7.5, max_ack_pending=123, max_deliver=4,
        deliver_policy="by_start_time", start_time=at,
    )  # fmt: skip
    await lab.open(connection, source)
    config = (await lab.call(connection, f"CONSUMER.INFO.{name}.d"))["config"]
    wanted = ("filter_subject", "ack_wait", "max_ack_pending", "max_deliver", "deliver_policy", "ack_policy")
    assert [config[key] for key in wanted] == [f"{name}.*", 7_500_000_000, 123, 4, "by_start_time", "explicit"]
    await lab.open(connection, source)


async def test_several_filters_need_a_server_that_knows_them(lab: Any, server: NatsServer) -> None:
    """A server of 2.9 takes the setting, ignores it, and would deliver everything."""
    connection, name = await lab.connect(server.url), lab.name("S")
    source = JetStream(f"{name}.>", stream=name, create=True, filter_subjects=(f"{name}.a", f"{name}.b"))
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"])
    if server.version == "debian":
        with pytest.raises(ConfigError, match="does not know"):
            await lab.open(connection, source)
        found = await lab.call(connection, f"CONSUMER.NAMES.{name}")
        assert not found["consumers"], "the consumer that was made for nothing is gone again"
        return
    subscription = await lab.open(connection, source)
    for word in ("a", "c", "b"):
        await lab.publish(connection, f"{name}.{word}", word.encode())
    assert await lab.acked(subscription, 2) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"deliver_policy": "all"}, [b"0", b"1", b"2", b"3"]),
        ({"deliver_policy": "last"}, [b"3"]),
        ({"deliver_policy": "by_start_sequence", "start_sequence": 3}, [b"2", b"3"]),
        ({"deliver_policy": "last_per_subject"}, [b"2", b"3"]),
        ({"deliver_policy": "new"}, []),
    ],
    ids=lambda value: str(value.get("deliver_policy")) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("ordered", [False, True])
async def test_deliver_policies(
    lab: Any, server: NatsServer, settings: dict[str, Any], expected: list[bytes], ordered: bool
) -> None:
    """A consumer that begins elsewhere misses messages, or does work again."""
    connection, name = await lab.connect(server.url), lab.name("S")
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"])
    for number in range(4):
        await lab.publish(connection, f"{name}.{number % 2}", b"%d" % number)
    subscription = await lab.open(connection, JetStream(f"{name}.>", stream=name, ordered=ordered, **settings))
    await lab.publish(connection, f"{name}.0", b"end")
    got: list[bytes] = []
    while not got or got[-1] != b"end":
        got += await lab.acked(subscription, 1)
    assert got == [*expected, b"end"]


async def test_settling_is_what_the_server_sees(lab: Any, server: NatsServer) -> None:
    """A verdict that reaches the server as another one loses or repeats work."""
    connection, name = await lab.connect(server.url), lab.name("S")
    subscription = await lab.durable(connection, name, max_deliver=5)
    await lab.publish(connection, f"{name}.a", b"ack", b"term", b"nak", b"later")
    deliveries = await lab.take(subscription, 4)
    for delivery, verdict in zip(deliveries, (ACK, Drop("no use"), Retry(), Retry(after=0.3)), strict=True):
        assert delivery.settle(verdict) is None
    again, later = await lab.take(subscription, 2)
    assert [(one.payload, one.attempt, one.transport("nats.redelivered")) for one in (again, later)] == [
        (b"nak", 2, True),
        (b"later", 2, True),
    ]
    again.settle(ACK)
    later.settle(ACK)
    await connection.ping()
    await lab.consumer(connection, name, num_ack_pending=0, num_pending=0)


async def test_transport_fields(lab: Any, server: NatsServer) -> None:
    """`FromTransport` would give a handler another message's figures."""
    connection, name = await lab.connect(server.url), lab.name("S")
    subscription = await lab.durable(connection, name)
    await lab.publish(connection, f"{name}.a", b"0", b"1")
    first, second = await lab.take(subscription, 2)
    fields = ("subject", "stream", "consumer", "stream_sequence", "consumer_sequence", "redelivered")
    assert [second.transport(f"nats.{field}") for field in fields] == [f"{name}.a", name, "d", 2, 2, False]
    assert second.transport("nats.num_pending") == 0
    at = first.transport("nats.timestamp")
    assert isinstance(at, datetime)
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
    with pytest.raises(KeyError):
        first.transport("nats.nothing")


async def test_double_ack_is_done_when_the_server_says_so(lab: Any, server: NatsServer) -> None:
    """Whoever asked for certainty would get a promise."""
    connection, watch, name = await lab.connect(server.url), lab.watch(), lab.name("S")
    subscription = await lab.durable(connection, name, watch, double_ack=True)
    await lab.publish(connection, f"{name}.a", *[b"%d" % n for n in range(10)])
    pending = [delivery.settle(ACK) for delivery in await lab.take(subscription, 10)]
    assert subscription.statistics().unsettled == 10
    await asyncio.gather(*[future for future in pending if future is not None])
    # At once: the server has confirmed each of them.
    assert (await lab.call(connection, f"CONSUMER.INFO.{name}.d"))["ack_floor"]["stream_seq"] == 10
    assert (subscription.statistics().unsettled, watch.losses) == (0, [])


async def test_a_settlement_that_is_not_confirmed_is_lost(lab: Any, server: NatsServer) -> None:
    """Without the server's word it would be counted as done."""
    connection, watch, name = await lab.connect(server.url, request_timeout=0.3), lab.watch(), lab.name("S")
    subscription = await lab.durable(connection, name, watch, double_ack=True, heartbeat=15.0)
    await lab.publish(connection, f"{name}.a", b"x")
    (delivery,) = await lab.take(subscription, 1)
    delivery.address = delivery.address.replace(b"$JS.ACK", b"$JSX.ACK")  # nobody answers there
    pending = delivery.settle(ACK)
    assert pending is not None
    await pending
    assert [(lost, verdict) for lost, _, verdict in watch.losses] == [(delivery, ACK)]


async def test_a_batch_larger_than_max_ack_pending_is_refused(lab: Any, server: NatsServer) -> None:
    """A batch that can never be filled would wait for its linger every time."""
    connection, name = await lab.connect(server.url), lab.name("S")
    source = JetStream(f"{name}.>", stream=name, durable="d", create=True, max_ack_pending=10)
    with pytest.raises(ConfigError, match="max_ack_pending=10"):
        await lab.open(connection, source, workers=2, batch=8)


async def test_a_replay_can_seek(lab: Any, server: NatsServer) -> None:
    """`Seeker` would be refused, or land beside the message."""
    connection, name = await lab.connect(server.url), lab.name("S")
    source = JetStream(f"{name}.>", stream=name, create=True, ordered=True)
    subscription = await lab.open(connection, source)
    assert isinstance(subscription, Seekable)
    await lab.publish(connection, f"{name}.a", *[b"%d" % n for n in range(5)])
    assert await lab.acked(subscription, 5) == [b"0", b"1", b"2", b"3", b"4"]
    await subscription.seek(4)
    assert await lab.acked(subscription, 2) == [b"3", b"4"]
    await subscription.seek("earliest")
    assert await lab.acked(subscription, 5) == [b"0", b"1", b"2", b"3", b"4"]
    await subscription.seek("latest")
    await lab.publish(connection, f"{name}.a", b"new")
    assert await lab.acked(subscription, 1) == [b"new"]
    for nowhere in (0, 99, "middle", True, None):
        with pytest.raises(ConfigError, match="cannot seek"):
            await subscription.seek(nowhere)
    names = (await lab.call(connection, f"CONSUMER.NAMES.{name}"))["consumers"]
    assert len(names) == 1, "the consumers of before are gone"


async def test_a_key_value_bucket_is_watched(lab: Any, server: NatsServer) -> None:
    """The values that are there, then their changes, deletions among them."""
    connection, name = await lab.connect(server.url), lab.name("B")
    await lab.call(
        connection, f"STREAM.CREATE.KV_{name}", name=f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=1,
    )  # fmt: skip
    for payload in (b"1", b"2"):
        await lab.publish(connection, f"$KV.{name}.colour", payload)
    broker_source = KeyValueWatch(name)
    subscription = await lab.open(connection, broker_source)
    assert await lab.acked(subscription, 1) == [b"2"]
    sender = await connection.sender()
    sender.send(lab.out(b"", f"$KV.{name}.colour", Headers({"KV-Operation": "DEL"})))
    (gone,) = await lab.take(subscription, 1)
    assert (gone.name, gone.payload, gone.headers["kv-operation"]) == (f"$KV.{name}.colour", b"", "DEL")
    fresh = await lab.open(connection, KeyValueWatch(name, updates_only=True))
    await lab.publish(connection, f"$KV.{name}.size", b"9")
    assert await lab.acked(fresh, 1) == [b"9"]


async def test_push_consumers_share_their_group(lab: Any, server: NatsServer) -> None:
    """Two members of one durable push consumer would both get each message."""
    first, second = await lab.connect(server.url), await lab.connect(server.url)
    name = lab.name("S")
    source = JetStream(f"{name}.>", stream=name, durable="d", push=True, create=True)
    one, other = await lab.open(first, source), await lab.open(second, source)
    await lab.publish(first, f"{name}.a", *[b"%d" % n for n in range(40)])
    got: list[bytes] = []
    calls = {tap: asyncio.ensure_future(tap.receive(5)) for tap in (one, other)}
    while len(got) < 40:
        await asyncio.wait(calls.values(), return_when=asyncio.FIRST_COMPLETED)
        for tap, call in list(calls.items()):
            if call.done():
                for delivery in call.result():
                    got.append(delivery.payload)
                    delivery.settle(ACK)
                calls[tap] = asyncio.ensure_future(tap.receive(5))
    assert sorted(got) == sorted(b"%d" % n for n in range(40))
    for tap in calls:
        tap.stop()
    await asyncio.gather(*calls.values())


async def test_what_was_fetched_ahead_is_there_for_others_at_once(lab: Any, server: NatsServer) -> None:
    """What one process had fetched would be gone for a whole ack_wait when it stops."""
    first, second = await lab.connect(server.url), await lab.connect(server.url)
    name = lab.name("S")
    subscription = await lab.durable(first, name, ack_wait=600.0)
    await lab.publish(first, f"{name}.a", *[b"%d" % n for n in range(20)])
    assert await lab.acked(subscription, 3) == [b"0", b"1", b"2"]
    subscription.stop()
    await subscription.aclose(5.0)
    other = await lab.open(second, subscription.source)
    assert await lab.acked(other, 17) == [b"%d" % n for n in range(3, 20)]


async def test_an_api_of_another_domain_is_named(lab: Any, server: NatsServer) -> None:
    """A wrong domain has no JetStream behind it, and would look like a slow server."""
    connection = await lab.connect(server.url, domain="elsewhere")
    with pytest.raises(ConfigError, match="domain"):
        await lab.open(connection, JetStream("a.>", stream="A"))


async def test_a_stream_must_exist_where_it_is_expected(lab: Any, server: NatsServer) -> None:
    """NATS-04: a service would start and fail with its first message."""
    connection = await lab.connect(server.url)
    with pytest.raises(ConfigError, match="no such stream"):
        await connection.sender(JetStreamPublish(expect_stream="nowhere"))


async def test_expectations_are_kept(lab: Any, server: NatsServer) -> None:
    """Optimistic writing would overwrite what somebody else wrote."""
    connection, name = await lab.connect(server.url), lab.name("S")
    for stream in (name, f"{name}b"):
        await lab.call(connection, f"STREAM.CREATE.{stream}", name=stream, subjects=[f"{stream}.>"])
    sender = await connection.sender(JetStreamPublish(expect_stream=name))
    await sender.send(lab.out(b"1", f"{name}.a"))
    with pytest.raises(PublishError, match="expected stream does not match"):
        await sender.send(lab.out(b"x", f"{name}b.a"))
    await sender.send(lab.out(b"2", f"{name}.a", options=JetStreamPublish(expect_last_sequence=1)))
    with pytest.raises(PublishError, match="wrong last sequence"):
        await sender.send(lab.out(b"3", f"{name}.a", options=JetStreamPublish(expect_last_sequence=1)))
    with pytest.raises(PublishError, match="wrong last sequence"):
        await sender.send(lab.out(b"3", f"{name}.a", options=JetStreamPublish(expect_last_subject_sequence=0)))
    info = await lab.call(connection, f"STREAM.INFO.{name}")
    assert info["state"]["messages"] == 2


async def test_a_message_id_is_taken_once(lab: Any, server: NatsServer) -> None:
    """A publisher that tries again would store its message twice."""
    connection, name = await lab.connect(server.url), lab.name("S")
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"])
    sender = await connection.sender(JetStreamPublish(msg_id_header="x-id"))
    for _ in range(3):
        await sender.send(lab.out(b"once", f"{name}.a", Headers({"x-id": "7"})))
    await sender.send(lab.out(b"other", f"{name}.a", options=JetStreamPublish(msg_id="8")))
    with pytest.raises(PublishError, match="x-id"):
        sender.send(lab.out(b"none", f"{name}.a"))
    assert (await lab.call(connection, f"STREAM.INFO.{name}"))["state"]["messages"] == 2
