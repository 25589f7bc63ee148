"""The stand-in against the server: the same random steps on both, and both have to show a service the same.

One difference is known and kept out of the comparison. A redelivery that falls due while a line breaks or a connection
closes may be sent into nowhere by a server, which counts it: the message comes again after `ack_wait`, its attempt one
higher. The stand-in has no line on which a message could be lost. So what a delay or the lease of a crashed process has
to bring comes first, then the line breaks.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from ruststream_core.abc import Source
from ruststream_core.settlement import ACK, RELEASE, Drop, Retry
from ruststream_core.testing.servers import NatsServer, Proxy
from ruststream_core.wire import NO_HEADERS, Headers, Outgoing
from ruststream_core_nats import CoreSubject, JetStream, JetStreamPublish

from .world import Real, Seen, StandIn, difference, until

T = TypeVar("T")
LEASE, DELAY = 0.5, 0.25
"""Seconds of ack_wait and of a delayed retry."""
PASSED = 0.8
"""Seconds after which both are over. A Core subject has neither."""
EQUAL = 4.0
"""Seconds within which both sides have to show the same. It costs time only where they do not."""

VERDICTS = {"ack": ACK, "nak": Retry(), "nak with delay": Retry(after=DELAY), "term": Drop(), "release": RELEASE}
BODIES = [b"", b"{}", b"\x00\xff\r\n", b"x" * 5000]
HEADERS = [NO_HEADERS, Headers([("x-one", "1")]), Headers([("x-one", "1"), ("x-one", "2"), ("x-empty", "")])]


class Machine(RuleBasedStateMachine):
    """Publishing, receiving, settling and failing, at both sides at once."""

    passed = PASSED

    def __init__(self, server: NatsServer) -> None:
        super().__init__()
        self.server = server
        self.runner = asyncio.Runner()
        self.name = f"diff-{uuid.uuid4().hex[:10]}"
        self.opened = self.timed = self.different = False

    def source(self, kind: str) -> Source:
        raise NotImplementedError

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 30.0))

    async def _open(self, kind: str) -> None:
        self.proxy = await Proxy(self.server.url).__aenter__()
        self.real, self.stand_in = Real(self.server.url, self.proxy), StandIn()
        for world in (self.stand_in, self.real):
            await world.open(self.source(kind))
        self.opened = True
        for number in range(3):
            await self._both("publish", Outgoing(b"first %d" % number, f"{self.name}.a", options=self._options()))

    async def _both(self, step: str, *args: Any) -> None:
        told = [await getattr(world, step)(*args) for world in (self.stand_in, self.real)]
        assert told[0] == told[1], f"{step}: the stand-in says {told[0]!r}, the server {told[1]!r}"
        await self._same(step)

    async def _same(self, after: str) -> None:
        # What the step has caused has to be on its way, or both would be equal because nothing has happened yet.
        for world in self._worlds():
            await world.quiet()
        same = await until(lambda: self.stand_in.picture() == self.real.picture(), EQUAL)
        self.different = not same
        assert same, f"after {after}: {difference(self.stand_in, self.real)}"

    def _options(self) -> JetStreamPublish | None:
        raise NotImplementedError

    def _publish(self, name: str, body: bytes, headers: Headers) -> None:
        out = Outgoing(body, name, headers=headers, options=self._options())
        self.do(self._both("publish", out))

    # ---------------------------------------------------------------------------------------------------- the steps

    @rule(body=st.sampled_from(BODIES), headers=st.sampled_from(HEADERS), token=st.sampled_from(["a", "b"]))
    def publish(self, body: bytes, headers: Headers, token: str) -> None:
        self._publish(f"{self.name}.{token}", body, headers)

    @rule(count=st.integers(2, 6))
    def publish_several(self, count: int) -> None:
        for number in range(count):
            self._publish(f"{self.name}.a", b"%d" % number, NO_HEADERS)

    @rule(name=st.sampled_from(["{name}.*", "{name}..a", "{name}. a", ""]))
    def publish_what_is_refused(self, name: str) -> None:
        self._publish(name.format(name=self.name), b"", NO_HEADERS)

    @rule()
    def publish_too_much(self) -> None:
        self._publish(f"{self.name}.a", b"x" * ((1 << 20) + 1), NO_HEADERS)

    @precondition(lambda self: self.opened and self._in_hand())
    @rule(picks=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(sorted(VERDICTS))), min_size=1, max_size=4))
    def settle(self, picks: list[tuple[int, str]]) -> None:
        for place, verdict in picks:
            if not (there := self._in_hand()):
                return
            self.timed |= verdict == "nak with delay"
            self.do(self._both("settle", there[place % len(there)], VERDICTS[verdict]))

    @rule()
    def crash(self) -> None:
        async def crash() -> None:
            await self._nothing_due()
            self.timed = bool(self.real.hand)
            for world in (self.stand_in, self.real):
                await world.crash()
            for world in (self.stand_in, self.real):
                await world.begin()
            await self._same("a crash")

        self.do(crash())

    @rule()
    def reconnect(self) -> None:
        async def reconnect() -> None:
            await self._nothing_due()
            await self._both("reconnect")

        self.do(reconnect())

    @rule()
    def begin_anew(self) -> None:
        async def anew() -> None:
            await self._nothing_due()
            for world in (self.stand_in, self.real):
                await world.end()
                await world.begin()
            await self._same("an end and a new beginning")

        self.do(anew())

    @rule()
    def pass_time(self) -> None:
        async def wait() -> None:
            await asyncio.sleep(self.passed)
            await self._same("time")
            self.timed = False

        self.do(wait())

    async def _nothing_due(self) -> None:
        """See the known difference."""
        if self.timed:
            await asyncio.sleep(self.passed)
            await self._same("what was due")
            self.timed = False

    def _in_hand(self) -> list[Seen]:
        return sorted(self.stand_in.hand.keys() & self.real.hand.keys(), key=repr)

    def teardown(self) -> None:
        try:
            if self.opened:
                self.do(self._close())
        finally:
            self.runner.close()

    async def _close(self) -> None:
        try:
            if self.different:
                return
            if self.timed:
                await asyncio.sleep(self.passed)
            await self._same("all")
            first = [[seen.payload for seen in world.seen if seen.attempt in (1, None)] for world in self._worlds()]
            assert first[0] == first[1], "the order differs"
        finally:
            await self._forget()
            for world in self._worlds():
                await world.close()
            await self.proxy.__aexit__(None, None, None)

    def _worlds(self) -> tuple[StandIn, Real]:
        return self.stand_in, self.real

    async def _forget(self) -> None:
        """Remove from the server what the machine has made."""


class CoreMachine(Machine):
    passed = 0.05

    @initialize(kind=st.sampled_from(["plain", "group"]))
    def open(self, kind: str) -> None:
        self.do(self._open(kind))

    def source(self, kind: str) -> Source:
        return CoreSubject(f"{self.name}.{{token}}", queue_group="one" if kind == "group" else None)

    def _options(self) -> None:
        return None


class StreamMachine(Machine):
    KINDS: dict[str, dict[str, Any]] = {
        "durable": {"durable": "worker"},
        "double ack": {"durable": "worker", "double_ack": True},
        "push": {"durable": "worker", "push": True},
        "three attempts": {"durable": "worker", "max_deliver": 3},
        "two at once": {"durable": "worker", "max_ack_pending": 2},
    }

    @initialize(kind=st.sampled_from(sorted(KINDS)))
    def open(self, kind: str) -> None:
        self.do(self._open(kind))

    def source(self, kind: str) -> Source:
        options = {"ack_wait": LEASE, "create": True, "heartbeat": 0.5, **self.KINDS[kind]}
        return JetStream(f"{self.name}.{{token}}", stream=self.name, **options)

    def _options(self) -> JetStreamPublish:
        return JetStreamPublish(expect_stream=self.name)

    async def _forget(self) -> None:
        await self.real.call(f"STREAM.DELETE.{self.name}")


@pytest.mark.parametrize(
    "examples", [pytest.param(8, id="short"), pytest.param(150, id="long", marks=pytest.mark.load)]
)
@pytest.mark.parametrize("machine", [CoreMachine, StreamMachine], ids=["core", "jetstream"])
def test_stand_in_and_server_do_the_same(server: NatsServer, machine: type[Machine], examples: int) -> None:
    """A service's tests would pass on the stand-in for something that its server does in another way."""
    run_state_machine_as_test(
        lambda: machine(server),  # type: ignore[arg-type]
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            database=None,
            # The ordinary run takes the same steps each time; the long one looks for new ones.
            derandomize=examples < 100,
            suppress_health_check=list(HealthCheck),
        ),
    )
