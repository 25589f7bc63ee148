"""One transaction for a delivery's settlement and the handler's own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ruststream_core.abc import Unit
from ruststream_core.errors import Closed, PublishError, SettleError
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Delivery, Outgoing
from ruststream_core_sql._dialects._base import Session
from ruststream_core_sql._records import Inserter, Record, Recorder
from ruststream_core_sql._subscription._delivery import SqlDelivery
from ruststream_core_sql._tasks import shielded
from ruststream_core_sql.errors import brief

__all__ = ["SqlUnit"]


class SqlUnit(Unit):
    """See `Unit`. How the transaction begins and ends is the form's.

    Args:
        delivery: the one delivery that it settles.
        session: where it runs.
        commit: settles the delivery inside, and commits; raises where it did not.
        undo: rolls back; the delivery stays in hand.
        finish: gives the session back, after either.
    """

    def __init__(
        self,
        delivery: SqlDelivery,
        session: Session,
        *,
        commit: Callable[[], Awaitable[None]],
        undo: Callable[[], Awaitable[None]],
        finish: Callable[[bool], None],
        recorder: Recorder,
        inserter: Inserter,
    ) -> None:
        self.native: Any = session.native
        self._session = session
        self._delivery = delivery
        self._commit = commit
        self._undo = undo
        self._finish = finish
        self._recorder = recorder
        self._inserter = inserter
        self._outgoing: list[Record] = []
        self._turn = asyncio.Lock()
        self._over = False

    def send(self, out: Outgoing) -> asyncio.Future[None] | None:
        if self._over:
            raise Closed("the transaction has ended")
        self._outgoing.append(self._recorder.of_message(out))
        return None

    async def commit(self, verdicts: Sequence[tuple[Delivery, Verdict]]) -> None:
        await shielded(self._committed(verdicts))

    async def _committed(self, verdicts: Sequence[tuple[Delivery, Verdict]]) -> None:
        async with self._turn:
            if self._over:
                raise Closed("the transaction has ended")
            delivery = self._delivery
            if delivery.lost is not None:
                await self._rolled_back()
                raise delivery.lost
            for mine, verdict in verdicts:
                if mine is delivery:
                    delivery.verdict = verdict
            try:
                if self._outgoing:
                    await self._inserter.insert(self._session, self._outgoing)
                await self._commit()
            except BaseException as exc:
                self._over = True
                self._finish(False)
                if isinstance(exc, SettleError | PublishError) or not isinstance(exc, Exception):
                    raise
                raise SettleError(f"the transaction of row {delivery.id!r} was not committed: {brief(exc)}") from exc
            self._over = True
            self._finish(True)
            self._inserter.tell(self._outgoing)

    async def rollback(self) -> None:
        await shielded(self._rollback())

    async def _rollback(self) -> None:
        async with self._turn:
            if not self._over:
                await self._rolled_back()

    async def _rolled_back(self) -> None:
        self._over = True
        try:
            await self._undo()
        except Exception:
            self._session.abort()
        self._finish(False)
