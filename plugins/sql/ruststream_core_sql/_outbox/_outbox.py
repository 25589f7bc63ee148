"""The sending side: what is recorded, and what becomes of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal

import msgspec

from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.wire import Headers, Outgoing
from ruststream_core_sql._callers import caller_session
from ruststream_core_sql._dialects._base import Queue, Store
from ruststream_core_sql._outbox._home import Home
from ruststream_core_sql._outbox._layer import OutboxLayer
from ruststream_core_sql._outbox._relay import Publishes, Relay
from ruststream_core_sql._outbox._rows import record_of
from ruststream_core_sql._table import Table, table_of
from ruststream_core_sql._tasks import shielded
from ruststream_core_sql.errors import brief

__all__ = ["Outbox"]


class Outbox:
    """Messages of certain names are recorded in the database before they are sent, and sent until they arrived.

    Its middleware (`app.use(outbox.middleware())`) stands around every publish of a registered name: the record is
    committed, then the message is sent with the header `x-ruststream-outbox-id`, then the record is finished. Where
    recording fails nothing is sent and the publish fails; where sending fails the record stays, the relay sends it,
    and the publish counts as done. Other names pass with one look into a mapping.

    Args:
        database: a URL, an `asyncpg.Pool` or `asyncmy.Pool`, or a `SqlBroker`.
        tables: the row type of each message name, decorated with `@outbox`.
        finish: who finishes a record. `confirmed`: the broker's confirmation. `handled`: the receiver, where it
            shares this database and uses the same middleware: a duplicate is then acked without its
            handler, and what no handler has acked within `resend` seconds is sent again by the relay.
        resend: see `finish`.
        encode: writes the value of `publish` as a body; bytes are left as they are.
        pool_size: most sessions at once.

    Raises:
        ConfigError: a class is no outbox row type.
    """

    def __init__(
        self,
        database: Any,
        tables: Mapping[str, type],
        *,
        finish: Literal["confirmed", "handled"] = "confirmed",
        resend: float = 60.0,
        encode: Callable[[Any], bytes] | None = None,
        pool_size: int = 8,
    ) -> None:
        self.tables = {name: table_of(row_type) for name, row_type in tables.items()}
        for name, table in self.tables.items():
            if table.kind != "outbox":
                raise ConfigError(f"Outbox: {name!r}: {table.full_name!r} is an inbox, decorate the class with @outbox")
        self.home = Home(database, pool_size)
        self.finish = finish
        self.resend = resend
        self._encode = encode or _encode
        self._foreign: dict[tuple[str, type], Store] = {}

    def __repr__(self) -> str:
        return f"Outbox({', '.join(self.tables)})"

    def middleware(self) -> OutboxLayer:
        """For `app.use`: records what is published, and finishes what is handled."""
        return OutboxLayer(self.home, self.tables, handled=self.finish == "handled")

    # ------------------------------------------------------------------------------------ recording by the caller

    async def publish(
        self,
        value: Any,
        *,
        to: str,
        headers: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        connection: Any = None,
    ) -> Any:
        """Record a message; the relay sends it.

        Args:
            value: the message; bytes are the body, anything else is encoded.
            to: its name, one of the outbox's.
            headers: its headers.
            key: what keeps its order.
            connection: the caller's own connection or session with a transaction open, of asyncpg, asyncmy or
                SQLAlchemy: the message is sent if and only if that transaction commits. Without it the record is
                committed at once.

        Returns:
            The record's id.

        Raises:
            ConfigError: the connection has no open transaction.
            PublishError: the name is not registered, or the record was not stored.
        """
        table = self.tables.get(to)
        if table is None:
            raise PublishError(f"outbox: no table for {to!r}; it has {', '.join(self.tables)}")
        plain = isinstance(value, bytes)
        fields = Headers(headers or {})
        if not plain and table.get("headers") is not None and "content-type" not in fields:
            fields = fields.replaced({"content-type": "application/json"})
        out = Outgoing(
            value if plain else self._encode(value), to, fields, key.encode() if isinstance(key, str) else key
        )
        if connection is None:
            return await shielded(self._committed(table, out))
        async with caller_session(connection) as session:
            store = await self._store_for(session, table)
            _, values = record_of(table, out, session.dialect, held=False)
            row_id = await store.record(session, tuple(values), tuple(values.values()))
        self.home.hub.news(table.full_name)
        return row_id

    async def _committed(self, table: Table, out: Outgoing) -> Any:
        store = await self.home.store(table)
        _, values = record_of(table, out, self.home.dialect, held=False)
        database = await self.home.database()
        try:
            async with database.session() as session:
                row_id = await store.record(session, tuple(values), tuple(values.values()))
        except Exception as exc:
            raise PublishError(f"outbox {out.name!r}: not recorded: {brief(exc)}") from exc
        self.home.hub.news(table.full_name)
        return row_id

    async def _store_for(self, session: Any, table: Table) -> Store:
        """Statements for the caller's connection; the caller's database may be another than ours."""
        key = (session.dialect.name, table.row_type)
        store = self._foreign.get(key)
        if store is None:
            store = session.dialect.store(Queue(table=table))
            await store.inspect(session)
            self._foreign[key] = store
        return store

    # ------------------------------------------------------------------------------------------------- relaying

    def relay(self, publisher: Publishes, *, batch: int = 100, poll: float = 1.0, keep: float = 86_400.0) -> Relay:
        """What sends the records that nobody has sent, for as long as it is entered.

        Args:
            publisher: a `Running`, or any of its publishers.
            batch: most records in one statement.
            poll: seconds between two looks into a table without records.
            keep: seconds that marked records stay before they are removed.
        """
        return Relay(self, publisher, batch=batch, poll=poll, keep=keep)

    @contextlib.asynccontextmanager
    async def relaying(self, publisher: Publishes, **settings: Any) -> AsyncIterator[Relay]:
        """`relay`, started and stopped around a body."""
        relay = self.relay(publisher, **settings)
        await relay.start()
        try:
            yield relay
        finally:
            await relay.aclose()

    async def aclose(self) -> None:
        """Close the outbox's own sessions."""
        await self.home.aclose()


def _encode(value: Any) -> bytes:
    if hasattr(value, "model_dump_json"):  # a pydantic model
        text: str = value.model_dump_json()
        return text.encode()
    return msgspec.json.encode(value)
