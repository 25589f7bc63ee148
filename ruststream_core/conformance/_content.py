"""What a message holds when it arrives."""

from __future__ import annotations

from collections.abc import Hashable

from ruststream_core.conformance._check import check, feature, hook, lacks
from ruststream_core.conformance._lab import Lab
from ruststream_core.wire import Delivery, Headers, Template


async def _through(lab: Lab, payload: bytes, headers: Headers, key: bytes | None = None) -> Delivery:
    """One message, sent and received and acknowledged."""
    tap = lab.taps[0] if lab.taps else await lab.open()
    await lab.send(lab.out(payload, headers=headers, key=key))
    (delivery,) = await tap.take(1)
    await tap.settle(delivery)
    return delivery


@check("A payload arrives byte for byte, whatever it holds.")
async def payload_is_unchanged(lab: Lab) -> None:
    for payload in (b"x", bytes(range(256)), b"\r\n\x00\xff" * 50, "grüße, 世界".encode(), b'{"a": 1}\n'):
        delivery = await _through(lab, payload, Headers())
        lab.equal(delivery.payload, payload, "the payload")
        lab.expect(type(delivery.payload) is bytes, f"the payload is a {type(delivery.payload).__name__}, not bytes")


@check("A large payload arrives whole.")
async def large_payload_is_whole(lab: Lab) -> None:
    most = lab.features.max_payload
    for size in (100_000, 1_000_000):
        if most is None or size <= most:
            payload = bytes(range(250)) * (size // 250)
            delivery = await _through(lab, payload, Headers())
            lab.equal(len(delivery.payload), size, "the length of the payload")
            lab.expect(delivery.payload == payload, "the payload has the right length and other bytes")


@check("A payload of exactly `max_payload` bytes is accepted without headers.", feature("max_payload"))
async def largest_payload_passes(lab: Lab) -> None:
    size = lab.features.max_payload or 0
    if size <= 16_000_000:
        delivery = await _through(lab, b"z" * size, Headers())
        lab.equal(len(delivery.payload), size, "the length of the payload")


@check("An empty payload arrives, as an empty payload.", feature("empty_payload"))
async def empty_payload_arrives(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"", b"next")
    chunk = await tap.take(2)
    lab.equal([delivery.payload for delivery in chunk], [b"", b"next"], "the payloads")
    await tap.settle(*chunk)


@check("Text headers arrive with their names, values and order.", feature("headers", "bytes", "text"))
async def text_headers_arrive(lab: Lab) -> None:
    pairs = [("x-check-b", "2"), ("X-Check-A", "grüße, 世界"), ("x-check-c", "a b;c=d, e")]
    delivery = await _through(lab, b"x", Headers(pairs))
    got = [(name.lower(), value) for name, value in _ours(delivery.headers)]
    lab.equal(sorted(got), sorted((name.lower(), value.encode()) for name, value in pairs), "the headers")
    lab.equal(delivery.headers["x-check-a"], "grüße, 世界", "a header, looked up in lower case")


@check("A header with an empty value arrives.", feature("headers", "bytes", "text"))
async def empty_header_arrives(lab: Lab) -> None:
    delivery = await _through(lab, b"x", Headers([("x-check-empty", "")]))
    lab.equal(_ours(delivery.headers), [("x-check-empty", b"")], "the headers")


@check("Header values keep bytes that are no text.", feature("headers", "bytes"))
async def binary_headers_arrive(lab: Lab) -> None:
    value = b"\xff\xfe\x80 bytes"
    delivery = await _through(lab, b"x", Headers([("x-check-bytes", value)]))
    lab.equal(delivery.headers.get_bytes("x-check-bytes"), value, "the header")


@check(
    "A header name that occurs twice arrives twice, in order.",
    feature("headers", "bytes", "text"),
    feature("repeated_headers"),
)
async def repeated_headers_arrive(lab: Lab) -> None:
    delivery = await _through(lab, b"x", Headers([("x-check-r", "1"), ("x-check-other", "o"), ("x-check-r", "2")]))
    lab.equal(delivery.headers.get_all("x-check-r"), ["1", "2"], "the values of x-check-r")


@check(
    "Where no name can be repeated, one of the values arrives or the send is refused; never something else.",
    feature("headers", "bytes", "text"),
    lacks("repeated_headers"),
)
async def repeated_headers_are_no_surprise(lab: Lab) -> None:
    from ruststream_core.errors import PublishError  # noqa: PLC0415

    try:
        delivery = await _through(lab, b"x", Headers([("x-check-r", "1"), ("x-check-r", "2")]))
    except PublishError:
        return
    got = delivery.headers.get_all("x-check-r")
    lab.expect(got in (["1"], ["2"]), f"x-check-r arrived as {got}")


@check("Headers belong to their message: the next one has none of them.", feature("headers", "bytes", "text"))
async def headers_are_not_inherited(lab: Lab) -> None:
    await _through(lab, b"with", Headers([("x-check-a", "1")]))
    delivery = await _through(lab, b"with another", Headers([("x-check-b", "2")]))
    lab.equal(_ours(delivery.headers), [("x-check-b", b"2")], "the headers of the second message")
    delivery = await _through(lab, b"without", Headers())
    lab.equal(_ours(delivery.headers), [], "the headers of a message without any")


@check("The key arrives, and the lane of a message without one is its key or None.", feature("keys"))
async def key_arrives(lab: Lab) -> None:
    for key in (b"customer-1", b"\x00\xffbytes"):
        delivery = await _through(lab, b"x", Headers(), key)
        lab.equal(delivery.key, key, "the key")
        lab.expect(isinstance(delivery.lane, Hashable), "the lane cannot be hashed")
        lab.expect(delivery.lane is not None, "a message with a key has no lane")


@check("Two messages of one key have one lane; two keys have two.", feature("keys"))
async def lane_follows_key(lab: Lab) -> None:
    lanes = [(await _through(lab, b"x", Headers(), key)).lane for key in (b"a", b"b", b"a")]
    lab.equal(lanes[0], lanes[2], "the lanes of one key")


@check("A delivery says the name that it came on, and its attempt is None or at least 1.")
async def delivery_names_its_origin(lab: Lab) -> None:
    delivery = await _through(lab, b"x", Headers())
    lab.expect(isinstance(delivery.name, str) and delivery.name, f"the name of the delivery is {delivery.name!r}")
    wanted = (1,) if lab.features.attempts == "broker" else (None, 1)
    lab.expect(delivery.attempt in wanted, f"the attempt of a new message is {delivery.attempt!r}")
    lab.expect(delivery.lost is None, f"lost is {delivery.lost!r} from the start")
    lab.expect(delivery.reply_to is None, f"reply_to is {delivery.reply_to!r}, and nobody waits for an answer")
    await lab.raises(KeyError, lambda: delivery.transport("no.such_field"), "transport() of an unknown field")


@check(
    "A placeholder in a source stands for one token of the name, and the delivery has the name as it is.",
    hook("pattern"),
)
async def placeholder_matches(lab: Lab) -> None:
    assert lab.target.pattern is not None
    source, destination = lab.target.pattern(lab.name)
    tap = await lab.open(source=source)
    out = lab.out(b"x")
    out.name = destination
    await lab.send(out)
    (delivery,) = await tap.take(1, "a message whose name fits the placeholder")
    await tap.settle(delivery)
    template = Template(tap.lab.broker.source(source).name, lab.broker.separator)
    lab.equal(template.match(delivery.name), {"x": "one"}, f"the placeholder's value in {delivery.name!r}")


def _ours(headers: Headers) -> list[tuple[str, bytes]]:
    """The fields of this suite; a transport may add its own."""
    fields = [(name, value) for name, value in headers.raw() if name.lower().startswith("x-check-")]
    return [
        (name, value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value) for name, value in fields
    ]
