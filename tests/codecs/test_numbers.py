"""Numbers are exact or refused: NaN and infinity, integers of any size, Decimals."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core.codecs import (
    Codec,
    InvalidPayload,
    JsonCodec,
    MsgPackCodec,
    bind_decoder,
    decode_error_path,
    describe_decode_error,
    encode_value,
)
from ruststream_core.errors import EncodeError

JSON = JsonCodec()
MSGPACK = MsgPackCodec()
CODECS = [pytest.param(JSON, id="json"), pytest.param(MSGPACK, id="msgpack")]
NON_FINITE = [math.nan, math.inf, -math.inf]


class Point(msgspec.Struct):
    x: float
    note: str | None = None


@dataclasses.dataclass
class Sample:
    values: list[float]


class Model(pydantic.BaseModel):
    x: float = 0.0
    anything: Any = None
    note: str | None = None


class Ledger(msgspec.Struct):
    id: int
    amount: Decimal


class PydanticLedger(pydantic.BaseModel):
    id: int
    amount: Decimal


@pydantic.dataclasses.dataclass
class PydanticPoint:
    x: float


@pytest.mark.parametrize("number", NON_FINITE)
@pytest.mark.parametrize(
    ("build", "path"),
    [
        (lambda number: {"x": number, "note": None}, "$.x"),
        (Point, "$.x"),
        (lambda number: Sample([1.0, number]), "$.values[1]"),
        (lambda number: [Point(1.0), Point(number)], "$[1].x"),
        (lambda number: Model(x=number), "$.x"),
        (lambda number: Model(anything={"deep": [number]}), "$.anything.deep[0]"),
        (PydanticPoint, "$.x"),
        (lambda number: [Model(x=number)], "$.x"),
        (lambda number: (2**100 if number > 0 else 1, number), "$[1]"),
        (lambda number: number, "$"),
    ],
)
def test_json_refuses_what_it_would_write_as_null(build: Any, path: str, number: float) -> None:
    """Msgspec and pydantic write NaN and infinity as null: the consumer would read another value, or fail."""
    with pytest.raises(EncodeError, match="NaN or infinity") as caught:
        encode_value(JSON, build(number))
    assert f"at {path}:" in str(caught.value)


@pytest.mark.parametrize("number", NON_FINITE)
@pytest.mark.parametrize("build", [Point, lambda number: {"x": number}, lambda number: Model(x=number)])
def test_msgpack_refuses_them_by_default(build: Any, number: float) -> None:
    """A service that changes its codec keeps its rules."""
    with pytest.raises(EncodeError, match=r"at \$\.x: NaN or infinity"):
        encode_value(MSGPACK, build(number))


@pytest.mark.parametrize("number", NON_FINITE)
def test_msgpack_carries_them_where_allowed(number: float) -> None:
    """MessagePack defines them, so a service may opt in, and the value arrives as it was."""
    back = bind_decoder(MSGPACK, Point)(encode_value(MsgPackCodec(allow_nan=True), Point(number)))
    assert math.isnan(back.x) if math.isnan(number) else back.x == number


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [{"x": None}, Point(1.0), {"null": "null"}, {"b": b"\xcb\x7f\xf8\xcb\xff"}, Model()])
def test_what_only_looks_like_a_non_finite_number_is_written(codec: Codec, value: Any) -> None:
    """The marks in the output that cause a closer look are no proof."""
    assert encode_value(codec, value)


def test_a_model_that_asks_for_nan_constants_is_refused() -> None:
    """`ser_json_inf_nan="constants"` writes `NaN`, which is no JSON: other consumers refuse the whole message."""

    class Constants(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
        x: float

    with pytest.raises(EncodeError):
        encode_value(JSON, Constants(x=math.nan))


@pytest.mark.parametrize("annotation", [Point, dict[str, float], Any, Model, list[Model] | Model])
@pytest.mark.parametrize("payload", [b'{"x":NaN}', b'{"x":Infinity}', b'{"x":-Infinity}', b'{"x":1e999}'])
def test_json_refuses_non_finite_numbers_from_elsewhere(annotation: Any, payload: bytes) -> None:
    """Pydantic's own reader takes all four."""
    with pytest.raises(msgspec.DecodeError):
        bind_decoder(JSON, annotation)(payload)


