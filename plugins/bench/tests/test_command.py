"""The command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ruststream_core.cli import main as ruststream
from ruststream_core.errors import ConfigError
from ruststream_core_bench._cli import main, parse
from ruststream_core_bench._results import PackageResult, save


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Five rounds on asyncio; figures go beside the pages where there are pages, else into the working directory."""
    monkeypatch.chdir(tmp_path)
    options = parse(["memory"])
    assert (options.what, options.rounds, options.loops) == ("memory", 5, ("asyncio",))
    assert options.output == Path("results.json")
    (tmp_path / "docs").mkdir()
    assert options.output == Path("docs/benchmarks/results.json")


def test_a_quick_run_is_no_result() -> None:
    """It is kept only where somebody names a file, and never over the published figures."""
    assert parse(["memory", "--quick"]).output is None
    assert parse(["memory", "--quick", "--json", "here.json"]).output == Path("here.json")
    assert parse(["memory", "--quick"]).rounds == 3


def test_both_loops() -> None:
    """`--loop both` measures twice."""
    assert parse(["nats", "--loop", "both"]).loops == ("asyncio", "uvloop")


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["memory", "--rounds", "2"], ["memory", "--baseline", "main"], ["memory", "--loop", "trio"]],
)
def test_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors say what is wrong and end with 2."""
    with pytest.raises(SystemExit) as error:
        parse(arguments)
    assert error.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_unknown_scenario_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error in --only is answered with the names."""
    assert ruststream(["bench", "memory", "--only", "nothing"]) == 2
    assert "consume" in capsys.readouterr().err


def test_report(sample: list[PackageResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pages are made beside the results, through the plugin's hook."""
    save(tmp_path / "results.json", sample)
    assert ruststream(["bench", "report", "--json", str(tmp_path / "results.json")]) == 0
    assert (tmp_path / "memory.zh.md").exists()
    assert "memory.zh.md" in capsys.readouterr().out


def test_report_without_results(tmp_path: Path) -> None:
    """There is nothing to make pages of."""
    with pytest.raises(ConfigError, match="run ruststream bench first"):
        main(["report", "--json", str(tmp_path / "results.json")])


def test_goals(sample: list[PackageResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All are listed; one that is missed does not fail the command."""
    save(tmp_path / "results.json", sample)
    assert main(["goals", "--json", str(tmp_path / "results.json")]) == 0
    out = capsys.readouterr().out
    assert "not reached" in out
    assert "not measured" in out
