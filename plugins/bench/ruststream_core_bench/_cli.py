"""`ruststream bench`: arguments, progress, tables; what was measured survives an interrupt."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ruststream_core.errors import ConfigError, RustStreamError
from ruststream_core_bench._code import Change, Effort, compare, measure_code, regressions
from ruststream_core_bench._count import valgrind_version
from ruststream_core_bench._environment import machine, python_version, version_of
from ruststream_core_bench._goals import judge_goals
from ruststream_core_bench._measure import EventLoop, Plan, Rounds, measure
from ruststream_core_bench._report import write_pages
from ruststream_core_bench._results import CodeRow, PackageResult, Row, load, merge, save
from ruststream_core_bench._scenario import Place, Scenario, Suite
from ruststream_core_bench._stats import LEAST_ROUNDS, Spread
from ruststream_core_bench.scenarios import MODULES, load_suite

__all__ = ["main", "parse"]

INTERRUPTED: Final = 130
DOCS: Final = Path("docs")
RESULTS: Final = Path("benchmarks", "results.json")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line."""

    what: str | None
    quick: bool
    rounds: int
    only: str | None
    json: Path | None
    loop: str
    baseline: str | None

    @property
    def results(self) -> Path:
        """Where figures are read from."""
        return self.json or (DOCS / RESULTS if DOCS.is_dir() else Path(RESULTS.name))

    @property
    def output(self) -> Path | None:
        """Where figures are written to. A quick run is no result: it is kept only where somebody says so."""
        return self.json if self.quick else self.results

    @property
    def loops(self) -> tuple[EventLoop, ...]:
        """The event loops to measure on."""
        if self.loop == "both":
            return ("asyncio", "uvloop")
        return ("uvloop",) if self.loop == "uvloop" else ("asyncio",)


def parse(arguments: Sequence[str]) -> Options:
    """Arguments to options; ends the process on a wrong one, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="ruststream bench",
        description="Measures what the framework costs over the client library's own loop.",
        epilog="Without an argument every installed transport is measured, then the code.",
    )
    parser.add_argument("what", nargs="?", choices=[*MODULES, "code", "report", "goals"], metavar="WHAT")
    parser.add_argument("--quick", action="store_true", help="1 second a round and 3 rounds; kept only with --json")
    parser.add_argument("--rounds", type=int, help=f"rounds of each loop, {LEAST_ROUNDS} or more (5)")
    parser.add_argument("--only", metavar="NAME", help="scenarios whose name contains it")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"the results, instead of {DOCS / RESULTS}")
    parser.add_argument("--loop", choices=["asyncio", "uvloop", "both"], default="asyncio", help="the event loop")
    parser.add_argument("--baseline", metavar="REF", help="with code: compare with another revision, fail if worse")
    parsed = parser.parse_args(list(arguments))
    rounds = parsed.rounds or (LEAST_ROUNDS if parsed.quick else 5)
    if rounds < LEAST_ROUNDS:
        parser.error(f"--rounds {rounds}: fewer than {LEAST_ROUNDS} do not show how much rounds differ")
    if parsed.baseline is not None and parsed.what != "code":
        parser.error("--baseline goes with code")
    return Options(**{**vars(parsed), "rounds": rounds})


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0 done, 1 a scenario failed or the baseline was better, 2 usage, 130 interrupted.

    Raises:
        ConfigError: what is asked for is not there.
    """
    options = parse(arguments)
    if options.what == "report":
        return _report(options)
    if options.what == "goals":
        _print_goals(load(options.results))
        return 0
    if options.baseline is not None:
        return _baseline(options, options.baseline)
    return Session(options).run()


# ------------------------------------------------------------------------------------------------- measuring


