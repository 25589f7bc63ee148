"""What the three ways to hold a row have in common: the buffer, the books, the waiting."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ruststream_core.abc import Clock, Demand, Features, State, Subscription, SubscriptionStatistics, Unit, Watch
from ruststream_core.errors import SettleError, Unsupported
from ruststream_core.settlement import Ack, Drop, Release, Retry, Verdict
from ruststream_core.wire import Delivery
from ruststream_core_sql._database import Database
from ruststream_core_sql._dialects._base import Kind, Queue, Store
from ruststream_core_sql._records import Inserter, Recorder
from ruststream_core_sql._subscription._delivery import SqlDelivery
from ruststream_core_sql._subscription._shape import shape_of
from ruststream_core_sql._wake import Hub, Wake
from ruststream_core_sql.errors import is_passing, to_terminal

__all__ = ["UNREAD", "Opening", "SqlSubscription", "bounded", "log"]

log: Final = logging.getLogger("ruststream.sql")

UNREAD: Final = Release()
"""The release of a row that no receive gave out."""


class Opening(msgspec.Struct):
    """What a subscription is opened with."""

    database: Database
    store: Store
    queue: Queue
    demand: Demand
    watch: Watch
    hub: Hub
    clock: Clock
    features: Features
    poll: float
    window: int
    max_attempts: int | None
    inserter: Inserter
    recorder: Recorder


class SqlSubscription(Subscription):
    """Counts, states and wake-ups; how rows are come by is the subclass's."""

    def __init__(self, opening: Opening) -> None:
        self.features = opening.features
        self.window = opening.window
        self.queue = opening.queue
        self._max_attempts = opening.max_attempts
        self._database = opening.database
        self._store = opening.store
        self._inserter = opening.inserter
        self._recorder = opening.recorder
        self._demand = opening.demand
        self._watch = opening.watch
        self._hub = opening.hub
        self._wake = Wake(opening.clock, opening.poll)
        self._shape = shape_of(opening.store, opening.database.dialect)
        self._buffer: deque[SqlDelivery] = deque()
        self._state: State = "connecting"
        self._stopping = False
        self._closed = False
        self._error: BaseException | None = None
        self._out = 0
        self._done = 0
        self._released = 0
        self._last_receive: float | None = None
        hub_key = opening.queue.table.full_name, opening.queue.name
        self._hub.join(*hub_key, self._wake)
        self._leaving: list[Callable[[], object]] = [lambda: self._hub.leave(*hub_key, self._wake)]

    def on_detach(self, callback: Callable[[], object]) -> None:
        """Called when the subscription has let everything go."""
        self._leaving.append(callback)

    def _leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        for callback in leaving:
            callback()

    @property
    def where(self) -> str:
        """For messages."""
        name = "" if self.queue.name is None else f" queue {self.queue.name!r}"
        return f"table {self.queue.table.full_name!r}{name}"

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(
            state=self._state,
            buffered=len(self._buffer),
            unsettled=self._out,
            released=self._released,
            last_receive=self._last_receive,
        )

    def _set_state(self, state: State, cause: BaseException | None = None) -> None:
        if state != self._state:
            self._state = state
            self._watch.state(state, cause)

    # ------------------------------------------------------------------------------------------- losing

    def _lose(self, delivery: SqlDelivery, error: SettleError) -> None:
        """Told once. The counts follow in `_ended`, which the caller owes."""
        if delivery.lost is not None:
            return
        delivery.lost = error
        if delivery.verdict is UNREAD:
            return
        if delivery in self._buffer:  # never handed out: nobody needs to know
            self._buffer.remove(delivery)
            self._released += 1
            return
        self._watch.lost(delivery, error, delivery.verdict)
        self._ended(1)

    def _ended(self, count: int) -> None:
        """`count` deliveries that had been handed out are settled or lost."""
        self._out -= count
        self._done += count

    def _fail(self, error: Exception) -> None:
        """The subscription cannot go on; `receive` says why."""
        if self._error is None:
            self._error = to_terminal(error, self.where)
            if self._error is not error:
                self._error.__cause__ = error

    def _passing(self, error: Exception) -> bool:
        """Whether to try again; an interruption is told."""
        if not is_passing(error):
            return False
        log.debug("%s: %r", self.where, error)
        self._set_state("interrupted", error)
        return True

    # --------------------------------------------------------------------------------------- transactions

    async def begin(self, deliveries: Sequence[Delivery]) -> Unit:
        """See `Transactions.begin`.

        Raises:
            Unsupported: several deliveries, each of which is held by a session of its own.
            SettleError: a delivery is lost.
        """
        mine = [delivery for delivery in deliveries if isinstance(delivery, SqlDelivery)]
        if len(mine) != len(deliveries) or not mine:
            raise Unsupported(f"{self.where}: these are no deliveries of a SQL queue")
        for delivery in mine:
            if delivery.lost is not None:
                raise delivery.lost
        return await self._begin(mine)

    @abstractmethod
    async def _begin(self, deliveries: Sequence[SqlDelivery]) -> Unit:
        """A transaction that settles these."""

    # -------------------------------------------------------------------------------------- settlements

    def kind_of(self, delivery: SqlDelivery, verdict: Verdict) -> Kind:
        """What a verdict means for the row."""
        if isinstance(verdict, Ack):
            return "finish"
        if isinstance(verdict, Drop):
            return "bury" if self.queue.buries else "finish"
        if not isinstance(verdict, Retry):
            return "release"
        attempt = delivery.attempt
        spent = self._max_attempts is not None and attempt is not None and attempt >= self._max_attempts
        return "bury" if spent else "retry"

    def split(self, deliveries: Sequence[SqlDelivery]) -> list[tuple[Kind, Sequence[SqlDelivery]]]:
        """Deliveries by what becomes of their rows."""
        if all(type(delivery.verdict) is Ack for delivery in deliveries):
            return [("finish", deliveries)]
        kinds: dict[Kind, list[SqlDelivery]] = {}
        for delivery in deliveries:
            assert delivery.verdict is not None
            kinds.setdefault(self.kind_of(delivery, delivery.verdict), []).append(delivery)
        return list(kinds.items())

    def _after_bury(self) -> None:
        """Whoever reads the dead letter in this process need not wait for its poll."""
        dead = self.queue.dead_table or self.queue.table
        self._hub.news(dead.full_name, self.queue.dead_group)

    def _until_due(self) -> None:
        """Nothing was there: be back when something is, as far as that is known."""
        if self._store.next_due is not None:
            self._wake.after(self._store.next_due)

    def _after_retry(self, delivery: SqlDelivery) -> None:
        """Look again when the row is due."""
        if (delay := delivery.delay) is None:
            self._wake.set()
        else:
            self._wake.after(delay)

    # ---------------------------------------------------------------------------------------- receiving

    def _deliver(self, limit: int) -> list[SqlDelivery]:
        buffer = self._buffer
        take = buffer.popleft
        out = [take() for _ in range(min(limit, len(buffer)))]
        self._out += len(out)
        return out

    def _received(self) -> None:
        self._last_receive = time.monotonic()

    @abstractmethod
    async def start(self) -> None:
        """Open what it needs; raises as `Connection.subscribe`."""

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._wake.set()
            self._stopped()

    @abstractmethod
    def _stopped(self) -> None:
        """Let whoever waits in `receive` go, and release what was never handed out."""


async def bounded(work: asyncio.Task[Any], deadline: float) -> bool:
    """Wait for `work` until that time of the monotonic clock, without cancelling it; whether it is done."""
    done, _ = await asyncio.wait([work], timeout=max(0.0, deadline - time.monotonic()))
    return bool(done)
