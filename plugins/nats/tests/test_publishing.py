"""What leaves, what is refused before a byte of it leaves, and what an answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.testing.servers import NatsServer
from ruststream_core.wire import Headers
from ruststream_core_nats import CoreSubject, JetStream, JetStreamPublish, NATSBroker
from ruststream_core_nats._convert import AckAddress, encode_headers, parse_headers, subject_fault

BAD_SUBJECTS = [
    "a b",
    "a\r\nPUB x 1\r\n1",
    "",
    "a..b",
    ".a",
    "a.",
    "a.*.b",
    "a.>",
    "$JS.x",
    "$SYS.x",
    "x" * 3000,
    "a\x00b",
]
BAD_PATTERNS = ["a b", "a\r\nSUB x 1", "", "a..b", "a.>.b", "a.b*", "$JS.x", "x" * 3000]
GOOD_SUBJECTS = ["a", "a.b.c", "x" * 300, "größe.世界", "a-b_c/d", "$KV.bucket.key"]


@pytest.mark.parametrize("subject", BAD_SUBJECTS, ids=lambda subject: repr(subject)[:30])
async def test_a_bad_subject_is_refused_before_it_leaves(lab: Any, server: NatsServer, subject: str) -> None:
    """NATS-09: a blank would make a reply address of the rest, a line break another command."""
    connection, name = await lab.connect(server.url), lab.name("t")
    subscription, sender = await lab.open(connection, name), await connection.sender()
    before = connection._wire.client.stats["reconnects"]
    with pytest.raises(PublishError, match="subject"):
        sender.send(lab.out(b"x", subject))
    with pytest.raises(PublishError, match="subject"):
        await connection.request(lab.out(b"x", subject), 1.0)
    await lab.publish(connection, name, b"good")
    assert await lab.acked(subscription, 1) == [b"good"]
    assert connection._wire.client.stats["reconnects"] == before


@pytest.mark.parametrize("subject", BAD_PATTERNS, ids=lambda subject: repr(subject)[:30])
def test_a_bad_pattern_is_refused_offline(subject: str) -> None:
    """NATS-09: the server would close the connection, with every other subscription on it."""
    for source in (subject, CoreSubject(subject), JetStream(subject)):
        with pytest.raises(ConfigError):
            NATSBroker().source(source)


@pytest.mark.parametrize("subject", GOOD_SUBJECTS, ids=lambda subject: repr(subject)[:30])
async def test_a_good_subject_arrives(lab: Any, server: NatsServer, subject: str) -> None:
    """A check that refuses too much would shut out subjects that other clients use."""
    connection = await lab.connect(server.url)
    subscription = await lab.open(connection, subject)
    await lab.publish(connection, subject, b"x")
    (delivery,) = await lab.take(subscription, 1)
    assert (delivery.name, delivery.payload) == (subject, b"x")


BAD_HEADERS: list[Any] = [
    {"x": "a\r\nEvil: 1"}, {"x": "a\nb"}, {"x": " pad "}, {"x": "tab\t"}, {"x": 5}, {"x": None}, {"bad key": "v"},
    {"": "v"}, {"k\r\n": "v"}, {"k:": "v"}, {"größe": "v"}, {"x": "\ud800"},
]  # fmt: skip


@pytest.mark.parametrize("headers", BAD_HEADERS, ids=repr)
async def test_a_bad_header_is_refused_with_its_name(lab: Any, server: NatsServer, headers: dict[str, str]) -> None:
    """NATS-06: a value would arrive as another one, or as a header of its own."""
    connection, name = await lab.connect(server.url), lab.name("t")
    subscription, sender = await lab.open(connection, name), await connection.sender()
    with pytest.raises(PublishError, match="header"):
        sender.send(lab.out(b"x", name, Headers(headers)))
    await lab.publish(connection, name, b"good")
    assert await lab.acked(subscription, 1) == [b"good"]


GOOD_HEADERS: list[dict[str, str]] = [
    {"x": "a b"},
    {"X-Case": "ä, 世界 🎉"},
    {"x": ""},
    {"x": "a: b; c=d"},
    {"x!#$%&'*+-.^_`|~1": "v"},
]


@pytest.mark.parametrize("headers", GOOD_HEADERS, ids=repr)
async def test_a_good_header_arrives_as_it_is(lab: Any, server: NatsServer, headers: dict[str, str]) -> None:
    """NATS-06: equal or refused, never silently different."""
    connection, name = await lab.connect(server.url), lab.name("t")
    subscription, sender = await lab.open(connection, name), await connection.sender()
    sender.send(lab.out(b"x", name, Headers(headers)))
    (delivery,) = await lab.take(subscription, 1)
    assert list(delivery.headers.raw()) == list(headers.items())


_names = st.text("abcXYZ019-_.!#$%&'*+^`|~", min_size=1, max_size=20)
_values = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=50)


@given(st.lists(st.tuples(_names, _values.map(lambda text: text.strip(" \t"))), max_size=8))
def test_headers_come_back_as_they_were(pairs: list[tuple[str, str]]) -> None:
    """Any text without a line break, any number of times each name."""
    assert list(parse_headers(encode_headers(Headers(pairs))).raw()) == pairs if pairs else True


@given(st.text(max_size=60))
def test_no_subject_breaks_out_of_its_line(subject: str) -> None:
    """A subject that passes is one word of one line, whatever is in it."""
    if subject_fault(subject, wildcards=True) is None:
        raw = subject.encode()
        assert raw.split() == [raw]
        assert b"\r" not in raw
        assert b"\n" not in raw


@pytest.mark.parametrize("over", range(-4, 5))
async def test_headers_count_for_max_payload(lab: Any, own_server: Callable[..., NatsServer], over: int) -> None:
    """NATS-07: the server would drop the connection, and the client never come back."""
    server = own_server(max_payload=4096)
    connection, name = await lab.connect(server.url), lab.name("t")
    subscription, sender = await lab.open(connection, name), await connection.sender()
    identity = _identities(server)
    headers = Headers({"x-header": "v" * 50})
    message = lab.out(b"x" * (4096 - len(encode_headers(headers)) + over), name, headers)
    if over > 0:
        with pytest.raises(PublishError, match="4096"):
            sender.send(message)
    else:
        sender.send(message)
        (delivery,) = await lab.take(subscription, 1)
        assert len(delivery.payload) == len(message.payload)
    await lab.publish(connection, name, b"small")
    assert await lab.acked(subscription, 1) == [b"small"]
    assert _identities(server) == identity


def _identities(server: NatsServer) -> list[int]:
    connections = server.monitor("connz")["connections"]
    return [connection["cid"] for connection in connections if connection.get("name") == "ruststream"]


async def test_a_subject_without_stream_is_named(lab: Any, server: NatsServer) -> None:
    """NATS-04 (a): an obscure error about responders."""
    connection, name = await lab.connect(server.url), lab.name("t")
    sender = await connection.sender(JetStreamPublish())
    with pytest.raises(PublishError, match=f"no stream covers subject '{name}'"):
        await sender.send(lab.out(b"x", name))


async def test_a_subject_without_stream_and_with_a_listener_is_named(lab: Any, server: NatsServer) -> None:
    """NATS-04 (b): a bare timeout."""
    connection, name = await lab.connect(server.url), lab.name("t")
    await lab.open(connection, name)
    sender = await connection.sender(JetStreamPublish(timeout=0.2))
    with pytest.raises(PublishError, match=f"no stream covers subject '{name}'"):
        await sender.send(lab.out(b"x", name))


async def test_a_listener_that_answers_is_no_stream(lab: Any, server: NatsServer) -> None:
    """Somebody's answer would be taken for the stream's acknowledgement, and the message be nowhere."""
    connection, name = await lab.connect(server.url), lab.name("t")
    subscription, core = await lab.open(connection, name), await connection.sender()
    sender = await connection.sender(JetStreamPublish())
    for answer in (b"", b"hello", b'{"ok": 1}', b'{"error": "no"}'):
        sending = sender.send(lab.out(b"x", name))
        (delivery,) = await lab.take(subscription, 1)
        core.send(lab.out(answer, delivery.reply_to or ""))
        with pytest.raises(PublishError, match=r"acknowledge|no stream"):
            await sending


async def test_a_stream_that_goes_is_named(lab: Any, server: NatsServer) -> None:
    """NATS-04 (c): deleted while the service runs."""
    connection, name = await lab.connect(server.url), lab.name("S")
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"])
    sender = await connection.sender(JetStreamPublish())
    await sender.send(lab.out(b"x", f"{name}.a"))
    await lab.call(connection, f"STREAM.DELETE.{name}")
    with pytest.raises(PublishError, match=f"no stream covers subject '{name}.a'"):
        await sender.send(lab.out(b"x", f"{name}.a"))


async def test_many_acknowledgements_in_flight(lab: Any, server: NatsServer) -> None:
    """Each future belongs to its own message, whatever fails between."""
    connection, name = await lab.connect(server.url), lab.name("S")
    await lab.call(connection, f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.ok"], storage="memory")
    sender = await connection.sender(JetStreamPublish())
    outs = [lab.out(b"%d" % n, f"{name}.ok" if n % 10 else f"{name}.no") for n in range(500)]
    with pytest.raises(PublishError, match="50 of 500") as caught:
        await sender.send_many(outs)
    assert sorted(caught.value.failed) == list(range(0, 500, 10))
    await sender.flush()
    assert (await lab.call(connection, f"STREAM.INFO.{name}"))["state"]["messages"] == 450


async def test_nobody_listens_is_told(lab: Any, server: NatsServer) -> None:
    """A request to nobody would wait for its whole time."""
    connection, name = await lab.connect(server.url), lab.name("t")
    with pytest.raises(PublishError, match="nobody listens"):
        await connection.request(lab.out(b"x", name), 60.0)


async def test_a_responder_answers(lab: Any, server: NatsServer) -> None:
    """Answers of a queue group go to whoever asked, and each asker gets his own."""
    asking, first, second = [await lab.connect(server.url) for _ in range(3)]
    name = lab.name("t")
    taps = [await lab.open(one, CoreSubject(name, queue_group="g")) for one in (first, second)]

    async def respond(connection: Any, subscription: Any) -> None:
        sender = await connection.sender()
        while chunk := await subscription.receive(10):
            for delivery in chunk:
                sender.send(lab.out(b"re: " + delivery.payload, delivery.reply_to or ""))

    tasks = [asyncio.ensure_future(respond(one, tap)) for one, tap in zip((first, second), taps, strict=True)]
    answers = await asyncio.gather(*[asking.request(lab.out(b"%d" % n, name), 30.0) for n in range(50)])
    assert [answer.payload for answer in answers] == [b"re: %d" % n for n in range(50)]
    for tap in taps:
        tap.stop()
    await asyncio.gather(*tasks)


async def test_publishing_in_an_outage_is_bounded(lab: Any, own_server: Callable[..., NatsServer]) -> None:
    """What nobody takes would fill the memory."""
    server = own_server()
    connection, watch = await lab.connect(server.url, buffer=100_000), lab.watch()
    await lab.open(connection, "t", watch)
    sender = await connection.sender()
    await asyncio.to_thread(server.kill)
    await lab.until(lambda: "interrupted" in watch.states)
    with pytest.raises(PublishError):
        for _ in range(1000):
            waiting = sender.send(lab.out(b"x" * 10_000, "t"))
            if waiting is not None:
                await waiting
    await asyncio.to_thread(server.start)
    await lab.until(lambda: watch.states[-1] == "receiving")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (b"$JS.ACK.S.c.3.10.11.1700000000000000000.5", ("S", "c", 3, 10, 11, 5)),
        (b"$JS.ACK._.hash.S.c.3.10.11.1700000000000000000.5", ("S", "c", 3, 10, 11, 5)),
        (b"$JS.ACK.hub.hash.S.c.3.10.11.1700000000000000000.5.token", ("S", "c", 3, 10, 11, 5)),
        (b"_INBOX.x.1", None),
        (b"$JS.ACK.S.c.x.10.11.1.5", None),
        (b"", None),
    ],
)
def test_both_forms_of_an_acknowledgement_address(address: bytes, expected: tuple[object, ...] | None) -> None:
    """Servers with domains write a longer form; its numbers are elsewhere."""
    found = AckAddress.parse(address)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        shown = (found.stream, found.consumer, found.delivered, found.stream_sequence, found.consumer_sequence)
        assert (*shown, found.pending) == expected