def test_a_model_over_msgpack_refuses_nan_instead_of_reading_null() -> None:
    """The document is read by way of JSON, where NaN would turn into null and then into a default."""
    payload = msgspec.msgpack.encode({"note": math.nan})
    with pytest.raises(InvalidPayload, match="NaN or infinity"):
        bind_decoder(MSGPACK, Model)(payload)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("annotation", [Ledger, PydanticLedger])
@given(number=st.integers(-(2**200), 2**200), amount=st.decimals(allow_nan=False, allow_infinity=False))
def test_integers_and_decimals_survive_or_are_refused(
    codec: Codec, annotation: Any, number: int, amount: Decimal
) -> None:
    """Never another number: not a float in place of an integer, not a Decimal by way of a float."""
    try:
        payload = encode_value(codec, annotation(id=number, amount=amount))
    except EncodeError:
        assert codec is MSGPACK
        assert not -(2**63) <= number < 2**64
        return
    back = bind_decoder(codec, annotation)(payload)
    assert (number, amount) == (back.id, back.amount)
    assert (int, Decimal) == (type(back.id), type(back.amount))


@pytest.mark.parametrize("annotation", [int, Any, int | str, dict[str, int], dict[int, int], list[int | None]])
@given(number=st.integers(-(2**200), 2**200))
def test_json_integers_are_exact_wherever_they_stand(annotation: Any, number: int) -> None:
    """Also as keys, in unions and where nothing is said about the type."""
    value: Any = {dict[str, int]: {"k": number}, dict[int, int]: {number: number}, list[int | None]: [number]}.get(
        annotation, number
    )
    back = bind_decoder(JSON, annotation)(encode_value(JSON, value))
    assert value == back
    assert type(value) is type(back)


@pytest.mark.parametrize("annotation", [Ledger, PydanticLedger])
@pytest.mark.parametrize("number", [b"1.0", b"1e3", b"9007199254740992.0", b'"5"', b"true", b"null"])
def test_an_integer_is_made_of_nothing_else(annotation: Any, number: bytes) -> None:
    """Pydantic's lax mode would take all but null, and read 9007199254740993.0 as 9007199254740992."""
    with pytest.raises((msgspec.ValidationError, InvalidPayload)) as caught:
        bind_decoder(JSON, annotation)(b'{"id":%b,"amount":1}' % number)
    assert decode_error_path(caught.value) == "$.id"


@pytest.mark.parametrize("text", ["0.1", "0.10", "1e-7", "123456789012345678901234567890", "-0.5", "1e400"])
def test_a_decimal_is_read_from_the_digits_of_a_number(text: str) -> None:
    """Not from the float nearest to it."""
    assert Decimal(text) == bind_decoder(JSON, Decimal)(text.encode())


def test_pydantic_reads_a_number_into_a_decimal_exactly_or_not_at_all() -> None:
    """Its reader makes a float first, which keeps 17 digits."""
    decode = bind_decoder(JSON, PydanticLedger)
    assert Decimal("0.1") == decode(b'{"id":1,"amount":0.1}').amount
    long = "0.1234567890123456789012345"
    with pytest.raises(InvalidPayload, match="more digits") as caught:
        decode(b'{"id":1,"amount":%b}' % long.encode())
    assert "0.1234" not in describe_decode_error(caught.value)
    assert Decimal(long) == decode(b'{"id":1,"amount":"%b"}' % long.encode()).amount


@pytest.mark.parametrize("codec", CODECS)
@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_finite_floats_survive(codec: Codec, number: float) -> None:
    """The shortest form that reads back as the same number, also the sign of zero."""
    for annotation in (Point, Model):
        back = bind_decoder(codec, annotation)(encode_value(codec, annotation(x=number)))
        assert (number, math.copysign(1, number)) == (back.x, math.copysign(1, back.x))


def test_an_integer_beyond_64_bits_is_named_for_msgpack() -> None:
    """MessagePack cannot hold it; a float in its place would be another id."""
    with pytest.raises(EncodeError, match=r"list cannot be written as msgpack, at \$\[1\]\.id: .*serialize ints"):
        encode_value(MSGPACK, [Ledger(1, Decimal(1)), Ledger(2**64, Decimal(1))])


def test_an_integer_of_thousands_of_digits_is_a_decode_error() -> None:
    """Its conversion would take quadratic time; the reader's limit is an ordinary decode error."""
    for annotation in (int, Any, PydanticLedger):
        with pytest.raises(msgspec.DecodeError):
            bind_decoder(JSON, annotation)(b"1" * 5000)
