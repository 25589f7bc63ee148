"""What the row lock and the advisory lock share: a delivery keeps a session, and dies with it."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ruststream_core.abc import Unit
from ruststream_core.errors import SettleError, Unsupported
from ruststream_core.kit import Keeper, backoff
from ruststream_core.settlement import Verdict
from ruststream_core_sql._database import Line
from ruststream_core_sql._dialects._base import Session
from ruststream_core_sql._subscription._base import UNREAD, Opening, SqlSubscription, log
from ruststream_core_sql._subscription._delivery import SqlDelivery
from ruststream_core_sql._subscription._unit import SqlUnit
from ruststream_core_sql._tasks import background, shielded, spawn
from ruststream_core_sql.errors import is_conflict

__all__ = ["HeldSubscription", "Holder"]

PROBE: Final = 10.0
"""A session with rows in hand is asked for a sign of life twice in so many seconds."""


class Holder:
    """One session with the deliveries that depend on it."""

    def __init__(self, owner: HeldSubscription, line: Line, session: Session) -> None:
        self.owner = owner
        self.line = line
        self.session = session
        self.members: list[SqlDelivery] = []
        self.left = 0
        self.done: asyncio.Future[None] | None = None
        self.using = asyncio.Lock()
        """Whoever runs a statement on the session."""
        self.unit: object | None = None
        self.over = False
        self.chained = False
        """The session's next transaction is open already."""

    def unit_ended(self, *, done: bool) -> None:
        """The session is free for others again."""
        self.unit = None

    def settle(self, delivery: SqlDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """Called by the delivery. The last of them has all settled."""
        if self.done is None:
            self.done = asyncio.get_running_loop().create_future()
        self.left -= 1
        if self.left == 0:
            background(self.owner.finish(self), "sql:settle")
        return self.done


class HeldSubscription(SqlSubscription):
    """Each worker receives for itself, on a session of its own."""

    def __init__(self, opening: Opening, lines: int) -> None:
        super().__init__(opening)
        self.receivers = opening.demand.workers
        self._lines = lines
        self._free: list[Line] = []
        self._wanting: deque[asyncio.Future[None]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._pausing: set[asyncio.Future[None]] = set()
        self._scouting = False
        self._holders: set[Holder] = set()
        self._keeper: Keeper[Holder] = Keeper(PROBE, self._probe)
        self._returned: deque[Holder] = deque()
        self._closing: asyncio.Task[None] | None = None
        self._busy = 0

    async def start(self) -> None:
        self._database.reserve(self._lines, self.where)
        self._free = [Line(self._database, self.queue.table.isolation) for _ in range(self._lines)]
        self._set_state("receiving")

    # ---------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[SqlDelivery]:
        await asyncio.sleep(0)
        waits = backoff(0.05, most=5.0)
        while not self._stopping:
            holder = self._returned.popleft() if self._returned else None
            if holder is None:
                if (line := await self._line()) is None:
                    continue  # the end, or somebody's rows came back
                try:
                    holder = await shielded(self._attempt(line, limit, linger), self._come_back)
                except Exception as exc:
                    if not self._passing(exc):
                        self._fail(exc)
                        self.stop()
                        break
                    await self._pause(0.0 if is_conflict(exc) else next(waits))
                    continue
            if holder is not None:
                return self._hand_out(holder)
            waits = backoff(0.05, most=5.0)
            await self._look_again()
        if self._error is not None:
            raise self._error
        return ()

    def _hand_out(self, holder: Holder) -> Sequence[SqlDelivery]:
        self._out += len(holder.members)
        self._received()
        self._keeper.add(holder)
        if self._idle:
            self._call_next()
        return holder.members

    def _come_back(self, holder: Holder | None) -> None:
        """The receive that asked for it was cancelled: the next gets it."""
        if holder is None:
            return
        if self._stopping:
            self._undelivered(holder)
        else:
            self._returned.append(holder)
            self._pass_line()
            self._wake.set()

    def _undelivered(self, holder: Holder) -> None:
        for delivery in holder.members:
            delivery.verdict = UNREAD
        self._released += len(holder.members)
        holder.done = holder.done or asyncio.get_running_loop().create_future()
        background(self.finish(holder), "sql:release")

    async def _line(self) -> Line | None:
        """A session's place, when one is free; None at the end."""
        while not self._free:
            if self._stopping or self._returned:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._wanting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._pass_line()
                raise
        return None if self._stopping else self._free.pop()

    async def _attempt(self, line: Line, limit: int, linger: float) -> Holder | None:
        """One look into the table. The line is given back unless rows came of it."""
        self._busy += 1
        holder = None
        try:
            holder = await self._claim(line, limit, linger)
            self._set_state("receiving")
        except BaseException:
            line.drop(abort=True)
            raise
        finally:
            self._busy -= 1
            if holder is None:
                self._give_line(line)
        if self._stopping and holder is not None and not linger:
            self._undelivered(holder)
            return None
        return holder

    @abstractmethod
    async def _claim(self, line: Line, limit: int, linger: float) -> Holder | None:
        """Rows on that line's session, or None. What it raises breaks the session off."""

    def _hold(self, line: Line, session: Session, rows: Sequence[Any]) -> Holder:
        holder = Holder(self, line, session)
        holder.members = [SqlDelivery(row, self._shape, holder, row[0]) for row in rows]
        holder.left = len(rows)
        self._holders.add(holder)
        session.on_lost(lambda: self._broke(holder))
        return holder

    def _give_line(self, line: Line) -> None:
        self._free.append(line)
        self._pass_line()

    def _pass_line(self) -> None:
        while self._wanting:
            waiter = self._wanting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # -------------------------------------------------------------------------------- waiting for rows

    async def _look_again(self) -> None:
        """One waits for news, the others wait for that one: an idle queue is looked at once, not once a worker."""
        if self._stopping:
            return
        if not self._scouting:
            self._scouting = True
            self._until_due()
            try:
                await self._wake.wait()
            except asyncio.CancelledError:
                self._call_next()
                raise
            finally:
                self._scouting = False
            return
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._call_next()
            raise

    def _call_next(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _more(self, deadline: float) -> None:
        """Collecting: until there is news, the time is over or the end has come."""
        waiter = asyncio.get_running_loop().create_future()
        self._pausing.add(waiter)
        news = spawn(self._wake.wait(), "sql:news")
        try:
            timeout = max(0.0, deadline - time.monotonic())
            await asyncio.wait([waiter, news], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            self._pausing.discard(waiter)

    async def _pause(self, seconds: float) -> None:
        """An outage: wait, but not over the end."""
        waiter = asyncio.get_running_loop().create_future()
        self._pausing.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            self._pausing.discard(waiter)

    # ------------------------------------------------------------------------------------------ settling

    async def finish(self, holder: Holder) -> None:
        """All deliveries of a session are decided."""
        held = [delivery for delivery in holder.members if delivery.lost is None]
        try:
            async with holder.using:
                if holder.over:
                    return
                await self._persist(holder, held)
        except Exception as exc:
            log.debug("%s: %r", self.where, exc)
            holder.chained = False
            self._lose_all(holder, self._undone(exc, len(held)))
            self._passing(exc)
        else:
            self._count(held)
        finally:
            self._end(holder)

    def _count(self, held: Sequence[SqlDelivery]) -> None:
        self._ended(sum(1 for delivery in held if delivery.verdict is not UNREAD))
        for kind, some in self.split(held):
            if kind == "bury":
                self._after_bury()
            elif kind != "finish":
                for delivery in some:
                    self._after_retry(delivery)

    @abstractmethod
    async def _persist(self, holder: Holder, held: Sequence[SqlDelivery]) -> None:
        """Settle them, and let the rows go."""

    @abstractmethod
    def _undone(self, error: Exception, count: int) -> SettleError:
        """What the deliveries are told when settling failed."""

    def _end(self, holder: Holder) -> None:
        if holder.over:
            return
        holder.over = True
        self._holders.discard(holder)
        self._keeper.discard(holder)
        holder.session.on_lost(None)
        if holder.session.in_transaction and not holder.chained:
            holder.line.drop(abort=True)
        self._give_line(holder.line)
        if holder.done is not None and not holder.done.done():
            holder.done.set_result(None)

    def _one_holder(self, deliveries: Sequence[SqlDelivery]) -> Holder:
        holder: Holder = deliveries[0].holder
        if len(deliveries) != len(holder.members) or any(delivery.holder is not holder for delivery in deliveries):
            raise Unsupported(
                f"{self.where}: a transaction goes with the deliveries of one session, here {len(holder.members)}; "
                "a lease (Role.LOCKED_UNTIL) takes any"
            )
        return holder

    def _unit(self, deliveries: Sequence[SqlDelivery], holder: Holder, undo: Callable[[], Awaitable[Any]]) -> Unit:
        """The holder's session is the unit's until it ends."""

        async def commit() -> None:
            # As the last delivery of its session always does; the unit is the one that waits for it.
            holder.left = 0
            await self.finish(holder)
            for delivery in deliveries:
                if delivery.lost is not None:
                    raise delivery.lost

        async def rolled_back() -> None:
            await undo()

        holder.unit = unit = SqlUnit(
            deliveries,
            holder.session,
            commit=commit,
            undo=rolled_back,
            finish=holder.unit_ended,
            recorder=self._recorder,
            inserter=self._inserter,
        )
        return unit

    # ------------------------------------------------------------------------------------------- losing

    def _broke(self, holder: Holder) -> None:
        """The session is gone, and its locks with it."""
        if not holder.over:
            self._lose_all(holder, SettleError(f"{self.where}: the connection broke, the row is free again"))
            holder.line.drop(abort=True)
            self._end(holder)

    def _lose_all(self, holder: Holder, error: SettleError) -> None:
        for delivery in holder.members:
            self._lose(delivery, error)

    async def _probe(self, holders: Sequence[Holder]) -> None:
        await asyncio.gather(*(self._probe_one(holder) for holder in holders))

    async def _probe_one(self, holder: Holder) -> None:
        if holder.unit is not None or holder.using.locked():
            return  # in use: whoever uses it finds out
        try:
            async with holder.using:
                if not holder.over:
                    await holder.session.fetch("SELECT 1")
        except Exception:
            holder.session.abort()
            self._broke(holder)

    # ------------------------------------------------------------------------------------------- ending

    def _stopped(self) -> None:
        for waiter in (*self._wanting, *self._idle, *self._pausing):
            if not waiter.done():
                waiter.set_result(None)
        while self._returned:
            self._undelivered(self._returned.popleft())

    async def aclose(self, grace: float) -> None:
        if self._closing is None:
            self._closing = spawn(self._aclose(time.monotonic() + grace), f"sql:{self._shape.name}:close")
        await asyncio.shield(self._closing)

    async def _aclose(self, deadline: float) -> None:
        self.stop()
        while (self._busy or any(h.left == 0 for h in self._holders)) and time.monotonic() < deadline:
            pending = [h.done for h in self._holders if h.left == 0 and h.done is not None]
            await asyncio.wait(pending, timeout=0.05) if pending else await asyncio.sleep(0.005)
        for holder in list(self._holders):
            # Handed out and never settled: the session's end frees the row.
            self._lose_all(holder, SettleError(f"{self.where}: closed before the row was settled"))
            holder.line.drop(abort=True)
            self._end(holder)
        await self._keeper.aclose()
        self._closed = True
        for line in self._free:
            line.drop()
        self._database.unreserve(self._lines)
        self._set_state("ended")
        self._leave()
