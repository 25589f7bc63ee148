"""The text of MySQL's statements, with the values written in."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

from collections.abc import Sequence

from ruststream_core_sql._dialects._base import Kind, Queue
from ruststream_core_sql._dialects._names import Names
from ruststream_core_sql._table import Column

__all__ = ["Text"]


class Text:
    """Statements of one queue. `index` is a hint that keeps claims from sorting."""

    def __init__(self, queue: Queue, names: Names, shown: Sequence[Column], index: str) -> None:
        self._queue = queue
        self._table = queue.table
        self._n = names
        self._shown = names.listed(shown)
        self._from = f"{names.table}{index}"
        self.group = "NULL"
        """The group's name as a literal."""

    @property
    def until(self) -> str:
        """When a lease that begins now ends, by the server's clock."""
        return f"{self._n.now} + INTERVAL {int(self._queue.lease * 1e6)} MICROSECOND"

    # ------------------------------------------------------------------------------------------------- claims

    def select(self, limit: int, ids: str | None = None) -> str:
        """Lock claimable rows, or those of `ids` that still are."""
        n = self._n
        where = n.claimable(self.group)
        if ids is not None:
            where = f"{n.id} IN ({ids}) AND {where}"
        elif self._table.fifo:
            return self._head()
        where = n.where([where, *n.ordered(self.group, f"{n.table}.")])
        return (
            f"SELECT {self._shown} FROM {self._from} WHERE {where} ORDER BY {n.order()} LIMIT {limit} "
            "FOR UPDATE SKIP LOCKED"
        )

    def _head(self) -> str:
        """The first row, due or not, if it may be taken; whoever comes here holds the guard of the group."""
        n = self._n
        unfinished = n.where(n.unfinished(self.group))
        head = f"SELECT {n.id} FROM {self._from} WHERE {unfinished} ORDER BY {n.order()} LIMIT 1"
        where = f"{n.claimable(self.group)}"
        if n.locked_until:
            where += f" AND NOT EXISTS (SELECT 1 FROM {n.table} WHERE {unfinished} AND {n.locked_until} > {n.now})"
        return f"SELECT {self._shown} FROM {n.table} WHERE {n.id} = ({head}) AND {where} FOR UPDATE SKIP LOCKED"

    def hold(self, ids: str, token: str) -> str:
        """Lease the rows that `select` locked."""
        n = self._n
        sets = [f"{n.locked_until} = {self.until if n.token else token}"]
        if n.token:
            sets.append(f"{n.token} = {token}")
        if n.attempt:
            sets.append(f"{n.attempt} = {n.attempt} + 1")
        return f"UPDATE {n.table} SET {', '.join(sets)} WHERE {n.id} IN ({ids})"

    def count(self, ids: str) -> str:
        """Row lock: one attempt more."""
        n = self._n
        return f"UPDATE {n.table} SET {n.attempt} = {n.attempt} + 1 WHERE {n.id} IN ({ids})"

    def candidates(self, limit: int) -> str:
        """Ids and the columns of their lock's key."""
        n = self._n
        key = "".join(f", {n.quote(column.name)}" for column in self._table.advisory_columns())
        return (
            f"SELECT {n.id}{key} FROM {self._from} WHERE {n.claimable(self.group)} ORDER BY {n.order()} LIMIT {limit}"
        )

    def take(self, row_id: str) -> str:
        """One row, if it is claimable still."""
        n = self._n
        return f"SELECT {self._shown} FROM {n.table} WHERE {n.id} = {row_id} AND {n.claimable(self.group)}"

    def depth(self) -> str:
        """How many are unfinished."""
        n = self._n
        return f"SELECT count(*) FROM {n.table} WHERE {n.where(n.unfinished(self.group))}"

    def look(self, row_id: str) -> str:
        """Whether a row is there and unfinished."""
        n = self._n
        unfinished = [f"{n.processed_at} IS NULL"] if n.processed_at else []
        return f"SELECT 1 FROM {n.table} WHERE {n.where([f'{n.id} = {row_id}', *unfinished])}"

    def purge(self, age: float, limit: int) -> str:
        """Remove finished rows of that age."""
        n = self._n
        old = f"{n.now} - INTERVAL {int(age * 1e6)} MICROSECOND"
        return f"DELETE FROM {n.table} WHERE {n.processed_at} < {old} LIMIT {limit}"

    # -------------------------------------------------------------------------------------------- settlements

    def mine(self, ids: str, token: str | None) -> str:
        """The condition of rows in hand."""
        n = self._n
        if token is None:
            return f"{n.id} IN ({ids})"
        return f"{n.id} IN ({ids}) AND {n.token or n.locked_until} = {token}"

    def held(self, mine: str) -> str:
        """Which of them are ours; they stay so until the transaction ends."""
        n = self._n
        return f"SELECT {n.id} FROM {n.table} WHERE {mine} FOR UPDATE"

    def renew(self, mine: str, until: str) -> str:
        """A longer lease."""
        n = self._n
        return f"UPDATE {n.table} SET {n.locked_until} = {until} WHERE {mine}"

    def settle(self, kind: Kind, mine: str) -> list[str]:
        """What ends these rows; the last statement touches each of them once. Empty where nothing is to be done."""
        if kind == "bury":
            return self._bury(mine)
        n = self._n
        if kind == "finish":
            if not n.processed_at:
                return [f"DELETE FROM {n.table} WHERE {mine}"]
            return [f"UPDATE {n.table} SET {', '.join([f'{n.processed_at} = {n.now}', *n.freed()])} WHERE {mine}"]
        return self.retry(mine, None) if kind == "retry" else self._release(mine)

    def retry(self, mine: str, due: str | None) -> list[str]:
        """One attempt more; at `due`, where it is given."""
        n = self._n
        leased = self._table.form == "lease"
        sets = [f"{n.attempt} = {n.attempt} + 1"] if n.attempt and not leased else []
        sets += n.freed() if due is None else n.postponed(due)
        return [f"UPDATE {n.table} SET {', '.join(sets)} WHERE {mine}"] if sets else []

    def _release(self, mine: str) -> list[str]:
        n = self._n
        counted = self._table.form == "lease" or self._table.count_crashes
        sets = [f"{n.attempt} = GREATEST({n.attempt} - 1, 1)"] if n.attempt and counted else []
        sets += n.freed()
        return [f"UPDATE {n.table} SET {', '.join(sets)} WHERE {mine}"] if sets else []

    def _bury(self, mine: str) -> list[str]:
        n, dead = self._n, self._queue.dead_table
        if dead is None:
            fresh = [f"{n.attempt} = 1"] if n.attempt else []
            due = [f"{n.retry_after} = NULL"] if n.retry_after else []
            group = "'" + (self._queue.dead_group or "").replace("\\", "\\\\").replace("'", "''") + "'"
            return [
                f"UPDATE {n.table} SET {', '.join([f'{n.group} = {group}', *fresh, *due, *n.freed()])} WHERE {mine}"
            ]
        listed = n.listed(dead.inserted)
        into = n.of_table(dead.name, dead.schema)
        return [
            f"INSERT INTO {into} ({listed}) SELECT {listed} FROM {n.table} WHERE {mine}",
            f"DELETE FROM {n.table} WHERE {mine}",
        ]

    def samples(self) -> dict[str, str]:
        """One of each, for the server to look at."""
        form = self._table.form
        mine = self.mine("NULL", "NULL" if form == "lease" else None)
        out = {"depth": self.depth()}
        if form == "advisory":
            out |= {"candidates": self.candidates(1), "take": self.take("NULL")}
        else:
            out["claim"] = self.select(1)
        if form == "lease":
            out |= {"hold": self.hold("NULL", "NULL"), "extend": self.renew(mine, self.until)}
        kinds: list[Kind] = ["finish", "retry", "release", *(["bury"] if self._queue.buries else [])]  # type: ignore[list-item]
        for kind in kinds:
            out |= {f"{kind} {k}": sql for k, sql in enumerate(self.settle(kind, mine))}
        return out
