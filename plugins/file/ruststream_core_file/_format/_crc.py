"""CRC-16/CDMA2000: polynomial 0xC867, initial value 0xFFFF, not reflected, no final xor."""

from __future__ import annotations

import functools
import struct
from typing import Final

__all__ = ["CRC_START", "crc16", "crc16_by_table"]

CRC_START: Final = 0xFFFF
POLYNOMIAL: Final = 0xC867


@functools.cache
def _table() -> list[int]:
    """The register after two bytes, by the register xor these two bytes. Built on first use, in some 20 ms."""
    by_byte = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ POLYNOMIAL if crc & 0x8000 else crc << 1
        by_byte.append(crc & 0xFFFF)
    low_byte = [(by_byte[byte >> 8] ^ (byte << 8)) & 0xFFFF for byte in range(0, 0x10000, 256)]
    return [by_byte[low_byte[pair >> 8] >> 8 ^ pair & 0xFF] ^ (low_byte[pair >> 8] << 8) & 0xFFFF for pair in range(0x10000)]


def crc16_by_table(data: bytes | bytearray | memoryview, initial: int = CRC_START) -> int:
    """The checksum in pure Python, a hundred times slower than compiled code; two bytes a step."""
    table = _table()
    crc = initial
    for pair in struct.unpack_from(f">{len(data) // 2}H", data):
        crc = table[crc ^ pair]
    if len(data) % 2:
        # One byte alone: feed it behind a byte that leaves the register as it is afterwards, shifted.
        crc = _one_byte(crc, data[-1])
    return crc


def _one_byte(crc: int, byte: int) -> int:
    crc ^= byte << 8
    for _ in range(8):
        crc = (crc << 1) ^ POLYNOMIAL if crc & 0x8000 else crc << 1
    return crc & 0xFFFF


try:
    from fastcrc.crc16 import cdma2000 as _compiled
except ImportError:  # no wheel for this interpreter: the file stays readable
    crc16 = crc16_by_table
else:
    crc16 = _compiled
