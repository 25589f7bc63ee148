"""Messages into tables: by name through the routes, several in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ruststream_core.abc import PublishOptions, Sender
from ruststream_core.errors import Closed, ConfigError, PublishError
from ruststream_core.kit import Gather
from ruststream_core.wire import Outgoing
from ruststream_core_sql._records import Inserter, Record, Recorder
from ruststream_core_sql._tasks import spawn
from ruststream_core_sql.config import SqlPublish
from ruststream_core_sql.errors import brief, is_passing

__all__ = ["SqlSender"]

GATHERED: Final = 500
GATHERED_BYTES: Final = 4_000_000


class SqlSender(Sender):
    """See `Sender`. What is sent while a statement is on its way goes out together in the next."""

    def __init__(self, recorder: Recorder, inserter: Inserter, options: PublishOptions | None) -> None:
        if options is not None and not isinstance(options, SqlPublish):
            raise ConfigError(f"options={options!r}: this broker takes SqlPublish(...)")
        self._recorder = recorder
        self._inserter = inserter
        self._options = options
        self._gather: Gather[Record] = Gather(self._flush, limit=GATHERED)
        self._closed = False

    def send(self, out: Outgoing) -> asyncio.Future[None]:
        if self._closed:
            raise Closed("the sender is closed")
        record = self._recorder.of_message(out, self._options)
        done = record.done = asyncio.get_running_loop().create_future()
        _ = self._gather.add(record)
        return done

    async def _flush(self, records: Sequence[Record]) -> None:
        for chunk in chunks(records):
            await self._store(chunk)

    async def _store(self, records: Sequence[Record]) -> None:
        try:
            await self._inserter.store(records)
        except PublishError as exc:
            if len(records) > 1 and not is_passing(exc.__cause__ or exc):
                for record in records:  # one of them is to blame, and only that one shall fail
                    await self._store([record])
                return
            _fail(records, exc)
        except Exception as exc:
            _fail(records, PublishError(f"not stored: {brief(exc)}"))
        else:
            for record in records:
                if record.done is not None and not record.done.done():
                    record.done.set_result(None)

    async def send_many(self, outs: Sequence[Outgoing]) -> None:
        failed: dict[int, BaseException] = {}
        pending: dict[int, asyncio.Future[None]] = {}
        for index, out in enumerate(outs):
            try:
                pending[index] = self.send(out)
            except PublishError as exc:
                failed[index] = exc
        if pending:
            await asyncio.wait(pending.values())
        failed |= {index: error for index, future in pending.items() if (error := future.exception()) is not None}
        if failed:
            raise PublishError(f"{len(failed)} of {len(outs)} messages were not stored", failed=failed)

    async def flush(self) -> None:
        await self._gather.drain()

    async def aclose(self, grace: float) -> None:
        self._closed = True
        flushed = spawn(self._gather.aclose(), "sql:flush")
        await asyncio.wait([flushed], timeout=grace)


def _fail(records: Sequence[Record], error: PublishError) -> None:
    for record in records:
        if record.done is not None and not record.done.done():
            record.done.set_exception(PublishError(str(error)).with_traceback(None) if len(records) > 1 else error)
            # Whoever does not look at a publish's future has chosen so.
            record.done.exception()


def chunks(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Runs of records that one statement may carry."""
    out: list[Sequence[Record]] = []
    start = size = 0
    for k, record in enumerate(records):
        if k > start and size + record.size > GATHERED_BYTES:
            out.append(records[start:k])
            start, size = k, 0
        size += record.size
    return [*out, records[start:]]
