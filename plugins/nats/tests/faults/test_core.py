"""Core subjects settle nothing: what reached the process is handled or counted, and what did not is told."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from ruststream_core import App
from ruststream_core.abc import SubscriptionStatistics
from ruststream_core.app import Running
from ruststream_core.testing.servers import NatsServer, Proxy
from ruststream_core_nats import CoreSubject

from .ledger import Ledger
from .scene import Begin, Job, Rounds, balanced, broker, until

BURST = 3000
NUMBERS = itertools.count(1)


def _service(line: Any, ledger: Ledger, of: CoreSubject, *, gate: asyncio.Event | None = None, workers: int = 4) -> App:
    app = App("core", broker=line, drain=20.0)

    @app.subscriber(of, workers=workers, name="load")
    async def handle(job: Job) -> None:
        if gate is not None:
            await gate.wait()
        await asyncio.sleep(0)
        ledger.write(job.number, 1)

    return app


def _statistics(running: Running) -> SubscriptionStatistics:
    return running._runtime.routes["load"].statistics()


async def _sent(server: NatsServer, name: str) -> int:
    """Messages that the server has sent to the connection of that name, which is closed."""
    found: list[int] = []

    def known() -> bool:
        closed = server.monitor("connz", state="closed", limit=10_000)["connections"]
        found[:] = [one["out_msgs"] for one in closed if one.get("name") == name]
        return len(found) == 1

    await until(known, "the server knows that it is closed")
    return found[0]


async def _publish(publisher: Running, count: int) -> None:
    for _ in range(count):
        await publisher.publish(Job(next(NUMBERS)), to="core.load")


async def _flood(publisher: Running) -> None:
    """Publish without an end, so that at any moment something is on its way."""
    while True:
        await _publish(publisher, 20)
        await asyncio.sleep(0)


@pytest.mark.parametrize("internals", [True, False], ids=["internals", "public"])
async def test_drained_under_load(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin, internals: bool
) -> None:
    """Messages that were on their way when the service stopped would be in no book."""
    row = figures("Core: stopped under load" + ("" if internals else " (public client interface)"))
    server = own_server()
    handled = counted = sent = 0
    async with App("producer", broker=broker(server.url)).start() as producer:
        for number in rounds:
            name = f"round-{number}"
            line = broker(server.url, name=name, internals=internals)
            before = len(ledger.entries())
            app = _service(line, ledger, CoreSubject("core.load", window=64))
            async with app.start() as running:
                load = asyncio.create_task(_flood(producer))
                await until(lambda: len(ledger.entries()) > before + 500, "the load is under way")  # noqa: B023
            load.cancel()
            await asyncio.wait([load])
            books, statistics = running.statistics()["load"], _statistics(running)
            balanced(running)
            assert books["acked"] == len(ledger.entries()) - before
            in_round = await _sent(server, name)
            if internals:
                assert in_round == books["received"] + statistics.discarded
            else:  # what is on its way when it stops, the client throws away without a word
                assert in_round >= books["received"] + statistics.discarded
            handled += books["acked"]
            counted += books["discarded"] + statistics.discarded
            sent += in_round
            row.rounds += 1
    row.published = sent
    row.duplicates = len(ledger.again())
    row.lost = sent - handled - counted
    row.note = f"{handled:,} handled, {counted:,} counted as discarded"
    assert row.duplicates == 0
    assert row.lost == 0 or not internals


async def test_slow_consumer_here(
    own_server: Callable[..., NatsServer],
    rounds: Rounds,
    ledger: Ledger,
    figures: Begin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A handler that does not keep up would lose messages without a word, or fill the memory."""
    row = figures("Core: handlers stuck, the process's own buffer overflows")
    server = own_server()
    discarded = 0
    async with App("producer", broker=broker(server.url)).start() as producer:
        for _ in rounds:
            gate = asyncio.Event()
            app = _service(broker(server.url), ledger, CoreSubject("core.load", window=16, pending=100), gate=gate)
            async with app.start() as running:
                await _publish(producer, BURST)
                await until(lambda: _total(running) == BURST, "all has come")
                assert any("handlers do not keep up" in record.message for record in caplog.records)
                gate.set()
                await until(lambda: _statistics(running).buffered == running.statistics()["load"]["in_hand"] == 0, "")
                books, statistics = running.statistics()["load"], _statistics(running)
                assert books["acked"] + statistics.discarded == BURST
                assert statistics.discarded >= BURST - 100 - 16 - 4
                discarded += statistics.discarded
            row.rounds += 1
            caplog.clear()
    row.published = BURST * row.rounds
    row.duplicates = len(ledger.again())
    row.lost = row.published - len(ledger.entries()) - discarded
    row.note = f"{discarded:,} counted as discarded"
    assert (row.lost, row.duplicates) == (0, 0)


def _total(running: Running) -> int:
    statistics = _statistics(running)
    return running.statistics()["load"]["received"] + statistics.buffered + statistics.discarded


async def test_slow_consumer_cut_by_the_server(
    own_server: Callable[..., NatsServer],
    rounds: Rounds,
    ledger: Ledger,
    figures: Begin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server closes the connection of whom it cannot send to, and drops what it had for them: nobody would know."""
    row = figures("Core: the server cuts a slow consumer")
    caplog.set_level(logging.INFO, logger="ruststream")
    server = own_server(extra={"max_pending": 1 << 20, "write_deadline": "1s"})
    filler = "x" * 1000
    number = 0
    async with (
        Proxy(server.url) as proxy,
        App("producer", broker=broker(server.url)).start() as producer,
        _service(broker(proxy.url), ledger, CoreSubject("core.load")).start() as running,
    ):
        for _ in rounds:
            proxy.blackhole("down")
            cut = server.monitor("varz")["slow_consumers"]
            while server.monitor("varz")["slow_consumers"] == cut:
                for _ in range(200):
                    await producer.publish({"number": 0, "filler": filler}, to="core.load")
            caplog.clear()
            proxy.heal()
            await until(lambda: "the connection was lost" in caplog.text, "the outage is told")
            await until(lambda: running.health().ready, "it is back")
            number += 1
            await producer.publish(Job(number), to="core.load")
            await until(lambda: number in ledger.handled(), "it goes on")  # noqa: B023
            row.rounds += 1
        balanced(running)
    row.note = "told as a lost connection; what the server dropped cannot be counted from here"
