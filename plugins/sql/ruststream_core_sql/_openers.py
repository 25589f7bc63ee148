"""From a URL or an application's pool to sessions."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ruststream_core.abc import ServerInfo
from ruststream_core.errors import ConfigError
from ruststream_core_sql._database import Opener
from ruststream_core_sql._dialects._base import Dialect

__all__ = ["dialect_of_name", "dialect_of_url", "opener_of", "server_info"]


def dialect_of_name(name: str) -> Dialect:
    """The dialect called so."""
    if name == "postgresql":
        from ruststream_core_sql._dialects._postgres import PostgresDialect  # noqa: PLC0415  one of three is needed

        return PostgresDialect()
    if name == "mysql":
        from ruststream_core_sql._dialects._mysql import MySqlDialect  # noqa: PLC0415

        return MySqlDialect()
    from ruststream_core_sql._dialects._sqlite import SqliteDialect  # noqa: PLC0415

    return SqliteDialect()


def _kind(target: Any) -> str:
    if isinstance(target, str):
        scheme = target.partition(":")[0]
        kind = {"postgres": "postgresql", "mariadb": "mysql"}.get(scheme, scheme)
        if kind in ("postgresql", "mysql", "sqlite") and "://" in target:
            return kind
        raise ConfigError(f"a database URL begins with postgresql://, mysql:// or sqlite://, not {scheme[:20]!r}")
    module = type(target).__module__
    if module.startswith("asyncpg"):
        return "postgresql"
    if module.startswith("asyncmy"):
        return "mysql"
    raise ConfigError(f"{type(target).__name__} is neither a URL nor a pool of asyncpg or asyncmy")


def dialect_of_url(target: Any) -> Dialect:
    """The dialect of a URL or pool.

    Raises:
        ConfigError: neither.
    """
    return dialect_of_name(_kind(target))


def server_info(target: Any) -> ServerInfo:
    """Where the database is, without any credential."""
    kind = _kind(target)
    if not isinstance(target, str):
        return ServerInfo(host="the application's pool", protocol=kind)
    if kind == "sqlite":
        return ServerInfo(host=sqlite_path(target) or "in memory", protocol=kind)
    parts = _split(target)
    default = 5432 if kind == "postgresql" else 3306
    host = f"{parts.hostname or 'localhost'}:{parts.port or default}"
    return ServerInfo(host=host, protocol=kind, pathname=parts.path)


def sqlite_path(url: str) -> str:
    """`sqlite:///relative`, `sqlite:////absolute`; empty for a database in memory."""
    path = unquote(url.partition("://")[2].partition("?")[0])
    if path and not path.startswith("/"):
        raise ConfigError(f"sqlite URL {url!r}: three slashes before a relative path, four before an absolute one")
    path = path[1:]
    return "" if path == ":memory:" else path


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise ConfigError(f"the database URL is not understood: {exc}") from None
    return parts


def opener_of(target: Any, deadline: float) -> Opener:
    """What opens sessions.

    Raises:
        ConfigError: the client library is not installed, or the URL is not understood.
    """
    kind = _kind(target)
    if kind == "sqlite":
        from ruststream_core_sql._dialects._sqlite_session import SqliteOpener  # noqa: PLC0415

        return SqliteOpener(sqlite_path(target), deadline, dict(parse_qsl(target.partition("?")[2])))
    where = _where(target)
    try:
        if kind == "postgresql":
            from ruststream_core_sql._dialects._postgres_session import PostgresOpener  # noqa: PLC0415

            return PostgresOpener(target, where, deadline)
        from ruststream_core_sql._dialects._mysql_session import MySqlOpener  # noqa: PLC0415

        return MySqlOpener(target, where, deadline)
    except ImportError as exc:
        raise ConfigError(f"{exc.name} is not installed: pip install 'ruststream-core-sql[{kind}]'") from exc


def _where(target: Any) -> str:
    info = server_info(target)
    if not isinstance(target, str):
        return f"{info.protocol} through {info.host}"
    user = _split(target).username
    return f"{info.protocol} at {info.host}{info.pathname}" + (f" as {unquote(user)}" if user else "")
