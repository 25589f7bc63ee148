"""Random runs over workers, lanes, batches, losses, cancellations and drains: the books always balance."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ruststream_core import App, Backoff, Batch, Context, Drop, Outcome, Retry, Skip, by_key, lifecycle
from ruststream_core.abc import Features
from ruststream_core.workers import Books
from tests.dispatch.chaos import ChaosBroker, ChaosDelivery, ChaosSubscription

log = logging.getLogger("ruststream")

ACTIONS = ("ok", "ok", "ok", "retry", "drop", "skip", "error", "cancelled", "wait", "stubborn", "deaf", "bad")
MODES: dict[str, dict[str, Any]] = {
    "sequential": {},
    "workers": {"workers": 4},
    "keyed": {"workers": by_key(4)},
    "by payload": {"workers": by_key(3, lambda order: order.customer)},
    "batches": {"batch": Batch(5)},
    "batches side by side": {"batch": Batch(5), "workers": 3},
    "batches by key": {"batch": Batch(5), "workers": by_key(3)},
}


class Order(msgspec.Struct):
    id: int
    customer: str
    actions: list[str]


class Machine(RuleBasedStateMachine):
    """One route on the chaos transport; every step is a few turns of its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        log.disabled = True  # thousands of failures, all of them wanted
        self.cleanup, lifecycle.CLEANUP = lifecycle.CLEANUP, 0.05  # type: ignore[misc]  # abandon often
        self.numbers = itertools.count()
        self.tries: Counter[int] = Counter()
        self.running: Counter[str] = Counter()
        self.gate: asyncio.Event | None = None
        self.draining = False
        self.failures = 0
        self.cut: set[bytes] = set()
        self.report: Any = None

    @initialize(
        mode=st.sampled_from(sorted(MODES)),
        retry=st.sampled_from(["broker", "in_place", "copy"]),
        settles=st.booleans(),
        pending=st.booleans(),
        window=st.sampled_from([15, 64]),
        dead_letter=st.booleans(),
    )
    def start(self, mode: str, retry: Any, settles: bool, pending: bool, window: int, dead_letter: bool) -> None:
        """Choose the route and the transport."""
        features = Features(
            settles=settles,
            retry=retry,
            release="free" if settles else "lost",
            attempts="broker" if retry == "broker" else "process",
            loses=True,
            keys=True,
        )
        self.mode = mode
        self.broker = ChaosBroker(features, pending=pending, window=window)
        app = App("chaos", broker=self.broker, drain=0.02)
        options: dict[str, Any] = dict(MODES[mode])
        if dead_letter:
            options["dead_letter"] = "dead"
        if retry == "copy":
            options["retry_copies"] = True
        policy = {Exception: Backoff(0, most=0)} if retry != "broker" else {}
        app.subscriber("orders", max_attempts=3, on_error=policy, **options)(
            self.batch if "batch" in options else self.single
        )
        self.app = app
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.gate = asyncio.Event()
        self.context = self.app.start()
        self.live = await self.context.__aenter__()
        self.subscription: ChaosSubscription = self.broker.subscriptions[0]
        (route,) = self.live._runtime.routes.values()
        self.tasks = list(route.crew.tasks)

    # ------------------------------------------------------------------------------------ the handler

    async def single(self, order: Order, ctx: Context) -> Outcome | None:
        lane = ctx.key.decode() if ctx.key is not None and self.mode == "keyed" else None
        assert not self.draining, "a handler started after the drain began"
        if lane is not None:
            assert self.running[lane] == 0, "two messages of one key at once"
            self.running[lane] += 1
        try:
            return await self.act(order)
        finally:
            if lane is not None:
                self.running[lane] -= 1

    async def batch(self, orders: list[Order]) -> list[Outcome | None]:
        assert not self.draining, "a handler started after the drain began"
        return [await self.act(order) for order in orders]

    async def act(self, order: Order) -> Outcome | None:
        self.tries[order.id] += 1
        action = order.actions[min(self.tries[order.id], len(order.actions)) - 1]
        assert self.gate is not None
        if action == "retry":
            raise Retry
        if action == "drop":
            return Drop("asked for")
        if action == "skip":
            return Skip()
        if action in ("error", "cancelled"):
            self.failures += 1
            raise ValueError(action) if action == "error" else asyncio.CancelledError
        try:
            if action in ("wait", "stubborn", "deaf"):
                await self.gate.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.draining:
                self.cut.add(msgspec.json.encode(order))
            if action == "deaf":
                await self.gate.wait()
            if action == "wait":
                raise
        return None

    # --------------------------------------------------------------------------------------- the rules

    def turns(self, count: int = 3) -> None:
        async def some() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())

    @precondition(lambda self: self.report is None)
    @rule(
        data=st.lists(
            st.tuples(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=3), st.integers(0, 4)), max_size=30
        )
    )
    def publish(self, data: list[tuple[list[str], int]]) -> None:
        """Messages come, some of which do not decode."""
        for actions, key in data:
            number = next(self.numbers)
            body = msgspec.json.encode(Order(number, str(key), actions)) if actions[0] != "bad" else b'{"id":'
            self.broker.put("orders", body, str(key).encode())
        self.turns()

    @precondition(lambda self: self.report is None)
    @rule(count=st.integers(1, 40))
    def go_on(self, count: int) -> None:
        """Time passes."""
        self.turns(count)

    @precondition(lambda self: self.report is None)
    @rule()
    def open_gate(self) -> None:
        """Handlers that wait go on."""
        assert self.gate is not None
        self.gate.set()
        self.turns()
        self.gate.clear()

    @precondition(lambda self: self.report is None)
    @rule(which=st.integers(0, 1000), pending=st.booleans())
    def lose(self, which: int, pending: bool) -> None:
        """The broker takes a delivery away: queued, running, or settled and not yet decided."""
        pool: list[ChaosDelivery] = self.subscription.undecided if pending else self.subscription.out
        if pool:
            delivery = pool[which % len(pool)]
            self.loop.call_soon(lambda: self.subscription.lose(delivery) if delivery in self.subscription.out else None)
            self.turns()

    @precondition(lambda self: self.report is None)
    @rule()
    def decide(self) -> None:
        """Pending settlements are committed."""
        self.subscription.decide()
        self.turns()

    @precondition(lambda self: self.report is None)
    @rule()
    def drain(self) -> None:
        """The app ends while all this goes on; what waits for the gate passes the deadline."""

        async def end() -> None:
            ticker = asyncio.ensure_future(self._tick())
            self.draining = True
            await self.context.__aexit__(None, None, None)
            ticker.cancel()
            await asyncio.wait([ticker])

        self.loop.run_until_complete(end())
        self.report = self.live.report
        self.check()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.005)
            self.subscription.decide()

    @precondition(lambda self: self.report is not None)
    @rule()
    def over(self) -> None:
        """Nothing happens after the end."""

    # ----------------------------------------------------------------------------------------- the end

    def check(self) -> None:
        (table,) = self.report.routes.values()
        ledger = self.subscription.ledger
        ends = sum(table[name] for name in ("acked", *Books.ENDS))
        assert table["received"] == ends == ledger["handed"], (table, ledger)
        assert all(count >= 0 for count in table.values()), table
        assert table["lost"] == ledger["lost"], (table, ledger)
        assert not self.subscription.out, "a delivery was neither settled nor lost"
        assert table["released"] + table["discarded"] == ledger["released"], (table, ledger)
        # What was lost is delivered again while its former handler may still run: only the rest is told apart here.
        kept = {
            body
            for body in self.cut - self.subscription.taken
            if self.subscription.verdicts.get(body, "released") != "released"
        }
        assert not kept, f"cut by the drain, and settled all the same: {kept}"
        if "batch" not in self.mode:
            assert table["failed"] == self.failures, (
                f"a loss or a cancellation was taken for a failure: {table}, {self.failures}"
            )
        if self.broker.declared.settles:
            copies = table["retried"] if self.broker.declared.retry == "copy" else 0
            acked = table["acked"] + table["skipped"] + table["dead_lettered"] + copies
            assert acked == ledger["acked"], (table, ledger)
            assert table["dropped"] == ledger["dropped"], (table, ledger)
        else:
            assert ledger["retried"] == ledger["dropped"] == 0, "a transport that settles nothing was asked to"

    def teardown(self) -> None:
        try:
            if self.report is None and hasattr(self, "context"):
                self.drain()
            if self.gate is not None:
                self.gate.set()  # abandoned handlers end, and must not settle again
            self.turns(20)
            left = asyncio.all_tasks(self.loop)
            assert not left, f"tasks leaked: {left}"
            broken = [task.exception() for task in self.tasks if not task.cancelled() and task.exception()]
            assert not broken, f"a worker died: {broken}"
        finally:
            lifecycle.CLEANUP = self.cleanup  # type: ignore[misc]
            log.disabled = False
            self.loop.close()


Machine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBooks = Machine.TestCase


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("retry", ["broker", "in_place", "copy"])
def test_dense_runs_balance(mode: str, retry: str) -> None:
    """Long, crowded runs from fixed seeds, where the machine above looks for short ones."""
    for seed in range(25):
        choose = random.Random(f"{mode} {retry} {seed}")
        machine = Machine()
        try:
            machine.start(mode, retry, choose.random() < 0.7, choose.random() < 0.5, 64, choose.random() < 0.5)
            for _ in range(choose.randrange(5, 40)):
                what = choose.random()
                if what < 0.3:
                    count = choose.randrange(1, 40)
                    machine.publish([(choose.choices(ACTIONS, k=3), choose.randrange(5)) for _ in range(count)])
                elif what < 0.5:
                    machine.go_on(choose.randrange(1, 20))
                elif what < 0.6:
                    machine.open_gate()
                elif what < 0.85:
                    machine.lose(choose.randrange(1000), choose.random() < 0.5)
                else:
                    machine.decide()
        finally:
            machine.teardown()
