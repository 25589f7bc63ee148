"""The one place that touches the client's private attributes: guarded, and no different from the public way."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import ProtocolError

from ruststream_core.testing.servers import NatsServer
from ruststream_core.wire import Headers
from ruststream_core_nats import CoreSubject
from ruststream_core_nats._internals import FastWire, new_client
from ruststream_core_nats._parser import FastParser
from ruststream_core_nats._public import PublicWire


async def test_the_form_is_what_was_asked_for(lab: Any, server: NatsServer, internals: bool) -> None:
    """Both columns of the test results would be the same form."""
    connection = await lab.connect(server.url)
    assert type(connection._wire) is (FastWire if internals else PublicWire)


@pytest.mark.parametrize("missing", ["_pending", "_flush_queue", "_process_msg", "_process_err", "_ps", "_subs"])
async def test_another_client_is_used_by_its_public_interface(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new version of the client with other internals would break in the middle of a message."""
    original = Client.__init__

    def init(self: Any) -> None:
        original(self)
        if missing.startswith("_process"):
            setattr(self, missing, lambda: None)
        else:
            delattr(self, missing)

    monkeypatch.setattr(Client, "__init__", init)
    with caplog.at_level(logging.WARNING):
        _, fast = new_client(internals=True)
    assert not fast
    assert "public interface" in caplog.text


class Recorded:
    """As much of a client as the parser needs."""

    def __init__(self) -> None:
        self.stats = {"in_msgs": 0, "in_bytes": 0}
        self.seen: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: object) -> None:
            self.seen.append((name.removeprefix("_process_"), *args))

        return call


def _message(subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    reply = reply and reply + b" "
    if headers:
        size = len(headers) + len(payload)
        return b"HMSG %b 7 %b%d %d\r\n%b%b\r\n" % (subject, reply, len(headers), size, headers, payload)
    return b"MSG %b 7 %b%d\r\n%b\r\n" % (subject, reply, len(payload), payload)


_word = st.binary(min_size=1, max_size=8).map(lambda raw: raw.hex().encode())
_one = st.tuples(
    _word, st.one_of(st.just(b""), _word), st.sampled_from([b"", b"NATS/1.0\r\na: b\r\n\r\n"]), st.binary(max_size=200)
)


@given(st.lists(st.one_of(_one, st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n"])), max_size=12), st.data())
def test_the_stream_may_be_cut_anywhere(items: list[Any], data: st.DataObject) -> None:
    """A message that arrives in pieces would be lost, doubled or mixed with the next."""
    taken: list[tuple[bytes, bytes, bytes, bytes]] = []
    client = Recorded()
    parser = FastParser(client, {b"7": lambda *message: taken.append(message)})
    raw = b"".join(item if isinstance(item, bytes) else _message(*item) for item in items)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))

    async def feed() -> None:
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            await parser.parse(raw[begin:end])

    asyncio.run(feed())
    messages = [item for item in items if not isinstance(item, bytes)]
    assert taken == [(subject, reply, payload, headers) for subject, reply, headers, payload in messages]
    controls = [item.strip().lower().decode() for item in items if item in (b"PING\r\n", b"PONG\r\n")]
    assert [name for name, *_ in client.seen] == controls
    assert client.stats["in_msgs"] == len(messages)


@pytest.mark.parametrize("raw", [b"NONSENSE\r\n", b"MSG a 7 x\r\n", b"MSG\r\n", b"HMSG a 7 5\r\n", b"x" * (2 << 20)])
async def test_what_is_no_protocol_breaks_the_connection(raw: bytes) -> None:
    """Rubbish would be waited out for ever."""
    with pytest.raises(ProtocolError):
        await FastParser(Recorded(), {}).parse(raw)


async def test_a_subscription_of_the_client_itself_still_works(server: NatsServer) -> None:
    """What the client does for itself, requests above all, goes through the same parser."""
    from ruststream_core_nats import NATSBroker

    connection = await NATSBroker(server.url).connect()
    try:
        client = connection._wire.client

        async def answer(message: Any) -> None:
            await message.respond(b"re: " + message.data)

        await client.subscribe("own.client", cb=answer)
        reply = await client.request("own.client", b"x", timeout=10, headers={"a": "b"})
        assert reply.data == b"re: x"
    finally:
        await connection.aclose(1.0)


async def test_a_large_message_arrives_in_pieces(lab: Any, server: NatsServer) -> None:
    """A megabyte comes in dozens of reads."""
    connection, name = await lab.connect(server.url), lab.name("t")
    subscription = await lab.open(connection, CoreSubject(name))
    payload = bytes(range(256)) * 4000
    await lab.publish(connection, name, payload, b"small", payload)
    assert await lab.acked(subscription, 3) == [payload, b"small", payload]


async def test_repeated_headers(lab: Any, server: NatsServer, internals: bool) -> None:
    """The public interface has one value for a name; the second must not be lost without a word."""
    from ruststream_core.errors import PublishError

    connection, name = await lab.connect(server.url), lab.name("t")
    subscription, sender = await lab.open(connection, name), await connection.sender()
    assert subscription.features.repeated_headers is internals
    message = lab.out(b"x", name, Headers([("a", "1"), ("a", "2"), ("b", b"\xff")]))
    if internals:
        sender.send(message)
        (delivery,) = await lab.take(subscription, 1)
        assert delivery.headers.get_all("a") == ["1", "2"]
        assert delivery.headers.get_bytes("b") == b"\xff"
    else:
        with pytest.raises(PublishError, match="internals"):
            sender.send(message)
