"""Headers inside payloads."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ruststream_core.wire import NO_HEADERS, Headers
from ruststream_core_file._envelope import fits_line, open_envelope, seal

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(NAMES, st.one_of(st.binary(max_size=20), st.text(st.characters(exclude_categories=["Cs"])))))


@given(PAIRS, st.binary(max_size=100), st.booleans())
@example([("a", b"1"), ("A", b"2"), ("a", b"")], b"", False)
@example([("a:b", b"1")], b"rs1:", False)
@example([(" a", b"1\r")], b"rs2:AAAA", True)
def test_what_goes_in_comes_out(pairs: list[tuple[str, str | bytes]], payload: bytes, line: bool) -> None:
    headers = Headers(pairs)
    assert open_envelope(seal(headers, payload, line=line)) == (headers, payload)


@given(PAIRS, st.binary(max_size=100))
def test_a_sealed_line_fits_into_a_line(pairs: list[tuple[str, str | bytes]], payload: bytes) -> None:
    assert fits_line(seal(Headers(pairs), payload, line=True))


@given(st.binary(max_size=60), st.sampled_from([b"", b"rs1:", b"rs2:", b"rs1:AAAA", b"rs2:AAAABA=="]))
def test_whatever_is_no_envelope_is_a_payload(rest: bytes, prefix: bytes) -> None:
    """Never an error, and what is taken for an envelope would be written again as one of the same content."""
    headers, payload = open_envelope(prefix + rest)
    if headers:
        assert open_envelope(seal(headers, payload)) == (headers, payload)
    else:
        assert payload == prefix + rest or base64.b64decode(rest).endswith(payload)


@pytest.mark.parametrize(
    "sealed",
    [
        b"rs1:",
        b"rs1:AAAA",
        b"rs1:AAAAAA",
        b"rs1:AAAAAA=",
        b"rs1:AAAAAB==",
        b"rs1:AAAA AA==",
        b"rs1:AAAAAA==\n",
        b"rs1:" + base64.b64encode(b"\0\0\0\x05abcd"),
        b"rs1:" + base64.b64encode(b"\0\0\0\x02\xff\xff"),
        b"rs2:" + base64.b64encode(b"\0\0\0\x05\0\0\0\x01a"),
        b"rs2:" + base64.b64encode(b"\0\0\0\x06\0\0\0\x01\xff\0\0"),
        b"rs3:AAAAAA==",
        b"RS1:AAAAAA==",
    ],
)
def test_near_misses_are_payloads(sealed: bytes) -> None:
    assert open_envelope(sealed) == (NO_HEADERS, sealed)


def test_lines_of_a_text_block_are_trimmed_and_those_without_a_colon_skipped() -> None:
    block = b" a :  1 \nno header\nb:x:y\n:\n"
    sealed = b"rs1:" + base64.b64encode(len(block).to_bytes(4) + block + b"body")
    assert open_envelope(sealed) == (Headers([("a", "1"), ("b", "x:y"), ("", "")]), b"body")


def test_a_payload_without_headers_is_written_as_it_is() -> None:
    assert seal(NO_HEADERS, b'{"id":1}') == b'{"id":1}'
    assert seal(NO_HEADERS, b"rs3:AAAA") == b"rs3:AAAA"


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        seal(Headers([("\udcff", b"1")]), b"")
