"""Destinations, replies, `@message`, and that the public names are what the package says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
import pytest

from ruststream_core import params
from ruststream_core.errors import ConfigError
from ruststream_core.params import MessageInfo, Publisher, Reply, Seeker, To, message, message_info

T = TypeVar("T")


class Meta(msgspec.Struct):
    tenant: str


def test_message_marks_every_kind_of_class() -> None:
    @message("a.{tenant}", headers=Meta)
    class Placed(msgspec.Struct):
        tenant: str

    @dataclass(slots=True)
    @message("b")
    class Slotted:
        a: int

    @message("c")
    class Typed(TypedDict):
        a: int

    @message("d")
    class Page(msgspec.Struct, Generic[T]):
        items: list[T]

    assert message_info(Placed) == MessageInfo("a.{tenant}", Meta)
    assert message_info(Slotted) == MessageInfo("b")
    assert message_info(Typed) == MessageInfo("c")
    assert message_info(Page[int]) == MessageInfo("d")
    assert Placed("x").tenant == "x"


def test_message_is_not_inherited() -> None:
    """A subclass published to its base's name would surprise everyone who reads there."""

    @message("a")
    class Base(msgspec.Struct): ...

    class Below(Base): ...

    assert message_info(Below) is None
    for other in (int, list[int], "a", 3):
        assert message_info(other) is None


def test_message_refuses_what_cannot_work() -> None:
    with pytest.raises(ConfigError, match="above a class"):
        message("")
    with pytest.raises(ConfigError, match=r"message\('a', headers=...\): .*TypedDict"):
        message("a", headers=int)
    with pytest.raises(ConfigError, match="decorates a class"):
        message("a")(lambda: None)  # type: ignore[type-var]


def test_destinations_compare_and_refuse_an_empty_name() -> None:
    assert To("a", broker="lake") == To("a", broker="lake")
    assert hash(To("a")) == hash(To("a"))
    with pytest.raises(ConfigError, match="needs a name"):
        To("")


def test_replies_compare() -> None:
    """`t.route(confirm).replies == [Reply(...)]` is how tests look at them."""
    assert Reply(1, key="a") == Reply(1, key="a")
    assert Reply(1) != Reply(1, to="b")


async def test_base_classes_do_nothing_silently() -> None:
    publisher = Publisher()
    for call in (
        lambda: publisher.publish(1),
        lambda: publisher.publish_many([1]),
        lambda: publisher.request(1, timeout=1),
        lambda: Seeker().seek(0),
    ):
        with pytest.raises(NotImplementedError):
            await call()
    with pytest.raises(NotImplementedError):
        publisher.transaction()


@pytest.mark.parametrize("name", params.__all__)
def test_public_names_exist_and_are_documented(name: str) -> None:
    value: Any = getattr(params, name)
    assert isinstance(value, type) is False or value.__doc__
