"""The proxy in front of a server that answers each line with the same line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ruststream_core.errors import Closed, ConfigError
from ruststream_core.testing.servers import Proxy

LONG = b"x" * 300_000 + b"\n"


class Echo:
    """Answers lines; keeps what it was sent and its connections, so that it can end them."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)
                await writer.drain()
            self.ends.put_nowait("end")
        except ConnectionError:
            self.ends.put_nowait("reset")
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, int]]:
    service = Echo()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, limit=1 << 20)
    async with server:
        yield service, server.sockets[0].getsockname()[1]
        for writer in service.writers:
            writer.transport.abort()


@pytest.fixture
async def proxy(echo: tuple[Echo, int]) -> AsyncIterator[Proxy]:
    async with Proxy(f"127.0.0.1:{echo[1]}") as opened:
        yield opened


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def ask(self, line: bytes) -> bytes:
        self.writer.write(line)
        return await self.reader.readline()

    def close(self) -> None:
        self.writer.transport.abort()


async def settle(port: int) -> None:
    """Go to the server and back past the proxy, several times: whatever was under way has arrived."""
    client = await Client.of(port)
    for _ in range(20):
        await client.ask(b"direct\n")
    client.close()


async def test_bytes_pass_both_ways_in_order_and_are_counted(proxy: Proxy) -> None:
    client = await Client.of(proxy.port)
    assert await client.ask(b"one\n") == b"one\n"
    assert await client.ask(LONG) == LONG
    seen = proxy.statistics()
    assert (seen.accepted, seen.connections) == (1, 1)
    assert (seen.bytes_up, seen.bytes_down) == (4 + len(LONG),) * 2
    client.close()


async def test_an_end_is_passed_on_and_the_other_direction_goes_on(proxy: Proxy, echo: tuple[Echo, int]) -> None:
    """Half-closed: the client has said everything and still listens."""
    client = await Client.of(proxy.port)
    client.writer.write(LONG)
    client.writer.write_eof()
    assert await client.reader.readline() == LONG
    assert await echo[0].ends.get() == "end"
    assert await client.reader.read() == b""
    client.close()


async def test_a_cut_resets_both_sides_and_new_connections_work(proxy: Proxy, echo: tuple[Echo, int]) -> None:
    client = await Client.of(proxy.port)
    await client.ask(b"one\n")
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
    assert await echo[0].ends.get() == "reset"
    client.close()
    again = await Client.of(proxy.port)
    assert await again.ask(b"two\n") == b"two\n"
    assert (proxy.statistics().accepted, proxy.statistics().connections) == (2, 1)
    again.close()


async def test_refused_means_refused_and_open_connections_stay(proxy: Proxy) -> None:
    client = await Client.of(proxy.port)
    await client.ask(b"one\n")
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await Client.of(proxy.port)
    assert await client.ask(b"two\n") == b"two\n"
    await proxy.accept()
    await proxy.accept()
    other = await Client.of(proxy.port)
    assert await other.ask(b"three\n") == b"three\n"
    client.close()
    other.close()


async def test_a_black_hole_holds_everything_until_it_heals(proxy: Proxy, echo: tuple[Echo, int]) -> None:
    service, port = echo
    client = await Client.of(proxy.port)
    await client.ask(b"one\n")
    before = proxy.statistics()
    proxy.blackhole()
    client.writer.write(b"two\n")
    client.writer.write(b"three\n")
    await settle(port)
    assert b"two\n" not in service.lines
    assert proxy.statistics() == before
    proxy.heal()
    assert [await client.reader.readline(), await client.reader.readline()] == [b"two\n", b"three\n"]
    client.close()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_black_hole_hides_the_end_of_the_server(how: str, proxy: Proxy, echo: tuple[Echo, int]) -> None:
    """A client whose server vanished this way learns it from its heartbeat alone."""
    service, port = echo
    client = await Client.of(proxy.port)
    await client.ask(b"one\n")
    proxy.blackhole()
    getattr(service.writers[0].transport, how)()
    reading = asyncio.ensure_future(client.reader.read())
    await settle(port)
    assert not reading.done()
    proxy.heal()
    assert await reading == b""
    client.close()


