"""Servers for one test, skipped where the program is missing (which CI turns into a failure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeVar

import pytest

from ruststream_core.testing.servers import Server, ServerMissing

S = TypeVar("S", bound=Server)


@pytest.fixture
def started() -> Iterator[Callable[[S], S]]:
    """Starts a server and closes it after the test."""
    with ExitStack() as stack:

        def start(server: S) -> S:
            try:
                stack.enter_context(server)
            except ServerMissing as exc:
                pytest.skip(str(exc))
            return server

        yield start
