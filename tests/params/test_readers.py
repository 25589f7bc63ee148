"""What reaches the handler: payload, message, placeholders, headers, transport fields, state, publishers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from ruststream_core.abc import Marker
from ruststream_core.errors import ConfigError, DecodeError
from ruststream_core.params import (
    Bound,
    Context,
    FromHeader,
    FromHeaders,
    FromPath,
    FromState,
    FromTransport,
    Message,
    Out,
    Publisher,
    Seeker,
    Transaction,
    Undecodable,
)
from ruststream_core.wire import Headers

Bind = Callable[..., Bound]
Deliver = Callable[..., Any]
PATH = "orders.{region}.placed"


class Order(msgspec.Struct):
    id: int


class Region(Enum):
    EU = "eu"
    US = "us"


async def refused(call: Callable[[Any], Any], delivery: Any) -> Exception:
    """The cause with which the delivery does not decode."""
    with pytest.raises(Undecodable) as caught:
        await call(delivery)
    assert caught.value.__cause__ is caught.value.cause
    return caught.value.cause


async def test_payload_alone_is_decoded_and_handled_without_a_coroutine_between(bound: Bind, delivery: Deliver) -> None:
    """Each coroutine between the loop and the handler costs every message."""

    async def h(order: Order) -> int:
        return order.id

    ready = bound(h)
    coroutine: Any = ready.call(delivery({"id": 7}))
    assert coroutine.cr_code is h.__code__
    assert await coroutine == 7
    assert ready.plain is not None
    assert ready.plain[1] is h


async def test_readers_add_no_coroutine(bound: Bind, delivery: Deliver) -> None:
    async def h(order: Order, region: Annotated[str, FromPath], p: Publisher) -> str:
        return region

    coroutine: Any = bound(h, path=PATH).call(delivery({"id": 7}))
    assert coroutine.cr_code is h.__code__
    assert await coroutine == "eu"


async def test_undecodable_payload_never_reaches_the_handler(bound: Bind, delivery: Deliver) -> None:
    """A decode error has a policy of its own: as a handler's error it would be retried for nothing."""

    async def h(order: Order) -> None:
        raise AssertionError

    ready = bound(h)
    assert isinstance(await refused(ready.call, delivery(b"{")), msgspec.DecodeError)
    with pytest.raises(Undecodable):
        ready.decode(delivery(b"{"))


async def test_any_exception_of_a_decoder_is_undecodable(bound: Bind, delivery: Deliver) -> None:
    def decode(_: bytes) -> Any:
        raise RecursionError

    async def h(order: Order, ctx: Context) -> None: ...

    assert isinstance(await refused(bound(h, decode=decode).call, delivery()), RecursionError)


async def test_errors_of_the_handler_stay_what_they_are(bound: Bind, delivery: Deliver) -> None:
    """A ValueError of the handler taken for a decode error would drop the message."""

    async def h(x: int, region: Annotated[str, FromPath]) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await bound(h, path=PATH).call(delivery())


async def test_codec_by_content_type_sees_the_headers(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int) -> int:
        return x

    ready = bound(h, decode_with_headers=lambda payload, headers: int(payload) + int(headers["n"]))
    assert await ready.call(delivery(1, headers={"n": "41"})) == 42
    assert isinstance(await refused(ready.call, delivery(1)), KeyError)
    assert ready.plain is None


async def test_decoded_value_can_be_handed_in(bound: Bind, delivery: Deliver) -> None:
    """Keyed workers decode first and must not decode again."""

    async def h(m: Message[int], region: Annotated[str, FromPath]) -> tuple[int, str]:
        return m.value, region

    ready = bound(h, path=PATH)
    assert ready.decode(delivery(3)) == 3
    assert await ready.call_value(delivery(b"broken"), 5) == (5, "eu")


@pytest.mark.parametrize("shape", ["last", "keyword", "first"])
async def test_every_order_of_parameters_is_filled_by_name(shape: str, bound: Bind, delivery: Deliver) -> None:
    async def last(a: Annotated[str, FromPath("region")], b: Annotated[str, FromHeader("b")], x: int) -> Any:
        return a, b, x

    async def keyword(a: Annotated[str, FromPath("region")], *, x: int, b: Annotated[str, FromHeader("b")]) -> Any:
        return a, b, x

    async def first(
        x: int, a: Annotated[str, FromPath("region")], b: Annotated[str, FromHeader("b")], c: int = 3
    ) -> Any:
        assert c == 3
        return a, b, x

    fn = {"last": last, "keyword": keyword, "first": first}[shape]
    assert await bound(fn, path=PATH).call(delivery(1, headers={"b": "two"})) == ("eu", "two", 1)
    broken = await refused(bound(fn, path=PATH).call, delivery(1))
    assert "'b' is missing" in str(broken)


