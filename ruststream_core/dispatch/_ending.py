"""What every end of a delivery needs: the books, the settlement, and a hold on what takes longer than its handler."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from ruststream_core.abc import Clock
from ruststream_core.dispatch._plan import RoutePlan
from ruststream_core.dispatch._senders import Senders
from ruststream_core.settlement import Ack, Drop, Outcome, Retry, Verdict
from ruststream_core.wire import Delivery
from ruststream_core.workers import Books, Crew

__all__ = ["AS_RETRIED", "ATTEMPT", "DEAD_LETTERED", "SKIPPED", "Ending", "Probe", "kind_of"]

ATTEMPT: Final = "x-ruststream-attempt"

# Acks that count as something else; told apart by identity when a transport reports one as lost.
SKIPPED: Final = Ack()
DEAD_LETTERED: Final = Ack()
AS_RETRIED: Final = Ack()
AS_DROPPED: Final = Ack()
_NAMED: Final = {
    id(SKIPPED): "skipped",
    id(DEAD_LETTERED): "dead_lettered",
    id(AS_RETRIED): "retried",
    id(AS_DROPPED): "dropped",
}


class Probe(Protocol):
    """What a test sees of a route."""

    def called(self, route: str, delivery: Delivery, args: tuple[Any, ...]) -> None:
        """A handler is about to be called."""

    def outcome(self, route: str, delivery: Delivery, outcome: Outcome) -> None:
        """A handler came to an outcome, or something that counts as one."""

    def replied(self, route: str, value: object) -> None:
        """A handler returned a value."""

    def failed(self, route: str, error: BaseException, *, named: bool) -> None:
        """A handler raised; `named` where a policy mentions the exception's type."""


class Ending(ABC):
    """One route's deliveries after their handlers: counted, settled, held until they are."""

    def __init__(
        self,
        plan: RoutePlan,
        crew: Crew,
        senders: Senders,
        clock: Clock,
        fail_fast: Callable[[BaseException], None],
        probe: Probe | None,
    ) -> None:
        self.plan = plan
        self.crew = crew
        self.books: Books = crew.books
        self._senders = senders
        self._clock = clock
        self._fail_fast = fail_fast
        self._probe = probe
        self._policy = plan.policy
        self._settles = plan.features.settles
        self._reruns: dict[int, int] = {}
        self._again: dict[int, float | None] = {}
        self.invoke: Callable[[Delivery], Awaitable[Any]]
        self._held: dict[int, Delivery] = {}
        self._gone: dict[int, Delivery] = {}
        self._said: set[str] = set()
        self.seen: Callable[[Delivery], object] = lambda _: None
        self._calling_back = 0
        self._noted: dict[int, tuple[str, asyncio.Future[None] | None] | None] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._copies: dict[int, tuple[Delivery, Callable[[], None], Callable[[], None]]] = {}
        self._send_back = senders.transmit(plan.broker)

    @abstractmethod
    def returned(self, worker: int, delivery: Delivery, result: object) -> Awaitable[None] | None:
        """See `Conclusion.returned`."""

    @abstractmethod
    def raised(self, worker: int, delivery: Delivery, error: BaseException) -> Awaitable[None] | None:
        """See `Conclusion.raised`."""

    def end_of(self, verdict: Verdict) -> str:
        """Which count a verdict of ours went to."""
        if isinstance(verdict, Ack):
            return _NAMED.get(id(verdict), "acked")
        if isinstance(verdict, Retry):
            return "retried"
        if isinstance(verdict, Drop):
            return "dropped"
        return "released" if self.plan.features.release != "lost" else "discarded"

    def settle(self, delivery: Delivery, verdict: Verdict) -> None:
        """Hand a verdict over and count it; not for what the end of the drain has given back meanwhile."""
        if self._held and self._held.pop(id(delivery), None) is not None and id(delivery) in self._gone:
            return
        end = self.end_of(verdict)
        if end != "acked" and delivery.lost is None:
            self.books.add(end)
        if not self._settles and not isinstance(verdict, Ack):
            verdict = AS_RETRIED if isinstance(verdict, Retry) else AS_DROPPED
        pending = delivery.settle(verdict)
        if pending is not None:
            self.crew.track(pending)
        if id(delivery) in self._noted:
            self._noted[id(delivery)] = (end, pending)

    def attempt(self, delivery: Delivery) -> int:
        """Which attempt this is, from 1: the broker's count or that of the copies, and reruns in place."""
        base = delivery.attempt
        if base is None:
            text = delivery.headers.get(ATTEMPT, "1")
            base = int(text) if text.isdecimal() and len(text) < 10 else 1
        return base + self._reruns.get(id(delivery), 0)

    def position(self, delivery: Delivery) -> Any:
        """Where the delivery stands, None where the transport has no positions."""
        read = getattr(self.crew.subscription, "position", None)
        return None if read is None or not self.plan.features.seek else read(delivery)

    def _observe(self, delivery: Delivery, outcome: Outcome) -> None:
        if self._probe is not None:
            self._probe.outcome(self.plan.name, delivery, outcome)

    def _hold(self, delivery: Delivery) -> None:
        """The delivery's end takes time, with no handler running: `abandon` gives it back where that takes too long."""
        self._held[id(delivery)] = delivery

    def _release(self, delivery: Delivery) -> None:
        self._held.pop(id(delivery), None)
        if id(delivery) not in self._gone:
            self.crew.release(delivery)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{self.plan.name}:aside")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pause(self, seconds: float) -> bool:
        if seconds <= 0:
            await asyncio.sleep(0)  # a handler that never suspends must not starve the loop by its retries
            return not self.crew.stopping
        return await self.crew.pause(lambda wake: self._clock.call_later(seconds, wake))

    def stop(self) -> None:
        """Copies that wait for their time: give the originals back, or publish now what could not be given back."""
        for delivery, cancel, publish in list(self._copies.values()):
            cancel()
            if self.plan.features.release == "lost":
                publish()
            else:
                self._release(delivery)
        self._copies.clear()

    @property
    def busy(self) -> bool:
        """Work goes on beside the workers: replies unconfirmed, copies and dead letters on their way."""
        return bool(self._tasks or self._waiting or self._calling_back)

    async def finish(self) -> None:
        """Wait for what goes on beside the workers."""
        while self._tasks or self._waiting:
            await asyncio.wait([*self._tasks, *self._waiting.values()])
            await asyncio.sleep(0)  # let the callbacks that settle run

    def abandon(self) -> None:
        """The last deadline passed: what still waits for a confirmation or a dead letter is given back unsettled."""
        for key, delivery in self._held.items():
            self._gone[key] = delivery
            self.crew.release(delivery)
        for task in self._tasks:
            task.cancel()


def kind_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
