"""The files of one stream: the current one, and those that a rotation moved aside.

`orders.ss` is the current file; `orders.ss.000001`, `.000002`, … are the older ones, oldest first. A file is known by
the time in its header, which grows from one file to the next. `orders.ss.sequences` keeps the highest sequence of
each stream in the files before the current one, so that numbering goes on when these have gone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from ruststream_core_file._format._layout import HEADER_SIZE, Header
from ruststream_core_file.errors import NotAStreamFile

__all__ = [
    "Rotation",
    "Sequences",
    "archives",
    "load_sequences",
    "next_archive",
    "replace",
    "save_sequences",
    "segments",
]

Sequences = dict[tuple[str, int], int]


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """When a writer begins a new file.

    Args:
        size: bytes; the message that would take the file over it goes into the next.
        age: seconds since the file was created.
        keep: most older files; beyond it the oldest is deleted. None keeps all.
    """

    size: int | None = None
    age: float | None = None
    keep: int | None = None


def archives(path: Path) -> list[Path]:
    """The files that were moved aside, oldest first."""
    prefix = path.name + "."
    with contextlib.suppress(FileNotFoundError):
        found = [file for file in path.parent.iterdir() if file.name.startswith(prefix) and file.suffix[1:].isdigit()]
        return sorted((file for file in found if file.stem == path.name), key=lambda file: int(file.suffix[1:]))
    return []


def next_archive(path: Path) -> Path:
    """Where the current file goes at the next rotation."""
    older = archives(path)
    number = int(older[-1].name.rpartition(".")[2]) + 1 if older else 1
    return path.with_name(f"{path.name}.{number:06}")


def header_of(path: Path) -> Header | None:
    """A file's header; None where there is no such file, or none that can be read yet."""
    try:
        with path.open("rb") as file:
            return Header.decode(file.read(HEADER_SIZE), str(path))
    except (FileNotFoundError, NotAStreamFile):
        return None


def segments(path: Path) -> list[tuple[int, Path]]:
    """Every readable file of the stream with its time of creation, oldest first."""
    found: dict[int, Path] = {}
    for file in (*archives(path), path):
        # During a rotation one file has two names for a moment; the first, which it will keep, counts.
        if (header := header_of(file)) is not None:
            found.setdefault(header.created_at, file)
    return sorted(found.items())


def replace(target: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file so that readers see the old or the new content, whole; with `sync` even after a power cut.

    Who calls has a lock: a draft that is there was left by a crash, and is used up.
    """
    draft = target.with_name(f".{target.name}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        while content:  # a device that is nearly full takes a part, and refuses only the rest
            content = content[os.write(fd, content) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    draft.replace(target)


def _sequences_path(path: Path) -> Path:
    return path.with_name(path.name + ".sequences")


def load_sequences(path: Path) -> Sequences:
    """The highest sequences of the files before the current one."""
    try:
        rows = msgspec.json.decode(_sequences_path(path).read_bytes(), type=list[tuple[str, int, int]])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
    return {(key, shard): sequence for key, shard, sequence in rows}


def save_sequences(path: Path, sequences: Sequences) -> None:
    """Keep them for the next writer."""
    rows = [(key, shard, sequence) for (key, shard), sequence in sequences.items()]
    replace(_sequences_path(path), msgspec.json.encode(rows))
