"""What the columns of a table mean, and the decorators that bind a row type to its table."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from ruststream_core_sql._table import Table, register

__all__ = ["Isolation", "Role", "inbox", "outbox"]

T = TypeVar("T")

Isolation: TypeAlias = Literal[
    "read uncommitted", "read committed", "repeatable read", "serializable", "deferred", "immediate", "exclusive"
]
"""PostgreSQL knows the middle three of the first four, MySQL those four, SQLite the last three."""


class Role(enum.Enum):
    """What a column does. Written as metadata of a field: `job_id: Annotated[int, Role.ID]`."""

    ID = "id"
    """Addresses every settlement; unique. Every table has one."""
    GROUP = "group"
    """A subscription's name selects the rows whose group it is."""
    FIFO = "fifo"
    """Beside GROUP: one row of a group is in work at a time, in order, over all processes."""
    PRIORITY = "priority"
    """Smaller comes first."""
    PARTITION_KEY = "partition_key"
    """The message's key, for `workers=by_key(n)`; in an outbox, what keeps its order."""
    RETRY_AFTER = "retry_after"
    """When the row is due; NULL is due at once."""
    ATTEMPT = "attempt"
    """The number of the next attempt, from 1."""
    PROCESSED_AT = "processed_at"
    """When it was finished. With it rows are marked, without it they are deleted."""
    LOCKED_UNTIL = "locked_until"
    """Until when somebody holds the row: selects the lease form."""
    LEASE_TOKEN = "lease_token"  # noqa: S105  a name
    """Who holds it: an integer, UUID or text of 32 characters, fresh for each claim."""
    HEADERS = "headers"
    """A JSON object of strings."""
    PAYLOAD = "payload"
    """The message's body."""
    NAME = "name"
    """In an outbox: the destination."""
    GENERATED = "generated"
    """Filled by the database: left out of every INSERT."""


def inbox(
    table: str,
    *,
    schema: str | None = None,
    advisory_lock: str | None = None,
    lease: float = 30.0,
    isolation: Isolation | None = None,
    count_crashes: bool = False,
) -> Callable[[type[T]], type[T]]:
    """Make a class the row type of a table that serves as queue. The class itself is left as it is.

    How a row is held follows from the columns: with LOCKED_UNTIL by a lease, with `advisory_lock` by a session lock,
    else by the row lock of an open transaction.

    Args:
        table: the table's name, which the service owns; nothing is created.
        schema: the schema, where it is not found by the search path.
        advisory_lock: the key of the session lock, with column names in braces: `accounts-{account}`.
        lease: seconds that a lease lasts between two renewals, at least 1.
        isolation: the isolation level of every transaction on this table.
        count_crashes: row lock only: count an attempt in a transaction of its own before the row is locked, so that
            a crash counts. Costs one more write and two round trips per claim.

    Raises:
        ConfigError: a role is missing, occurs twice or does not go with another; names table and column.
    """
    names = dict(sys._getframe(1).f_locals)  # noqa: SLF001  row types may be local, as annotations see them

    def bind(row_type: type[T]) -> type[T]:
        settings = {"advisory_lock": advisory_lock, "lease": lease, "isolation": isolation}
        register(Table.of(row_type, table, schema, names, count_crashes=count_crashes, **settings))
        return row_type

    return bind


def outbox(table: str, *, schema: str | None = None, lease: float = 30.0) -> Callable[[type[T]], type[T]]:
    """Make a class the row type of a table of outgoing messages, for `Outbox`.

    Needs ID, NAME and PAYLOAD; takes HEADERS, PARTITION_KEY, PROCESSED_AT, ATTEMPT, RETRY_AFTER, LOCKED_UNTIL and
    LEASE_TOKEN. A relay needs LOCKED_UNTIL.

    Raises:
        ConfigError: see `inbox`.
    """
    names = dict(sys._getframe(1).f_locals)  # noqa: SLF001  row types may be local, as annotations see them

    def bind(row_type: type[T]) -> type[T]:
        register(Table.of(row_type, table, schema, names, lease=lease, kind="outbox"))
        return row_type

    return bind
