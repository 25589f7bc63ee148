"""The server crashes, or the line to it breaks: nothing of a stream is lost, and the service is back by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ruststream_core.testing.servers import Direction, NatsServer, Proxy

from .ledger import Ledger
from .scene import (
    JOBS,
    WINDOW,
    Begin,
    Rounds,
    all_handled,
    all_settled,
    back,
    balanced,
    broker,
    producing,
    received,
    service,
    under_load,
    until,
)

UNWRITTEN = 1.0
"""Seconds of acknowledgements that a server which is killed may not have written down yet; it does every 0.1 s."""


async def test_killed_server(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin
) -> None:
    """A crash of the server would lose messages, or leave a service that is connected and asks for nothing.

    Two replicas, one of them without the client's internals: each has to come back.
    """
    row = figures("server: SIGKILL, started again")
    server = own_server()
    allowed = 0
    replicas = [service(broker(server.url, internals=internals), ledger).start() for internals in (True, False)]
    async with replicas[0] as one, replicas[1] as two, producing(server.url) as producer:
        for _ in rounds:
            load = await under_load(ledger, producer)
            allowed += 2 * WINDOW + sum(entry.at > time.monotonic() - UNWRITTEN for entry in ledger.entries())
            server.kill()
            await asyncio.to_thread(server.start)
            moment = time.monotonic()
            before = [received(replica) for replica in (one, two)]
            row.back.append(await back(ledger, moment))
            await until(lambda: received(one) > before[0] and received(two) > before[1], "both replicas are back")  # noqa: B023
            await all_handled(ledger, producer, load)
            row.rounds += 1
        await all_settled(server.url)
        balanced(one)
        balanced(two)
    row.add(ledger, producer.confirmed)
    assert row.at_most(twice=allowed), row


async def test_server_paused(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin
) -> None:
    """A server that hangs looks connected: the service would wait for it for ever, or lose what it had in hand."""
    row = figures("server: SIGSTOP until the client gives it up, then SIGCONT")
    server = own_server()
    app = service(broker(server.url, heartbeat=0.1), ledger)
    async with app.start() as running, producing(server.url, heartbeat=0.1) as producer:
        for _ in rounds:
            load = await under_load(ledger, producer)
            server.pause()
            await until(lambda: not running.health().ready, "the service notices")
            server.resume()
            row.back.append(await back(ledger, time.monotonic()))
            await all_handled(ledger, producer, load)
            row.rounds += 1
        await all_settled(server.url)
        balanced(running)
    row.add(ledger, producer.confirmed)
    assert row.at_most(twice=2 * WINDOW * row.rounds), row


async def test_line_cut(own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin) -> None:
    """A reset connection would lose deliveries in hand or their acknowledgements for good."""
    row = figures("line: reset")
    server = own_server()
    async with (
        Proxy(server.url) as proxy,
        producing(server.url) as producer,
        service(broker(proxy.url), ledger).start() as running,
    ):
        for _ in rounds:
            load = await under_load(ledger, producer)
            assert proxy.cut() >= 1
            row.back.append(await back(ledger, time.monotonic()))
            await all_handled(ledger, producer, load)
            row.rounds += 1
        await all_settled(server.url)
        balanced(running)
    row.add(ledger, producer.confirmed)
    assert row.at_most(twice=2 * WINDOW * row.rounds), row


async def test_half_open_line(
    own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin
) -> None:
    """A line on which nothing comes through has no error: without heartbeats it looks idle for ever."""
    row = figures("line: half open; both ways, to the server, from it in turn")
    server = own_server()
    ways: tuple[Direction | None, ...] = (None, "up", "down")
    async with (
        Proxy(server.url) as proxy,
        producing(server.url) as producer,
        service(broker(proxy.url, heartbeat=0.1), ledger).start() as running,
    ):
        for number in rounds:
            load = await under_load(ledger, producer)
            proxy.blackhole(ways[number % 3])
            await until(lambda: not running.health().ready, "the service notices")
            proxy.heal()
            row.back.append(await back(ledger, time.monotonic()))
            await all_handled(ledger, producer, load)
            row.rounds += 1
        await all_settled(server.url)
        balanced(running)
    row.add(ledger, producer.confirmed)
    assert row.at_most(twice=2 * WINDOW * row.rounds), row


async def test_slow_line(own_server: Callable[..., NatsServer], rounds: Rounds, ledger: Ledger, figures: Begin) -> None:
    """What takes long on its way is taken for lost: handled twice, or the connection given up again and again."""
    row = figures("line: 40 kB/s and 20 ms each way")
    server = own_server()
    async with (
        Proxy(server.url) as proxy,
        producing(server.url) as producer,
        service(broker(proxy.url), ledger).start() as running,
    ):
        for _ in rounds:
            load = await under_load(ledger, producer)
            proxy.throttle(40_000)
            proxy.delay(0.02)
            slowed = time.monotonic()
            await until(lambda: len([e for e in ledger.entries() if e.at > slowed]) > JOBS // 4, "slow, not stuck")  # noqa: B023
            proxy.throttle(None)
            proxy.delay(0)
            await all_handled(ledger, producer, load)
            row.rounds += 1
        await all_settled(server.url)
        assert proxy.statistics().accepted == 1
        balanced(running)
    row.add(ledger, producer.confirmed)
    assert (row.lost, row.duplicates) == (0, 0)
