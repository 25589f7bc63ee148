"""A row in the hands of this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from ruststream_core.errors import SettleError
from ruststream_core.settlement import Retry, Verdict
from ruststream_core.wire import NO_HEADERS, Delivery, Headers
from ruststream_core_sql._convert import headers_from_columns, headers_from_json, key_bytes, payload_bytes

if TYPE_CHECKING:
    from ruststream_core_sql._subscription._shape import Shape

__all__ = ["SqlDelivery"]


class SqlDelivery(msgspec.Struct, Delivery, eq=False):
    """See `Delivery`. `holder` is what holds the row: a claim, a transaction or a session."""

    record: Any
    shape: Shape
    holder: Any
    id: Any = None
    token: Any = None
    verdict: Verdict | None = None
    lost: SettleError | None = None

    @property
    def delay(self) -> float | None:
        """Seconds until the row is due again, for its settlement."""
        verdict = self.verdict
        return verdict.after if isinstance(verdict, Retry) else None

    @property
    def payload(self) -> bytes:
        at = self.shape.payload
        if at is None:
            return msgspec.json.encode(self.row)
        value = self.record[at]
        return value if type(value) is bytes else payload_bytes(value)

    @property
    def row(self) -> Any:
        """The row as an object of its row type."""
        return self.shape.row(self.record)

    @property
    def name(self) -> str:
        at = self.shape.group
        return self.shape.name if at is None else str(self.record[at])

    @property
    def headers(self) -> Headers:
        shape = self.shape
        if shape.headers is not None:
            return headers_from_json(self.record[shape.headers])
        return headers_from_columns(self.record, shape.others) if shape.others else NO_HEADERS

    @property
    def key(self) -> bytes | None:
        at = self.shape.key
        return None if at is None else key_bytes(self.record[at])

    @property
    def attempt(self) -> int | None:
        at = self.shape.attempt
        return None if at is None else self.record[at] - self.shape.counted

    def settle(self, verdict: Verdict) -> asyncio.Future[None] | None:
        if self.lost is not None or self.verdict is not None:
            return None
        self.verdict = verdict
        future: asyncio.Future[None] | None = self.holder.settle(self, verdict)
        return future

    def transport(self, field: str) -> object:
        if field == "sql.id":
            return self.id
        if field == "sql.row":
            return self.row
        raise KeyError(field)
