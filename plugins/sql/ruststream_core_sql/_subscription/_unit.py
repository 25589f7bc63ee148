"""One transaction for a delivery's settlement and the handler's own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

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


class Finish(Protocol):
    """Called once, when the transaction has ended."""

    def __call__(self, *, done: bool) -> None:
        """`done`: it was committed."""


class SqlUnit(Unit):
    """See `Unit`. How the transaction begins and ends is the form's.

    Args:
        deliveries: what it settles.
        session: where it runs.
        commit: settles them inside, and commits; raises where it did not.
        undo: rolls back; they stay in hand.
        finish: gives the session back, after either.
    """

    def __init__(
        self,
        deliveries: Sequence[SqlDelivery],
        session: Session,
        *,
        commit: Callable[[], Awaitable[None]],
        undo: Callable[[], Awaitable[None]],
        finish: Finish,
        recorder: Recorder,
        inserter: Inserter,
    ) -> None:
        self.native: Any = session.native
        self._session = session
        self._deliveries = deliveries
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
            for delivery in self._deliveries:
                if delivery.lost is not None:
                    await self._rolled_back()
                    raise delivery.lost
            for mine, verdict in verdicts:
                if isinstance(mine, SqlDelivery):
                    mine.verdict = verdict
            try:
                if self._outgoing:
                    await self._inserter.insert(self._session, self._outgoing)
                await self._commit()
            except BaseException as exc:
                self._over = True
                self._finish(done=False)
                if isinstance(exc, SettleError | PublishError) or not isinstance(exc, Exception):
                    raise
                raise SettleError(f"the transaction was not committed: {brief(exc)}") from exc
            self._over = True
            self._finish(done=True)
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
        self._finish(done=False)
