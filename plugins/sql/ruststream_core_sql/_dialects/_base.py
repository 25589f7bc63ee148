"""What the rest of the package sees of a database: sessions, and the statements of one queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from ruststream_core.errors import ConfigError
from ruststream_core_sql._table import Column, Table

__all__ = ["Dialect", "Item", "Kind", "Layout", "Queue", "Session", "Store", "layout_of"]

Kind = Literal["finish", "retry", "release", "bury"]
"""finish: delete or mark. retry: one attempt more, due now or later. release: as if it had never been claimed.
bury: move to the dead letter."""


class Item(Protocol):
    """A row in hand, as the statements need it."""

    @property
    def id(self) -> Any:
        """What addresses the row."""

    @property
    def token(self) -> Any:
        """What its holder has to name."""

    @property
    def delay(self) -> float | None:
        """Seconds until it is due again, for a retry."""


class Session(ABC):
    """One session of the server, used by one task at a time."""

    native: Any
    """The driver's own connection."""
    isolated: bool = False
    """Whether its isolation level was changed; it serves nobody else then."""

    async def isolate(self, level: str) -> None:
        """Give every transaction from now on that isolation level, one of the dialect's."""
        await self.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level.upper()}")
        self.isolated = True

    def on_lost(self, callback: Callable[[], object] | None) -> None:  # noqa: B027  few drivers tell
        """Have `callback` called when the connection breaks by itself, where the driver tells; None ends that."""

    @abstractmethod
    async def fetch(self, sql: str, args: Sequence[Any] = ()) -> Sequence[Any]:
        """Run a statement and read all rows."""

    @abstractmethod
    async def execute(self, sql: str, args: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it touched, those included that it left as they were."""

    @abstractmethod
    async def begin(self) -> None:
        """Open a transaction."""

    async def commit(self) -> None:
        """Commit it."""
        await self.execute("COMMIT")

    async def rollback(self) -> None:
        """Roll it back."""
        await self.execute("ROLLBACK")

    @property
    @abstractmethod
    def broken(self) -> bool:
        """Whether it can never be used again."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as the driver knows it."""

    @abstractmethod
    def abort(self) -> None:
        """Break it off now, without a word to the server. What waits on it fails."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give it back or close it, politely."""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that one subscription reads, and what becomes of those that it gives up."""

    table: Table
    name: str | None = None
    """The group; None reads the whole table."""
    dead_group: str | None = None
    dead_table: Table | None = None
    lease: float = 30.0

    @property
    def buries(self) -> bool:
        """Whether it has a dead letter."""
        return self.dead_group is not None or self.dead_table is not None


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Where the columns stand in a claimed row; the id is always first."""

    columns: tuple[Column, ...]
    attempt: int | None
    payload: int | None
    headers: int | None
    key: int | None
    group: int | None
    others: tuple[tuple[str, int], ...]


def layout_of(table: Table) -> Layout:
    """What a claim reads: everything in row mode, else what a delivery shows."""
    roles = ("attempt", "payload", "headers", "partition_key", "group", "name")
    if table.get("payload") is None:
        chosen = [table.id, *(column for column in table.columns if column is not table.id)]
    else:
        shown = [column for role in roles if (column := table.get(role)) is not None]
        rest = () if table.get("headers") is not None else table.others
        chosen = [table.id, *dict.fromkeys([*shown, *rest])]
        chosen[1:] = [column for column in chosen[1:] if column is not table.id]

    def at(role: str) -> int | None:
        column = table.get(role)
        return chosen.index(column) if column is not None and column in chosen else None

    others = tuple((column.name, chosen.index(column)) for column in table.others if column in chosen)
    return Layout(
        columns=tuple(chosen),
        attempt=at("attempt"),
        payload=at("payload"),
        headers=at("headers"),
        key=at("partition_key"),
        group=at("group") if table.kind == "inbox" else at("name"),
        others=others,
    )


class Store(ABC):
    """The statements of one queue. Every method runs on the session that it is given."""

    queue: Queue
    layout: Layout
    next_due: float | None = None
    """Seconds until the first row that was not due at the last claim, where that is cheap to know."""
    shows_next = True
    """Whether a lease's claim shows the row as the claim left it, with the number of the next attempt."""

    @property
    def counted(self) -> int:
        """What to take off the attempt that a claimed row shows."""
        table = self.queue.table
        return int(table.count_crashes or (table.form == "lease" and self.shows_next))

    @abstractmethod
    async def inspect(self, session: Session) -> None:
        """Learn what the database knows of the table and build the statements.

        Raises:
            ConfigError: the table or a column does not exist.
        """

    @abstractmethod
    def statements(self) -> Mapping[str, str]:
        """Every statement by its purpose, after `inspect`; what `check` prepares."""

    @abstractmethod
    async def prepare(self, session: Session, sql: str) -> None:
        """Have the server look at a statement without running it."""

    @abstractmethod
    async def claim(self, session: Session, limit: int) -> tuple[Any, Sequence[Any]]:
        """Lease form: take up to `limit` rows, and commit. Returns the token and the rows in order."""

    @abstractmethod
    async def lock(self, session: Session, limit: int) -> Sequence[Any]:
        """Row lock form: inside the session's open transaction, lock up to `limit` rows."""

    async def begin_lock(self, session: Session, limit: int) -> Sequence[Any]:
        """Row lock form: open a transaction and `lock` in it."""
        await session.begin()
        return await self.lock(session, limit)

    async def end_lock(self, session: Session) -> None:
        """Row lock form: roll back, and let the rows go."""
        await session.rollback()

    async def settle_commit(
        self, session: Session, kinds: Sequence[tuple[Kind, Sequence[Item]]], *, again: bool
    ) -> None:
        """Row lock form: settle and commit. `again`: the next transaction follows at once and may be begun here."""
        for kind, items in kinds:
            await self.settle(session, kind, items)
        await session.commit()

    @abstractmethod
    async def candidates(self, session: Session, limit: int) -> Sequence[Any]:
        """Advisory form: ids that may be claimable, each with the columns of its lock's key."""

    @abstractmethod
    async def take(self, session: Session, row_id: Any) -> Any | None:
        """Advisory form: the row, if it is claimable still."""

    @abstractmethod
    async def try_lock(self, session: Session, key: str) -> bool:
        """Take the session lock of `key` if it is free."""

    @abstractmethod
    async def unlock(self, session: Session, key: str) -> bool:
        """Give it back; False where the session did not hold it."""

    @abstractmethod
    async def settle(self, session: Session, kind: Kind, items: Sequence[Item]) -> set[Any] | None:
        """Settle rows of one kind in one transaction, or inside the one that is open.

        Returns:
            None where all of them were ours, else the ids of those that were.
        """

    @abstractmethod
    async def extend(self, session: Session, items: Sequence[Item]) -> tuple[set[Any] | None, Any]:
        """Lease form: renew. As `settle`; with the new token where renewing changes it."""

    @abstractmethod
    async def insert(
        self, session: Session, columns: Sequence[Column], rows: Sequence[Sequence[Any]], news: Sequence[str] = ()
    ) -> None:
        """Add rows in order, all or none; with the commit, notify that these queues have `news`."""

    @abstractmethod
    async def record(self, session: Session, columns: Sequence[Column], row: Sequence[Any]) -> Any:
        """Add one row; its id."""

    @abstractmethod
    async def unfinished(self, session: Session, row_id: Any) -> bool:
        """Whether a row is there and not done."""

    @abstractmethod
    async def finish_by_id(self, session: Session, row_id: Any) -> None:
        """Delete or mark a row, whoever holds it."""

    @abstractmethod
    async def purge(self, session: Session, age: float, limit: int) -> int:
        """Remove up to `limit` rows that were finished `age` seconds ago; how many it were."""

    @abstractmethod
    async def depth(self, session: Session) -> int:
        """How many rows are unfinished."""


class Dialect(ABC):
    """One kind of database."""

    name: ClassVar[str]
    isolations: ClassVar[frozenset[str]]
    longest_name: ClassVar[int]
    quote_mark: ClassVar[str]

    def quote(self, name: str) -> str:
        """An identifier as the statements write it.

        Raises:
            ConfigError: it is empty or too long for this database.
        """
        if not name or "\0" in name or self.length(name) > self.longest_name:
            raise ConfigError(f"{name!r} is no name for {self.name}: 1 to {self.longest_name} {self.unit}")
        return self.quote_mark + name.replace(self.quote_mark, self.quote_mark * 2) + self.quote_mark

    unit: ClassVar[str] = "characters"

    def length(self, name: str) -> int:
        """The length as the database counts it."""
        return len(name)

    def suits(self, queue: Queue) -> None:
        """Whether this database can keep such a queue, from configuration alone.

        Raises:
            ConfigError: it cannot; says what to do instead.
        """
        for column in queue.table.columns:
            self.quote(column.name)

    @abstractmethod
    def store(self, queue: Queue) -> Store:
        """The statements of a queue, to be inspected before use."""

    @abstractmethod
    def to_column(self, value: Any, column: Column) -> Any:
        """A value of the row type as the driver takes it."""

    @abstractmethod
    def from_column(self, value: Any, column: Column) -> Any:
        """What the driver read as a value of the row type."""

    @abstractmethod
    def wrap(self, connection: Any) -> Session:
        """A session over a connection of the caller, which stays the caller's."""
