"""Stream files and stdio as a transport of RustStream.

A stream file is a durable, replayable log in one file, shared between processes, with no server. Its format is that
of sea-streamer-file, byte for byte. `FileBroker` and `StdioBroker` are the transports; `read_stream`, `StreamWriter`,
`check_file` and `repair` work on files without any broker.
"""

from __future__ import annotations

from ruststream_core_file._broker import FileBroker
from ruststream_core_file._format import (
    AfterTime,
    Damage,
    FromSequence,
    Position,
    Record,
    Report,
    Rotation,
    StreamReader,
    StreamWriter,
    check_file,
    read_stream,
    repair,
)
from ruststream_core_file._stdio import StdioBroker
from ruststream_core_file.config import FileOptions, FileStream
from ruststream_core_file.errors import (
    DamagedTail,
    FileLocked,
    FileRemoved,
    FileTooLarge,
    NotAStreamFile,
    PipeClosed,
    StreamEnded,
)

__all__ = [
    "AfterTime",
    "Damage",
    "DamagedTail",
    "FileBroker",
    "FileLocked",
    "FileOptions",
    "FileRemoved",
    "FileStream",
    "FileTooLarge",
    "FromSequence",
    "NotAStreamFile",
    "PipeClosed",
    "Position",
    "Record",
    "Report",
    "Rotation",
    "StdioBroker",
    "StreamEnded",
    "StreamReader",
    "StreamWriter",
    "check_file",
    "read_stream",
    "repair",
]
