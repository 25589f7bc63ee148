"""Real runs of a few hundred messages. What they took is not looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ruststream_core.errors import RustStreamError
from ruststream_core_bench._cli import Session, parse
from ruststream_core_bench._measure import Plan, Rounds, loops_of, measure, run_once
from ruststream_core_bench._results import load
from ruststream_core_bench._scenario import Place, Scenario, Stopwatch, Suite, Task, Text
from ruststream_core_bench.scenarios import MODULES, load_suite
from ruststream_core_bench.scenarios.memory import SUITE

TINY = Plan(3, 0.01, messages=256)


@pytest.fixture
def place() -> Iterator[Place]:
    """Where memory scenarios run."""
    with SUITE.open() as opened:
        yield opened


@pytest.mark.parametrize("scenario", SUITE.scenarios, ids=lambda scenario: scenario.name)
def test_memory_scenarios_run(scenario: Scenario, place: Place) -> None:
    """Every loop of every scenario ends, having seen all its messages."""
    for loop in loops_of(scenario).values():
        assert run_once(loop, 256, place, TINY).wall > 0


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line to a file that reads back, with a row whose figures are in order."""
    monkeypatch.setattr("ruststream_core_bench._cli.Plan", lambda rounds, _, loop: Plan(rounds, 0.01, loop, 256))
    path = tmp_path / "results.json"
    assert Session(parse(["memory", "--quick", "--only", "consume", "--json", str(path)])).run() == 0
    (result,) = load(path)
    (row,) = result.scenarios
    assert (result.name, row.name, row.messages, row.rounds) == ("memory", "consume", 256, 3)
    for spread in (row.raw, row.adapter, row.framework):
        assert spread is not None
        assert spread.best >= spread.median >= spread.worst > 0
    assert "consume" in capsys.readouterr().out


def test_rounds_are_interleaved(place: Place) -> None:
    """What the machine does besides must hit all loops: raw, plugin, service, raw, and each under a fresh name."""
    ran: list[tuple[str, str]] = []

    def loop(kind: str) -> object:
        async def run(task: Task) -> None:
            ran.append((kind, task.name))
            with task.watch:
                sum(range(1000))

        return run

    scenario = _scenario(loop("raw"), loop("adapter"), loop("framework"))
    for _ in measure(scenario, place, Plan(3, 0.01, messages=1)):
        pass
    assert [kind for kind, _ in ran] == ["raw", "adapter", "framework"] * 3
    assert len({name for _, name in ran}) == len(ran)


def _scenario(raw: object, adapter: object, framework: object, **more: object) -> Scenario:
    title = Text("t", "t", "t")
    return Scenario(name="s", title=title, raw=raw, adapter=adapter, framework=framework, **more)  # type: ignore[arg-type]


def test_a_waiting_row_is_bound() -> None:
    """Where the raw loop computes for less than half of its time, the row is a lower bound and says so."""
    watches = {}
    for kind in ("raw", "framework"):
        watches[kind] = _watch(wall=1.0, cpu=0.4)
    scenario = _scenario(None, None, None)
    row = Rounds(scenario, {"raw": 10, "framework": 10}, [watches] * 3).row("asyncio", "storage-bound")
    assert (row.bound, row.waiting) == ("storage-bound", 0.6)


def test_a_computing_row_is_not_bound() -> None:
    """And one that computes is a measurement."""
    watches = {kind: _watch(wall=1.0, cpu=0.6) for kind in ("raw", "framework")}
    row = Rounds(_scenario(None, None, None), {"raw": 10, "framework": 10}, [watches] * 3).row("asyncio", "x")
    assert row.bound is None


def _watch(wall: float, cpu: float) -> Stopwatch:
    watch = Stopwatch()
    watch.wall, watch.cpu = wall, cpu
    return watch


def test_interrupt_keeps_complete_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second round leaves the first, marked as incomplete, and the code of an interrupt."""
    runs = 0

    async def loop(task: Task) -> None:
        nonlocal runs
        runs += 1
        if runs == 4:
            raise KeyboardInterrupt
        with task.watch:
            sum(range(1000))

    suite = Suite(
        name="memory",
        title=Text("t", "t", "t"),
        package="ruststream-core",
        scenarios=[_scenario(loop, None, loop, clock="wall")],
        open=SUITE.open,
    )
    monkeypatch.setattr("ruststream_core_bench._cli.load_suite", lambda _: suite)
    monkeypatch.setattr("ruststream_core_bench._cli.Plan", lambda rounds, _, loop: Plan(rounds, 0.01, loop, 1))
    path = tmp_path / "results.json"
    assert Session(parse(["memory", "--quick", "--json", str(path)])).run() == 130
    (row,) = load(path)[0].scenarios
    assert (row.rounds, row.verdict, row.overhead_percent) == (1, "incomplete", None)


def test_a_loop_that_measures_nothing_is_an_error(place: Place) -> None:
    """A rate of nothing in no time would be infinite."""

    async def loop(task: Task) -> None:
        pass

    with pytest.raises(RustStreamError, match="measured nothing"):
        run_once(loop, 1, place, TINY)


@pytest.mark.parametrize("name", MODULES)
def test_every_suite_loads(name: str) -> None:
    """Importing one needs no client library; its scenarios have names of their own."""
    suite = load_suite(name)
    names = [scenario.name for scenario in suite.scenarios]
    assert suite.name == name
    assert len(names) == len(set(names)) > 0
