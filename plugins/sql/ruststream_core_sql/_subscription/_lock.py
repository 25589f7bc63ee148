"""The row lock: the transaction that locked the rows stays open until their handlers are done."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ruststream_core.abc import Unit
from ruststream_core.errors import SettleError
from ruststream_core_sql._database import Line
from ruststream_core_sql._subscription._base import Opening
from ruststream_core_sql._subscription._delivery import SqlDelivery
from ruststream_core_sql._subscription._held import HeldSubscription, Holder
from ruststream_core_sql.errors import BatchRolledBack, brief

__all__ = ["LockSubscription"]


class LockSubscription(HeldSubscription):
    """One transaction for each call of `receive`; its last delivery to finish settles all and commits."""

    def __init__(self, opening: Opening) -> None:
        fifo = opening.queue.table.fifo
        super().__init__(opening, 1 if fifo else -(-opening.window // opening.demand.batch))
        self._batch = 1 if fifo else opening.demand.batch

    async def _claim(self, line: Line, limit: int, linger: float) -> Holder | None:
        session = await line.get()
        limit = min(limit, self._batch)
        rows = await self._store.begin_lock(session, limit)
        deadline = time.monotonic() + linger
        while 0 < len(rows) < limit and self._collects(deadline):
            # The rows stay free while more are waited for.
            await self._store.end_lock(session)
            await self._more(deadline)
            rows = await self._store.begin_lock(session, limit)
        if not rows:
            await self._store.end_lock(session)
            return None
        return self._hold(line, session, rows)

    def _collects(self, deadline: float) -> bool:
        return time.monotonic() < deadline and not self._stopping and not self.queue.table.count_crashes

    async def _persist(self, holder: Holder, held: Sequence[SqlDelivery]) -> None:
        kinds = self.split(held)
        if all(kind == "release" for kind, _ in kinds) and not self.queue.table.count_crashes:
            await self._store.end_lock(holder.session)
            return
        holder.chained = again = bool(self._wanting) and not self._stopping
        await self._store.settle_commit(holder.session, kinds, again=again)

    def _undone(self, error: Exception, count: int) -> SettleError:
        if count > 1:
            return BatchRolledBack(f"{self.where}: {brief(error)}; all {count} rows of the batch come again")
        return SettleError(f"{self.where}: rolled back: {brief(error)}")

    async def _begin(self, deliveries: Sequence[SqlDelivery]) -> Unit:
        """Inside the transaction that locked the rows, behind a savepoint."""
        holder = self._one_holder(deliveries)
        async with holder.using:
            await holder.session.execute("SAVEPOINT unit")
        return self._unit(deliveries, holder, lambda: holder.session.execute("ROLLBACK TO SAVEPOINT unit"))
