"""Which member of a union a payload becomes, for both codecs and both libraries, and which unions are warned of."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from ruststream_core.codecs import InvalidPayload, JsonCodec, MsgPackCodec, ambiguities, bind_decoder, encode_value
from ruststream_core.errors import ConfigError

JSON = JsonCodec()
MSGPACK = MsgPackCodec()
REFUSED = object()


class Holder(pydantic.BaseModel):
    """Stands beside a union's members so that pydantic reads it."""

    only_here: int


class Made(msgspec.Struct, tag="made"):
    id: int


class Gone(msgspec.Struct, tag="gone"):
    id: int


class PydanticMade(pydantic.BaseModel):
    type: Literal["made"] = "made"
    id: int


class PydanticGone(pydantic.BaseModel):
    type: Literal["gone"] = "gone"
    id: int


class Base(pydantic.BaseModel):
    id: int


class Dated(Base):
    at: dt.datetime


class PlainA(msgspec.Struct):
    a: int


class PlainB(msgspec.Struct):
    b: int


class Colour(enum.Enum):
    RED = "red"


GOLDEN: list[tuple[Any, bytes, object]] = [
    (int | str | None, b'"100"', "100"),
    (int | str | None, b"100", 100),
    (int | str | None, b"true", REFUSED),
    (int | str | None, b"1.5", REFUSED),
    (bool | int, b"true", True),
    (bool | int, b"1", 1),
    (bool | int, b'"true"', REFUSED),
    (int | bool, b"true", True),
    (int | bool, b"0", 0),
    (bool | str, b'"true"', "true"),
    (int | float, b"1", 1),
    (int | float, b"1.0", 1.0),
    (float | int, b"1", 1),
    (float | int, b"true", REFUSED),
    (int | Decimal, b"1", 1),
    (int | Decimal, b"1.5", Decimal("1.5")),
    (int | Decimal, b'"100"', Decimal(100)),
    (Decimal | int, b"1", 1),
    (float | Decimal, b"1.5", 1.5),
    (float | Decimal, b'"1.5"', Decimal("1.5")),
    (int | dt.datetime, b'"2024-01-01T00:00:00Z"', dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    (int | dt.datetime, b"0", 0),
    (bool | dt.datetime, b"true", True),
    (dt.datetime | None, b"true", REFUSED),
    (dt.datetime | None, b"0", REFUSED),
    (dt.datetime | None, b"null", None),
    (int | None, b"null", None),
    (int | None, b'"null"', REFUSED),
    (list[int] | int, b"[1]", [1]),
    (list[int] | int, b"1", 1),
    (list[int] | dict[str, int], b'{"k":1}', {"k": 1}),
    (Colour | int, b'"red"', Colour.RED),
    (Colour | int, b'"blue"', REFUSED),
    (Literal["a", "b"] | int, b'"b"', "b"),
    (Literal["a", "b"] | int, b'"c"', REFUSED),
]
READERS = [(JSON, False), (JSON, True), (MSGPACK, False), (MSGPACK, True)]


@pytest.mark.parametrize(
    ("codec", "by_pydantic"), READERS, ids=["json", "json+pydantic", "msgpack", "msgpack+pydantic"]
)
@pytest.mark.parametrize(("annotation", "document", "expected"), GOLDEN, ids=lambda item: str(item)[:40])
def test_golden_table(codec: Any, by_pydantic: bool, annotation: Any, document: bytes, expected: object) -> None:
    """The member of the payload's own kind, whatever the order, the codec and the library that reads."""
    payload = document if codec is JSON else msgspec.msgpack.encode(msgspec.json.decode(document))
    decode = bind_decoder(codec, Annotated[annotation, pydantic.Field()] if by_pydantic else annotation)
    if expected is REFUSED:
        with pytest.raises(InvalidPayload if by_pydantic else msgspec.ValidationError):
            decode(payload)
        return
    back = decode(payload)
    assert expected == back
    assert type(expected) is type(back)


@pytest.mark.parametrize("codec", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Made | Gone, Gone(1)),
        (Gone | Made, Made(1)),
        (Made | Gone | None, Made(2)),
        (PydanticMade | PydanticGone, PydanticGone(id=1)),
        (Annotated[PydanticMade | PydanticGone, pydantic.Field(discriminator="type")], PydanticMade(id=1)),
        (Base | Dated, Dated(id=1, at=dt.datetime(2024, 1, 1, tzinfo=dt.UTC))),
        (Dated | Base, Base(id=1)),
        (list[PydanticMade | PydanticGone], [PydanticGone(id=1), PydanticMade(id=2)]),
        (PydanticMade | None, PydanticMade(id=3)),
    ],
)
def test_records_come_back_as_the_class_that_was_sent(codec: Any, annotation: Any, value: object) -> None:
    """A subclass with a datetime must not lose to its base, in either order."""
    back = bind_decoder(codec, annotation)(encode_value(codec, value))
    assert value == back
    assert type(value) is type(back)


