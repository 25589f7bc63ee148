"""The rule that a skip is a failure in CI: without it a missing server would look like success."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no server")
def test_skips_by_mark():
    pass

def test_skips_by_call():
    pytest.skip("no server either")

@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
def test_fails_as_expected():
    1 / 0
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, root: Path) -> pytest.Pytester:
    """A folder of tests under this repository's conftest."""
    pytester.makeconftest((root / "conftest.py").read_text())
    pytester.makepyfile(test_suite=SUITE)
    return pytester


# A mark skips before the test begins, hence an error; a call fails the test itself.
IN_CI = {"passed": 1, "failed": 1, "errors": 1, "xfailed": 1}
ELSEWHERE = {"passed": 1, "skipped": 2, "xfailed": 1}


def test_skipped_tests_in_ci(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each skipped test fails and says why; an expected failure does not."""
    monkeypatch.setenv("CI", "true")
    result = suite.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(**IN_CI)
    assert result.ret != 0
    result.stdout.fnmatch_lines_random(["*CI does not allow: *no server", "*CI does not allow: *no server either"])


def test_skipped_tests_elsewhere(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without the servers the rest still passes."""
    monkeypatch.delenv("CI", raising=False)
    result = suite.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(**ELSEWHERE)
    assert result.ret == 0


def test_skipped_module(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that skips itself hides all its tests at once: an error in CI."""
    suite.makepyfile(test_module="import pytest\npytest.importorskip('no_such_module')\n")
    monkeypatch.setenv("CI", "true")
    result = suite.runpytest_subprocess("test_module.py", "-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    assert result.ret != 0
