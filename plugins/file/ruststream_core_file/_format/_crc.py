"""CRC-16/CDMA2000: polynomial 0xC867, initial value 0xFFFF, not reflected, no final xor."""

from __future__ import annotations

import functools
import struct
from typing import Final, Protocol

__all__ = ["CRC_START", "GOOD_TAIL", "crc16", "crc16_by_table"]


class _Crc16(Protocol):
    def __call__(self, data: bytes, initial: int = ..., /) -> int: ...


CRC_START: Final = 0xFFFF
"""The register before the first byte."""
GOOD_TAIL: Final = 0xD3F6
"""The register after a payload, its own checksum and a 0x0D, whatever the payload: one computation checks the
checksum and the end mark. (The register is 0 after a message and its checksum.)"""

POLYNOMIAL: Final = 0xC867


def _after_byte(register: int) -> int:
    for _ in range(8):
        register = (register << 1) ^ POLYNOMIAL if register & 0x8000 else register << 1
    return register & 0xFFFF


@functools.cache
def _tables() -> tuple[list[int], list[int]]:
    """What a register becomes after one byte, by its high byte; and after two, by the whole of it."""
    one = [_after_byte(high << 8) for high in range(256)]
    two = []
    for register in range(0x10000):
        after = one[register >> 8] ^ ((register & 0xFF) << 8)
        two.append(one[after >> 8] ^ ((after & 0xFF) << 8))
    return one, two


def crc16_by_table(data: bytes, initial: int = CRC_START) -> int:
    """The checksum in pure Python, two bytes a step: a hundred times slower than compiled code."""
    one, two = _tables()
    register = initial
    for pair in struct.unpack_from(f">{len(data) // 2}H", data):
        register = two[register ^ pair]
    if len(data) % 2:
        register = one[(register >> 8) ^ data[-1]] ^ ((register & 0xFF) << 8)
    return register


crc16: _Crc16
try:
    from fastcrc.crc16 import cdma2000 as _compiled
except ImportError:  # no wheel for this interpreter: slow is better than unreadable
    crc16 = crc16_by_table
else:
    crc16 = _compiled
