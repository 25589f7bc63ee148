"""A stream file read the plain way: what the file transport is held against."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from ruststream_core.errors import RustStreamError

__all__ = ["PlainReader"]

BLOCK: Final = 256 * 1024
SHARD_TO_SIZE: Final = struct.Struct(">QQQI")


class PlainReader:
    """Reads the messages of one key, block by block, with their checksums. No look-ahead, no recovery.

    Args:
        path: a stream file.
        key: whose messages are wanted.
        at_end: begin at the present end.
    """

    def __init__(self, path: Path, key: str, *, at_end: bool = False) -> None:
        from fastcrc.crc16 import cdma2000  # noqa: PLC0415  what the file transport uses too

        self._crc = cdma2000
        self._key = key.encode()
        self._fd = os.open(path, os.O_RDONLY)
        head = os.pread(self._fd, 128, 0)
        (self._interval,) = struct.unpack_from(">I", head, 4 + head[3] + 8)
        self._offset = os.fstat(self._fd).st_size if at_end else len(head)
        self._carry = b""

    def close(self) -> None:
        """Let the file go."""
        os.close(self._fd)

    def read(self) -> list[bytes]:
        """The payloads that end in the next block; empty at the present end of the file."""
        found: list[bytes] = []
        while not found:
            block = os.pread(self._fd, min(BLOCK, self._interval - self._offset % self._interval), self._offset)
            beacon = 0 if self._offset % self._interval else _beacon_size(block)
            if not block or beacon is None:
                break
            self._offset += len(block)
            found = self._take(self._carry + block[beacon:])
        return found

    def _take(self, data: bytes) -> list[bytes]:
        found, at, end, wanted, crc = [], 0, len(data), self._key, self._crc
        while at < end:
            head = at + 1 + data[at]
            body = head + SHARD_TO_SIZE.size
            if body > end:
                break
            stop = body + SHARD_TO_SIZE.unpack_from(data, head)[3]
            if stop + 3 > end:
                break
            payload = data[body:stop]
            if crc(payload) != (data[stop] << 8 | data[stop + 1]) or data[stop + 2] != 0x0D:
                raise RustStreamError(f"a message at {self._offset - end + at} is damaged")
            if data[at + 1 : head] == wanted:
                found.append(payload)
            at = stop + 3
        self._carry = data[at:]
        return found


def _beacon_size(block: bytes) -> int | None:
    """The bytes of the beacon that a block begins with; None where it is not there as a whole."""
    if len(block) < 7:
        return None
    at = 6
    for _ in range(block[5]):
        if at >= len(block):
            return None
        at += 27 + block[at]
    return at + 1 if at < len(block) else None