class Patch(msgspec.Struct):
    name: str | msgspec.UnsetType | None = msgspec.UNSET


class PydanticPatch(pydantic.BaseModel):
    name: str | None = "default"


def test_missing_differs_from_null() -> None:
    """JSON null into an optional field is None; a missing field is its default."""
    for annotation, missing in ((Patch, msgspec.UNSET), (PydanticPatch, "default")):
        decode = bind_decoder(JSON, annotation)
        assert decode(b'{"name":null}').name is None
        assert decode(b"{}").name == missing


@pytest.mark.parametrize(
    "annotation",
    [str | dt.datetime, str | uuid.UUID, str | bytes, PlainA | PlainB, dict[str, int] | PlainA, Colour | str],
)
def test_msgspec_refuses_what_it_cannot_decide_when_the_route_is_mounted(annotation: Any) -> None:
    """Never when the first message comes."""
    with pytest.raises(ConfigError, match="cannot decode"):
        bind_decoder(JSON, annotation)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (str | dt.datetime, ["str", "datetime"]),
        (int | Decimal, ["int", "Decimal"]),
        (uuid.UUID | bytes | int, ["UUID", "bytes"]),
        (PlainA | PlainB, ["PlainA", "PlainB", "tag"]),
        (Base | Dated, ["Base", "Dated", "tag"]),
        (list[Base | Dated], ["Base", "Dated"]),
        (Colour | str, ["Colour", "str"]),
        (dict[str, int] | PlainA, ["dict[str, int]", "PlainA"]),
        (tuple[int, int] | list[int], ["tuple[int, int]", "list[int]"]),
    ],
)
def test_ambiguous_unions_are_named(annotation: Any, words: list[str]) -> None:
    """One warning, with both members."""
    (warning,) = ambiguities(annotation)
    assert all(word in warning for word in words), warning


@pytest.mark.parametrize(
    "annotation",
    [
        int,
        int | str,
        bool | int,
        int | float,
        int | dt.datetime,
        str | None,
        Made | Gone,
        PydanticMade | PydanticGone,
        Annotated[Base | Dated, pydantic.Field(discriminator="id")],
        Literal["a"] | Literal["b"],  # noqa: PYI030  two members is the case
        Made | list[int] | int | str | None,
        dict[str, Any],
    ],
)
def test_decided_unions_are_not_warned_of(annotation: Any) -> None:
    """A warning that is no use teaches people to ignore warnings."""
    assert ambiguities(annotation) == []


class Inner(msgspec.Struct):
    when: str | dt.date
    children: list[Inner] = []


class Outer(msgspec.Struct):
    inner: Inner


def test_ambiguous_fields_are_found_at_any_depth_once() -> None:
    """Recursive types end; the field is named by its path."""
    (warning,) = ambiguities(Outer)
    assert warning.startswith("inner.when: ")
