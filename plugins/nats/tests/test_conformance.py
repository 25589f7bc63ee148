"""The suite of the contract, on the stand-in and on both servers, by the client's internals and without them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ruststream_core.abc import Connection, Source, Subscription
from ruststream_core.conformance import Check, Target, checks
from ruststream_core.errors import Closed
from ruststream_core.testing.servers import NatsServer, Proxy
from ruststream_core.wire import Delivery, Outgoing
from ruststream_core_nats import CoreSubject, JetStream, NATSBroker
from ruststream_core_nats._connection import NATSConnection

ACK_WAIT = 1.0
PASSWORD = "hunter2-the-secret"


def _name() -> str:
    return f"check-{uuid.uuid4().hex[:12]}"


def _stream(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def _durable(name: str, **options: Any) -> JetStream:
    return JetStream(name, stream=_stream(name), durable="worker", ack_wait=ACK_WAIT, create=True, **options)


SOURCES: dict[str, Callable[[str], str | Source]] = {
    "core": str,
    "core-group": partial(CoreSubject, queue_group="workers"),
    "durable": _durable,
    "double-ack": partial(_durable, double_ack=True),
    "push": partial(_durable, push=True),
    "ephemeral": lambda name: JetStream(name, stream=_stream(name), ack_wait=ACK_WAIT),
    "ordered": lambda name: JetStream(name, stream=_stream(name), ordered=True),
    "no-marks": lambda name: _durable(name, in_progress=False),
}


ANEW = "the consumer goes with its subscription, and the next one reads the stream from its beginning"
DIFFERENCES: dict[str, dict[str, str]] = {
    "ephemeral": dict.fromkeys(
        (
            "ack-is-final",
            "ack-is-known-by-its-type",
            "out-of-order-acks-are-safe",
            "aclose-flushes-settlements",
            "settling-outlives-stop",
            "drop-is-final",
            "release-comes-again",
            "drain-is-accounted",
            "fetched-messages-go-back",
            "outage-decides-what-is-in-hand",
        ),
        ANEW,
    ),
}


def _applying(target: Target) -> list[Check]:
    return [check for check in checks(target) if check.id not in DIFFERENCES.get(target.label, {})]


async def _seek_away(subscription: Subscription, delivery: Delivery) -> None:
    able: Any = subscription
    await able.seek(able.position(delivery))


async def _outlast(subscription: Subscription, delivery: Delivery) -> None:
    """Without marks of progress a delivery is lost when ack_wait is over; the suite waits for that."""


def _target(kind: str, **options: Any) -> Target:
    source = SOURCES[kind]
    lose = {"ordered": _seek_away, "no-marks": _outlast}.get(kind)
    return Target(
        label=kind,
        source=source,
        new_name=_name,
        lease=ACK_WAIT if kind in ("durable", "double-ack", "push") else None,
        lose=lose,
        pattern=lambda name: (source(f"{name}.{{x}}"), f"{name}.one"),
        unsendable=lambda name: Outgoing(b"", f"{name}.*"),
        **{"quiet": 0.1, **options},
    )


def _stand_in(kind: str) -> Target:
    """Everything but the line and the server is the code that runs in production."""
    inner = Target.in_process(lambda: NATSBroker("nats://nowhere"))
    target = _target(kind, make_broker=inner.make_broker, pass_time=inner.pass_time)
    target.quiet = 0.02
    if kind == "no-marks":
        target.lose = _pass(inner)
    return target


def _pass(target: Target) -> Callable[[Subscription, Delivery], Any]:
    async def lose(subscription: Subscription, delivery: Delivery) -> None:
        await target.pass_time(2 * ACK_WAIT)

    return lose


ON_STAND_IN = [(kind, check) for kind in SOURCES for check in _applying(_stand_in(kind))]


@pytest.mark.parametrize(("kind", "check"), ON_STAND_IN, ids=[f"{kind}-{check}" for kind, check in ON_STAND_IN])
async def test_stand_in(kind: str, check: Check) -> None:
    """A service that passes its tests on the stand-in would fail on a server."""
    await check.run(_stand_in(kind))


# ------------------------------------------------------------------------------------------------------- servers


class _Tracked(NATSBroker):
    """Remembers its connections."""

    def __init__(self, connections: list[Connection[Any]], url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._connections = connections

    async def connect(self) -> NATSConnection:
        connection = await super().connect()
        self._connections.append(connection)
        return connection


class Place:
    """A server behind a proxy, so that the line can be cut."""

    def __init__(self, server: NatsServer, proxy: Proxy, *, internals: bool) -> None:
        self.server = server
        self.proxy = proxy
        self.internals = internals

        self.connections: list[Connection[Any]] = []

    def broker(self, url: str | None = None) -> NATSBroker:
        url = url or self.proxy.url
        return _Tracked(self.connections, url, internals=self.internals, reconnect_wait=0.2, token=PASSWORD)

    async def outage(self) -> None:
        """The line breaks, after what was published to Core subjects has left: nobody confirms that."""
        for connection in self.connections:
            with contextlib.suppress(Closed):
                await connection.ping()
        self.proxy.cut()

    async def prepare(self, name: str) -> None:
        """A stream for that name and everything below it."""
        await self.call(f"STREAM.CREATE.{_stream(name)}", name=_stream(name), subjects=[name, f"{name}.>"])

    async def terminate(self, name: str) -> None:
        await self.call(f"STREAM.DELETE.{_stream(name)}")

    async def call(self, subject: str, **body: Any) -> None:
        connection = await self.broker(self.server.url).connect()
        try:
            await connection._manager.call(subject, body or None)
        finally:
            await connection.aclose(1.0)


def _on_server(kind: str, place: Place) -> Target:
    stored = kind not in ("core", "core-group")
    return _target(
        kind,
        make_broker=place.broker,
        prepare=place.prepare if stored else None,
        outage=place.outage,
        terminate=place.terminate if stored else None,
        unreachable=lambda: place.broker("nats://127.0.0.1:1"),
        secrets=[PASSWORD],
        scale=2.0,
    )


def _cases() -> list[tuple[str, Check, bool]]:
    nowhere: Any = None
    cases = []
    for internals in (True, False):
        place = Place(nowhere, nowhere, internals=internals)
        offline = NATSBroker("nats://nowhere", internals=internals)
        place.broker = lambda url=None, broker=offline: broker  # type: ignore[method-assign,misc]
        cases += [(kind, check, internals) for kind in SOURCES for check in _applying(_on_server(kind, place))]
    return cases


ON_SERVER = _cases()
IDS = [f"{kind}-{check}-{'internals' if internals else 'public'}" for kind, check, internals in ON_SERVER]


@pytest.mark.parametrize(("kind", "check", "inside"), ON_SERVER, ids=IDS)
async def test_server(kind: str, check: Check, inside: bool, server: NatsServer) -> None:
    """A service would meet what the contract excludes."""
    async with Proxy(server.url) as proxy:
        await check.run(_on_server(kind, Place(server, proxy, internals=inside)))


async def test_every_kind_of_source_is_checked() -> None:
    """A kind that drops out of the table would never be checked again."""
    await asyncio.sleep(0)
    assert {kind for kind, _, _ in ON_SERVER} == {kind for kind, _ in ON_STAND_IN} == set(SOURCES)
