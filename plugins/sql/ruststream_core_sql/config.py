"""Descriptors and settings; nothing here touches a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ruststream_core.abc import Features, PublishOptions, Source
from ruststream_core.errors import ConfigError
from ruststream_core_sql._dialects._base import Queue
from ruststream_core_sql._table import Table, table_of

__all__ = ["InboxQueue", "Routes", "SqlPublish"]

WINDOW: Final = 512
"""Rows of a lease subscription out and unsettled, unless set."""


class InboxQueue(Source):
    """The rows of one queue of a table.

    Args:
        row_type: a class decorated with `@inbox`.
        name: the group whose rows are read; left out for a table without a group, and then the whole table is read.
        dead_letter: where a row goes that was dropped or ran out of attempts: another group of the same table, or
            for a table without a group the row type of another table.
        max_attempts: after that many attempts `Retry` moves the row to the dead letter. Goes with `dead_letter`, and
            needs Role.ATTEMPT. The route's own `max_attempts` holds besides; the smaller wins.
        lease: seconds that a lease lasts, instead of the table's.
        prefetch: most rows out and unsettled; with the row lock and the advisory lock each has a session of its own.
        poll: seconds between two looks into an empty queue.

    Raises:
        ConfigError: settings that do not go with the table's roles.
    """

    def __init__(
        self,
        row_type: type,
        name: str | None = None,
        *,
        dead_letter: str | type | None = None,
        max_attempts: int | None = None,
        lease: float | None = None,
        prefetch: int | None = None,
        poll: float = 1.0,
    ) -> None:
        self.row_type = row_type
        self.queue = name
        self.dead_letter = dead_letter
        self.max_attempts = max_attempts
        self.lease = lease
        self.prefetch = prefetch
        self.poll = poll
        self.table: Table = table_of(row_type)
        for problem in self._problems():
            raise ConfigError(f"{self!r}: {problem}")

    def __repr__(self) -> str:
        name = "" if self.queue is None else f", {self.queue!r}"
        return f"InboxQueue({self.row_type.__name__}{name})"

    @property
    def name(self) -> str:
        """See `Source.name`."""
        return self.table.name if self.queue is None else self.queue

    def prefixed(self, prefix: str) -> InboxQueue:
        """See `Source.prefixed`."""
        if self.queue is None:
            return super().prefixed(prefix)
        return InboxQueue(
            self.row_type,
            prefix + self.queue,
            dead_letter=self.dead_letter,
            max_attempts=self.max_attempts,
            lease=self.lease,
            prefetch=self.prefetch,
            poll=self.poll,
        )

    def _problems(self) -> list[str]:
        return [*self._problems_of_names(), *self._problems_of_figures()]

    def _problems_of_names(self) -> list[str]:
        table, found = self.table, []
        if table.kind != "inbox":
            found.append("an outbox is read by its relay")
        if self.queue is None and table.get("group") is not None:
            found.append(f"the table has a group ({table.name_of('group')}): say which, InboxQueue(..., 'name')")
        if self.queue is not None and table.get("group") is None:
            found.append("the table has no Role.GROUP, so there is nothing to select by: leave the name out")
        if isinstance(self.dead_letter, str) and table.get("group") is None:
            found.append("without Role.GROUP a dead letter is the row type of another table")
        if isinstance(self.dead_letter, type) and table.get("group") is not None:
            found.append("with Role.GROUP a dead letter is the name of another group")
        return found

    def _problems_of_figures(self) -> list[str]:
        table, found = self.table, []
        if self.max_attempts is not None and (self.dead_letter is None or table.get("attempt") is None):
            found.append("max_attempts goes with dead_letter, and needs Role.ATTEMPT")
        if self.max_attempts is not None and self.max_attempts < 1:
            found.append(f"max_attempts={self.max_attempts!r}: at least 1")
        if self.lease is not None and (self.lease < 1 or table.form != "lease"):
            found.append(f"lease={self.lease!r}: at least 1 second, and only with Role.LOCKED_UNTIL")
        if self.poll <= 0:
            found.append(f"poll={self.poll!r}: more than 0 seconds")
        if table.get("payload") is None and table.get("headers") is not None and not table.others:
            found.append("row mode without a column of its own has nothing to say")
        return found

    def as_queue(self) -> Queue:
        """What the statements are made from."""
        return Queue(
            table=self.table,
            name=self.queue,
            dead_group=self.dead_letter if isinstance(self.dead_letter, str) else None,
            dead_table=table_of(self.dead_letter) if isinstance(self.dead_letter, type) else None,
            lease=self.lease or self.table.lease,
        )

    def features(self) -> Features:
        """What follows from the table's roles."""
        table = self.table
        return Features(
            settles=True,
            retry="broker",
            delay=table.get("retry_after") is not None,
            drop="dead_letter" if self.dead_letter is not None else "discard",
            release="free",
            attempts="broker" if table.get("attempt") is not None else "process",
            survives_outage=table.form == "lease",
            loses=True,
            transactions=True,
            keys=table.get("partition_key") is not None,
            headers="text" if table.get("headers") is not None else "none",
            repeated_headers=False,
        )


class SqlPublish(PublishOptions, msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one publish.

    Raises:
        PublishError: at the publish: the table has no column of that role.
    """

    priority: int | None = None
    """Smaller comes first; needs Role.PRIORITY."""
    delay: float | None = None
    """Seconds until it is due; needs Role.RETRY_AFTER."""
    columns: Mapping[str, Any] | None = None
    """Values of the service's own columns, by column name."""


class Routes:
    """Which table a name belongs to: an exact name, else the longest prefix that ends in `*`."""

    def __init__(self, routes: Mapping[str, type]) -> None:
        self.exact = {name: table_of(row) for name, row in routes.items() if not name.endswith("*")}
        prefixes = [(name[:-1], table_of(row)) for name, row in routes.items() if name.endswith("*")]
        self._prefixes = sorted(prefixes, key=lambda pair: -len(pair[0]))
        for name, table in [*self.exact.items(), *prefixes]:
            if table.kind != "inbox":
                raise ConfigError(f"routes[{name!r}]: {table.full_name!r} is an outbox, publish to it through Outbox")
            if table.get("payload") is None:
                raise ConfigError(f"routes[{name!r}]: {table.full_name!r} has no Role.PAYLOAD, publish by Repository")

    def tables(self) -> list[Table]:
        """Every table once."""
        return list(dict.fromkeys([*self.exact.values(), *(table for _, table in self._prefixes)]))

    def find(self, name: str) -> Table | None:
        """The table of a name."""
        table = self.exact.get(name)
        if table is None:
            table = next((found for prefix, found in self._prefixes if name.startswith(prefix)), None)
        return table

    def describe(self) -> str:
        """For messages."""
        return ", ".join([*self.exact, *(f"{prefix}*" for prefix, _ in self._prefixes)]) or "none"
