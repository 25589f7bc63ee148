"""The advisory lock: a session lock on a key made of the row's columns, and no open transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from ruststream_core.abc import Unit
from ruststream_core.errors import SettleError
from ruststream_core_sql._database import Line
from ruststream_core_sql._dialects._base import Session
from ruststream_core_sql._subscription._base import Opening
from ruststream_core_sql._subscription._delivery import SqlDelivery
from ruststream_core_sql._subscription._held import HeldSubscription, Holder
from ruststream_core_sql.errors import brief

__all__ = ["AdvisorySubscription"]

PAGE: Final = 16
MOST: Final = 4096
"""Candidates looked at before a claim gives up: with more rows than that whose keys are all locked, it waits."""


class AdvisorySubscription(HeldSubscription):
    """One session for each delivery. A batch is as many as can be locked one after the other."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening, opening.window)
        self._batch = opening.demand.batch
        self._template = opening.queue.table.advisory_lock or ""
        self._fields = [column.name for column in opening.queue.table.advisory_columns()]
        self._keys: dict[Holder | Line, str] = {}

    def _key_of(self, candidate: Sequence[Any]) -> str:
        return self._template.format(**dict(zip(self._fields, candidate[1:], strict=True)))

    async def _claim(self, line: Line, limit: int, linger: float) -> Holder | None:
        session = await line.get()
        size = max(PAGE, 2 * self.window)
        while True:
            candidates = await self._store.candidates(session, size)
            for candidate in candidates:
                key = self._key_of(candidate)
                if key in self._keys.values():
                    continue
                if (row := await self._take(line, session, key, candidate[0])) is not None:
                    holder = self._hold(line, session, [row])
                    self._keys[holder] = key
                    return holder
            if len(candidates) < size or size >= MOST or self._stopping:
                return None
            size *= 4

    async def _take(self, line: Line, session: Session, key: str, row_id: Any) -> Any | None:
        """Lock, then look whether it is still there to be had.

        From before the lock is asked for until it is given back, whatever goes wrong breaks the session off: one
        that might hold a lock never goes back to a pool.
        """
        self._keys[line] = key
        try:
            if not await self._store.try_lock(session, key):
                return None
            row = await self._store.take(session, row_id)
            if row is None and not await self._store.unlock(session, key):
                session.abort()
        except BaseException:
            session.abort()
            raise
        else:
            return row
        finally:
            del self._keys[line]

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[SqlDelivery]:
        first = await super().receive(1)
        if not first or self._batch == 1:
            return first
        batch = list(first)
        deadline = time.monotonic() + linger
        while len(batch) < min(limit, self._batch) and not self._stopping:
            more = await self._one_more() if self._free else None
            if more is not None:
                batch.extend(more)
            elif time.monotonic() < deadline:
                await self._more(deadline)
            else:
                break
        return batch

    async def _one_more(self) -> Sequence[SqlDelivery] | None:
        try:
            holder = await self._attempt(self._free.pop(), 1, 0.0)
        except Exception as exc:
            if not self._passing(exc):
                self._fail(exc)
            return None
        return None if holder is None else self._hand_out(holder)

    async def _persist(self, holder: Holder, held: Sequence[SqlDelivery]) -> None:
        key = self._keys[holder]
        session = holder.session
        for kind, some in self.split(held):
            if kind != "release":
                await self._store.settle(session, kind, some)
        if holder.session.in_transaction:  # a transactional handler's: visible before the lock is given back
            await session.commit()
        if held and not await self._store.unlock(session, key):
            session.abort()

    def _end(self, holder: Holder) -> None:
        self._keys.pop(holder, None)
        super()._end(holder)

    def _undone(self, error: Exception, count: int) -> SettleError:
        return SettleError(f"{self.where}: not settled, the row comes again: {brief(error)}")

    async def _begin(self, deliveries: Sequence[SqlDelivery]) -> Unit:
        """A transaction on the session that has the lock."""
        holder = self._one_holder(deliveries)
        async with holder.using:
            await holder.session.begin()
        return self._unit(deliveries, holder, holder.session.rollback)