class Session:
    """One call of the command: measures, prints and keeps."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.failed = False
        self.results: dict[str, PackageResult] = {}

    def run(self) -> int:
        """Everything that was asked for."""
        try:
            for name in self._suites():
                self._measure(load_suite(name))
            if self.options.what in (None, "code"):
                self._code()
        except KeyboardInterrupt:
            self._keep()
            print("\ninterrupted; what was measured is kept" if self.options.output else "\ninterrupted")
            return INTERRUPTED
        self._keep()
        _print_goals(list(self.results.values()), measured_only=True)
        return int(self.failed)

    def _suites(self) -> Iterator[str]:
        if self.options.what in MODULES:
            yield str(self.options.what)
        elif self.options.what is None:
            for name in MODULES:
                if missing := _missing(load_suite(name)):
                    _tell(f"{name} is left out: {', '.join(missing)} is not installed")
                else:
                    yield name

    def _measure(self, suite: Suite) -> None:
        if missing := _missing(suite):
            raise ConfigError(f"{suite.name} needs {', '.join(missing)}: pip install {' '.join(missing)}")
        with suite.open() as place:
            self._begin(suite, place)
            for loop in self.options.loops:
                plan = Plan(self.options.rounds, 1.0 if self.options.quick else 5.0, loop)
                for scenario in self._selected(suite):
                    self._scenario(suite, scenario, place, plan)
        _print_rows(self.results[suite.name].scenarios)

    def _begin(self, suite: Suite, place: Place) -> None:
        loops = ", ".join(loop if loop == "asyncio" else f"{loop} {version_of(loop)}" for loop in self.options.loops)
        self.results[suite.name] = _package(suite, {**machine(), "event_loop": loops, **place.environment})

    def _selected(self, suite: Suite) -> list[Scenario]:
        only = self.options.only
        found = [scenario for scenario in suite.scenarios if only is None or only in scenario.name]
        if not found:
            names = ", ".join(scenario.name for scenario in suite.scenarios)
            raise ConfigError(f"--only {only}: {suite.name} has {names}")
        return found

    def _scenario(self, suite: Suite, scenario: Scenario, place: Place, plan: Plan) -> None:
        rounds: Rounds | None = None
        try:
            for done in measure(scenario, place, plan, lambda text: _tell(f"{suite.name} {scenario.name}: {text}")):
                rounds = done
        except RustStreamError as exc:
            self.failed = True
            print(f"{suite.name} {scenario.name} failed: {exc}", file=sys.stderr)
        finally:
            if rounds is not None and rounds.watches:
                row = rounds.row(plan.loop, suite.bound)
                self.results[suite.name].scenarios.append(row)
                _print_rows([row], head=False)
        self._keep()

    def _code(self) -> None:
        suite = load_suite("memory")
        if suite.name not in self.results:
            with suite.open() as place:
                self._begin(suite, place)
        self.results[suite.name].environment["valgrind"] = valgrind_version()
        for row in measure_code(_effort(self.options), _tell):
            self.results[suite.name].code.append(row)
            _print_code(row)

    def _keep(self) -> None:
        output = self.options.output
        measured = [result for result in self.results.values() if result.scenarios or result.code]
        if output is not None and measured:
            save(output, merge(load(output), measured))


def _missing(suite: Suite) -> list[str]:
    return [name for name in suite.needs if version_of(name) == "not installed"]


def _effort(options: Options) -> Effort:
    if options.quick:
        return Effort(messages=1024, starts=5, flat=1_000_000, only=options.only)
    return Effort(only=options.only)


def _package(suite: Suite, environment: dict[str, str]) -> PackageResult:
    return PackageResult(
        name=suite.name,
        package=suite.package,
        package_version=version_of(suite.package),
        core_version=version_of("ruststream-core"),
        python=python_version(),
        measured_at=datetime.datetime.now(datetime.UTC).date().isoformat(),
        environment=environment,
    )


def _baseline(options: Options, ref: str) -> int:
    changes = compare(_effort(options), ref, _tell)
    for change in changes:
        _print_change(change)
    worse = regressions(changes)
    print(f"{len(worse)} of {len(changes)} figures are worse than {ref}")
    return int(bool(worse))


def _report(options: Options) -> int:
    results = load(options.results)
    if not results:
        raise ConfigError(f"{options.results} holds no results: run ruststream bench first")
    for path in write_pages(results, options.results.parent):
        print(path)
    return 0


# -------------------------------------------------------------------------------------------------- printing


def _tell(text: str) -> None:
    """Progress goes to standard error: a line that is overwritten on a terminal, else one each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _print_rows(rows: Sequence[Row], *, head: bool = True) -> None:
    _clear()
    if head:
        print(f"\n{'scenario':14} {'unit':6} {'raw':>22} {'plugin':>22} {'service':>22}  service over raw")
    for row in rows:
        line = (_rate(row.raw), _rate(row.adapter), _rate(row.framework))
        print(f"{row.name:14} {row.unit:6} {line[0]:>22} {line[1]:>22} {line[2]:>22}  {_verdict(row)}")
        for name, peer in row.peers.items():
            print(f"{'':14} {name} {peer.version}: {_rate(peer.rates)}, service {peer.times:.1f} times as fast")


def _rate(rates: Spread | None) -> str:
    return "-" if rates is None else f"{rates.best:,.0f} ({rates.median:,.0f})"


def _verdict(row: Row) -> str:
    shown = row.verdict if row.overhead_percent is None else f"{row.overhead_percent:+.1f} %"
    if row.unit == "msg/s":
        shown += f", {1e6 / row.framework.best - 1e6 / row.raw.best:+.2f} us"
    if row.loop != "asyncio":
        shown += f", {row.loop}"
    return shown if row.bound is None else f"{shown}, {row.bound}"


def _print_code(row: CodeRow) -> None:
    _clear()
    raw = "-" if row.raw is None else f"{row.raw:,.2f}"
    print(f"{row.name:14} {row.metric:14} without {raw:>12} with {row.framework:>12,.2f}", flush=True)


def _print_change(change: Change) -> None:
    _clear()
    mark = "WORSE" if change.worse else "ok"
    print(f"{change.scenario:14} {change.metric:14} {change.before:12,.2f} -> {change.now:12,.2f}  {mark}")


def _print_goals(results: Sequence[PackageResult], *, measured_only: bool = False) -> None:
    outcomes = [outcome for outcome in judge_goals(results) if not (measured_only and outcome.value is None)]
    if not outcomes:
        return
    print(f"\n{'goal':60} {'limit':>12} {'measured':>12}  result")
    for outcome in outcomes:
        goal = outcome.goal
        limit = f"{'>=' if goal.at_least else '<='} {goal.limit:g} {goal.unit}"
        value = "-" if outcome.value is None else f"{outcome.value:.3g} {goal.unit}"
        print(f"{goal.suite + ': ' + goal.title.en:60} {limit:>12} {value:>12}  {outcome.state}")
