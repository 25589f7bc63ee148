"""The stream file format, byte for byte that of sea-streamer-file 1.0. Knows nothing of asyncio."""

from __future__ import annotations

from ruststream_core_file._format._check import Report, check_file, repair
from ruststream_core_file._format._layout import Header, Record
from ruststream_core_file._format._parser import Damage, Make
from ruststream_core_file._format._reader import AfterTime, FromSequence, Position, Start, StreamReader, read_stream
from ruststream_core_file._format._segments import Rotation
from ruststream_core_file._format._writer import Fsync, StreamWriter

__all__ = [
    "AfterTime",
    "Damage",
    "FromSequence",
    "Fsync",
    "Header",
    "Make",
    "Position",
    "Record",
    "Report",
    "Rotation",
    "Start",
    "StreamReader",
    "StreamWriter",
    "check_file",
    "read_stream",
    "repair",
]
