"""Sessions of MySQL and MariaDB through asyncmy, in the text protocol with values written by the driver."""

# ruff: noqa: SLF001  asyncmy shows rows, transport and the state of its stream under these names only

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ruststream_core.errors import ConfigError
from ruststream_core_sql._dialects._base import Session
from ruststream_core_sql._dialects._mysql import MySqlDialect

__all__ = ["MySqlOpener", "MySqlSession"]

FOUND_ROWS: Final = 2
IN_TRANSACTION: Final = 1


class MySqlSession(Session):
    """One asyncmy connection.

    A statement that is cut short, by a deadline or a cancellation, leaves its answer on the wire, so that the next
    would read it: the session is broken then, always.

    Args:
        native: the connection.
        pool: the application's pool that it goes back to, None where it is ours to close.
        deadline: seconds for one statement.
    """

    def __init__(self, native: Any, pool: Any = None, deadline: float | None = 30.0, *, mariadb: bool = False) -> None:
        self.native = native
        self.mariadb = mariadb
        self._pool = pool
        self._deadline = deadline
        self._broken = False
        self._overdue = False
        self.restore: str | None = None
        """What undoes the session's settings, before it goes back to the application."""

    async def fetch(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Any]:
        """Several statements may be separated by semicolons: the rows are those of the last that has any."""
        rows, _ = await self._run(sql, args)
        return rows

    async def execute(self, sql: str, args: Sequence[Any] = ()) -> int:
        """As `fetch`; how many rows the last statement but COMMIT touched."""
        _, count = await self._run(sql, args)
        return count

    async def _run(self, sql: str, args: Sequence[Any]) -> tuple[Sequence[Any], int]:
        timer = None
        if self._deadline is not None:
            timer = asyncio.get_running_loop().call_later(self._deadline, self._give_up)
        cursor = self.native.cursor()
        done = False
        try:
            await cursor.execute(sql, tuple(args) if args else None)
            rows: Sequence[Any] = cursor._rows or ()
            count: int = cursor.rowcount
            while await cursor.nextset():
                rows = cursor._rows or rows
                count = max(count, cursor.rowcount)
            done = True
        except Exception as exc:
            # An error that the server told is a whole answer; anything else is not.
            done = not self._overdue and bool(self.native.connected) and _told(exc)
            if self._overdue:
                raise TimeoutError(f"no answer in {self._deadline:g} seconds") from exc
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not done:
                self.abort()
        return rows, count

    def _give_up(self) -> None:
        self._overdue = True
        self.abort()

    async def begin(self) -> None:
        await self.execute("START TRANSACTION")

    @property
    def broken(self) -> bool:
        return self._broken or not self.native.connected or bool(self.native._stream_broken)

    @property
    def in_transaction(self) -> bool:
        return not self.broken and bool(self.native.server_status & IN_TRANSACTION)

    def abort(self) -> None:
        if not self._broken:
            self._broken = True
            if (transport := self.native._transport) is not None:
                transport.abort()

    async def aclose(self) -> None:
        if self._pool is not None:
            if self.restore is not None and not self.broken:
                await self.execute(self.restore)
            await self._pool.release(self.native)
            return
        if self.broken:
            self.native.close()
            return
        timer = asyncio.get_running_loop().call_later(5, self.abort)
        try:
            await self.native.ensure_closed()
        finally:
            timer.cancel()

    def literal(self, value: Any) -> str:
        """A value as it stands in a statement."""
        if isinstance(value, bytes):
            # Hexadecimal is twice as long; an introducer keeps the server from reading it as text.
            text: str = self.native.literal(value)
            return text if text.startswith("_binary") else f"_binary{text}"
        out: str = self.native.literal(value)
        return out


def _told(error: Exception) -> bool:
    number = error.args[0] if error.args else None
    return isinstance(number, int) and (1000 <= number < 2000 or 3000 <= number < 5000)


class MySqlOpener:
    """See `Opener`. `target` is a URL or the application's `asyncmy.Pool`."""

    def __init__(self, target: Any, where: str, deadline: float) -> None:
        import asyncmy  # noqa: PLC0415  the client is imported when it is needed

        self._connect = asyncmy.connect
        self._target = target
        self._deadline = deadline
        self._settings = _settings(target) if isinstance(target, str) else {}
        self.where = where
        self.dialect = MySqlDialect()

    async def start(self) -> None:
        """Nothing before the first session."""

    async def open(self) -> MySqlSession:
        if isinstance(self._target, str):
            native = await self._connect(**self._settings, connect_timeout=min(self._deadline, 10.0))
            session = MySqlSession(native, None, self._deadline)
        else:
            async with asyncio.timeout(self._deadline):
                native = await self._target.acquire()
            session = MySqlSession(native, self._target, self._deadline)
        try:
            await self._prepare(session)
        except BaseException:
            session.abort()
            raise
        return session

    async def _prepare(self, session: MySqlSession) -> None:
        rows = await session.fetch("SELECT VERSION(), @@autocommit, @@session.time_zone")
        version, autocommit, _ = rows[0]
        session.mariadb = "mariadb" in version.lower()
        check_version(version)
        # At REPEATABLE READ an empty claim locks gaps, and inserts wait for them.
        level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        await session.execute(level if autocommit else f"{level}; SET SESSION autocommit = 1")
        if session._pool is not None:
            default = (
                "SET SESSION tx_isolation = DEFAULT"
                if session.mariadb
                else "SET SESSION transaction_isolation = DEFAULT"
            )
            session.restore = f"{default}; SET SESSION autocommit = {int(autocommit)}"

    async def aclose(self) -> None:
        """The pool is the application's."""


def check_version(version: str) -> None:
    """Whether the server knows SKIP LOCKED.

    Raises:
        ConfigError: it is too old.
    """
    numbers = [int(part) for part in version.split("-", maxsplit=1)[0].split(".")[:3] if part.isdecimal()]
    mariadb = "mariadb" in version.lower()
    if numbers < ([10, 6] if mariadb else [8, 0, 1]):
        raise ConfigError(f"the server is {version}: MariaDB 10.6 or MySQL 8.0.1 or later is needed")


def _settings(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    settings: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path[1:]),
        "autocommit": True,
        "binary_prefix": True,
        "client_flag": FOUND_ROWS,
        "unix_socket": options.pop("unix_socket", None),
        "charset": options.pop("charset", "utf8mb4"),
    }
    tls = options.pop("ssl", "")
    if tls and tls != "false":
        settings["ssl"] = {"ca": options.pop("ssl_ca")} if "ssl_ca" in options else True
    if options:
        raise ConfigError(
            f"mysql URL: unknown settings {', '.join(options)}; it takes charset, ssl, ssl_ca, unix_socket"
        )
    return settings
