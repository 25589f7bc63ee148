"""The lease form: rows are claimed in batches ahead of the handlers, and settlements go out together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from ruststream_core.abc import Unit
from ruststream_core.errors import LeaseLost, SettleError
from ruststream_core.kit import Gather, Keeper, backoff
from ruststream_core.settlement import Verdict
from ruststream_core_sql._database import Line
from ruststream_core_sql._dialects._base import Kind, Session
from ruststream_core_sql._subscription._base import UNREAD, Opening, SqlSubscription, bounded, log
from ruststream_core_sql._subscription._delivery import SqlDelivery
from ruststream_core_sql._subscription._unit import SqlUnit
from ruststream_core_sql._tasks import shielded, spawn
from ruststream_core_sql._wake import Pace
from ruststream_core_sql.errors import is_conflict, is_passing

__all__ = ["Claim", "LeaseSubscription"]

GATHERED: Final = 1000
"""Settlements in one statement at most."""


class Claim:
    """The rows of one claim, which share their lease."""

    __slots__ = ("expires", "members", "open", "owner", "timer")

    def __init__(self, owner: LeaseSubscription, expires: float) -> None:
        self.owner = owner
        self.expires = expires
        self.members: list[SqlDelivery] = []
        self.open = 0
        self.timer: asyncio.TimerHandle | None = None

    def settle(self, delivery: SqlDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """Called by the delivery."""
        return self.owner.settle(delivery)


class LeaseSubscription(SqlSubscription):
    """One line claims, another settles and renews, each for itself, so that both go on while handlers run."""

    LINES: Final = 2

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self._lease = opening.queue.lease
        self._claims = Line(opening.database, opening.queue.table.isolation)
        self._settlements = Line(opening.database, opening.queue.table.isolation)
        self._turn = asyncio.Lock()
        self._gather: Gather[SqlDelivery] = Gather(self._flush, limit=GATHERED)
        self._keeper: Keeper[Claim] = Keeper(self._lease, self._renew)
        # What is read ahead is never more than the window, and at least what the workers take at once.
        self._pace = Pace(max(opening.demand.workers * opening.demand.batch, 1), max(opening.window // 2, 1))
        self._room: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._want = 1
        self._fetching: asyncio.Task[None] | None = None
        self._in_hand: set[Claim] = set()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._database.reserve(self.LINES, self.where)
        try:
            await self._store.inspect(await self._claims.get())
        except BaseException:
            self._detach()
            raise
        self._fetching = spawn(self._fetch(), f"sql:{self._shape.name}:claims")

    def _detach(self) -> None:
        self._closed = True
        self._leave()
        self._claims.drop()
        self._settlements.drop()
        self._database.unreserve(self.LINES)

    # ------------------------------------------------------------------------------------------- claiming

    async def _fetch(self) -> None:
        waits = backoff(0.05, most=5.0)
        try:
            while not self._stopping:
                if not (room := await self._wait_for_room()):
                    break
                try:
                    full = await shielded(self._claim(min(room, self._pace.size)))
                except Exception as exc:
                    if not self._passing(exc):
                        raise
                    await asyncio.sleep(0 if is_conflict(exc) else next(waits))
                    continue
                waits = backoff(0.05, most=5.0)
                if not full and not self._stopping:
                    self._until_due()
                    await self._wake.wait()
        except Exception as exc:
            log.error("%s: claiming ends: %r", self.where, exc)
            self._fail(exc)
        finally:
            self._set_state("ended")
            self._stopping = True
            self._notify()

    async def _wait_for_room(self) -> int:
        """A claim's worth, so that claims stay few; whatever there is, when somebody waits for it. 0 at the end."""
        while not self._stopping:
            room = self.window - self._out - len(self._buffer)
            wanted = self._waiter is not None and room > 0
            # Rows that wait unread are enough: what else is claimed only ages here.
            if wanted or (room >= min(self._pace.size, self.window) and len(self._buffer) <= self._pace.size):
                return room
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        return 0

    def _let_in(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    async def _claim(self, limit: int) -> bool:
        session = await self._claims.get()
        asked = time.monotonic()
        self._pace.claimed(asked, self._done)
        token, rows = await self._store.claim(session, limit)
        self._set_state("receiving")
        if not rows:
            return False
        self._received()
        claim = Claim(self, asked + self._lease)
        shape = self._shape
        members = claim.members = [SqlDelivery(row, shape, claim, row[0], token) for row in rows]
        claim.open = len(members)
        self._in_hand.add(claim)
        self._keeper.add(claim)
        self._arm(claim)
        self._buffer.extend(members)
        if self._stopping:
            self._give_back()
        self._notify()
        return len(rows) >= limit

    # ------------------------------------------------------------------------------------------ receiving

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[SqlDelivery]:
        buffer = self._buffer
        if buffer:
            await asyncio.sleep(0)
        while not buffer and not self._stopping:
            await self._filled(1, None)
        if linger > 0 and len(buffer) < limit and not self._stopping:
            await self._filled(limit, linger)
        if not buffer and self._error is not None:
            raise self._error
        out = self._deliver(limit)
        if self._room is not None:
            self._let_in()
        return out

    async def _filled(self, want: int, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        self._want = want
        if self._room is not None:
            self._let_in()
        timer = None if seconds is None else loop.call_later(seconds, self._linger_over, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    @staticmethod
    def _linger_over(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def _notify(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (len(self._buffer) >= self._want or self._stopping):
            waiter.set_result(None)

    # ------------------------------------------------------------------------------------------- settling

    def settle(self, delivery: SqlDelivery) -> asyncio.Future[None] | None:
        """See `Delivery.settle`."""
        return None if self._closed else self._gather.add(delivery)

    async def _flush(self, deliveries: Sequence[SqlDelivery]) -> None:
        # A renewal of the same row may be under way: with `locked_until` as token it changes what we must name.
        async with self._turn:
            for kind, some in self.split(deliveries):
                await self._persist(kind, some)

    async def _persist(self, kind: Kind, deliveries: Sequence[SqlDelivery]) -> None:
        """Settle, through outages, for as long as the leases last."""
        held = [delivery for delivery in deliveries if delivery.lost is None]
        waits = backoff(0.02, most=1.0)
        uncertain = False
        while held:
            try:
                ours = await self._store.settle(await self._settlements.get(), kind, held)
            except Exception as exc:
                if not is_passing(exc):
                    self._refused(held, exc)
                    return
                # The statement may have been committed before the answer was lost.
                uncertain = uncertain or not is_conflict(exc)
                await asyncio.sleep(next(waits))
                held = [delivery for delivery in held if delivery.lost is None]
                continue
            self._settled(kind, held, ours, uncertain=uncertain)
            return

    def _settled(self, kind: Kind, held: Sequence[SqlDelivery], ours: set[Any] | None, *, uncertain: bool) -> None:
        if ours is not None and not uncertain:
            for delivery in held:
                if delivery.id not in ours:
                    self._lose(delivery, LeaseLost(f"{self.where}: row {delivery.id!r} is held by somebody else"))
        done = 0
        for delivery in held:
            if delivery.lost is None:
                done += delivery.verdict is not UNREAD
                self._close_one(delivery)
        if kind == "bury":
            self._after_bury()
        if kind in ("retry", "release"):
            for delivery in held:
                self._after_retry(delivery)
        self._ended(done)

    def _refused(self, held: Sequence[SqlDelivery], error: Exception) -> None:
        """The database does not take the settlement: no use in going on with such a queue."""
        log.error("%s: settling failed: %r", self.where, error)
        self._fail(error)
        for delivery in held:
            self._lose(delivery, SettleError(f"{self.where}: row {delivery.id!r}: {error}"))
        self.stop()

    def _close_one(self, delivery: SqlDelivery) -> None:
        claim: Claim = delivery.holder
        claim.open -= 1
        if claim.open == 0:
            self._close(claim)

    def _close(self, claim: Claim) -> None:
        self._keeper.discard(claim)
        self._in_hand.discard(claim)
        claim.members = []
        if claim.timer is not None:
            claim.timer.cancel()

    def _ended(self, count: int) -> None:
        super()._ended(count)
        if self._room is not None:
            self._let_in()

    async def _begin(self, deliveries: Sequence[SqlDelivery]) -> Unit:
        """A transaction of its own; the leases go on beside it, and the ack is inside under the token."""
        session = await self._database.acquire()
        try:
            if (level := self.queue.table.isolation) is not None:
                await session.isolate(level)
            await session.begin()
        except BaseException:
            session.abort()
            self._database.release(session)
            raise

        async def commit() -> None:
            async with self._turn:
                await self._settle_in(session, deliveries)

        def finish(*, done: bool) -> None:
            self._database.release(session)
            if done:
                for kind, some in self.split(deliveries):
                    self._settled(kind, some, None, uncertain=False)

        return SqlUnit(
            deliveries,
            session,
            commit=commit,
            undo=session.rollback,
            finish=finish,
            recorder=self._recorder,
            inserter=self._inserter,
        )

    async def _settle_in(self, session: Session, deliveries: Sequence[SqlDelivery]) -> None:
        try:
            for kind, some in self.split(deliveries):
                if await self._store.settle(session, kind, some) is not None:
                    raise LeaseLost(f"{self.where}: a row of the transaction is held by somebody else")  # noqa: TRY301
            await session.commit()
        except BaseException as exc:
            session.abort()
            error = exc if isinstance(exc, SettleError) else SettleError(f"{self.where}: not committed: {exc}")
            for delivery in deliveries:
                self._lose(delivery, error)
            raise

    # -------------------------------------------------------------------------------------------- keeping

    def _arm(self, claim: Claim) -> None:
        """Nobody may go on working on a row that somebody else can have: told shortly before the lease is over."""
        margin = min(1.0, self._lease / 10)
        wait = claim.expires - margin - time.monotonic()
        claim.timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._expire, claim)

    def _expire(self, claim: Claim) -> None:
        if claim.expires - min(1.0, self._lease / 10) > time.monotonic():
            self._arm(claim)
            return
        for delivery in claim.members:
            if delivery.lost is None:
                self._lose(delivery, LeaseLost(f"{self.where}: the lease of row {delivery.id!r} ran out"))

    def _lose(self, delivery: SqlDelivery, error: SettleError) -> None:
        if delivery.lost is None:
            super()._lose(delivery, error)
            self._close_one(delivery)

    async def _renew(self, claims: Sequence[Claim]) -> None:
        await shielded(self._renewed(claims))

    async def _renewed(self, claims: Sequence[Claim]) -> None:
        async with self._turn:
            members = [m for claim in claims for m in claim.members if m.verdict is None and m.lost is None]
            if not members:
                return
            asked = time.monotonic()
            ours, token = await self._store.extend(await self._settlements.get(), members)
            for member in members:
                if ours is not None and member.id not in ours:
                    self._lose(member, LeaseLost(f"{self.where}: row {member.id!r} is held by somebody else"))
                elif token is not None:
                    member.token = token
            for claim in claims:
                claim.expires = asked + self._lease

    # --------------------------------------------------------------------------------------------- ending

    def _stopped(self) -> None:
        self._give_back()
        self._let_in()
        self._notify()

    def _give_back(self) -> None:
        """What was claimed and never handed out."""
        while self._buffer:
            delivery = self._buffer.popleft()
            delivery.verdict = UNREAD
            self._released += 1
            _ = self._gather.add(delivery)

    async def aclose(self, grace: float) -> None:
        if self._closing is None:
            self._closing = spawn(self._aclose(time.monotonic() + grace), f"sql:{self._shape.name}:close")
        await asyncio.shield(self._closing)

    async def _aclose(self, deadline: float) -> None:
        self.stop()
        if self._fetching is not None and not await bounded(self._fetching, deadline):
            self._fetching.cancel()
            self._claims.drop(abort=True)
        for claim in list(self._in_hand):
            self._abandon(claim)
        if not await bounded(flushed := spawn(self._gather.aclose(), "sql:flush"), deadline):
            flushed.cancel()
            self._settlements.drop(abort=True)
        for claim in list(self._in_hand):
            for delivery in claim.members:
                # What the flush did not reach in time: its fate is the database's, ours it is not any more.
                self._lose(delivery, LeaseLost(f"{self.where}: row {delivery.id!r} was not settled in time"))
        await self._keeper.aclose()
        self._detach()

    def _abandon(self, claim: Claim) -> None:
        """Handed out and never settled: released now, so that nobody has to wait for the lease to run out."""
        for k, delivery in enumerate(claim.members):
            if delivery.verdict is None and delivery.lost is None:
                ghost = SqlDelivery(delivery.record, self._shape, claim, delivery.id, delivery.token, UNREAD)
                claim.members[k] = ghost
                super()._lose(delivery, SettleError(f"{self.where}: closed before row {delivery.id!r} was settled"))
                _ = self._gather.add(ghost)
