"""The contract of a transport, proved by the core's suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ruststream_core.conformance import Check, Target, checks
from ruststream_core.wire import Outgoing
from ruststream_core_file import FileBroker, FileStream


def unsendable(name: str) -> Outgoing:
    return Outgoing(b"", "no key at all")


async def lose(subscription: Any, delivery: Any) -> None:
    await subscription.seek(subscription.position(delivery))


def stream(group: str | None = None, **options: Any) -> Callable[[str], FileStream]:
    return lambda name: FileStream(name, group=group, **options)


OPTIONS: dict[str, dict[str, Any]] = {
    "live": {"source": stream(), "lose": lose},
    "from the beginning": {"source": stream(start_at="beginning"), "lose": lose},
    "group": {"source": stream("checks"), "lose": lose, "group_of_one": True},
}
COMMON: dict[str, Any] = {
    "unsendable": unsendable,
    "pattern": lambda name: (FileStream(f"{name}.{{x}}"), f"{name}.one"),
}


def on_a_file(folder: Path, kind: str) -> Target:
    """All brokers of a target work on one file, as all reach one server."""
    return Target(
        make_broker=lambda: FileBroker(folder / "checks.ss", beacon_interval=1024),
        label=f"file, {kind}",
        **OPTIONS[kind],
        **COMMON,
    )


def in_process(kind: str) -> Target:
    return Target.in_process(lambda: FileBroker("checks.ss"), label=f"file, {kind}", **OPTIONS[kind], **COMMON)


CASES = [(kind, check) for kind in OPTIONS for check in checks(in_process(kind))]


@pytest.mark.parametrize(("kind", "check"), CASES, ids=str)
async def test_the_stand_in_keeps_the_contract(kind: str, check: Check) -> None:
    await check.run(in_process(kind))


@pytest.mark.parametrize(("kind", "check"), CASES, ids=str)
async def test_a_file_keeps_the_contract(kind: str, check: Check, tmp_path: Path) -> None:
    await check.run(on_a_file(tmp_path, kind))
