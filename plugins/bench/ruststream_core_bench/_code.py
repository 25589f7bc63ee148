"""The cost of the code: what a message costs in instructions, blocks and bytes, and what starting costs."""

# ruff: noqa: RUF001 - titles are written in three languages

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

import ruststream_core
from ruststream_core.errors import ConfigError
from ruststream_core_bench._count import Counter, call, counters, per_message, probe
from ruststream_core_bench._results import CodeRow, Text
from ruststream_core_bench._scenario import Loop, Scenario
from ruststream_core_bench.scenarios import load_suite

__all__ = ["Change", "Effort", "compare", "counted", "measure_code", "regressions", "worktree"]

SUITE: Final = "memory"
MORE_INSTRUCTIONS: Final = 1.02
MORE_ALLOCATIONS: Final = 0.5
"""Allocations per message are nearly whole numbers; half of one is one more on the way of some messages."""

IMPORT_BASE: Final = "import asyncio, msgspec"
IMPORT_OURS: Final = "import ruststream_core"
FIRST_MESSAGE: Final = """
import asyncio, time
from ruststream_core import App
app = App("first", broker="memory:")
done = asyncio.Event()

@app.subscriber("orders")
async def handle(order: dict[str, int]) -> None:
    print(time.clock_gettime(time.CLOCK_MONOTONIC))
    done.set()

async def main() -> None:
    async with app.start() as running:
        await running.publish({"id": 1}, to="orders")
        await done.wait()

asyncio.run(main())
"""


class Effort(msgspec.Struct, frozen=True):
    """How much to count."""

    messages: int = 4096
    """Of the shorter of two runs; a multiple of 64, so that both end with a whole chunk."""
    starts: int = 15
    """Fresh interpreters for each of the start-up figures."""
    flat: int = 10_000_000
    """Messages over which memory must stay flat."""
    only: str | None = None
    """Scenarios whose name contains it."""


Tell = Callable[[str], None]


def measure_code(effort: Effort, tell: Tell) -> Iterator[CodeRow]:
    """Every row, one by one. What cannot be counted on this machine is told and left out.

    Raises:
        RustStreamError: a probe failed.
    """
    found = counters()
    for metric in {"instructions", "allocations"} - found.keys():
        tell(f"{metric} are not counted: install valgrind")
    for metric, counter in found.items():
        feeding: dict[Loop | None, float] = {None: 0.0}
        for scenario in _selected(effort):
            tell(f"{metric} of {scenario.name}")
            if scenario.feed not in feeding:
                feeding[scenario.feed] = _loop_cost(scenario, "feed", counter, effort)
            yield _row(scenario, metric, counter, effort, feeding[scenario.feed])
    if effort.only is None:
        yield from _process(effort, tell)


def _selected(effort: Effort) -> list[Scenario]:
    scenarios = [scenario for scenario in load_suite(SUITE).scenarios if not scenario.name.startswith("routes-")]
    return [scenario for scenario in scenarios if effort.only is None or effort.only in scenario.name]


def _row(scenario: Scenario, metric: str, counter: Counter, effort: Effort, feeding: float) -> CodeRow:
    raw = _loop_cost(scenario, "raw", counter, effort) - feeding
    framework = _loop_cost(scenario, "framework", counter, effort) - feeding
    return CodeRow(
        name=scenario.name,
        title=scenario.title,
        metric=metric,
        unit=metric,
        raw=round(raw, 2),
        framework=round(framework, 2),
    )


def _loop_cost(scenario: Scenario, loop: str, counter: Counter, effort: Effort, checkout: Path | None = None) -> float:
    def run(messages: int) -> Sequence[str]:
        return probe("run", SUITE, scenario.name, loop, messages)

    return per_message(counter, run, effort.messages, checkout)


# ------------------------------------------------------------------------------------------------ the process


def _process(effort: Effort, tell: Tell) -> Iterator[CodeRow]:
    tell("bytes in flight")
    in_flight = json.loads(call(probe("in-flight", 1000)).stdout)
    title = Text("a handler that waits", "ожидающий обработчик", "等待中的处理函数")
    yield CodeRow(name="in-flight", title=title, metric="in_flight", unit="B", raw=None, framework=round(in_flight))
    tell(f"memory over {effort.flat:,} messages")
    yield from _flat(json.loads(call(probe("flat", effort.flat)).stdout), effort)
    tell(f"start-up, {effort.starts} times")
    yield _import(effort)
    yield _first_message(effort)


def _flat(found: dict[str, float], effort: Effort) -> Iterator[CodeRow]:
    count = f"{effort.flat:,}"
    title = Text(f"after {count} messages", f"после {count} сообщений", f"{count} 条消息之后")
    kept = round(found["kept"], 6)
    yield CodeRow(name="flat", title=title, metric="kept", unit="blocks", raw=None, framework=kept)
    before, after = round(found["resident_before"], 2), round(found["resident_after"], 2)
    yield CodeRow(name="flat", title=title, metric="rss", unit="MiB", raw=before, framework=after)


