"""The loops over a real NATS server, a thousand messages each. What they took is not looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ruststream_core.testing.servers import ServerMissing
from ruststream_core_bench._measure import Plan, loops_of, run_once
from ruststream_core_bench._scenario import Place, Scenario
from ruststream_core_bench.scenarios.nats import SUITE


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """One server for all of them."""
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(SUITE.open())
        except ServerMissing as exc:
            pytest.skip(str(exc))
        yield opened


@pytest.mark.parametrize("scenario", SUITE.scenarios, ids=lambda scenario: scenario.name)
def test_loops(scenario: Scenario, place: Place) -> None:
    """Every loop, the other frameworks' too, sees all messages, and JetStream has them all acknowledged afterwards."""
    for loop in loops_of(scenario).values():
        assert run_once(loop, 1024 // scenario.step * scenario.step, place, Plan(3, 1.0)).wall > 0


def test_environment(place: Place) -> None:
    """The versions of both sides and a round trip are published with the figures."""
    assert {"broker", "client", "round_trip"} <= set(place.environment)
