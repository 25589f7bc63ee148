"""The caller's own connection, with the caller's own transaction."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ruststream_core.errors import ConfigError
from ruststream_core_sql._dialects._base import Dialect, Session
from ruststream_core_sql._openers import dialect_of_name

__all__ = ["CallerSession", "caller_session"]


class CallerSession(Session):
    """A session over a connection that stays the caller's: never committed, rolled back or closed from here."""

    dialect: Dialect
    worker: Any = None

    def __init__(self, inner: Any, dialect: Dialect) -> None:
        self._inner = inner
        self.native = inner.native
        self.dialect = dialect
        self.worker = getattr(inner, "worker", None)
        self.mariadb = getattr(inner, "mariadb", False)

    async def fetch(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Any]:
        rows: Sequence[Any] = await self._inner.fetch(sql, args)
        return rows

    async def execute(self, sql: str, args: Sequence[Any] = ()) -> int:
        count: int = await self._inner.execute(sql, args)
        return count

    async def run(self, work: Any) -> Any:
        """SQLite: a piece of work on its thread."""
        return await self._inner.run(work)

    def literal(self, value: Any) -> str:
        """MySQL: a value as it stands in a statement."""
        text: str = self._inner.literal(value)
        return text

    async def begin(self) -> None:
        raise ConfigError("the transaction is the caller's")

    commit = begin
    rollback = begin

    @property
    def broken(self) -> bool:
        return bool(self._inner.broken)

    @property
    def in_transaction(self) -> bool:
        return True

    def abort(self) -> None:
        """The connection is the caller's."""

    async def aclose(self) -> None:
        """The connection is the caller's."""


@contextlib.asynccontextmanager
async def caller_session(connection: Any) -> AsyncIterator[CallerSession]:
    """A session over what a caller passed as `connection=`.

    Raises:
        ConfigError: it is none that is understood, or no transaction is open on it.
    """
    if type(connection).__module__.startswith("sqlalchemy"):
        connection, dialect_name = await _of_sqlalchemy(connection)
        yield _session(connection, dialect_name, checked=True)
        return
    yield _session(connection, _dialect_of(connection), checked=False)


def _session(connection: Any, name: str, *, checked: bool) -> CallerSession:
    dialect = dialect_of_name(name)
    inner = connection if isinstance(connection, Session) else dialect.wrap(connection)
    if not checked and not inner.in_transaction:
        raise ConfigError(
            f"connection={type(connection).__name__}: no transaction is open on it, so the record would be committed "
            "by itself: begin one first"
        )
    return CallerSession(inner, dialect)


def _dialect_of(connection: Any) -> str:
    module = type(connection).__module__
    if module.startswith("asyncpg"):
        return "postgresql"
    if module.startswith("asyncmy"):
        return "mysql"
    if isinstance(connection, Session):
        return "sqlite"
    raise ConfigError(
        f"connection={type(connection).__name__}: a connection of asyncpg or asyncmy, SQLAlchemy's AsyncConnection or "
        "AsyncSession, or a transactional handler's transaction is expected"
    )


async def _of_sqlalchemy(connection: Any) -> tuple[Any, str]:
    """The driver's connection below SQLAlchemy, in a transaction that SQLAlchemy knows of.

    SQLAlchemy begins a transaction with the first statement that goes through it. What is written on the raw
    connection before that is committed by itself, and survives the rollback.
    """
    if not hasattr(connection, "get_raw_connection"):  # AsyncSession
        connection = await connection.connection()
    from sqlalchemy import text  # noqa: PLC0415  the caller has it

    await connection.execute(text("SELECT 1"))
    raw = await connection.get_raw_connection()
    driver = raw.driver_connection
    name = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}.get(connection.dialect.name)
    if name is None or not type(driver).__module__.startswith(("asyncpg", "asyncmy")):
        raise ConfigError(
            f"SQLAlchemy over {connection.dialect.name} and {type(driver).__module__}: asyncpg or asyncmy is expected"
        )
    return driver, name
