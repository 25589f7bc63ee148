"""The text of PostgreSQL's statements."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ruststream_core_sql._dialects._base import Queue
from ruststream_core_sql._dialects._names import Names
from ruststream_core_sql._table import Column

__all__ = ["Builder"]


class Builder:
    """Puts the statements of one queue together."""

    def __init__(self, queue: Queue, names: Names, types: Mapping[str, str], shown: Sequence[Column]) -> None:
        self._queue = queue
        self._table = queue.table
        self._n = names
        self._types = types
        self._shown = shown

    def build(self) -> dict[str, str]:
        n = self._n
        sql = {
            "depth": f"SELECT count(*) FROM {n.table} WHERE {n.where(n.unfinished('$1'))}",
            "guard": "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))",
        }
        if not self._table.guarded:
            del sql["guard"]
        forms = {"lease": self._lease, "lock": self._lock, "advisory": self._advisory}
        sql |= forms[self._table.form]()
        leased = self._table.form == "lease"
        sql |= self._settlements(leased=leased)
        return sql

    # `$1` is the limit or the ids in every claim below; the group's name, where there is one, comes last.

    def _lease(self) -> dict[str, str]:
        n = self._n
        until = n.now + f" + interval '{self._queue.lease} seconds'" if n.token else "$2"
        sets = [f"{n.locked_until} = {until}"]
        if n.token:
            sets.append(f"{n.token} = $2")
        if n.attempt:
            sets.append(f"{n.attempt} = j.{n.attempt} + 1")
        taken = [*self._shown, *(c for c in self._order_columns() if c not in self._shown)]
        claim = (
            f"WITH due AS MATERIALIZED ({self._due('$3')}), taken AS ("
            f"UPDATE {n.table} AS j SET {', '.join(sets)} FROM due WHERE j.{n.id} = due.{n.id}{self._still()} "
            f"RETURNING {n.listed(taken, 'j.')}) SELECT {n.listed(self._shown)} FROM taken ORDER BY {n.order()}"
        )
        extend = self._over_ids(
            f"UPDATE {n.table} AS j SET {n.locked_until} = ", until.replace("$2", "$3"), leased=True
        )
        return {"claim": claim, "extend": extend}

    def _due(self, group: str) -> str:
        n = self._n
        if not self._table.fifo:
            where = n.where([n.claimable(group, "c."), *n.ordered(group, "c.")])
            return (
                f"SELECT c.{n.id} FROM {n.table} AS c WHERE {where} "
                f"ORDER BY {n.order('c.')} LIMIT $1 FOR UPDATE SKIP LOCKED"
            )
        unfinished = n.where(n.unfinished(group))
        busy = f"SELECT 1 FROM {n.table} WHERE {unfinished} AND {n.locked_until} > {n.now}"
        return f"SELECT {n.id} FROM {n.table} WHERE {unfinished} AND NOT EXISTS ({busy}) ORDER BY {n.order()} LIMIT $1"

    def _still(self) -> str:
        """FIFO: the head is taken without a lock, so the update looks again whether it may be had."""
        return f" AND {self._n.claimable('$3', 'j.')}" if self._table.fifo else ""

    def _order_columns(self) -> list[Column]:
        roles = ("priority", "retry_after", "id")
        return [column for role in roles if (column := self._table.get(role)) is not None]

    def _lock(self) -> dict[str, str]:
        n = self._n
        shown = n.listed(self._shown)
        head = f"{n.table} WHERE {n.claimable('$2')} ORDER BY {n.order()} LIMIT $1 FOR UPDATE SKIP LOCKED"
        if self._table.fifo:
            # The head, due or not, and not the first that happens to be free.
            first = f"SELECT {n.id} FROM {n.table} WHERE {n.where(n.unfinished('$2'))} ORDER BY {n.order()} LIMIT $1"
            head = f"{n.table} WHERE {n.id} = ({first}) AND {n.claimable('$2')} FOR UPDATE SKIP LOCKED"
        sql = {"lock": f"SELECT {shown} FROM {head}"}
        if self._table.count_crashes:
            counted = f"UPDATE {n.table} SET {n.attempt} = {n.attempt} + 1 WHERE {n.id} IN (SELECT {n.id} FROM {head})"
            sql["count"] = f"{counted} RETURNING {n.id}"
            ids = f"{n.id} = ANY($1::{self._types[self._table.id.name]}[])"
            sql["relock"] = (
                f"SELECT {shown} FROM {n.table} WHERE {ids} AND {n.claimable('$2')} "
                f"ORDER BY {n.order()} FOR UPDATE SKIP LOCKED"
            )
        return sql

    def _advisory(self) -> dict[str, str]:
        n = self._n
        key = "".join(f", {n.quote(column.name)}" for column in self._table.advisory_columns())
        return {
            "candidates": (
                f"SELECT {n.id}{key} FROM {n.table} WHERE {n.claimable('$2')} ORDER BY {n.order()} LIMIT $1"
            ),
            "take": f"SELECT {n.listed(self._shown)} FROM {n.table} WHERE {n.id} = $1 AND {n.claimable('$2')}",
            "try_lock": "SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
            "unlock": "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
        }

    def _settlements(self, *, leased: bool) -> dict[str, str]:
        n = self._n
        update = f"UPDATE {n.table} AS j SET "
        sql = {}
        if n.processed_at:
            sql["finish"] = self._over_ids(
                update, ", ".join([f"{n.processed_at} = {n.now}", *n.freed()]), leased=leased
            )
        else:
            sql["finish"] = self._delete(f"j.{n.id}", leased=leased)
        open_ = f" AND {n.processed_at} IS NULL" if n.processed_at else ""
        sql["look"] = f"SELECT 1 FROM {n.table} WHERE {n.id} = $1{open_}"
        if n.processed_at:
            old = f"SELECT {n.id} FROM {n.table} WHERE {n.processed_at} < {n.now} - $1::interval LIMIT $2"
            sql["purge"] = f"DELETE FROM {n.table} WHERE {n.id} IN ({old})"
            sql["finish_one"] = f"UPDATE {n.table} SET {n.processed_at} = {n.now} WHERE {n.id} = $1"
        else:
            sql["finish_one"] = f"DELETE FROM {n.table} WHERE {n.id} = $1"
        counted = [] if leased or not n.attempt else [f"{n.attempt} = j.{n.attempt} + 1"]
        if sets := [*counted, *n.freed()]:
            sql["retry"] = self._over_ids(update, ", ".join(sets), leased=leased)
        else:
            sql["retry"] = f"SELECT unnest($1::{self._types[self._table.id.name]}[])"
        if later := n.postponed(f"{n.now} + u.delay"):
            sql["delay"] = self._delay(update, ", ".join([*counted, *later]), leased=leased)
        uncounted = [f"{n.attempt} = greatest(j.{n.attempt} - 1, 1)"] if n.attempt and leased else []
        if back := [*uncounted, *n.freed()]:
            sql["release"] = self._over_ids(update, ", ".join(back), leased=leased)
        elif self._table.count_crashes:
            sql["release"] = self._over_ids(update, f"{n.attempt} = greatest(j.{n.attempt} - 1, 1)", leased=False)
        if self._queue.buries:
            sql["bury"] = self._bury(leased=leased)
        return sql

    def _pairs(self, extra: str = "", extra_name: str = "", *, leased: bool) -> tuple[str, str]:
        """The rows to settle as arrays, and how they meet the table."""
        n, table = self._n, self._table
        ids = f"$1::{self._types[table.id.name]}[]"
        holder = n.token or n.locked_until
        if not leased:
            return f"unnest({ids}{extra}) AS u(id{extra_name})", f"j.{n.id} = u.id"
        held = table.get("lease_token") or table.get("locked_until")
        assert held is not None
        tokens = f"${3 if extra else 2}::{self._types[held.name]}[]"
        return (
            f"unnest({ids}{extra}, {tokens}) AS u(id{extra_name}, token)",
            f"j.{n.id} = u.id AND j.{holder} = u.token",
        )

    def _over_ids(self, update: str, sets: str, *, leased: bool) -> str:
        rows, on = self._pairs(leased=leased)
        return f"{update}{sets} FROM {rows} WHERE {on} RETURNING j.{self._n.id}"

    def _delay(self, update: str, sets: str, *, leased: bool) -> str:
        rows, on = self._pairs(", $2::interval[]", ", delay", leased=leased)
        return f"{update}{sets} FROM {rows} WHERE {on} RETURNING j.{self._n.id}"

    def _delete(self, returning: str, *, leased: bool) -> str:
        rows, on = self._pairs(leased=leased)
        return f"DELETE FROM {self._n.table} AS j USING {rows} WHERE {on} RETURNING {returning}"

    def _bury(self, *, leased: bool) -> str:
        n, dead = self._n, self._queue.dead_table
        if dead is None:
            fresh = [f"{n.attempt} = 1"] if n.attempt else []
            due = [f"{n.retry_after} = NULL"] if n.retry_after else []
            sets = [f"{n.group} = ${3 if leased else 2}", *fresh, *due, *n.freed()]
            return self._over_ids(f"UPDATE {n.table} AS j SET ", ", ".join(sets), leased=leased)
        listed = n.listed(dead.inserted)
        gone = self._delete(f"j.{n.id} AS moved_id__, {n.listed(dead.inserted, 'j.')}", leased=leased)
        into = n.of_table(dead.name, dead.schema)
        return (
            f"WITH moved AS ({gone}), put AS (INSERT INTO {into} ({listed}) SELECT {listed} FROM moved) "
            "SELECT moved_id__ FROM moved"
        )