# --------------------------------------------------------------------------------------------------- message


async def test_message_tells_what_came_around_the_payload(bound: Bind, delivery: Deliver) -> None:
    async def h(m: Message[Order]) -> Message[Order]:
        return m

    ready = bound(h, position=lambda d: ("at", d.name), attempt=lambda _: 4)
    got = await ready.call(delivery({"id": 1}, headers={"A": "b"}, key=b"k"))
    assert (got.value, got.name, got.headers["a"], got.key) == (Order(1), "orders.eu.placed", "b", b"k")
    assert (got.attempt, got.position) == (4, ("at", "orders.eu.placed"))
    assert (await bound(h).call(delivery({"id": 1}))).position is None


# --------------------------------------------------------------------------------------------------- placeholders


async def test_placeholders_are_converted_to_the_annotation(bound: Bind, delivery: Deliver) -> None:
    async def h(
        x: int,
        a: Annotated[Region, FromPath],
        b: Annotated[int, FromPath],
        c: Annotated[uuid.UUID, FromPath],
        d: Annotated[str, FromPath],
    ) -> Any:
        return a, b, c, d

    one = uuid.uuid4()
    call = bound(h, path="{a}.{b}.{c}.{d}").call
    assert await call(delivery(name=f"us.12.{one}.12")) == (Region.US, 12, one, "12")
    assert await call(delivery(name=f"us.12.{one}.12")) == (Region.US, 12, one, "12")
    assert isinstance(await refused(call, delivery(name=f"mars.12.{one}.x")), msgspec.ValidationError)
    assert isinstance(await refused(call, delivery(name="us.12")), DecodeError)


def test_placeholder_that_the_name_lacks_is_refused(bound: Bind) -> None:
    async def h(x: int, zone: Annotated[str, FromPath]) -> None: ...

    with pytest.raises(
        ConfigError, match=r"'zone' of handler .*'orders\.\{region\}\.placed' has no placeholder \{zone\}"
    ):
        bound(h, path=PATH)
    with pytest.raises(ConfigError, match="no placeholder"):
        bound(h)


@pytest.mark.parametrize("kind", [Order, dict[str, int], list[int], Callable, complex])
def test_what_text_cannot_become_is_refused(kind: Any, bound: Bind) -> None:
    """It would fail for every message."""

    async def h(x: int, region: Any) -> None: ...

    h.__annotations__["region"] = Annotated[kind, FromPath]
    with pytest.raises(ConfigError, match="text cannot become"):
        bound(h, path=PATH)


# --------------------------------------------------------------------------------------------------- headers


async def test_single_headers(bound: Bind, delivery: Deliver) -> None:
    async def h(
        x: int,
        tenant: Annotated[str, FromHeader("X-Tenant")],
        size: Annotated[int, FromHeader("x-size")] = 5,
        raw: Annotated[bytes, FromHeader("x-raw")] = b"none",
        many: Annotated[list[int], FromHeader("x-many")] = [],  # noqa: B006
        maybe: Annotated[int | None, FromHeader("x-maybe")] = None,
    ) -> Any:
        return tenant, size, raw, many, maybe

    call = bound(h).call
    assert await call(delivery(headers={"x-tenant": "a"})) == ("a", 5, b"none", [], None)
    full = [
        ("x-tenant", b"a"), ("x-size", "6"), ("x-raw", b"\xff"), ("x-many", "1"), ("x-many", b"2"), ("x-maybe", "0"),
    ]  # fmt: skip
    assert await call(delivery(headers=full)) == ("a", 6, b"\xff", [1, 2], 0)
    assert "'X-Tenant' is missing" in str(await refused(call, delivery()))
    broken = await refused(call, delivery(headers={"x-tenant": "a", "x-size": "big"}))
    assert isinstance(broken, msgspec.ValidationError)


