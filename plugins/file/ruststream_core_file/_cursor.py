"""The position of a group, kept beside the file."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from ruststream_core.errors import ConfigError
from ruststream_core_file._format import Position
from ruststream_core_file._format._segments import replace

__all__ = ["Cursor"]

LONGEST: Final = 120
"""Characters of a key in a file name; a longer one is replaced by its digest."""


class Cursor:
    """Where a group goes on in one stream: a small file, replaced as a whole. One subscription at a time has it.

    Args:
        path: the stream file.
        group: the group's name.
        key: the key or pattern of the source.
        sync: whether the position must survive a power cut; else it may fall back, and messages come again.

    Raises:
        ConfigError: another subscription of the group has it, or the folder cannot be written.
    """

    def __init__(self, path: Path, group: str, key: str, *, sync: bool) -> None:
        name = quote(key, safe="{}")
        if len(name) > LONGEST:
            name = hashlib.sha256(key.encode()).hexdigest()
        self.path = path.with_name(f"{path.name}.{group}.{name}.cursor")
        self._sync = sync
        try:
            self._lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise ConfigError(f"{self.path}: the position of group {group!r} cannot be kept: {exc}") from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(self._lock)
            raise ConfigError(
                f"{path}: group {group!r} is read by another subscription of {key!r}, and one at a time reads for a "
                "group; give each service a group of its own, and a route workers= instead of processes"
            ) from exc

    def load(self) -> Position | None:
        """The position, or None for a new group.

        Raises:
            ConfigError: what is kept there is no position.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Position)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as exc:
            raise ConfigError(f"{self.path} holds no position: delete it to begin anew") from exc

    def save(self, position: Position) -> None:
        """Keep it.

        Raises:
            OSError: it is not kept.
        """
        replace(self.path, msgspec.json.encode(position), sync=self._sync)

    def close(self) -> None:
        """Let another subscription have it. The lock file stays: it may be locked by then."""
        os.close(self._lock)
