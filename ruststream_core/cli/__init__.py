"""The command `ruststream`."""

from ruststream_core.cli._main import main

__all__ = ["main"]
