"""Whether a live database takes every statement, before a message flows."""

from __future__ import annotations

from collections.abc import Sequence

from ruststream_core.errors import ConfigError
from ruststream_core_sql._database import Database
from ruststream_core_sql._dialects._base import Queue, Session, Store
from ruststream_core_sql._openers import opener_of
from ruststream_core_sql._table import Table
from ruststream_core_sql.errors import brief, is_passing

__all__ = ["check_store", "check_tables"]


async def check_store(store: Store, session: Session) -> None:
    """Have every statement prepared.

    Raises:
        ConfigError: the database refuses one; names the table and says why.
    """
    for purpose, sql in store.statements().items():
        try:
            await store.prepare(session, sql)
        except Exception as exc:
            if is_passing(exc):
                raise
            raise ConfigError(
                f"table {store.queue.table.full_name!r}: the statement for {purpose}: {brief(exc)}"
            ) from exc


async def check_tables(url: str, tables: Sequence[Table]) -> list[str]:
    """Every problem that the database has with these tables, one line each.

    Raises:
        ConnectError: it cannot be reached.
    """
    database = Database(opener_of(url, 30.0), 2)
    problems = []
    try:
        await database.start()
        for table in tables:
            name = "check" if table.get("group") is not None else None
            queue = Queue(table=table, name=name, dead_group="dead" if name else None)
            try:
                database.dialect.suits(queue)
                async with database.session() as session:
                    store = database.dialect.store(queue)
                    await store.inspect(session)
                    await check_store(store, session)
            except ConfigError as exc:
                problems.append(str(exc))
    finally:
        await database.aclose()
    return problems
