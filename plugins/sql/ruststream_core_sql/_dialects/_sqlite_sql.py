"""The text of SQLite's statements. Parameters go by name."""

# ruff: noqa: S608  statements are made of quoted names and of what the driver has written

from __future__ import annotations

from collections.abc import Sequence

from ruststream_core_sql._dialects._base import Queue
from ruststream_core_sql._dialects._names import Names
from ruststream_core_sql._table import Column

__all__ = ["build"]


def build(queue: Queue, names: Names, shown: Sequence[Column]) -> dict[str, str]:
    """Every statement of a queue, by its purpose. `x_first` runs before `x`, on the same rows."""
    n = names
    sql = {"depth": f"SELECT count(*) FROM {n.table} WHERE {n.where(n.unfinished(':group'))}"}
    if queue.table.form == "lease":
        sql |= _lease(queue, n, shown)
    else:
        sql |= _advisory(queue, n, shown)
    if n.retry_after:
        later = n.where([*n.unfinished(":group"), f"{n.retry_after} > :now"])
        sql["next"] = f"SELECT min({n.retry_after}) FROM {n.table} WHERE {later}"
    return sql | _settlements(queue, n)


def _lease(queue: Queue, n: Names, shown: Sequence[Column]) -> dict[str, str]:
    table = queue.table
    sets = [f"{n.locked_until} = :until"]
    if n.token:
        sets.append(f"{n.token} = :token")
    if n.attempt:
        sets.append(f"{n.attempt} = {n.attempt} + 1")
    chosen = f"SELECT c.{n.id} FROM {n.table} AS c WHERE {_due(queue, n)} ORDER BY {n.order('c.')} LIMIT :limit"
    order = [column for column in (n.priority, n.retry_after, n.id) if column]
    return {
        "peek": f"SELECT 1 FROM {n.table} AS c WHERE {_due(queue, n)} LIMIT 1",
        "claim": (
            f"UPDATE {n.table} SET {', '.join(sets)} WHERE {n.id} IN ({chosen}) "
            f"RETURNING {n.listed(shown)}, {', '.join(order)}"
        ),
        "extend": (
            f"UPDATE {n.table} SET {n.locked_until} = :until WHERE {n.id} = :id AND {n.quote(_holder(table))} = :token"
        ),
    }


def _holder(table: object) -> str:
    name: str | None = table.name_of("lease_token") or table.name_of("locked_until")  # type: ignore[attr-defined]
    assert name is not None
    return name


def _due(queue: Queue, n: Names) -> str:
    if not queue.table.fifo:
        return n.where([n.claimable(":group", "c."), *n.ordered(":group", "c.")])
    unfinished = n.where(n.unfinished(":group"))
    head = f"SELECT {n.id} FROM {n.table} WHERE {unfinished} ORDER BY {n.order()} LIMIT 1"
    conditions = [f"c.{n.id} = ({head})", n.claimable(":group", "c.")]
    if n.locked_until:
        busy = f"SELECT 1 FROM {n.table} WHERE {unfinished} AND {n.locked_until} > :now"
        conditions.append(f"NOT EXISTS ({busy})")
    return n.where(conditions)


def _advisory(queue: Queue, n: Names, shown: Sequence[Column]) -> dict[str, str]:
    key = "".join(f", c.{n.quote(column.name)}" for column in queue.table.advisory_columns())
    return {
        "candidates": (
            f"SELECT c.{n.id}{key} FROM {n.table} AS c WHERE {_due(queue, n)} ORDER BY {n.order('c.')} LIMIT :limit"
        ),
        "take": f"SELECT {n.listed(shown)} FROM {n.table} WHERE {n.id} = :id AND {n.claimable(':group')}",
    }


def _settlements(queue: Queue, n: Names) -> dict[str, str]:
    leased = queue.table.form == "lease"
    mine = f"{n.id} = :id" + (f" AND {n.quote(_holder(queue.table))} = :token" if leased else "")
    sql = {"finish": f"DELETE FROM {n.table} WHERE {mine}"}
    if n.processed_at:
        sql["finish"] = f"UPDATE {n.table} SET {', '.join([f'{n.processed_at} = :now', *n.freed()])} WHERE {mine}"
    counted = [] if leased or not n.attempt else [f"{n.attempt} = {n.attempt} + 1"]
    # A retry without a delay leaves the due time as it is.
    later = n.postponed(f"coalesce(:due, {n.retry_after})" if n.retry_after else ":due")
    if sets := [*counted, *later]:
        sql["retry"] = f"UPDATE {n.table} SET {', '.join(sets)} WHERE {mine}"
    if leased:
        back = [f"{n.attempt} = max({n.attempt} - 1, 1)"] if n.attempt else []
        sql["release"] = f"UPDATE {n.table} SET {', '.join([*back, *n.freed()])} WHERE {mine}"
    if queue.buries:
        sql |= _bury(queue, n, mine)
    open_ = f" AND {n.processed_at} IS NULL" if n.processed_at else ""
    sql["look"] = f"SELECT 1 FROM {n.table} WHERE {n.id} = :id{open_}"
    sql["finish_one"] = f"DELETE FROM {n.table} WHERE {n.id} = :id"
    if n.processed_at:
        old = f"SELECT {n.id} FROM {n.table} WHERE {n.processed_at} < :old LIMIT :limit"
        sql["purge"] = f"DELETE FROM {n.table} WHERE {n.id} IN ({old})"
        sql["finish_one"] = f"UPDATE {n.table} SET {n.processed_at} = :now WHERE {n.id} = :id"
    return sql


def _bury(queue: Queue, n: Names, mine: str) -> dict[str, str]:
    dead = queue.dead_table
    if dead is None:
        fresh = [f"{n.attempt} = 1"] if n.attempt else []
        due = [f"{n.retry_after} = NULL"] if n.retry_after else []
        return {
            "bury": f"UPDATE {n.table} SET {', '.join([f'{n.group} = :dead', *fresh, *due, *n.freed()])} WHERE {mine}"
        }
    listed = n.listed(dead.inserted)
    into = n.of_table(dead.name, dead.schema)
    return {
        "bury_first": f"INSERT INTO {into} ({listed}) SELECT {listed} FROM {n.table} WHERE {mine}",
        "bury": f"DELETE FROM {n.table} WHERE {mine}",
    }
