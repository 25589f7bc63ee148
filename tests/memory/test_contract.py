"""The in-memory transport keeps the contract, on a virtual clock and on the loop's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ruststream_core.abc import Source, Subscription
from ruststream_core.conformance import Check, Target, checks
from ruststream_core.memory import MemoryBroker, MemoryLog, MemoryQueue
from ruststream_core.wire import Delivery, Outgoing


async def _seek(subscription: Subscription, delivery: Delivery) -> None:
    await subscription.seek(subscription.position(delivery))  # type: ignore[attr-defined]


SOURCES: Mapping[str, Callable[[str], str | Source]] = {
    "name": lambda name: name,
    "queue": lambda name: MemoryQueue(name, dead_letter=f"{name}-dead"),
    "pattern": lambda name: MemoryQueue(f"{name}.*"),
    "log": MemoryLog,
    "late log": lambda name: MemoryLog(name, start="latest"),
    "group": lambda name: MemoryLog(name, group="readers"),
}


def target(kind: str) -> Target:
    """That source on a virtual clock."""
    source = SOURCES[kind]
    is_log = "log" in kind or kind == "group"
    return Target.in_process(
        MemoryBroker,
        label=f"memory, {kind}",
        source=source,
        destination=(lambda name: f"{name}.one") if kind == "pattern" else (lambda name: name),
        dead_letter=(lambda name: f"{name}-dead") if kind == "queue" else None,
        lose=_seek if is_log else None,
        unsendable=lambda name: Outgoing(b"", "orders.*"),
        pattern=lambda name: (source(f"{name}.{{x}}") if is_log else f"{name}.{{x}}", f"{name}.one"),
    )


CASES = [(kind, check) for kind in SOURCES for check in checks(target(kind))]


@pytest.mark.parametrize(("kind", "check"), CASES, ids=[f"{kind}-{check}" for kind, check in CASES])
async def test_contract(kind: str, check: Check) -> None:
    """What runs on memory in a service's tests must behave as on a server."""
    await check.run(target(kind))


TIMED = ["delay-is-kept", "linger-ends"]


@pytest.mark.parametrize("name", TIMED)
async def test_contract_in_real_time(name: str) -> None:
    """Without a stand-in the timers are the loop's."""
    (check,) = [check for check in checks() if check.id == name]
    await check.run(Target(make_broker=MemoryBroker))
