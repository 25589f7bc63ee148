"""NATS servers for the tests, one of each version for the whole run, and what the tests do with them all the time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import pytest

from ruststream_core.abc import Connection, Demand, State, Subscription
from ruststream_core.errors import SettleError
from ruststream_core.settlement import ACK, Verdict
from ruststream_core.testing.servers import NatsServer, ServerMissing
from ruststream_core.wire import NO_HEADERS, Delivery, Headers, Outgoing
from ruststream_core_nats import JetStream, NATSBroker

Version = Literal["debian", "newest"]


@pytest.fixture(scope="session", params=["debian", "newest"])
def server(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """A server that runs for all tests; nobody breaks it."""
    with ExitStack() as stack:
        yield _started(stack, NatsServer(request.param))


@pytest.fixture(params=["debian", "newest"])
def version(request: pytest.FixtureRequest) -> Version:
    """Which server a test of its own starts."""
    found: Version = request.param
    return found


@pytest.fixture
def own_server(version: Version) -> Iterator[Callable[..., NatsServer]]:
    """Starts a server for one test, with settings of its own."""
    with ExitStack() as stack:
        yield lambda **options: _started(stack, NatsServer(version, **options))


def _started(stack: ExitStack, server: NatsServer) -> NatsServer:
    try:
        return stack.enter_context(server)
    except ServerMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture(params=[True, False], ids=["internals", "public"])
def internals(request: pytest.FixtureRequest) -> Any:
    """Whether the client's private attributes are used."""
    return request.param


class Watcher:
    """A `Watch` that remembers what it was told."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.causes: list[BaseException | None] = []
        self.losses: list[tuple[Delivery, SettleError, Verdict | None]] = []

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        self.losses.append((delivery, error, verdict))

    def state(self, state: State, cause: BaseException | None) -> None:
        self.states.append(state)
        self.causes.append(cause)


class Lab:
    """Connections that are closed at the end, and short words for what tests do."""

    numbers = itertools.count(1)

    def __init__(self, *, internals: bool) -> None:
        self.internals = internals
        self._connections: list[Connection[Any]] = []

    async def connect(self, url: str, **options: Any) -> Any:
        options = {"internals": self.internals, "reconnect_wait": 0.2, **options}
        connection = await NATSBroker(url, **options).connect()
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        for connection in self._connections:
            await connection.aclose(2.0)

    def name(self, word: str = "t") -> str:
        """A name that no other test uses."""
        return f"{word}{next(self.numbers)}"

    def watch(self) -> Watcher:
        return Watcher()

    async def open(self, connection: Any, source: Any, watch: Watcher | None = None, **demand: Any) -> Any:
        return await connection.subscribe(source, Demand(**demand), watch or Watcher())

    async def durable(self, connection: Any, name: str, watch: Watcher | None = None, **settings: Any) -> Any:
        """A subscription to a stream of that name, made where it is missing."""
        source = JetStream(f"{name}.>", stream=name, durable="d", create=True, **settings)
        return await self.open(connection, source, watch)

    def out(self, payload: bytes, to: str, headers: Headers = NO_HEADERS, options: Any = None) -> Outgoing:
        return Outgoing(payload, to, headers, options=options)

    async def publish(self, connection: Any, to: str, *payloads: bytes) -> None:
        """Publish without acknowledgement; it has reached the server when this returns."""
        sender = await connection.sender()
        await sender.send_many([self.out(payload, to) for payload in payloads])
        await sender.flush()

    async def take(self, subscription: Subscription, count: int) -> list[Delivery]:
        """That many deliveries, unsettled."""
        taken: list[Delivery] = []
        while len(taken) < count:
            chunk = await subscription.receive(count - len(taken))
            assert chunk, "the subscription ended"
            taken += chunk
        return taken

    async def acked(self, subscription: Subscription, count: int) -> list[bytes]:
        """The payloads of that many deliveries, each acknowledged as it comes."""
        payloads: list[bytes] = []
        while len(payloads) < count:
            for delivery in await self.take(subscription, 1):
                payloads.append(delivery.payload)
                if (waiting := delivery.settle(ACK)) is not None:
                    await waiting
        return payloads

    async def until(self, holds: Callable[[], object], seconds: float = 30.0) -> None:
        """Return when it holds. The limit only tells a failure, it is no time that is asserted."""
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.01)

    async def call(self, connection: Any, subject: str, **body: Any) -> Any:
        """A request to JetStream's own interface."""
        return await connection._manager.call(subject, body or None)

    async def consumer(self, connection: Any, name: str, **figures: int) -> None:
        """Return when the durable consumer has these figures: the server works acknowledgements off by the way."""
        info: Any = {}
        for _ in range(500):
            info = await self.call(connection, f"CONSUMER.INFO.{name}.d")
            if all(info[key] == value for key, value in figures.items()):
                return
            await asyncio.sleep(0.01)
        assert {key: info[key] for key in figures} == figures


@pytest.fixture
async def lab(internals: bool) -> AsyncIterator[Lab]:
    """By the client's internals, and without them."""
    made = Lab(internals=internals)
    yield made
    await made.close()
