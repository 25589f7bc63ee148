"""NATS servers for the tests: one of each version for the whole run, and others that a test may break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import pytest

from ruststream_core.testing.servers import NatsServer, ServerMissing

Version = Literal["debian", "newest"]


@pytest.fixture(scope="session", params=["debian", "newest"])
def server(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """A server that runs for all tests; nobody breaks it."""
    with ExitStack() as stack:
        yield _started(stack, NatsServer(request.param))


@pytest.fixture(params=["debian", "newest"])
def version(request: pytest.FixtureRequest) -> Version:
    """Which server a test of its own starts."""
    found: Version = request.param
    return found


@pytest.fixture
def own_server(version: Version) -> Iterator[Callable[..., NatsServer]]:
    """Starts a server for one test, with settings of its own."""
    with ExitStack() as stack:
        yield lambda **options: _started(stack, NatsServer(version, **options))


def _started(stack: ExitStack, server: NatsServer) -> NatsServer:
    try:
        return stack.enter_context(server)
    except ServerMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture(params=[True, False], ids=["internals", "public"])
def internals(request: pytest.FixtureRequest) -> Any:
    """Whether the client's private attributes are used."""
    return request.param
