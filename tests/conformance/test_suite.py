"""The suite passes on transports that keep the contract, and its report says what happened."""

from __future__ import annotations

import sys

import msgspec
import pytest

from ruststream_core.conformance import Check, CheckFailed, Target, check_transport, checks
from ruststream_core.memory import MemoryBroker
from tests.conformance.targets import ALL, lease, queue

PAIRS = [(name, check) for name, make in ALL.items() for check in checks(make())]


@pytest.mark.parametrize(("name", "check"), PAIRS, ids=[f"{name}-{check}" for name, check in PAIRS])
async def test_a_sound_transport_passes(name: str, check: Check) -> None:
    """A check that refuses a sound transport would send its author after a fault that is not there."""
    await check.run(ALL[name]())


def test_every_check_applies_somewhere() -> None:
    """A check that is never selected proves nothing."""
    assert {check.id for check in checks()} == {check.id for _, check in PAIRS}


async def test_the_report_counts_every_check() -> None:
    """A check that is missing in the report would count as passed."""
    report = await check_transport(queue())
    assert [result.id for result in report] == [check.id for check in checks()]
    assert {result.outcome for result in report} == {"passed", "not applicable"}
    assert not report.failures
    report.verify()
    assert "0 failed" in str(report)


async def test_a_failure_is_reported_with_rule_and_sight() -> None:
    """Without the rule an author does not know what is asked of him, without the sight not what to mend."""
    target = queue(Deaf)
    report = await check_transport(target, only=[check for check in checks() if check.id == "ping-answers"])
    (failure,) = report.failures
    assert failure.rule in failure.detail
    assert "OSError: no route" in failure.detail
    with pytest.raises(CheckFailed, match="ping-answers"):
        report.verify()


async def test_a_declared_difference_is_no_failure() -> None:
    """A known limit must be shown with its reason, and must not hide other failures."""
    target = queue(Deaf, differences={"ping-answers": "the server answers no ping"})
    report = await check_transport(target, only=[check for check in checks() if check.id == "ping-answers"])
    assert [(result.outcome, result.detail) for result in report] == [("declared", "the server answers no ping")]


async def test_a_difference_that_is_none_is_an_error() -> None:
    """A declaration that outlives its reason would hide the next regression."""
    target = queue(differences={"ping-answers": "the server answers no ping"})
    with pytest.raises(CheckFailed, match="take it out"):
        await check_transport(target, only=[check for check in checks() if check.id == "ping-answers"])


async def test_an_unknown_difference_is_an_error() -> None:
    """A misspelt declaration would do nothing, and nobody would see it."""
    with pytest.raises(CheckFailed, match="pong-answers"):
        await check_transport(queue(differences={"pong-answers": "?"}))


def test_a_check_says_why_it_does_not_apply() -> None:
    """An author must see which hook makes a check possible."""
    reasons = {check.id: check.skip(queue()) for check in checks()}
    assert reasons["outage-is-survived"] == "the target gives no outage"
    assert reasons["seek-is-inclusive"] == "the source declares seek=False"
    assert reasons["ack-is-final"] is None


async def test_the_simplest_target_is_a_broker() -> None:
    """The first run of a new transport must not need a page of settings."""
    assert len(checks(Target(make_broker=MemoryBroker))) > 60
    chosen = [check for check in checks() if check.id in ("ack-is-final", "features-are-honest")]
    broker = MemoryBroker()
    declared = broker.features(broker.source("orders"))
    (await check_transport(MemoryBroker, declared, only=chosen)).verify()
    other = await check_transport(MemoryBroker, msgspec.structs.replace(declared, keys=False), only=chosen)
    assert [failure.id for failure in other.failures] == ["features-are-honest"]


def test_lease_checks_need_the_length_of_the_lease() -> None:
    """A check that cannot outlast a lease would pass without having looked."""
    assert "waiting-deliveries-are-kept" in {check.id for check in checks(lease())}
    assert "waiting-deliveries-are-kept" not in {check.id for check in checks(queue())}


def test_the_suite_imports_no_test_framework() -> None:
    """It ships to authors who use another one."""
    import subprocess

    code = "import sys, ruststream_core.conformance; print([m for m in ('pytest', 'unittest') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class Deaf(MemoryBroker):
    """Its connections answer no ping."""

    def stand_in(self, clock: object) -> Deaf:
        return Deaf(clock=clock)  # type: ignore[arg-type]

    async def connect(self) -> object:  # type: ignore[override]
        connection = await super().connect()

        async def ping() -> None:
            raise OSError("no route")

        connection.ping = ping  # type: ignore[method-assign]
        return connection
