"""Running loops: calibration, fresh names, interleaved rounds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Final, Literal

import msgspec

from ruststream_core.errors import RustStreamError
from ruststream_core_bench._results import PeerResult, Row
from ruststream_core_bench._scenario import Loop, Place, Scenario, Stopwatch, Task
from ruststream_core_bench._stats import judge, spread

__all__ = ["EventLoop", "Plan", "Rounds", "calibrate", "loops_of", "measure", "run_once"]

EventLoop = Literal["asyncio", "uvloop"]

FIRST: Final = 256
"""Messages of the first calibration run."""
ENOUGH: Final = 0.2
"""A calibration run of that share of the target is long enough to tell the rate."""
PATIENCE: Final = 120.0
"""Seconds beyond the expected ones after which a run counts as having lost messages."""

_numbers = itertools.count(1)


class Plan(msgspec.Struct, frozen=True):
    """How to measure."""

    rounds: int
    seconds: float
    """How long the raw loop of a round lasts at least."""
    loop: EventLoop = "asyncio"
    messages: int | None = None
    """Instead of a calibrated count."""


class Rounds(msgspec.Struct):
    """What the loops of one scenario gave so far; a round counts when all of them have run."""

    scenario: Scenario
    counts: dict[str, int]
    watches: list[dict[str, Stopwatch]] = []

    def rates(self, name: str) -> list[float]:
        """Units a second of one loop, round by round."""
        units = self.counts[name] * self.scenario.per_message
        return [units / _seconds(self.scenario, watches[name]) for watches in self.watches]

    def row(self, loop: EventLoop, bound: str) -> Row:
        """The report's row. At least one round is complete."""
        rounds = len(self.watches)
        raw, framework = spread(self.rates("raw")), spread(self.rates("framework"))
        adapter = spread(self.rates("adapter")) if self.scenario.adapter is not None else None
        ours = judge(raw, framework, rounds)
        plugins = None if adapter is None else judge(raw, adapter, rounds)
        waiting = self._waiting()
        return Row(
            name=self.scenario.name,
            title=self.scenario.title,
            unit=self.scenario.unit,
            loop=loop,
            messages=self.counts["raw"],
            rounds=rounds,
            raw=raw,
            adapter=adapter,
            framework=framework,
            adapter_overhead_percent=None if plugins is None else plugins.percent,
            adapter_verdict=None if plugins is None else plugins.verdict,
            overhead_percent=ours.percent,
            verdict=ours.verdict,
            bound=bound if waiting >= 0.5 and self.scenario.clock == "wall" else None,
            waiting=round(waiting, 3),
            peers={name: self._peer(name, framework.best) for name in self.scenario.peers if name in self.counts},
        )

    def _waiting(self) -> float:
        """The share of the raw loop's time in which this process did not compute: of the best round."""
        best = min((watches["raw"] for watches in self.watches), key=lambda watch: watch.wall)
        return max(0.0, 1 - best.cpu / best.wall)

    def _peer(self, name: str, ours: float) -> PeerResult:
        rates = spread(self.rates(name))
        return PeerResult(metadata.version(name), self.counts[name], rates, round(ours / rates.best, 2))


def _seconds(scenario: Scenario, watch: Stopwatch) -> float:
    return watch.cpu if scenario.clock == "cpu" else watch.wall


def loops_of(scenario: Scenario) -> dict[str, Loop]:
    """The loops of a scenario in the order of a round; peers that are not installed are left out."""
    loops = {"raw": scenario.raw, "adapter": scenario.adapter, "framework": scenario.framework}
    peers = {name: loop for name, loop in scenario.peers.items() if _installed(name)}
    return {name: loop for name, loop in (loops | peers).items() if loop is not None}


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def measure(
    scenario: Scenario, place: Place, plan: Plan, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Rounds]:
    """Calibrate, then run the rounds: raw, plugin, service, raw and so on.

    Yields after each round, so that an interrupt leaves those that are complete.

    Args:
        scenario: what to run.
        place: where.
        plan: how.
        tell: is told what goes on, in a few words.

    Raises:
        RustStreamError: a loop lost messages, or a transport failed.
    """
    loops = loops_of(scenario)
    counts = _counts(scenario, loops, place, plan, tell)
    rounds = Rounds(scenario, counts)
    for number in range(1, plan.rounds + 1):
        watches = {}
        for name, loop in loops.items():
            tell(f"round {number} of {plan.rounds}, {name}, {counts[name]:,} messages")
            watches[name] = run_once(loop, counts[name], place, plan)
        rounds.watches.append(watches)
        yield rounds


def _counts(
    scenario: Scenario, loops: Mapping[str, Loop], place: Place, plan: Plan, tell: Callable[[str], None]
) -> dict[str, int]:
    """The three loops share the raw loop's count; a peer that is slower by a factor gets one of its own."""
    counts = {}
    for name, loop in loops.items():
        if name in ("raw", *scenario.peers):
            tell(f"calibrating {name}")
            counts[name] = plan.messages or _calibrated(scenario, loop, place, plan)
        else:
            counts[name] = counts["raw"]
    return counts


def _calibrated(scenario: Scenario, loop: Loop, place: Place, plan: Plan) -> int:
    def seconds(count: int) -> float:
        return _seconds(scenario, run_once(loop, count, place, plan))

    return calibrate(seconds, plan.seconds, step=scenario.step, most=scenario.most)


def calibrate(seconds_of: Callable[[int], float], target: float, *, step: int = 1, most: int = 100_000_000) -> int:
    """A count of messages that lasts at least `target` seconds.

    Args:
        seconds_of: runs that many messages and says how long it took.
        target: seconds.
        step: the count is a multiple of it.
        most: the count where even that does not last.
    """
    count = min(_round_up(FIRST, step), most)
    while (took := seconds_of(count)) < target * ENOUGH and count < most:
        # By four at least, or a loop with a slow start would creep; by sixteen at most, for what was too short to tell.
        wanted = count * target * ENOUGH * 1.5 / max(took, 1e-9)
        count = min(_round_up(min(max(wanted, count * 4), count * 16), step), most)
    # A tenth more: a round that happens to be faster than the calibration must last as well.
    return min(_round_up(count * target / took * 1.1, step), most)


def _round_up(count: float, step: int) -> int:
    return max(1, -int(-count // step)) * step


def run_once(loop: Loop, messages: int, place: Place, plan: Plan) -> Stopwatch:
    """Run one loop in an event loop of its own.

    The collector starts from nothing and stays on, since it is on in a service; what is alive already is set aside.

    Raises:
        RustStreamError: not all messages came.
    """
    task = Task(messages, f"bench-{os.getpid()}-{next(_numbers)}", place, Stopwatch())
    with _fresh_collector(), asyncio.Runner(loop_factory=_factory(plan.loop)) as runner:
        try:
            runner.run(_limited(loop(task), plan.seconds * 20 + PATIENCE))
        except TimeoutError as exc:
            raise RustStreamError(f"{messages} messages did not all come: some were lost on the way") from exc
    if not task.watch.wall:
        raise RustStreamError("the loop measured nothing")
    return task.watch


async def _limited(work: Awaitable[None], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await work


@contextmanager
def _fresh_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _factory(name: EventLoop) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        import uvloop  # noqa: PLC0415  optional
    except ImportError as exc:
        raise RustStreamError('--loop uvloop: install it with pip install "ruststream-core[uvloop]"') from exc
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
