"""What every test run of this repository keeps to, whichever folder it starts from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

CI = os.environ.get("CI") == "true"


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """A skip in CI is a failure: there nothing may be missing, and what does not run proves nothing."""
    expected_failure = hasattr(report, "wasxfail")
    if CI and report.skipped and not expected_failure:
        report.outcome = "failed"
        report.longrepr = f"Skipped, which CI does not allow: {_reason(report)}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        return f"{path}:{line}: {reason}"
    return str(report.longrepr)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skipped test into a failed one in CI."""
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turns a skipped module into an error in CI."""
    report = yield
    _refuse(report)
    return report