async def test_header_that_admits_none_needs_no_default(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, tenant: Annotated[str | None, FromHeader("x-tenant")]) -> str | None:
        return tenant

    call = bound(h).call
    assert await call(delivery()) is None
    assert await call(delivery(headers={"x-tenant": "null"})) == "null"


class Meta(msgspec.Struct, rename="kebab"):
    x_tenant: str
    retries: int = 0
    raw: bytes = b""
    tags: list[str] = []


@dataclass
class Plain:
    x_tenant: str
    retries: int | None = None


class Typed(TypedDict, total=False):
    x_tenant: str


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Meta, Meta("a", 3, b"\xfe", ["one", "two"])),
        (Plain, Plain("a", 3)),
        (Typed, {"x_tenant": "a"}),
        (Meta | None, Meta("a", 3, b"\xfe", ["one", "two"])),
    ],
    ids=str,
)
async def test_headers_as_one_object(kind: Any, expected: Any, bound: Bind, delivery: Deliver) -> None:
    """Renamed fields, dashes for underscores, repeated and raw values."""

    async def h(x: int, meta: Any) -> Any:
        return meta

    h.__annotations__["meta"] = Annotated[kind, FromHeaders]
    fields = [("X-Tenant", "a"), ("retries", "3"), ("raw", b"\xfe"), ("tags", "one"), ("tags", "two"), ("other", "x")]
    assert await bound(h).call(delivery(headers=fields)) == expected


async def test_underscores_on_the_wire_come_before_dashes(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, meta: Annotated[Plain, FromHeaders]) -> Plain:
        return meta

    assert await bound(h).call(delivery(headers={"x-tenant": "b", "x_tenant": "a"})) == Plain("a")


async def test_missing_headers_of_an_object(bound: Bind, delivery: Deliver) -> None:
    async def needed(x: int, meta: Annotated[Meta, FromHeaders]) -> Any: ...
    async def optional(x: int, meta: Annotated[Meta | None, FromHeaders]) -> Any:
        return meta

    async def lenient(x: int, meta: Annotated[Typed, FromHeaders]) -> Any:
        return meta

    assert "x-tenant" in str(await refused(bound(needed).call, delivery()))
    assert isinstance(await refused(bound(optional).call, delivery(headers={"retries": "1"})), msgspec.ValidationError)
    assert await bound(optional).call(delivery()) is None
    assert await bound(lenient).call(delivery()) == {}


async def test_headers_themselves(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, a: Annotated[Headers, FromHeaders], b: Annotated[dict[str, str], FromHeaders]) -> Any:
        return a, b

    a, b = await bound(h).call(delivery(headers={"n": "1"}))
    assert a == Headers({"n": "1"})
    assert b == {"n": "1"}
    assert type(b) is dict


def test_headers_into_something_else_are_refused(bound: Bind) -> None:
    async def h(x: int, meta: Annotated[int, FromHeaders]) -> None: ...

    with pytest.raises(ConfigError, match=r"'meta' of handler .*Struct, dataclass, attrs class or TypedDict"):
        bound(h)


# --------------------------------------------------------------------------------------------------- transport, plugins


async def test_transport_fields(bound: Bind, delivery: Deliver) -> None:
    async def h(
        x: int, seq: Annotated[int | None, FromTransport("nats.seq")] = None, s: Annotated[int, FromTransport("s")] = 7
    ) -> Any:
        return seq, s

    async def required(x: int, seq: Annotated[int, FromTransport("nats.seq")]) -> int:
        return seq

    assert await bound(h).call(delivery(fields={"nats.seq": 9})) == (9, 7)
    assert await bound(h).call(delivery()) == (None, 7)
    assert await bound(required).call(delivery(fields={"nats.seq": 9})) == 9
    assert "give parameter 'seq' a default" in str(await refused(bound(required).call, delivery()))


class Length(Marker):
    def bind(self, name: str, annotation: Any) -> Callable[[Any], Any]:
        if annotation is not int:
            raise ConfigError(f"{name} must be int")
        return lambda delivery: len(delivery.payload)


async def test_markers_of_plugins_are_bound_once_and_read(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, size: Annotated[int, Length]) -> int:
        return size

    async def wrong(x: int, size: Annotated[str, Length]) -> None: ...

    assert await bound(h).call(delivery(1234)) == 4
    with pytest.raises(ConfigError, match="parameter 'size' of handler .* must be int"):
        bound(wrong)


