"""Servers that go away, consumers that are deleted, lines that break: never alive and silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from ruststream_core.errors import Closed, ConfigError, ConnectError, LeaseLost, Revoked
from ruststream_core.settlement import ACK, Drop, Retry
from ruststream_core.testing.servers import NatsServer, Proxy
from ruststream_core_nats import CoreSubject, JetStream, JetStreamPublish, NATSBroker


async def test_messages_come_after_each_of_five_crashes(lab: Any, own_server: Callable[..., NatsServer]) -> None:
    """NATS-01: a pull request that waited when the server was killed would wait for its whole expiry."""
    server = own_server()
    connection, watch, name = await lab.connect(server.url), lab.watch(), lab.name("S")
    subscription = await lab.durable(connection, name, watch, expires=600.0, heartbeat=300.0)
    sender = await connection.sender(JetStreamPublish(timeout=2.0))
    seen: list[bytes] = []
    for number in range(5):
        receiving = asyncio.ensure_future(subscription.receive(10))
        interrupted = watch.states.count("interrupted")
        await asyncio.to_thread(server.kill)
        await lab.until(lambda before=interrupted: watch.states.count("interrupted") > before)
        await asyncio.to_thread(server.start)
        await lab.until(lambda: watch.states[-1] == "receiving")
        await sender.send(lab.out(b"%d" % number, f"{name}.a"))
        async with asyncio.timeout(30):
            (delivery,) = await receiving
        seen.append(delivery.payload)
        delivery.settle(ACK)
        await connection.ping()
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    await lab.consumer(connection, name, num_pending=0, num_redelivered=0)


async def test_idle_is_quiet_and_asks_once_per_expiry(
    lab: Any, server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """NATS-03: an idle consumer would fill the log with timeouts, or ask ever more often."""
    connection, name = await lab.connect(server.url), lab.name("S")
    asked: list[bytes] = []
    subscription = await lab.durable(connection, name, expires=0.4, heartbeat=0.1)
    requests = await connection._wire.listen(f"$JS.API.CONSUMER.MSG.NEXT.{name}.d", "", lambda *m: asked.append(m[2]))
    await connection.ping()
    with caplog.at_level(logging.INFO):
        receiving = asyncio.ensure_future(subscription.receive(10))
        await lab.until(lambda: len(asked) >= 5)
        await lab.publish(connection, f"{name}.a", b"first")
        (delivery,) = await receiving
    delivery.settle(ACK)
    requests.close()
    assert delivery.payload == b"first"
    assert [record for record in caplog.records if record.name.startswith(("ruststream", "nats"))] == []
    assert set(asked) == {asked[0]}, "an idle consumer is asked for the same again, not for more"
    assert subscription.statistics().state == "receiving"


async def test_a_deleted_durable_consumer_ends_the_subscription(lab: Any, server: NatsServer) -> None:
    """A deleted consumer would look like one that is idle."""
    connection, watch, name = await lab.connect(server.url), lab.watch(), lab.name("S")
    subscription = await lab.durable(connection, name, watch)
    await lab.publish(connection, f"{name}.a", b"one")
    (delivery,) = await lab.take(subscription, 1)
    receiving = asyncio.ensure_future(subscription.receive(1))
    await lab.call(connection, f"CONSUMER.DELETE.{name}.d")
    with pytest.raises(ConfigError, match="was deleted"):
        await receiving
    assert isinstance(delivery.lost, Revoked)
    assert [lost for lost, _, _ in watch.losses] == [delivery]
    assert watch.states[-1] == "ended"


@pytest.mark.parametrize("settings", [{"durable": "d"}, {}, {"ordered": True}, {"push": True}], ids=str)
async def test_a_deleted_stream_ends_the_subscription(lab: Any, server: NatsServer, settings: dict[str, Any]) -> None:
    """A deleted stream would look like one that is idle."""
    connection, name = await lab.connect(server.url), lab.name("S")
    source = JetStream(f"{name}.>", stream=name, create=True, heartbeat=0.2, expires=2.0, **settings)
    subscription = await lab.open(connection, source)
    receiving = asyncio.ensure_future(subscription.receive(1))
    await lab.call(connection, f"STREAM.DELETE.{name}")
    with pytest.raises(ConfigError, match=r"deleted|stream not found"):
        await receiving


async def test_a_consumer_of_its_own_is_made_again(lab: Any, server: NatsServer) -> None:
    """A consumer that the server removed while nobody asked would leave the subscription deaf."""
    connection, watch, name = await lab.connect(server.url), lab.watch(), lab.name("S")
    source = JetStream(f"{name}.>", stream=name, create=True)
    subscription = await lab.open(connection, source, watch)
    await lab.publish(connection, f"{name}.a", b"0", b"1", b"2", b"3")
    first, second, third, fourth = await lab.take(subscription, 4)
    first.settle(ACK)
    fourth.settle(ACK)
    second.settle(Retry(after=60))
    await connection.ping()
    await lab.call(connection, f"CONSUMER.DELETE.{name}.{subscription.consumer.name}")
    again = await lab.take(subscription, 3)
    assert [delivery.payload for delivery in again] == [b"1", b"2", b"3"], "from the first unsettled one on"
    assert [lost for lost, _, _ in watch.losses] == [third]


async def test_a_replay_goes_on_behind_its_last_message(lab: Any, server: NatsServer) -> None:
    """A replay whose line broke would miss what was sent into it, or begin again."""
    name = lab.name("S")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url), lab.watch()
        direct = await lab.connect(server.url)
        source = JetStream(f"{name}.>", stream=name, create=True, ordered=True, window=10)
        subscription = await lab.open(connection, source, watch)
        got: list[bytes] = []
        for number in range(4):
            await lab.publish(direct, f"{name}.a", *[b"%d" % n for n in range(50 * number, 50 * number + 50)])
            got += await lab.acked(subscription, 7)
            proxy.cut()
            await lab.until(lambda before=number: watch.states.count("interrupted") > before)
            got += await lab.acked(subscription, 43)
    assert got == [b"%d" % n for n in range(200)]


async def test_settlements_in_an_outage_arrive_after_it(lab: Any, server: NatsServer) -> None:
    """What was settled while the line was down would come again."""
    name = lab.name("S")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url), lab.watch()
        subscription = await lab.durable(connection, name, watch, ack_wait=60.0)
        await lab.publish(connection, f"{name}.a", *[b"%d" % n for n in range(20)])
        deliveries = await lab.take(subscription, 20)
        proxy.refuse()
        proxy.cut()
        await lab.until(lambda: "interrupted" in watch.states)
        for delivery in deliveries:
            delivery.settle(ACK)
        await proxy.accept()
        await lab.until(lambda: watch.states[-1] == "receiving")
        await connection.ping()
        await lab.consumer(connection, name, num_ack_pending=0)
        assert watch.losses == []


async def test_settlements_that_never_left_are_reported_lost(lab: Any, server: NatsServer) -> None:
    """The books would count as acknowledged what the server delivers again."""
    name = lab.name("S")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url), lab.watch()
        subscription = await lab.durable(connection, name, watch)
        await lab.publish(connection, f"{name}.a", b"one")
        (delivery,) = await lab.take(subscription, 1)
        proxy.refuse()
        proxy.cut()
        await lab.until(lambda: "interrupted" in watch.states)
        delivery.settle(ACK)
        await subscription.aclose(0.2)
        assert [(lost, verdict) for lost, _, verdict in watch.losses] == [(delivery, ACK)]
        assert isinstance(delivery.lost, LeaseLost)


async def test_reconnecting_goes_on_for_ever(lab: Any, server: NatsServer) -> None:
    """NATS-12: after some attempts the client would close quietly, and the process live on without a consumer."""
    name = lab.name("t")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url, reconnect_wait=0.02), lab.watch()
        subscription = await lab.open(connection, name, watch)
        proxy.refuse()
        proxy.cut()
        client = connection._wire.client
        # 60 attempts are the client's own limit.
        await lab.until(lambda: max((one.reconnects for one in client.server_pool), default=0) > 70)
        await proxy.accept()
        await lab.until(lambda: watch.states[-1] == "receiving")
        await lab.publish(connection, name, b"after")
        assert await lab.acked(subscription, 1) == [b"after"]


@pytest.mark.parametrize("kind", ["core", "durable"])
async def test_a_limit_of_attempts_ends_terminally(lab: Any, server: NatsServer, kind: str) -> None:
    """NATS-12: with a limit that is reached, receive would wait for ever and senders take messages for nobody."""
    name = lab.name("S")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url, reconnects=2, reconnect_wait=0.05), lab.watch()
        opening = lab.open(connection, name, watch) if kind == "core" else lab.durable(connection, name, watch)
        subscription, sender = await opening, await connection.sender()
        receiving = asyncio.ensure_future(subscription.receive(1))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ConnectError, match="given up"):
            await receiving
        assert watch.states[-1] == "ended"
        with pytest.raises(Closed):
            sender.send(lab.out(b"x", name))
        with pytest.raises(ConnectError, match="given up"):
            await connection.ping()


async def test_a_dead_line_is_noticed_by_its_heartbeat(lab: Any, server: NatsServer) -> None:
    """NATS-12: a line on which nothing comes back, and nothing ends either, would never be given up."""
    name = lab.name("t")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url, heartbeat=0.2, connect_timeout=0.5), lab.watch()
        subscription = await lab.open(connection, name, watch)
        proxy.blackhole()
        await lab.until(lambda: "interrupted" in watch.states)
        proxy.heal()
        await lab.until(lambda: watch.states[-1] == "receiving")
        await lab.publish(connection, name, b"after")
        assert await lab.acked(subscription, 1) == [b"after"]


async def test_a_dead_line_with_unsent_bytes_is_given_up(lab: Any, server: NatsServer) -> None:
    """Closing a socket waits until its last bytes are written: on a dead line that is for ever."""
    name = lab.name("t")
    async with Proxy(server.url) as proxy:
        connection, watch = (
            await lab.connect(proxy.url, heartbeat=0.3, connect_timeout=0.5, buffer=64 << 20),
            lab.watch(),
        )
        await lab.open(connection, name, watch)
        sender = await connection.sender()
        proxy.blackhole()
        for _ in range(60):  # more than the sockets and the proxy between them hold
            sender.send(lab.out(b"x" * 500_000, "nobody.listens"))
        await lab.until(lambda: "interrupted" in watch.states)
        proxy.heal()
        await lab.until(lambda: watch.states[-1] == "receiving")
        await connection.ping()


@pytest.mark.parametrize("state", ["connected", "reconnecting", "closed"])
async def test_closing_ends_when_the_clients_tasks_are_gone(lab: Any, server: NatsServer, state: str) -> None:
    """NATS-13: a test runner or asyncio.run cancels every task; closing would hang or raise CancelledError."""
    name = lab.name("S")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url), lab.watch()
        subscription, sender = await lab.durable(connection, name, watch), await connection.sender()
        if state != "connected":
            proxy.refuse()
            proxy.cut()
            await lab.until(lambda: "interrupted" in watch.states)
        if state == "closed":
            await connection.aclose(0.1)
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine and "proxy" not in task.get_name()]
        for task in others:
            task.cancel()
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await asyncio.gather(connection.aclose(0.5), connection.aclose(0.5))
            await subscription.aclose(0.1)
            await sender.aclose(0.1)
            await connection.aclose(0.1)


async def test_a_user_that_is_taken_away_is_told(
    lab: Any, own_server: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    """A login that is refused from now on would look like idle; the password must not be in what is told."""
    server = own_server(users={"anna": "first-secret"})
    connection, watch, name = await lab.connect(server.url), lab.watch(), lab.name("t")
    subscription = await lab.open(connection, name, watch)
    with caplog.at_level(logging.INFO, "ruststream"):
        await asyncio.to_thread(server.reload, users={"berta": "other"})
        await lab.until(lambda: "Authorization Violation" in caplog.text)
    assert watch.states[-1] == "interrupted"
    assert isinstance(watch.causes[-1], ConnectError)
    with pytest.raises(ConnectError, match="Authorization Violation"):
        await connection.ping()
    await asyncio.to_thread(server.reload, users={"anna": "first-secret"})
    await lab.until(lambda: watch.states[-1] == "receiving")
    await lab.publish(connection, name, b"after")
    assert await lab.acked(subscription, 1) == [b"after"]
    assert "first-secret" not in f"{caplog.text}{watch.causes}"


async def test_a_subscription_that_is_not_permitted_is_refused(lab: Any, own_server: Callable[..., NatsServer]) -> None:
    """The server refuses by an error that belongs to no request: the subscription would be open and deaf."""
    user = {"user": "u", "password": "p", "permissions": {"subscribe": {"deny": ["secret.>"]}}}
    server = own_server(extra={"authorization": {"users": [user]}})
    connection = await lab.connect(server.url, user="u", password="p")
    with pytest.raises(ConfigError, match=r"not permitted to subscribe to 'secret\.a'"):
        await lab.open(connection, "secret.a")
    subscription = await lab.open(connection, "open.a")
    await lab.publish(connection, "open.a", b"x")
    assert await lab.acked(subscription, 1) == [b"x"]


async def test_slow_handlers_are_kept_alive(lab: Any, server: NatsServer) -> None:
    """NATS-15: a handler slower than ack_wait would get its message again while it works on it."""
    name = lab.name("S")
    connection, watch = await lab.connect(server.url), lab.watch()
    other = await lab.connect(server.url)
    subscription = await lab.durable(connection, name, watch, ack_wait=0.5)
    await lab.publish(connection, f"{name}.a", b"slow", b"waiting")
    first, second = await lab.take(subscription, 2)
    rival = await lab.open(other, subscription.source)
    waiting = asyncio.ensure_future(rival.receive(1))
    done, _ = await asyncio.wait([waiting], timeout=2.5)
    assert not done, "somebody else got a message that is being worked on"
    first.settle(ACK)
    second.settle(Drop())
    await connection.ping()
    await lab.consumer(connection, name, num_redelivered=0, num_ack_pending=0)
    assert watch.losses == []
    rival.stop()
    await waiting


async def test_without_marks_a_slow_handler_is_told(
    lab: Any, server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """NATS-15: a late acknowledgement would be swallowed, and the double work found by nobody."""
    name = lab.name("S")
    connection, watch = await lab.connect(server.url), lab.watch()
    subscription = await lab.durable(connection, name, watch, ack_wait=0.3, in_progress=False)
    await lab.publish(connection, f"{name}.a", b"slow")
    (delivery,) = await lab.take(subscription, 1)
    (again,) = await lab.take(subscription, 1)
    assert (again.payload, again.attempt) == (b"slow", 2)
    await lab.until(lambda: watch.losses)
    assert isinstance(delivery.lost, LeaseLost)
    assert delivery.settle(ACK) is None
    again.settle(ACK)
    assert len(watch.losses) == 1


async def test_an_outage_longer_than_ack_wait_does_no_work_twice(lab: Any, server: NatsServer) -> None:
    """The server delivers again what is still being worked on here; it would run beside itself."""
    name = lab.name("S")
    async with Proxy(server.url) as proxy:
        connection, watch = await lab.connect(proxy.url), lab.watch()
        subscription = await lab.durable(connection, name, watch, ack_wait=0.3)
        await lab.publish(connection, f"{name}.a", b"slow")
        (delivery,) = await lab.take(subscription, 1)
        proxy.refuse()
        proxy.cut()
        await lab.until(lambda: "interrupted" in watch.states)
        await asyncio.sleep(0.6)  # the lease has to run out, by the server's clock
        await proxy.accept()
        await lab.until(lambda: watch.states[-1] == "receiving")
        await lab.publish(connection, f"{name}.a", b"next")
        assert await lab.acked(subscription, 1) == [b"next"]
        delivery.settle(ACK)
        await connection.ping()
        await lab.consumer(connection, name, num_ack_pending=0)
        assert watch.losses == []


async def test_what_does_not_fit_is_dropped_and_counted(lab: Any, server: NatsServer) -> None:
    """A slow consumer would lose messages that nobody misses."""
    connection, name = await lab.connect(server.url), lab.name("t")
    subscription = await lab.open(connection, CoreSubject(name, pending=10))
    await lab.publish(connection, name, *[b"%d" % n for n in range(25)])
    await lab.until(lambda: subscription.statistics().discarded == 15)
    assert await lab.acked(subscription, 10) == [b"%d" % n for n in range(10)]


async def test_a_connection_that_cannot_be_made_names_server_and_user() -> None:
    """Without them nobody knows which of several brokers is meant; the password must not be shown."""
    broker = NATSBroker("nats://127.0.0.1:1", user="anna", password="hunter2", connect_timeout=0.5)
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1 as user 'anna'") as caught:
        await broker.connect()
    assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}{broker!r}"
