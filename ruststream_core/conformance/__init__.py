"""Proves that a transport keeps its contract. Imports no test framework; ships to whoever writes a transport.

    report = await check_transport(Target(make_broker=lambda: MyBroker(url), outage=restart_the_server))
    report.verify()

or one test per rule:

    TARGET = Target(make_broker=..., source=lambda name: MyQueue(name), ...)

    @pytest.mark.parametrize("check", checks(TARGET), ids=str)
    async def test_contract(check: Check) -> None:
        await check.run(TARGET)

Every feature that the source declares selects its checks. A target is one kind of source: a transport with queues
and topics has two targets, each run on the stand-in and on the real server.
"""

from __future__ import annotations

# The order of these is the order of the suite: each module registers its checks.
from ruststream_core.conformance import (  # noqa: F401  isort: skip
    _wiring,
    _content,
    _receiving,
    _settling,
    _losing,
    _ending,
    _sending,
    _moving,
)
from ruststream_core.conformance._check import Check, Report, Result, check_transport
from ruststream_core.conformance._check import registered as _registered
from ruststream_core.conformance._lab import CheckFailed
from ruststream_core.conformance._target import Target

__all__ = ["Check", "CheckFailed", "Report", "Result", "Target", "check_transport", "checks"]


def checks(target: Target | None = None) -> list[Check]:
    """The checks, in order; with a target, those that apply to it."""
    if target is None:
        return list(_registered())
    features = target.declared()
    return [check for check in _registered() if check.skip(target, features) is None]
