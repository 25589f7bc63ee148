"""Which errors of the drivers pass by themselves, and how all of them look from outside."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from ruststream_core.errors import ConfigError, ConnectError, PluginError, RustStreamError, SettleError

__all__ = [
    "BatchRolledBack",
    "brief",
    "is_conflict",
    "is_duplicate",
    "is_passing",
    "is_wiring",
    "to_connect_error",
    "to_terminal",
]


class BatchRolledBack(SettleError):
    """The transaction that these deliveries shared was rolled back: all of them come again."""


# SQLSTATE classes: connection, transaction rollback, resources, operator intervention, system error.
_PG_PASSING: Final = ("08", "40", "53", "55", "57", "58")
_PG_PASSING_STATES: Final = frozenset({"25006", "25P03"})
"""Read-only after a failover; an idle transaction was ended."""
_PG_CONFLICTS: Final = frozenset({"40001", "40P01", "55P03"})
_PG_STALE: Final = ("InvalidCachedStatementError", "OutdatedSchemaCacheError")
"""A migration changed the table under a prepared statement: the next try prepares it again."""

_MY_CONFLICTS: Final = frozenset({1205, 1213, 1020})
"""Lock wait, deadlock, and MariaDB's record that changed since it was read."""
_MY_PASSING: Final = _MY_CONFLICTS | {
    *(1040, 1053, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290, 1317, 1792, 1836, 1927, 1969),
    *(2002, 2003, 2006, 2013, 2014, 2055, 3024, 4031),
}

_LITE_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_LITE_PASSING: Final = _LITE_BUSY | {
    *(sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
}


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) and type(error).__module__.startswith("asyncpg") else None


def _errno(error: BaseException) -> int | None:
    if not type(error).__module__.startswith("asyncmy"):
        return None
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else None


def is_conflict(error: BaseException) -> bool:
    """Whether trying the same transaction again at once is right: deadlock, lock wait, serialization, busy."""
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LITE_BUSY
    if type(error).__name__ in _PG_STALE:
        return True
    return _sqlstate(error) in _PG_CONFLICTS or _errno(error) in _MY_CONFLICTS


def is_duplicate(error: BaseException) -> bool:
    """Whether a MySQL server refused a row for its key. The other two are asked so that they need not refuse."""
    return _errno(error) == 1062


def is_passing(error: BaseException) -> bool:
    """Whether trying again later may help: an outage, a conflict, a full server."""
    if isinstance(error, ConnectError | OSError | TimeoutError | EOFError) or is_conflict(error):
        return True
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LITE_PASSING
    if (state := _sqlstate(error)) is not None:
        return state.startswith(_PG_PASSING) or state in _PG_PASSING_STATES
    if (number := _errno(error)) is not None:
        # InterfaceError(0, ...) is a connection that is closed already.
        return number in _MY_PASSING or number == 0
    name = type(error).__name__
    return type(error).__module__.startswith(("asyncpg", "asyncmy")) and name in (
        "InterfaceError",
        "InternalClientError",
    )


def brief(error: BaseException) -> str:
    """The driver's own words on one line."""
    text = str(error.args[1] if _errno(error) is not None and len(error.args) > 1 else error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no text'}"


def to_connect_error(error: BaseException, where: str) -> ConnectError:
    """An outage, told with the server's name."""
    return ConnectError(f"{where}: {brief(error)}")


def to_terminal(error: Exception, where: str) -> RustStreamError:
    """What ends a subscription: the wiring where the database says so, else a fault of ours or of the driver."""
    if isinstance(error, RustStreamError):
        return error
    if is_wiring(error):
        return ConfigError(f"{where}: {brief(error)}")
    return PluginError(f"{where}: {brief(error)}")


def is_wiring(error: Any) -> bool:
    """Whether the database refused the statement itself: no such table or column, no right, a wrong type."""
    if (state := _sqlstate(error)) is not None:
        return state.startswith(("42", "28", "3D", "3F"))
    if (number := _errno(error)) is not None:
        return number in {1044, 1045, 1046, 1049, 1054, 1064, 1091, 1142, 1143, 1146, 1176, 1364, 1698}
    return isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError) and not is_passing(error)
