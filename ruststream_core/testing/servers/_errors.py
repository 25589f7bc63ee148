"""What can go wrong with a server that belongs to the tests."""

from __future__ import annotations

from ruststream_core.errors import RustStreamError, Unsupported

__all__ = ["ServerFailed", "ServerMissing", "ServerNotOurs"]


class ServerMissing(RustStreamError):
    """A program is not installed: the message names it and says how to get it.

    A test suite turns this into a skip on a developer's machine and into a failure in CI.
    """


class ServerFailed(RustStreamError):
    """A program ended early or did not answer in time; the message ends with the last lines of its log."""


class ServerNotOurs(Unsupported):
    """A server that was running already, named by an environment variable, cannot be killed, paused or restarted."""
