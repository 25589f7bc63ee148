"""The receiving side: each message once."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from ruststream_core.abc import Marker
from ruststream_core.errors import ConfigError, RustStreamError
from ruststream_core.middleware import Handle, Middleware
from ruststream_core.settlement import Retry, Skip
from ruststream_core.wire import Delivery
from ruststream_core_sql._dialects._base import Dialect, Session
from ruststream_core_sql._openers import dialect_of_name
from ruststream_core_sql._outbox._home import Home
from ruststream_core_sql._outbox._rows import OUTBOX_ID, is_acked
from ruststream_core_sql._tasks import shielded
from ruststream_core_sql.errors import is_duplicate

__all__ = ["Inbox", "InboxTransaction"]

log: Final = logging.getLogger("ruststream.sql")

_CURRENT: ContextVar[Any] = ContextVar("inbox transaction")

_NOW: Final = {"postgresql": "now()", "mysql": "UTC_TIMESTAMP(6)", "sqlite": "CAST(strftime('%s', 'now') AS INTEGER)"}
_TYPES: Final = {
    "postgresql": ("text", "timestamptz"),
    "mysql": ("varchar(255) CHARACTER SET ascii COLLATE ascii_bin", "datetime(6)"),
    "sqlite": ("text", "integer"),
}
PURGED: Final = 1000


class InboxTransaction(Marker):
    """`Annotated[asyncpg.Connection, InboxTransaction]`: the transaction in which the message is marked as seen.

    What the handler writes on it is committed together with that mark, or not at all.
    """

    def bind(self, name: str, annotation: Any) -> Callable[[Delivery], Any]:
        def read(_: Delivery) -> Any:
            try:
                return _CURRENT.get()
            except LookupError:
                raise ConfigError(f"parameter {name!r}: no Inbox is among the middleware of this route") from None

        return read


class Inbox(Middleware):
    """A message whose id was seen before is acked without its handler.

    The id is inserted in a transaction that commits when the handler acks and is rolled back otherwise. A handler
    that writes through that transaction (`InboxTransaction`) takes effect once, however often the message comes. One
    that writes elsewhere is protected from everything but a crash between its own commit and this one.

    Args:
        database: a URL, an `asyncpg.Pool` or `asyncmy.Pool`, or a `SqlBroker`.
        table: the table, which `ddl` shows.
        ttl: seconds that an id is remembered.
        message_id: a message's id, None for one that passes unseen. As it is: the outbox's id under the message's
            name, else the header `message-id`, else `nats-msg-id`.
        scope: a prefix for the ids, where several services share the table. Each route has its own ids besides.
        pool_size: most sessions at once: at least as many as there are handlers at work.
    """

    def __init__(
        self,
        database: Any,
        table: str = "inbox",
        *,
        ttl: float = 7 * 86_400.0,
        message_id: Callable[[Delivery], str | None] | None = None,
        scope: str = "",
        pool_size: int = 16,
    ) -> None:
        self.home = Home(database, pool_size)
        self._table = self.home.dialect.quote(table)
        self._ttl = ttl
        self._message_id = message_id or _message_id
        self._scope = scope
        self._purged = 0.0
        self._insert, self._purge_sql = _statements(self.home.dialect, self._table, ttl)

    def ddl(self, dialect: str | None = None) -> list[str]:
        """CREATE TABLE and CREATE INDEX, of this database or of the one named."""
        name = dialect or self.home.dialect.name
        kind = dialect_of_name(name)
        key, moment = _TYPES[name]
        plain = kind.quote(self._table.strip(self.home.dialect.quote_mark))
        index = kind.quote(f"{plain.strip(kind.quote_mark)}_seen_at")
        return [
            f"CREATE TABLE {plain} (message_id {key} NOT NULL PRIMARY KEY, seen_at {moment} NOT NULL)",
            f"CREATE INDEX {index} ON {plain} (seen_at)",
        ]

    def consume(self, call: Handle, route: str) -> Handle:
        """See `Middleware.consume`."""
        prefix = f"{self._scope}{route}:"

        async def once(delivery: Delivery) -> object:
            message_id = self._message_id(delivery)
            if message_id is None:
                return await call(delivery)
            try:
                database = await self.home.database()
                session = await database.acquire()
            except RustStreamError as exc:
                return Retry(after=1.0, reason=f"the inbox cannot be reached: {exc}")
            try:
                return await self._once(session, prefix + message_id, call, delivery)
            finally:
                # Whatever is still open on it is thrown away with it.
                database.release(session)

        return once

    async def _once(self, session: Session, message_id: str, call: Handle, delivery: Delivery) -> object:
        try:
            fresh = await shielded(self._see(session, message_id))
        except Exception as exc:
            session.abort()
            return Retry(after=1.0, reason=f"the inbox failed: {exc}")
        if not fresh:
            await shielded(session.rollback())
            return Skip()
        before = _CURRENT.set(session.native)
        try:
            result = await call(delivery)
        except BaseException:
            await shielded(_rollback(session))
            raise
        finally:
            _CURRENT.reset(before)
        await shielded(session.commit() if is_acked(result) else _rollback(session))
        await self._forget(session)
        return result

    async def _see(self, session: Session, message_id: str) -> bool:
        """Begin, and insert the id; whoever else has it uncommitted is waited for."""
        await session.begin()
        try:
            return await session.execute(self._insert, (message_id,)) == 1
        except Exception as exc:
            if is_duplicate(exc):
                return False
            raise

    async def _forget(self, session: Session) -> None:
        """Ids past their time, in bounded batches, now and then."""
        if time.monotonic() - self._purged < 60:
            return
        self._purged = time.monotonic()
        try:
            await session.execute(self._purge_sql)
        except Exception as exc:
            log.warning("inbox %s: old ids stay for now: %s", self._table, exc)

    async def aclose(self) -> None:
        """Close the inbox's own sessions."""
        await self.home.aclose()


async def _rollback(session: Session) -> None:
    try:
        await session.rollback()
    except Exception:
        session.abort()


def _statements(dialect: Dialect, table: str, ttl: float) -> tuple[str, str]:
    now = _NOW[dialect.name]
    if dialect.name == "postgresql":
        insert = f"INSERT INTO {table} (message_id, seen_at) VALUES ($1, {now}) ON CONFLICT DO NOTHING"
        old = f"SELECT message_id FROM {table} WHERE seen_at < {now} - interval '{ttl} seconds' LIMIT {PURGED}"
        return insert, f"DELETE FROM {table} WHERE message_id IN ({old})"
    if dialect.name == "mysql":
        insert = f"INSERT INTO {table} (message_id, seen_at) VALUES (%s, {now})"
        old = f"{now} - INTERVAL {int(ttl * 1e6)} MICROSECOND"
        return insert, f"DELETE FROM {table} WHERE seen_at < {old} LIMIT {PURGED}"
    insert = f"INSERT INTO {table} (message_id, seen_at) VALUES (?, {now}) ON CONFLICT DO NOTHING"
    old = f"SELECT message_id FROM {table} WHERE seen_at < {now} - {int(ttl)} LIMIT {PURGED}"
    return insert, f"DELETE FROM {table} WHERE message_id IN ({old})"


def _message_id(delivery: Delivery) -> str | None:
    headers = delivery.headers
    if (outbox_id := headers.get(OUTBOX_ID)) is not None:
        return f"{delivery.name}:{outbox_id}"
    return headers.get("message-id") or headers.get("nats-msg-id")
