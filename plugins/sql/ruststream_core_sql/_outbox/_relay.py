"""Sends what is recorded, until the broker has confirmed it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from ruststream_core.abc import Demand, Features, State
from ruststream_core.errors import ConfigError, SettleError
from ruststream_core.kit import LoopClock
from ruststream_core.settlement import ACK, RELEASE, Retry, Verdict
from ruststream_core.wire import Delivery, Headers
from ruststream_core_sql._database import Database
from ruststream_core_sql._dialects._base import Queue, Store
from ruststream_core_sql._outbox._rows import OUTBOX_ID
from ruststream_core_sql._records import Inserter, Recorder, utc_now
from ruststream_core_sql._subscription._base import Opening
from ruststream_core_sql._subscription._delivery import SqlDelivery
from ruststream_core_sql._subscription._lease import LeaseSubscription
from ruststream_core_sql._table import Table
from ruststream_core_sql._tasks import spawn
from ruststream_core_sql.config import Routes

if TYPE_CHECKING:
    from ruststream_core_sql._outbox._outbox import Outbox

__all__ = ["Publishes", "Relay"]

log: Final = logging.getLogger("ruststream.sql")

FIRST: Final = 1.0
MOST: Final = 300.0
PURGED: Final = 1000
"""Finished records removed by one statement."""


class Publishes(Protocol):
    """What a relay sends with: a `Running`, or any of its publishers."""

    async def publish(self, value: Any, *, to: Any, headers: Any, key: Any) -> Any:
        """Return when the broker has confirmed."""


class Relay:
    """Runs beside any number of others: records are claimed with leases. See `Outbox.relay`."""

    def __init__(self, outbox: Outbox, publisher: Publishes, *, batch: int, poll: float, keep: float) -> None:
        self._outbox = outbox
        self._publisher = publisher
        self._batch = batch
        self._poll = poll
        self._keep = keep
        self._lines: list[TableRelay] = []
        self.sent = 0
        """Records that the broker has confirmed."""
        self.failed = 0
        """Sends that failed and are tried again."""

    async def start(self) -> None:
        """Begin, with what is left from before.

        Raises:
            ConfigError: a table has no lease columns, or is not as its row type says.
            ConnectError: the database cannot be reached.
        """
        database = await self._outbox.home.database()
        for table in dict.fromkeys(self._outbox.tables.values()):
            if table.form != "lease":
                raise ConfigError(f"outbox table {table.full_name!r}: a relay needs a column with Role.LOCKED_UNTIL")
            line = TableRelay(self, database, table)
            await line.start()
            self._lines.append(line)

    async def send(self, delivery: SqlDelivery) -> None:
        """One record to the broker."""
        headers = Headers(delivery.headers.raw()).replaced({OUTBOX_ID: str(delivery.id)})
        await self._publisher.publish(delivery.payload, to=delivery.name, headers=dict(headers), key=delivery.key)

    def opening(self, database: Database, table: Table, watch: Any) -> Opening:
        """How a table of records is read."""
        return Opening(
            database=database,
            store=database.dialect.store(queue := Queue(table=table, lease=table.lease)),
            queue=queue,
            demand=Demand(workers=1, batch=self._batch),
            watch=watch,
            hub=self._outbox.home.hub,
            clock=LoopClock(),
            features=Features(settles=True, retry="broker", delay=True),
            poll=self._poll,
            window=2 * self._batch,
            max_attempts=None,
            recorder=Recorder(Routes({}), database.dialect.to_column, utc_now),
            inserter=Inserter(database, lambda _: (_ for _ in ()).throw(KeyError), self._outbox.home.hub, notify=False),
        )

    @property
    def verdict(self) -> Verdict:
        """What becomes of a record that the broker has confirmed."""
        return ACK if self._outbox.finish == "confirmed" else Retry(after=self._outbox.resend)

    async def store(self, table: Table) -> Store:
        """The statements of a table of records."""
        return await self._outbox.home.store(table)

    @property
    def batch(self) -> int:
        """Records taken at once."""
        return self._batch

    @property
    def keep(self) -> float:
        """Seconds that finished records stay."""
        return self._keep

    async def aclose(self) -> None:
        """Finish what is being sent, and stop."""
        lines, self._lines = self._lines, []
        for line in lines:
            await line.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class TableRelay:
    """One table of records. Its own `Watch`."""

    def __init__(self, relay: Relay, database: Database, table: Table) -> None:
        self._relay = relay
        self._database = database
        self._table = table
        self._subscription = LeaseSubscription(relay.opening(database, table, self))
        self._blocked: dict[bytes, float] = {}
        self._purged = 0.0
        self._task: asyncio.Task[None] | None = None

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        """A lease ran out: another relay sends the record again."""
        log.warning("outbox table %r: %s", self._table.name, error)

    def state(self, state: State, cause: BaseException | None) -> None:
        """Interruptions end by themselves."""

    async def start(self) -> None:
        """Claim what is there."""
        await self._subscription.start()
        self._task = spawn(self._run(), f"sql:relay:{self._table.name}")

    async def _run(self) -> None:
        while chunk := await self._subscription.receive(self._relay.batch):
            lanes: dict[object, list[SqlDelivery]] = {}
            for delivery in chunk:
                key = delivery.key
                lanes.setdefault(id(delivery) if key is None else key, []).append(delivery)
            # One chunk after the other, so that a key's records stay in order from chunk to chunk.
            await asyncio.gather(*(self._lane(lane) for lane in lanes.values()))
            await self._purge()

    async def _lane(self, lane: Sequence[SqlDelivery]) -> None:
        """Records of one key, one after the other; behind a failed one the others wait."""
        for delivery in lane:
            key = delivery.key
            if key is not None and self._blocked and self._blocked.get(key, 0.0) > time.monotonic():
                delivery.settle(RELEASE)
                continue
            if delivery.lost is not None:
                continue
            try:
                await self._relay.send(delivery)
            except Exception as exc:
                self._failed(delivery, exc)
            else:
                self._relay.sent += 1
                delivery.settle(self._relay.verdict)

    def _failed(self, delivery: SqlDelivery, error: Exception) -> None:
        attempt = delivery.attempt or 1
        delay = min(MOST, FIRST * 2 ** min(attempt - 1, 20))
        self._relay.failed += 1
        log.warning(
            "outbox table %r: record %s was not sent, again in %g s: %s", self._table.name, delivery.id, delay, error
        )
        if delivery.key is not None:
            # What was claimed before this failure; what is claimed after it, the statement keeps in order.
            self._blocked = {key: until for key, until in self._blocked.items() if until > time.monotonic()}
            self._blocked[delivery.key] = time.monotonic() + delay
        delivery.settle(Retry(after=delay))

    async def _purge(self) -> None:
        """Marked records, in bounded batches, now and then."""
        if self._table.get("processed_at") is None or time.monotonic() - self._purged < 60:
            return
        self._purged = time.monotonic()
        try:
            store = await self._relay.store(self._table)
            async with self._database.session() as session:
                removed = PURGED
                while removed == PURGED:
                    removed = await store.purge(session, self._relay.keep, PURGED)
        except Exception as exc:
            log.warning("outbox table %r: old records stay for now: %s", self._table.name, exc)

    async def aclose(self) -> None:
        """Let the chunk in hand end, and give back the rest."""
        self._subscription.stop()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=30)
        await self._subscription.aclose(10)