def _import(effort: Effort) -> CodeRow:
    """Interleaved, in fresh interpreters; the best of each, since everything else is the machine's."""
    base, ours = [], []
    for _ in range(effort.starts):
        base.append(_import_seconds(IMPORT_BASE))
        ours.append(_import_seconds(IMPORT_OURS))
    return CodeRow(
        name="import",
        title=Text(
            "import ruststream_core (without: asyncio, msgspec)",
            "import ruststream_core (без него: asyncio, msgspec)",
            "import ruststream_core（不使用：asyncio、msgspec）",
        ),
        metric="milliseconds",
        unit="ms",
        raw=round(min(base) * 1000, 2),
        framework=round(min(ours) * 1000, 2),
    )


def _import_seconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    return float(_fresh(code))


def _fresh(code: str) -> str:
    """What a fresh interpreter prints, its modules compiled by a former one as those of an installed package are."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=compiled).stdout


def _first_message(effort: Effort) -> CodeRow:
    taken = []
    for _ in range(effort.starts):
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        taken.append(float(_fresh(FIRST_MESSAGE)) - began)
    return CodeRow(
        name="first-message",
        title=Text(
            "from the start of the interpreter to the first message of a memory service",
            "от запуска интерпретатора до первого сообщения сервиса в памяти",
            "从解释器启动到内存服务处理第一条消息",
        ),
        metric="milliseconds",
        unit="ms",
        raw=None,
        framework=round(min(taken) * 1000, 1),
    )


# ------------------------------------------------------------------------------------------------ the baseline


class Change(msgspec.Struct, frozen=True):
    """What one scenario of the service cost in another revision, and costs now."""

    scenario: str
    metric: str
    before: float
    now: float

    @property
    def worse(self) -> bool:
        """Whether it costs more than may be."""
        if self.metric == "instructions":
            return self.now > self.before * MORE_INSTRUCTIONS
        return self.now > self.before + MORE_ALLOCATIONS


def counted(effort: Effort, tell: Tell, checkout: Path | None = None) -> dict[tuple[str, str], float]:
    """Instructions and allocations of the service's loops alone, by scenario and metric.

    Args:
        effort: how much to count.
        tell: is told what goes on.
        checkout: another revision, whose core is measured by the scenarios of this one.

    Raises:
        ConfigError: nothing can be counted here.
        RustStreamError: a probe failed.
    """
    found = counters()
    if not found:
        raise ConfigError("nothing can be counted on this machine: install valgrind")
    costs = {}
    for metric, counter in found.items():
        for scenario in _selected(effort):
            tell(f"{metric} of {scenario.name}" + ("" if checkout is None else ", baseline"))
            costs[scenario.name, metric] = _loop_cost(scenario, "framework", counter, effort, checkout)
    return costs


def compare(effort: Effort, ref: str, tell: Tell) -> list[Change]:
    """The service's loops of this tree against those of another revision of it.

    Raises:
        ConfigError: this is no checkout, it has no such revision, or nothing can be counted here.
        RustStreamError: a probe failed, because the other revision has another contract for example.
    """
    with worktree(Path(ruststream_core.__file__).parent, ref) as checkout:
        _check_core(checkout)
        before = counted(effort, tell, checkout)
    now = counted(effort, tell)
    return [Change(name, metric, before[name, metric], value) for (name, metric), value in now.items()]


def _check_core(checkout: Path) -> None:
    """See that probes of the other revision really import its core, and not the one that is installed."""
    imported = call([sys.executable, "-c", "import ruststream_core; print(ruststream_core.__file__)"], checkout).stdout
    if not Path(imported.strip()).is_relative_to(checkout.resolve()):
        raise ConfigError(f"the core of {checkout} is shadowed by {imported.strip()}")


def regressions(changes: Sequence[Change]) -> list[Change]:
    """Those that cost more than may be."""
    return [change for change in changes if change.worse]


@contextmanager
def worktree(inside: Path, ref: str) -> Iterator[Path]:
    """A revision of the repository around `inside`, in a temporary folder.

    Raises:
        ConfigError: git does not find the repository or the revision; says what it said.
    """
    root = _git(inside, "rev-parse", "--show-toplevel").strip()
    with TemporaryDirectory(prefix="ruststream-bench-") as folder:
        tree = Path(folder, "tree")
        _git(Path(root), "worktree", "add", "--detach", str(tree), ref)
        try:
            yield tree
        finally:
            _git(Path(root), "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as exc:
        raise ConfigError("a baseline needs git, which is not installed") from exc
    if run.returncode:
        raise ConfigError(f"git {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout
