"""One encoding per type: what goes in comes out, in both codecs and by both libraries; other kinds are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from ruststream_core.codecs import (
    Codec,
    InvalidPayload,
    JsonCodec,
    MsgPackCodec,
    bind_decoder,
    decode_error_path,
    encode_value,
)
from ruststream_core.errors import EncodeError

CODECS = [pytest.param(JsonCodec(), id="json"), pytest.param(MsgPackCodec(), id="msgpack")]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Row(TypedDict):
    a: int
    b: str


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: str


@attrs.define
class Attrs:
    a: int
    b: str


class Struct(msgspec.Struct):
    a: int
    b: str


class Model(pydantic.BaseModel):
    a: int
    b: str


class Aliased(pydantic.BaseModel):
    a: int = pydantic.Field(alias="A")


@pydantic.dataclasses.dataclass
class PydanticRecord:
    a: int
    b: str
    model: Model


offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
text = st.text(st.characters(exclude_categories=["Cs"]))
fields = st.tuples(st.integers(-(2**63), 2**63 - 1), text)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    dt.datetime: st.datetimes(
        min_value=dt.datetime.min + dt.timedelta(days=1),
        max_value=dt.datetime.max - dt.timedelta(days=1),
        timezones=st.one_of(st.none(), offsets),
    ),
    dt.date: st.dates(),
    dt.time: st.times(),
    dt.timedelta: st.timedeltas(dt.timedelta(days=-100_000), dt.timedelta(days=100_000)),
    uuid.UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    set[int]: st.sets(st.integers(-(2**63), 2**63)),
    frozenset[str]: st.frozensets(text),
    tuple[int, str]: fields,
    dict[str, list[bool]]: st.dictionaries(text, st.lists(st.booleans())),
    bool: st.booleans(),
}


def _records(cls: Any) -> st.SearchStrategy[Any]:
    return fields.map(lambda pair: cls(a=pair[0], b=pair[1]))


RECORDS = {cls: _records(cls) for cls in (Frozen, Pair, Row, Struct, Attrs)}
MSGSPEC_ONLY: dict[Any, st.SearchStrategy[Any]] = {list[bytes]: st.lists(st.binary()), **RECORDS}
PYDANTIC_ONLY: dict[Any, st.SearchStrategy[Any]] = {
    Model: _records(Model),
    Aliased: st.integers(-(2**63), 2**63).map(lambda number: Aliased(A=number)),
    PydanticRecord: fields.map(lambda pair: PydanticRecord(*pair, Model(a=pair[0], b=pair[1]))),
    list[Model]: st.lists(_records(Model)),
    dict[str, Model]: st.dictionaries(text, _records(Model)),
    Model | None: st.none() | _records(Model),
}


def _same(codec: Codec, annotation: Any, value: Any) -> None:
    back = bind_decoder(codec, annotation)(encode_value(codec, value))
    assert value == back
    assert type(value) is type(back)
    if isinstance(value, dt.datetime):
        assert value.utcoffset() == back.utcoffset()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("annotation", [*VALUES, *MSGSPEC_ONLY, *PYDANTIC_ONLY], ids=str)
@given(data=st.data())
def test_round_trip(codec: Codec, annotation: Any, data: st.DataObject) -> None:
    """Equal, of the same type, and for datetimes of the same offset; naive stays naive."""
    _same(codec, annotation, data.draw({**VALUES, **MSGSPEC_ONLY, **PYDANTIC_ONLY}[annotation]))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("annotation", list(VALUES), ids=str)
@given(data=st.data())
def test_round_trip_as_a_field(codec: Codec, annotation: Any, data: st.DataObject) -> None:
    """The same in a Struct and in a pydantic model: one encoding per type, whichever library has the field."""
    value = data.draw(VALUES[annotation])
    struct = msgspec.defstruct("Holder", [("value", annotation)])
    model = pydantic.create_model("Holder", value=(annotation, ...))
    _same(codec, struct, struct(value))
    _same(codec, model, model(value=value))


@pytest.mark.parametrize(
    ("annotation", "document"),
    [
        (dt.datetime, b"true"),
        (dt.datetime, b"0"),
        (dt.datetime, b"1.5"),
        (dt.datetime, b'"2024-01-01"'),
        (dt.date, b"0"),
        (dt.date, b'"2024-01-01T00:00:00"'),
        (dt.time, b'"2024-01-01"'),
        (dt.timedelta, b"5"),
        (dt.timedelta, b"true"),
        (uuid.UUID, b'"no"'),
        (uuid.UUID, b"5"),
        (Colour, b'"green"'),
        (Colour, b"1"),
        (Level, b"3"),
        (Level, b'"1"'),
        (Decimal, b"true"),
        (Decimal, b'"x"'),
        (bool, b"1"),
        (bool, b'"true"'),
        (float, b"true"),
        (float, b'"1.5"'),
        (set[int], b"1"),
        (set[int], b'["1"]'),
        (dict[str, int], b"[]"),
        (list[str], b"[1]"),
    ],
    ids=str,
)
@pytest.mark.parametrize("codec", CODECS)
def test_other_kinds_are_refused_by_both_libraries(codec: Codec, annotation: Any, document: bytes) -> None:
    """Pydantic's lax mode takes an epoch for a datetime, a date for a datetime and text for a number."""
    value = msgspec.json.decode(document)
    payload = (
        msgspec.json.encode({"value": value}) if codec.name == "json" else msgspec.msgpack.encode({"value": value})
    )
    struct = msgspec.defstruct("Holder", [("value", annotation)])
    model = pydantic.create_model("Holder", value=(annotation, ...))
    for cls, error in ((struct, msgspec.ValidationError), (model, InvalidPayload)):
        with pytest.raises(error) as caught:
            bind_decoder(codec, cls)(payload)
        assert decode_error_path(caught.value).startswith("$.value")


@pytest.mark.parametrize("document", [b'"2024-01-01T05:30:00+05:30"', b'"2024-01-01T00:00:00Z"'])
def test_offsets_are_kept_not_only_the_instant(document: bytes) -> None:
    """Both are the same instant; a consumer may care which clock the sender saw."""
    hours = 5.5 if b"05:30" in document else 0
    for annotation in (list[dt.datetime], pydantic.RootModel[list[dt.datetime]]):
        decoded: Any = bind_decoder(JsonCodec(), annotation)(b"[%b]" % document)
        (when,) = getattr(decoded, "root", decoded)
        assert when == dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        assert when.utcoffset() == dt.timedelta(hours=hours)


def test_msgpack_timestamps_from_elsewhere_are_read() -> None:
    """Other producers write the extension type; the rule of text is for what this package writes."""
    when = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    payload = msgspec.msgpack.encode([when])
    assert payload != encode_value(MsgPackCodec(), [when])
    for annotation in (list[dt.datetime], pydantic.RootModel[list[dt.datetime]]):
        decoded = bind_decoder(MsgPackCodec(), annotation)(payload)
        assert [when] == getattr(decoded, "root", decoded)


def test_bytes_that_look_like_a_timestamp_stay_bytes() -> None:
    """The mark in the output is only a hint."""
    value = [b"\xd6\xff\x00\x00\x00\x00", b"\xd7\xff", b"\xc7\x0c\xff"]
    _same(MsgPackCodec(), list[bytes], value)


class Blob(pydantic.BaseModel):
    data: bytes


class Base64Blob(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_in_a_pydantic_model_are_text_or_base64_never_altered(codec: Codec) -> None:
    """Pydantic's form is UTF-8 text; what is not text needs the model to say base64."""
    _same(codec, Blob, Blob(data=b"text"))
    _same(codec, Base64Blob, Base64Blob(data=b"\xff\x00"))
    with pytest.raises(EncodeError):
        encode_value(codec, Blob(data=b"\xff"))


def test_msgpack_binary_for_a_pydantic_model_is_refused() -> None:
    """Read by way of JSON it would arrive as base64 text, silently."""
    with pytest.raises(InvalidPayload, match="binary value"):
        bind_decoder(MsgPackCodec(), Blob)(msgspec.msgpack.encode({"data": b"x"}))


def test_lax_codecs_convert_between_kinds() -> None:
    """The opt-out of strictness reaches both libraries."""
    for codec in (JsonCodec(strict=False), MsgPackCodec(strict=False)):
        payload = encode_value(codec, {"a": "5", "b": "x"})
        assert Struct(5, "x") == bind_decoder(codec, Struct)(payload)
        assert Model(a=5, b="x") == bind_decoder(codec, Model)(payload)


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_hooks_bring_types_of_other_libraries() -> None:
    """A type that msgspec does not know, there and back."""

    def write(value: Any) -> Any:
        return value.cents

    def read(cls: type, value: Any) -> Any:
        return cls(value)

    for codec in (JsonCodec(enc_hook=write, dec_hook=read), MsgPackCodec(enc_hook=write, dec_hook=read)):
        (back,) = bind_decoder(codec, list[Money])(encode_value(codec, [Money(7)]))
        assert back.cents == 7
