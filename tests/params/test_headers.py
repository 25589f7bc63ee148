"""Headers from what services write: one rule for every value, and errors that name the header."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core.errors import EncodeError
from ruststream_core.params import FromHeaders, write_headers
from ruststream_core.wire import NO_HEADERS, Headers


class Level(enum.Enum):
    HIGH = "high"


class Rank(enum.IntEnum):
    FIRST = 1


class Meta(msgspec.Struct, rename="kebab"):
    x_tenant: str
    retries: int | None = None
    tags: list[str] = []
    raw: bytes | msgspec.UnsetType = msgspec.UNSET


@dataclass
class Plain:
    tenant: str
    urgent: bool = False


@attrs.define
class Attrs:
    tenant: str


ONE = uuid.UUID(int=7)
DAY = datetime.date(2024, 2, 29)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, ()),
        ({"A": "b", "raw": b"\xff"}, (("A", "b"), ("raw", b"\xff"))),
        ([("a", "1"), ("a", b"2")], (("a", "1"), ("a", b"2"))),
        ((pair for pair in [("a", "1")]), (("a", "1"),)),
        (
            Meta("t", 3, ["x", "y"], b"\xff"),
            (("x-tenant", "t"), ("retries", "3"), ("tags", "x"), ("tags", "y"), ("raw", b"\xff")),
        ),
        (Meta("t"), (("x-tenant", "t"),)),
        (Plain("t", urgent=True), (("tenant", "t"), ("urgent", "true"))),
        (Attrs("t"), (("tenant", "t"),)),
        ({"id": ONE, "day": DAY}, (("id", str(ONE)), ("day", "2024-02-29"))),
        ({"level": Level.HIGH, "rank": Rank.FIRST}, (("level", "high"), ("rank", "1"))),
        ({"n": 5, "f": 1.5, "no": False}, (("n", "5"), ("f", "1.5"), ("no", "false"))),
        ({"d": decimal.Decimal("1.10")}, (("d", "1.10"),)),
        ({"left": None}, ()),
    ],
)  # fmt: skip
def test_written(given: Any, fields: Any) -> None:
    assert write_headers(given).raw() == fields


def test_headers_are_not_copied() -> None:
    headers = Headers({"a": "b"})
    assert write_headers(headers) is headers
    assert write_headers(None) is NO_HEADERS


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"x-a": object()}, "header 'x-a'"),
        ({"x-a": {"b": 1}}, "header 'x-a'"),
        ({"x-a": bytearray(b"1")}, "header 'x-a'"),
        ({1: "a"}, "header 1"),
        ({"": "a"}, "header ''"),
        ([("a", "b", "c")], "pairs"),
        ("a=b", "cannot be str"),
        (3, "cannot be int"),
        (Plain(object()), "header 'tenant'"),  # type: ignore[arg-type]
    ],
)
def test_refused(wrong: Any, text: str) -> None:
    """A client library would crash far from here, or write the repr of an object."""
    with pytest.raises(EncodeError, match=text):
        write_headers(wrong)


class Round(msgspec.Struct, rename="kebab"):
    some_text: str
    count: int
    flag: bool
    share: float
    when: datetime.datetime
    ident: uuid.UUID
    raw: bytes
    many: list[int]
    amount: decimal.Decimal
    maybe: int | None = None


@given(
    st.builds(
        Round,
        some_text=st.text(),
        count=st.integers(),
        share=st.floats(allow_nan=False, allow_infinity=False),
        when=st.datetimes(timezones=st.just(datetime.UTC)),
        many=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
        amount=st.decimals(allow_nan=False, allow_infinity=False),
    )
)
def test_what_is_written_reads_back(value: Round) -> None:
    """Two services that share the type must understand each other."""
    read = FromHeaders().bind("meta", Round)

    class At:
        headers = write_headers(value)

    assert read(At()) == value  # type: ignore[arg-type]
