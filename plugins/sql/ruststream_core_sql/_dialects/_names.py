"""Fragments that the statements of all dialects are put together from."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

from collections.abc import Callable, Sequence

from ruststream_core_sql._dialects._base import Queue
from ruststream_core_sql._table import Column

__all__ = ["Names"]


class Names:
    """The quoted names of one queue's table, and the conditions on them.

    Args:
        queue: the queue.
        quote: quotes one identifier.
        now: the expression for the present.
        nulls_first: what makes NULL sort before everything, where it does not by itself.
    """

    def __init__(self, queue: Queue, quote: Callable[[str], str], now: str, nulls_first: str = "") -> None:
        table = queue.table
        self.quote = quote
        self.now = now
        self._nulls_first = nulls_first
        self.grouped = queue.name is not None and table.get("group") is not None
        self.table = self.of_table(table.name, table.schema)
        self.id = quote(table.id.name)
        self.group = self._of(table.name_of("group"))
        self.priority = self._of(table.name_of("priority"))
        self.retry_after = self._of(table.name_of("retry_after"))
        self.attempt = self._of(table.name_of("attempt"))
        self.processed_at = self._of(table.name_of("processed_at"))
        self.locked_until = self._of(table.name_of("locked_until"))
        self.token = self._of(table.name_of("lease_token"))
        self.key = self._of(table.name_of("partition_key")) if table.ordered else None

    def _of(self, name: str | None) -> str | None:
        return None if name is None else self.quote(name)

    def of_table(self, name: str, schema: str | None) -> str:
        """A table with its schema."""
        return self.quote(name) if schema is None else f"{self.quote(schema)}.{self.quote(name)}"

    def listed(self, columns: Sequence[Column], alias: str = "") -> str:
        """Names separated by commas, each with the alias."""
        return ", ".join(alias + self.quote(column.name) for column in columns)

    def unfinished(self, group: str, alias: str = "") -> list[str]:
        """Conditions of the rows of this queue that are not done; `group` stands for its name."""
        found = [f"{alias}{self.group} = {group}"] if self.grouped else []
        if self.processed_at:
            found.append(f"{alias}{self.processed_at} IS NULL")
        return found

    def due(self, alias: str = "") -> list[str]:
        """Conditions of the rows that may be taken now."""
        columns = (self.retry_after, self.locked_until)
        return [f"({alias}{c} IS NULL OR {alias}{c} <= {self.now})" for c in columns if c]

    def claimable(self, group: str, alias: str = "") -> str:
        """All conditions of a claim."""
        return self.where([*self.unfinished(group, alias), *self.due(alias)])

    @staticmethod
    def where(conditions: Sequence[str]) -> str:
        """A WHERE clause, true for everything where there is no condition."""
        return " AND ".join(conditions) or "1 = 1"

    def order(self, alias: str = "") -> str:
        """priority, retry_after, id."""
        keys = []
        if self.priority:
            keys.append(alias + self.priority)
        if self.retry_after:
            keys.append(f"{alias}{self.retry_after}{self._nulls_first}")
        return ", ".join([*keys, alias + self.id])

    def freed(self) -> list[str]:
        """Assignments that end a lease."""
        return [f"{column} = NULL" for column in (self.locked_until, self.token) if column]

    def postponed(self, due: str) -> list[str]:
        """Assignments that make a row due later and end its lease.

        An outbox without a column for the due time is kept by the lease's own: held by nobody until then.
        """
        if self.retry_after:
            return [f"{self.retry_after} = {due}", *self.freed()]
        if self.locked_until:
            return [f"{self.locked_until} = {due}", *([f"{self.token} = NULL"] if self.token else [])]
        return []

    def ordered(self, group: str, alias: str) -> list[str]:
        """The condition that keeps an outbox in order by key: no earlier row of the key is held or waits.

        Rows without a key have no order.
        """
        if not self.key:
            return []
        held = [f"e.{column} > {self.now}" for column in (self.locked_until, self.retry_after) if column]
        conditions = [f"e.{self.key} = {alias}{self.key}", f"e.{self.id} < {alias}{self.id}"]
        conditions += [*self.unfinished(group, "e."), f"({' OR '.join(held)})"]
        return [f"NOT EXISTS (SELECT 1 FROM {self.table} AS e WHERE {self.where(conditions)})"]
