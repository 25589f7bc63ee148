"""What goes wrong with stream files and pipes, in the core's hierarchy."""

from __future__ import annotations

from ruststream_core.errors import ConfigError, ConnectError, PublishError, RustStreamError

__all__ = [
    "DamagedTail",
    "FileLocked",
    "FileRemoved",
    "FileTooLarge",
    "NotAStreamFile",
    "PipeClosed",
    "StreamEnded",
]


class NotAStreamFile(ConfigError):
    """The file does not begin with a header that can be read: another format, another version, another interval."""


class DamagedTail(ConfigError):
    """Appending would cut off whole messages that stand behind a damaged one. `repair` decides what becomes of them."""


class FileLocked(ConnectError):
    """Another process, or another broker of this one, writes to the file. Trying again helps once it has ended."""


class FileRemoved(RustStreamError):
    """The file was deleted, cut short or replaced while it was read."""


class FileTooLarge(PublishError):
    """The message would take the file over its size limit; nothing of it was written."""


class StreamEnded(PublishError):
    """The stream was ended; nothing can be written to it any more."""


class PipeClosed(PublishError):
    """Who read our standard output has gone."""
