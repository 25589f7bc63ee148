"""CRC-16/CDMA2000, compiled and by table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core_file._format._crc import GOOD_TAIL, crc16, crc16_by_table

KNOWN = {b"123456789": 0x4C06, b"hello, world": 0x8028, b"EOS": 0xED7C, b"": 0xFFFF}


@pytest.mark.parametrize(("data", "expected"), KNOWN.items())
def test_known_values(data: bytes, expected: int) -> None:
    assert crc16(data) == expected
    assert crc16_by_table(data) == expected


@given(st.binary(max_size=300), st.integers(0, 0xFFFF))
def test_the_table_computes_what_compiled_code_computes(data: bytes, register: int) -> None:
    assert crc16_by_table(data, register) == crc16(data, register)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_checksum_can_be_continued(first: bytes, second: bytes) -> None:
    """The running checksum of a beacon is one that goes on from message to message."""
    assert crc16(second, crc16(first)) == crc16(first + second)


@given(st.binary(max_size=300))
def test_one_computation_covers_payload_checksum_and_end_mark(payload: bytes) -> None:
    assert crc16(payload + crc16(payload).to_bytes(2) + b"\r") == GOOD_TAIL


def test_the_tail_gives_an_end_mark_away_that_is_missing() -> None:
    sealed = b"payload" + crc16(b"payload").to_bytes(2)
    assert [mark for mark in range(256) if crc16(sealed + bytes([mark])) == GOOD_TAIL] == [0x0D]
