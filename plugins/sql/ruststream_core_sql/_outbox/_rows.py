"""Records of an outbox as rows."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.settlement import Ack, Outcome, Skip
from ruststream_core.wire import Outgoing
from ruststream_core_sql._convert import headers_to_json, key_value, payload_value
from ruststream_core_sql._dialects._base import Dialect
from ruststream_core_sql._table import Column, Table

__all__ = ["OUTBOX_ID", "Row", "is_acked", "parse_id", "record_of"]

OUTBOX_ID: Final = "x-ruststream-outbox-id"
"""The header that carries a record's id."""


class Row(msgspec.Struct):
    """A record as the statements need it."""

    id: Any
    token: Any
    delay: float | None


def record_of(table: Table, out: Outgoing, dialect: Dialect, *, held: bool) -> tuple[Row, dict[Column, Any]]:
    """The record of a message; `held` by this process until it was sent."""
    where = f"outbox table {table.full_name!r}"
    row = Row(id=None, token=None, delay=None)
    values: dict[Column, Any] = {}
    for column in table.columns:
        if column.has("name"):
            values[column] = out.name
        elif column.has("payload"):
            values[column] = payload_value(out.payload, column.type, where)
        elif column.has("headers"):
            values[column] = headers_to_json(out.headers, where)
        elif column.has("partition_key"):
            values[column] = key_value(out.key, column.type, where)
        elif column.has("id") and not column.has("generated"):
            values[column] = row.id = _new_id(column)
    if table.get("headers") is None and out.headers:
        raise PublishError(f"{where} has no Role.HEADERS, and the message has headers: {', '.join(out.headers)}")
    if held and (until := table.get("locked_until")) is not None:
        _hold(table, row, until, values)
        row.token = dialect.to_column(row.token, table.get("lease_token") or until)
    return row, {column: dialect.to_column(value, column) for column, value in values.items()}


def _hold(table: Table, row: Row, until: Column, values: dict[Column, Any]) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=table.lease + 1)
    token = table.get("lease_token")
    values[until] = moment = moment.replace(microsecond=0)
    row.token = moment
    if token is not None:
        row.token = values[token] = uuid.uuid4().int >> 66 if token.type is int else uuid.uuid4()
        if token.type is str:
            row.token = values[token] = values[token].hex


def is_acked(result: object) -> bool:
    """Whether a handler's result settles the message as done."""
    if isinstance(result, type) and issubclass(result, Outcome):
        return issubclass(result, Ack | Skip)
    return not isinstance(result, Outcome) or isinstance(result, Ack | Skip)


def _new_id(column: Column) -> Any:
    """An id that sorts by time: 48 bits of milliseconds, then what is random."""
    if column.type is int:
        raise ConfigError(f"outbox: the id column {column.name!r} is an integer: make it Role.GENERATED")
    milliseconds = int(datetime.now(UTC).timestamp() * 1000)
    rest = uuid.uuid4().int & ((1 << 80) - 1)
    value = (milliseconds << 80) | (rest & ~(0xF << 76) | (0x7 << 76)) & ~(0x3 << 62) | (0x2 << 62)
    made = uuid.UUID(int=value)
    return made if column.type is uuid.UUID else str(made)


def parse_id(text: str, column: Column) -> Any:
    if column.type is int:
        return int(text)
    return uuid.UUID(text) if column.type is uuid.UUID else text
