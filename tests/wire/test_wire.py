"""Headers as they cross the wire, and names with placeholders."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core.wire import NO_HEADERS, Delivery, Headers, Outgoing, Template

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
VALUES = st.text(max_size=20) | st.binary(max_size=20)


# --------------------------------------------------------------------------------------------------------- headers


def test_names_are_found_in_any_case_and_kept_in_their_own() -> None:
    headers = Headers([("X-Tenant", "acme"), ("x-tenant", "other"), ("Trace", "1")])
    assert headers["x-TENANT"] == "acme"
    assert headers.get_all("X-TENANT") == ["acme", "other"]
    assert list(headers) == ["X-Tenant", "Trace"]
    assert len(headers) == 2
    assert "TRACE" in headers
    assert not headers.__contains__(5)
    assert headers.raw() == (("X-Tenant", "acme"), ("x-tenant", "other"), ("Trace", "1"))


def test_what_is_missing_is_missing() -> None:
    assert NO_HEADERS.get("a") is None
    assert NO_HEADERS.get_all("a") == []
    assert not NO_HEADERS
    for look in (NO_HEADERS.__getitem__, NO_HEADERS.get_bytes):
        with pytest.raises(KeyError):
            look("a")


@given(st.binary(max_size=50))
def test_bytes_come_back_as_they_were_and_text_never_fails(value: bytes) -> None:
    headers = Headers([("a", value)])
    assert headers.get_bytes("a") == value
    assert headers["a"].encode("utf-8", "surrogateescape") == value


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_text_is_utf_8(value: str) -> None:
    headers = Headers({"a": value})
    assert headers["a"] == value
    assert headers.get_bytes("a") == value.encode()


@given(st.lists(st.tuples(NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=9)), max_size=8))
def test_the_mapping_shows_the_first_of_each_name(pairs: list[tuple[str, str]]) -> None:
    headers = Headers(pairs)
    assert isinstance(headers, Mapping)
    assert len(headers) == len({name.lower() for name, _ in pairs}) == len(list(headers))
    for name in headers:
        assert headers.get_all(name) == [value for other, value in pairs if other.lower() == name.lower()]
        assert headers[name] == headers.get_all(name)[0]
    assert bool(headers) == bool(pairs)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.dictionaries(NAMES, VALUES, max_size=3))
def test_replaced_leaves_everything_else_in_its_place(
    pairs: list[tuple[str, str | bytes]], changes: dict[str, str | bytes]
) -> None:
    before = Headers(pairs)
    after = before.replaced(changes)
    folded = {name.lower() for name in changes}
    assert after.raw() == (*(pair for pair in pairs if pair[0].lower() not in folded), *changes.items())
    assert before.raw() == tuple(pairs), "headers do not change"


def test_headers_compare_by_the_wire() -> None:
    assert Headers([("A", "x")]) == Headers([("a", b"x")])
    assert Headers([("a", "1"), ("b", "2")]) != Headers([("b", "2"), ("a", "1")])
    assert Headers({"a": "1"}) == {"a": "1"}
    with pytest.raises(TypeError):
        hash(NO_HEADERS)


def test_headers_show_what_they_are() -> None:
    assert repr(Headers({"a": b"\xff"})) == "Headers([('a', b'\\xff')])"


# -------------------------------------------------------------------------------------------------------- template


def test_placeholders_are_whole_tokens() -> None:
    template = Template("orders.{region}.{kind}")
    assert template.fields == ("region", "kind")
    assert template.fill({"region": "eu", "kind": 5}) == "orders.eu.5"
    assert template.match("orders.eu.placed") == {"region": "eu", "kind": "placed"}
    assert template.wildcard("*") == "orders.*.*"


@pytest.mark.parametrize("text", ["a.{b", "a.b}", "a.x{b}", "{a}{b}", "{a}.{a}", "{}", "{a b}", "{1}", "{a.b}"])
def test_what_is_no_placeholder_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole token"):
        Template(text)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders.x", False),
        ("orders.*", "orders.x", True),
        ("orders.*", "orders.x.y", False),
        ("orders.*", "orders.", False),
        ("orders.>", "orders.x.y", True),
        ("orders.#", "orders.x", True),
        ("orders.>", "orders", False),
        (">", "anything.at.all", True),
        ("a.>.b", "a.>.b", True),
        ("a.>.b", "a.x.b", False),
        ("{a}.x", "é.x", True),
        ("a+b.c", "aab.c", False),
        ("a+b.c", "a+b.c", True),
        ("orders.{id}", "orders.1\n", True),
    ],
)
def test_which_names_fit(pattern: str, name: str, fits: bool) -> None:
    assert (Template(pattern).match(name) is not None) == fits


@pytest.mark.parametrize("value", ["", " ", "a b", "a.b", "*", ">", "#", "{x}", "a\tb", "\n", "\u00a0"])
def test_a_value_cannot_change_the_structure_of_a_name(value: str) -> None:
    with pytest.raises(ValueError, match="cannot stand for a placeholder"):
        Template("a.{x}").fill({"x": value})


def test_a_missing_value_is_named() -> None:
    with pytest.raises(KeyError, match="x"):
        Template("a.{x}").fill({})


TOKEN = st.text(st.characters(categories=["L", "N"], exclude_characters="."), min_size=1, max_size=6)


@given(TOKEN, TOKEN)
def test_what_is_filled_in_is_found_again(one: str, two: str) -> None:
    template = Template("a.{one}.b.{two}")
    assert template.match(template.fill({"one": one, "two": two})) == {"one": one, "two": two}


def test_other_separators() -> None:
    template = Template("a/{x}/b.c", "/")
    assert template.fill({"x": "1.2"}) == "a/1.2/b.c"
    assert template.match("a/1.2/b.c") == {"x": "1.2"}


# -------------------------------------------------------------------------------------------------------- defaults


def test_a_delivery_that_says_little_has_sane_defaults() -> None:
    class Bare(Delivery):
        __slots__ = ("lost",)

    delivery = Bare()
    assert delivery.headers is NO_HEADERS
    assert (delivery.key, delivery.lane, delivery.attempt, delivery.reply_to) == (None, None, None, None)
    with pytest.raises(KeyError):
        delivery.transport("x")
    with pytest.raises(NotImplementedError):
        _ = delivery.payload


def test_outgoing_needs_payload_and_name_only() -> None:
    out = Outgoing(b"x", "a")
    assert (out.headers, out.key, out.options, out.reply_to) == (NO_HEADERS, None, None, None)