# --------------------------------------------------------------------------------------------------- constants


class State:
    pool = "pool"


async def test_state_publishers_and_seeker(bound: Bind, delivery: Deliver) -> None:
    async def h(
        x: int, p: Publisher, s: Seeker, state: Annotated[State, FromState], audit: Annotated[Publisher, Out("audit")]
    ) -> Any:
        return p, s, state, audit

    publisher, other, seeker, state = Publisher(), Publisher(), Seeker(), State()
    ready = bound(h, publisher=publisher, out={"audit": other}, seeker=seeker, state=state)
    assert await ready.call(delivery()) == (publisher, seeker, state, other)


def test_missing_services_are_refused(bound: Bind) -> None:
    async def slot(x: int, audit: Annotated[Publisher, Out("audit")]) -> None: ...
    async def seeker(x: int, s: Seeker) -> None: ...
    async def state(x: int, s: Annotated[State, FromState]) -> None: ...
    async def tx(x: int, t: Annotated[object, Transaction]) -> None: ...

    for fn, text in (
        (slot, r"'audit' of handler .* add out=\{'audit': ...\}"),
        (seeker, "'s' of handler .* cannot seek"),
        (state, "'s' of handler .* no state; give App.lifespan"),
        (tx, "'t' of handler .* no transactions"),
    ):
        with pytest.raises(ConfigError, match=text):
            bound(fn)
    with pytest.raises(ConfigError, match="yields int, not .*State"):
        bound(state, state=3)


async def test_state_may_be_absent_where_the_annotation_says_so(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, s: Annotated[State | None, FromState]) -> Any:
        return s

    assert await bound(h).call(delivery()) is None


async def test_transaction_is_the_units_own(bound: Bind, delivery: Deliver) -> None:
    async def h(x: int, tx: Annotated[str, Transaction]) -> str:
        return tx

    class Unit:
        native = "connection"

    assert await bound(h, unit=lambda _: Unit()).call(delivery()) == "connection"


# --------------------------------------------------------------------------------------------------- batches


async def test_batches(bound: Bind, delivery: Deliver) -> None:
    async def values(rows: list[int], p: Publisher) -> Any:
        return rows

    async def messages(rows: list[Message[int]]) -> Any:
        return [(row.value, row.name) for row in rows]

    pair = [delivery(1, name="a"), delivery(2, name="b")]
    ready = bound(values, batch=True)
    assert ready.call_batch is not None
    assert ready.decode(pair[1]) == 2
    assert await ready.call_batch(pair, [1, 2]) == [1, 2]
    assert await ready.call(pair[0]) == [1]
    wrapped = bound(messages, batch=True)
    assert wrapped.call_batch is not None
    assert await wrapped.call_batch(pair, [1, 2]) == [(1, "a"), (2, "b")]


async def test_plain_batch_handlers_run_in_the_pool(bound: Bind, delivery: Deliver) -> None:
    def h(rows: list[int]) -> list[int]:
        return [threading.get_ident(), *rows]

    ready = bound(h, batch=True)
    assert ready.call_batch is not None
    thread, *rows = await ready.call_batch([delivery(), delivery()], [1, 2])
    assert rows == [1, 2]
    assert thread != threading.get_ident()


def test_header_mapping_annotation_is_a_mapping() -> None:
    """`Annotated[Mapping[str, str], FromHeaders]` costs no copy."""
    read = FromHeaders().bind("h", Mapping[str, str])

    class At:
        headers = Headers({"a": "b"})

    assert read(At()) is At.headers  # type: ignore[arg-type]


@pytest.mark.parametrize("plain", [False, True])
async def test_what_a_test_puts_around_the_handler_sees_its_arguments(
    plain: bool, bound: Bind, delivery: Deliver
) -> None:
    """Recorded around the route instead, a handler that never ran would count as called."""
    seen: list[Any] = []

    async def h(x: int, region: Annotated[str, FromPath]) -> int:
        return x

    def p(x: int, region: Annotated[str, FromPath]) -> int:
        return x

    def around(fn: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any) -> Any:
            seen.append(args)
            return fn(*args)

        return recorded

    call = bound(p if plain else h, path=PATH, around=around).call
    assert await call(delivery(7)) == 7
    assert seen == [(7, "eu")]
    await refused(call, delivery(b"{"))
    assert len(seen) == 1
