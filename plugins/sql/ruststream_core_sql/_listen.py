"""PostgreSQL: LISTEN on a connection of its own, kept alive and replaced when it is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from ruststream_core.kit import backoff
from ruststream_core_sql._database import Database
from ruststream_core_sql._dialects._base import Session
from ruststream_core_sql._dialects._postgres import channel_of
from ruststream_core_sql._table import Table
from ruststream_core_sql._tasks import spawn
from ruststream_core_sql._wake import Hub

__all__ = ["Listener"]

log: Final = logging.getLogger("ruststream.sql")

PROBE: Final = 10.0
"""Seconds between two signs of life asked for. Nothing else is sent on the connection, so a half-open one is silent."""
ANSWER: Final = 5.0


class Listener:
    """Wakes the hub's subscriptions when another process has published.

    Polling stays as the floor: what is lost between two connections is found by one look of everybody after each
    reconnect, and by the poll in the meantime.
    """

    def __init__(self, database: Database, hub: Hub) -> None:
        self._database = database
        self._hub = hub
        self._tables: dict[str, Table] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self.connects = 0

    async def listen(self, table: Table) -> None:
        """Be told of that table's news from now on.

        Raises:
            ConfigError: its name is too long for a channel.
            ConnectError: not now.
        """
        self._tables.setdefault(channel_of(table), table)
        self._changed.set()
        if self._task is None:
            self._database.reserve(1, "listen=True")
            session = await self._connect()
            self._task = spawn(self._run(session), "sql:listen")

    async def _connect(self) -> Session:
        session = await self._database.acquire()
        try:
            self._lost.clear()
            session.on_lost(self._lost.set)
            await self._add(session, set())
        except BaseException:
            session.abort()
            self._database.release(session)
            raise
        self.connects += 1
        return session

    async def _add(self, session: Session, known: set[str]) -> set[str]:
        self._changed.clear()
        for channel in set(self._tables) - known:
            await session.native.add_listener(channel, self._told)
        return set(self._tables)

    def _told(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        table = self._tables.get(channel)
        if table is not None:
            self._hub.news(table.full_name, payload or None)

    async def _run(self, session: Session | None) -> None:
        waits = backoff(0.1, most=10.0)
        while True:
            try:
                session = session or await self._connect()
                self._hub.all()
                waits = backoff(0.1, most=10.0)
                await self._stay(session)
            except Exception as exc:
                log.warning("listening on %s was interrupted: %s", self._database.opener.where, exc)
            finally:
                if session is not None:
                    session.on_lost(None)
                    session.abort()
                    self._database.release(session)
                    session = None
            await asyncio.sleep(next(waits))

    async def _stay(self, session: Session) -> None:
        """Until the connection is lost or does not answer."""
        known = set(self._tables)
        while not session.broken:
            waiting = {spawn(self._lost.wait(), "sql:lost"), spawn(self._changed.wait(), "sql:changed")}
            try:
                await asyncio.wait(waiting, timeout=PROBE, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if self._lost.is_set():
                raise ConnectionError("the connection was closed")
            if self._changed.is_set():
                known = await self._add(session, known)
            async with asyncio.timeout(ANSWER):
                await session.fetch("SELECT 1")

    async def aclose(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._database.unreserve(1)
