"""The outbox as middleware: around what leaves, and around what arrives."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Literal

from ruststream_core.errors import ConfigError, PublishError, RustStreamError
from ruststream_core.middleware import Handle, Middleware, Send
from ruststream_core.settlement import Retry, Skip
from ruststream_core.wire import Delivery, Outgoing
from ruststream_core_sql._outbox._home import Home
from ruststream_core_sql._outbox._rows import OUTBOX_ID, Row, is_acked, parse_id, record_of
from ruststream_core_sql._table import Table
from ruststream_core_sql._tasks import background, shielded
from ruststream_core_sql.errors import brief

__all__ = ["OutboxLayer"]

log: Final = logging.getLogger("ruststream.sql")


class OutboxLayer(Middleware):
    """See `Outbox`."""

    def __init__(self, home: Home, tables: Mapping[str, Table], *, handled: bool) -> None:
        self._home = home
        self._tables = tables
        self._handled = handled

    def publish(self, send: Send, broker: str) -> Send:
        """Record, send, finish."""
        tables = self._tables

        async def recorded(out: Outgoing) -> None:
            table = tables.get(out.name)
            if table is None or OUTBOX_ID in out.headers:
                await send(out)
                return
            row = await shielded(self._record(table, out))
            out.headers = out.headers.replaced({OUTBOX_ID: str(row.id)})
            try:
                await send(out)
            except RustStreamError as exc:
                log.warning("outbox %r: record %s stays for the relay: %s", out.name, row.id, exc)
                await shielded(self._settle(table, row, "retry"))
            else:
                if not self._handled:
                    # The caller need not wait: what is not finished in time is sent again, and that is all.
                    background(self._settle(table, row, "finish"), "sql:outbox")

        return recorded

    async def _record(self, table: Table, out: Outgoing) -> Row:
        try:
            store = await self._home.store(table)
            row, values = record_of(table, out, self._home.dialect, held=True)
            database = await self._home.database()
            async with database.session() as session:
                row_id = await store.record(session, tuple(values), tuple(values.values()))
        except (PublishError, ConfigError):
            raise
        except Exception as exc:
            raise PublishError(f"outbox {out.name!r}: not recorded, so not sent: {brief(exc)}") from exc
        row.id = row_id
        return row

    async def _settle(self, table: Table, row: Row, kind: Literal["finish", "retry"]) -> None:
        try:
            store = await self._home.store(table)
            database = await self._home.database()
            async with database.session() as session:
                await store.settle(session, kind, [row])
        except Exception as exc:
            log.warning(
                "outbox table %r: record %s is not finished and will be sent again: %s", table.name, row.id, exc
            )
            return
        if kind == "retry":
            self._home.hub.news(table.full_name)

    def consume(self, call: Handle, route: str) -> Handle:
        """A message whose record is gone or marked is acked without its handler; the handler's ack marks it."""
        if not self._handled:
            return call

        async def once(delivery: Delivery) -> object:
            table = self._tables.get(delivery.name)
            text = delivery.headers.get(OUTBOX_ID) if table is not None else None
            if table is None or text is None:
                return await call(delivery)
            try:
                row_id = parse_id(text, table.id)
                store = await self._home.store(table)
                database = await self._home.database()
                async with database.session() as session:
                    fresh = await store.unfinished(session, row_id)
            except Exception as exc:
                return Retry(after=1.0, reason=f"the outbox cannot be asked: {exc}")
            if not fresh:
                return Skip()
            result = await call(delivery)
            if is_acked(result):
                async with database.session() as session:
                    await store.finish_by_id(session, row_id)
            return result

        return once
