"""What a stream does to a service that runs: leases that end, consumers that go, limits, bad messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ruststream_core import App, Context
from ruststream_core.app import Running
from ruststream_core.errors import ConfigError, PublishError, RustStreamError
from ruststream_core.testing.servers import NatsServer
from ruststream_core_nats import JetStream, JetStreamPublish

from .ledger import Ledger
from .scene import (
    STREAM,
    Begin,
    Job,
    Rounds,
    all_handled,
    all_settled,
    api,
    apis,
    balanced,
    broker,
    producing,
    service,
    source,
    under_load,
    until,
)

LEASE = 0.4
"""Seconds of ack_wait where the handler is slower."""


async def test_slower_than_its_lease(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin
) -> None:
    """The server would give the message to somebody else, or to the same service again, while it is worked on.

    Two replicas: one handler is a coroutine, the other one blocks its thread.
    """
    row = figures("handler: takes 3 times ack_wait, 2 replicas")
    server = own_server()
    waits, blocks = (App("slow", broker=broker(server.url), drain=20.0) for _ in range(2))

    @waits.subscriber(source(ack_wait=LEASE), workers=8, name="load")
    async def wait(job: Job, ctx: Context) -> None:
        await asyncio.sleep(3 * LEASE)
        ledger.write(job.number, ctx.attempt)

    @blocks.subscriber(source(ack_wait=LEASE), workers=8, name="load")
    def block(job: Job, ctx: Context) -> None:
        time.sleep(3 * LEASE)
        ledger.write(job.number, ctx.attempt)

    async with waits.start() as one, blocks.start() as two, producing(server.url) as producer:
        for _ in rounds:
            await producer.publish(16, pause=0)
            await until(lambda: not ledger.missing(producer.confirmed), "all is handled")
            row.rounds += 1
        await all_settled(server.url)
        balanced(one)
        balanced(two)
    row.add(ledger, producer.confirmed)
    assert (row.lost, row.duplicates) == (0, 0)
    assert {entry.attempt for entry in ledger.entries()} == {1}


# ------------------------------------------------------------------------------------- what goes while one is at work


async def _delete_consumer(url: str, name: str) -> None:
    await api(url, f"CONSUMER.DELETE.{STREAM}.{name}")


async def _delete_stream(url: str, _: str) -> None:
    await api(url, f"STREAM.DELETE.{STREAM}")


# A consumer that is away for longer than the plugin's second look is gone, and the service ends: so all at once.
async def _recreate_consumer(url: str, name: str) -> None:
    found = await api(url, f"CONSUMER.INFO.{STREAM}.{name}")
    await apis(url, (f"CONSUMER.DELETE.{STREAM}.{name}", {}), _creation(name, found))


async def _recreate_all(url: str, name: str) -> None:
    stream = await api(url, f"STREAM.INFO.{STREAM}")
    found = await api(url, f"CONSUMER.INFO.{STREAM}.{name}")
    creation = (f"STREAM.CREATE.{STREAM}", stream["config"])
    await apis(url, (f"STREAM.DELETE.{STREAM}", {}), creation, _creation(name, found))


def _creation(name: str, found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"CONSUMER.DURABLE.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": found["config"]}


GOING: dict[str, tuple[dict[str, Any], Callable[[str, str], Awaitable[None]], bool]] = {
    "durable deleted": ({}, _delete_consumer, False),
    "push durable deleted": ({"push": True}, _delete_consumer, False),
    "stream deleted": ({}, _delete_stream, False),
    "durable deleted and made again": ({}, _recreate_consumer, True),
    "push durable deleted and made again": ({"push": True}, _recreate_consumer, True),
    "stream and durable deleted and made again": ({}, _recreate_all, True),
    "ephemeral deleted": ({"durable": None, "deliver_policy": "new"}, _delete_consumer, True),
    "ordered deleted": (
        {"durable": None, "deliver_policy": "new", "ordered": True, "ack_wait": None},
        _delete_consumer,
        True,
    ),
    "push ephemeral deleted": ({"durable": None, "deliver_policy": "new", "push": True}, _delete_consumer, True),
}
"""By what happens: the source, how it is done, and whether the service is expected to go on."""
NOTES: dict[Callable[[str, str], Awaitable[None]], str] = {
    _recreate_consumer: "the new consumer begins at the start of the stream",
    _recreate_all: "the new stream is empty",
}


@pytest.mark.parametrize("what", GOING)
async def test_alive_and_silent(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin, what: str
) -> None:
    """A consumer that is gone looks like an idle one: the service would be up, ready, and without work for ever."""
    settings, work, goes_on = GOING[what]
    row = figures(f"{what} while the service runs")
    server = own_server()
    of = source(**{"heartbeat": 0.1, **settings})
    # The stream is there from the start, whoever makes it: what does not create needs it.
    await api(server.url, f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=["load.*"], storage="file")
    async with producing(server.url) as producer:
        for _ in rounds:
            app = service(broker(server.url), ledger, of=of)
            error: RustStreamError | None = None
            try:
                async with app.start() as running:
                    await producer.publish(5, pause=0)
                    await until(lambda: not ledger.missing(producer.confirmed), "it works")
                    await work(server.url, await _consumer(server.url))
                    moment = time.monotonic()
                    await _after(running, producer, ledger, goes_on=goes_on)
                    row.back.append(time.monotonic() - moment)
                    balanced(running)
            except RustStreamError as exc:
                error = exc
            assert (error is None) == goes_on
            if error is not None:
                assert isinstance(error, ConfigError)
                assert STREAM in str(error)
                if work is not _delete_stream:
                    await api(server.url, f"STREAM.DELETE.{STREAM}")
                await api(server.url, f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=["load.*"], storage="file")
            row.rounds += 1
    row.add(ledger, producer.confirmed)
    row.note = NOTES.get(
        work, "goes on where it was" if goes_on else "ends with an error; the figure is the time to it"
    )
    assert row.lost == 0
    if work not in (_recreate_consumer, _recreate_all):
        assert row.duplicates == 0


async def _consumer(url: str) -> str:
    found = await api(url, f"CONSUMER.NAMES.{STREAM}")
    (name,) = found["consumers"]
    return str(name)


async def _after(running: Running, producer: Any, ledger: Ledger, *, goes_on: bool) -> None:
    if not goes_on:
        await until(lambda: not running.health().ready, "the service says that it cannot go on")
        return
    await producer.publish(5, pause=0)
    ended = running._runtime
    await until(lambda: not ledger.missing(producer.confirmed) or ended.error is not None, "the service goes on")
    assert ended.error is None


# -------------------------------------------------------------------------------------------------- limits, messages


async def test_account_limits(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin
) -> None:
    """A full account would make publishing hang or fail without a reason, or stop the service for good."""
    row = figures("account: max_storage and max_streams reached, room made again")
    server = own_server(max_storage=100_000, max_streams=1)
    filler = b'{"number": 0, "filler": "' + b"x" * 4000 + b'"}'
    options = JetStreamPublish(timeout=5.0)
    async with service(broker(server.url), ledger).start() as running, producing(server.url) as producer:
        for _ in rounds:
            with pytest.raises(PublishError, match=r"load\.job.*(insufficient|exceed)"):
                for _ in range(200):
                    await running.publish(filler, to="load.job", options=options)
            second = App("second", broker=broker(server.url))
            second.subscriber(JetStream("other", stream="OTHER", durable="other", create=True))(_nothing)
            with pytest.raises(ConfigError, match="maximum number of streams|streams.* exceeded"):
                async with second.start():
                    pass
            await until(lambda: running.statistics()["load"]["in_hand"] == 0, "what fitted is handled")
            await api(server.url, f"STREAM.PURGE.{STREAM}")
            await producer.publish(20, pause=0)
            await until(lambda: not ledger.missing(producer.confirmed), "it goes on")
            row.rounds += 1
        await all_settled(server.url)
        balanced(running)
    row.add(ledger, producer.confirmed)
    assert (row.lost, row.duplicates) == (0, 0)


async def _nothing(job: Job) -> None:
    """A handler that is never called."""


async def test_bad_between_good(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin
) -> None:
    """One message that cannot be read, or be sent, would stop the others: block its consumer or cost the connection."""
    row = figures("poison and oversized messages between good ones")
    server = own_server(max_payload=4096)
    dead: list[bytes] = []
    app = service(broker(server.url), ledger, dead_letter="dead.load")
    grave = App("grave", broker=broker(server.url))

    @grave.subscriber("dead.load", name="dead")
    async def bury(body: bytes) -> None:
        dead.append(body)

    poison = [b"{", b"", b"\xff\xfe", b"null", b'{"number": "one"}', b"[" * 2000]
    async with grave.start(), app.start() as running, producing(server.url) as producer:
        before = _connections(server)
        for _ in rounds:
            load = await under_load(ledger, producer)
            for body in poison:
                await running.publish(body, to="load.job", options=JetStreamPublish())
            for size in (4097, 1 << 20):
                with pytest.raises(PublishError, match=r"load\.job.*4096"):
                    await running.publish(b"x" * size, to="load.job", options=JetStreamPublish())
            with pytest.raises(PublishError, match=r"load\.job.*4096"):
                await running.publish(b"x" * 4090, to="load.job", headers={"x-filler": "y" * 50})
            await all_handled(ledger, producer, load)
            row.rounds += 1
        await all_settled(server.url)
        await until(lambda: len(dead) == len(poison) * row.rounds, "each bad message is in the dead letter once")
        balanced(running)
        # None of the services' may be missing: one made anew has another number. The test's own come and go.
        assert before <= _connections(server)
    assert sorted(dead) == sorted(poison * row.rounds)
    row.add(ledger, producer.confirmed)
    assert (row.lost, row.duplicates) == (0, 0)


def _connections(server: NatsServer) -> set[int]:
    """Numbers of those that are open, which the server never gives twice."""
    return {int(one["cid"]) for one in server.monitor("connz")["connections"]}
