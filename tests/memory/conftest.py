"""A broker, and a subscription that remembers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ruststream_core.abc import Demand, Source, State
from ruststream_core.errors import SettleError
from ruststream_core.kit import VirtualClock
from ruststream_core.memory import MemoryBroker
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Delivery, Outgoing


class Watching:
    """A watch."""

    def __init__(self) -> None:
        self.losses: list[tuple[Delivery, SettleError, Verdict | None]] = []
        self.states: list[State] = []

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        self.losses.append((delivery, error, verdict))

    def state(self, state: State, cause: BaseException | None) -> None:
        self.states.append(state)


class Memory:
    """A connected broker on a virtual clock."""

    def __init__(self, broker: MemoryBroker, connection: Any, sender: Any, clock: VirtualClock) -> None:
        self.broker = broker
        self.connection = connection
        self.sender = sender
        self.clock = clock

    async def open(self, source: str | Source, watch: Watching | None = None, **demand: Any) -> Any:
        wanted = self.broker.source(source)
        return await self.connection.subscribe(wanted, Demand(**demand), watch or Watching())

    def send(self, name: str, *payloads: bytes, **fields: Any) -> None:
        for payload in payloads:
            self.sender.send(Outgoing(payload, name, **fields))


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    clock = VirtualClock()
    broker = MemoryBroker(limit=100, clock=clock)
    connection = await broker.connect()
    yield Memory(broker, connection, await connection.sender(), clock)
    await connection.aclose(1.0)


@pytest.fixture
def payloads() -> Callable[[Any], list[bytes]]:
    return lambda chunk: [delivery.payload for delivery in chunk]


@pytest.fixture
def watching() -> Watching:
    return Watching()