async def test_one_direction_alone_can_be_a_black_hole(proxy: Proxy, echo: tuple[Echo, int]) -> None:
    """The request is done and its confirmation lost: the case that makes duplicates."""
    service, _ = echo
    client = await Client.of(proxy.port)
    await client.ask(b"one\n")
    proxy.blackhole("down")
    client.writer.write(b"two\n")
    while b"two\n" not in service.lines:
        await asyncio.sleep(0)
    assert proxy.statistics().bytes_down == 4
    proxy.heal("down")
    assert await client.reader.readline() == b"two\n"
    client.close()


async def test_a_connection_opened_in_a_black_hole_is_served_once_it_heals(
    proxy: Proxy, echo: tuple[Echo, int]
) -> None:
    proxy.blackhole()
    client = await Client.of(proxy.port)
    client.writer.write(b"one\n")
    await settle(echo[1])
    assert len(echo[0].writers) == 1
    proxy.heal()
    assert await client.reader.readline() == b"one\n"
    client.close()


async def test_a_delay_holds_what_is_sent_and_spares_what_is_sent_after_it_ended(
    proxy: Proxy, echo: tuple[Echo, int]
) -> None:
    service, port = echo
    slow, quick = await Client.of(proxy.port), await Client.of(proxy.port)
    await slow.ask(b"one\n")
    await quick.ask(b"one\n")
    proxy.delay(3600.0)
    slow.writer.write(b"late\n")
    await settle(port)
    proxy.delay(0.0)
    assert await quick.ask(b"two\n") == b"two\n"
    assert b"late\n" not in service.lines
    slow.close()
    quick.close()


async def test_a_short_delay_lets_everything_through_in_order(proxy: Proxy) -> None:
    client = await Client.of(proxy.port)
    proxy.delay(0.01)
    assert [await client.ask(b"%d\n" % number) for number in range(5)] == [b"%d\n" % number for number in range(5)]
    client.close()


async def test_a_throttle_lets_a_part_through_and_its_end_the_rest(proxy: Proxy) -> None:
    client = await Client.of(proxy.port)
    await client.ask(b"one\n")
    proxy.throttle(20)
    client.writer.write(LONG)
    while proxy.statistics().bytes_up == 4:
        await asyncio.sleep(0)
    assert proxy.statistics().bytes_up < len(LONG)
    proxy.throttle(None)
    assert await client.reader.readline() == LONG
    client.close()


async def test_a_server_that_is_down_looks_down_through_the_proxy(echo: tuple[Echo, int]) -> None:
    async with Proxy("tcp://127.0.0.1:1") as proxy:
        client = await Client.of(proxy.port)
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        client.close()


async def test_leaving_ends_every_connection_and_the_port(echo: tuple[Echo, int]) -> None:
    async with Proxy(f"127.0.0.1:{echo[1]}") as proxy:
        client = await Client.of(proxy.port)
        await client.ask(b"one\n")
        proxy.blackhole()
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
    with pytest.raises(ConnectionRefusedError):
        await Client.of(proxy.port)
    assert proxy.statistics().connections == 0
    client.close()


async def test_the_url_is_the_targets_with_another_address(echo: tuple[Echo, int]) -> None:
    port = echo[1]
    async with Proxy(f"nats://a:b%40c@127.0.0.1:{port}/x?y=1") as proxy:
        assert proxy.url == f"nats://a:b%40c@127.0.0.1:{proxy.port}/x?y=1"
    async with Proxy(f"localhost:{port}") as proxy:
        assert proxy.url == f"127.0.0.1:{proxy.port}"


def test_what_cannot_be_forwarded_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a host and a port"):
        Proxy("nats://localhost")
    proxy = Proxy("localhost:1")
    with pytest.raises(ConfigError, match="at least one byte"):
        proxy.throttle(0)
    with pytest.raises(Closed):
        proxy.url  # noqa: B018
