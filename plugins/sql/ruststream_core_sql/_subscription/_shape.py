"""How to read the rows of one subscription."""

from __future__ import annotations

from typing import Any

import msgspec

from ruststream_core_sql._dialects._base import Dialect, Store

__all__ = ["Shape", "shape_of"]


class Shape(msgspec.Struct, frozen=True):
    """Positions in a claimed row, and what does not change from row to row."""

    name: str
    attempt: int | None
    payload: int | None
    headers: int | None
    key: int | None
    group: int | None
    others: tuple[tuple[str, int], ...]
    counted: int
    """1 where the claim counted the attempt already: the row then shows the number of the next."""
    columns: tuple[Any, ...]
    row_type: type
    dialect: Dialect

    def row(self, record: Any) -> Any:
        """An object of the row type."""
        convert = self.dialect.from_column
        return self.row_type(**{c.field: convert(record[k], c) for k, c in enumerate(self.columns)})


def shape_of(store: Store, dialect: Dialect) -> Shape:
    """The shape of a queue's rows."""
    queue, layout = store.queue, store.layout
    table = queue.table
    return Shape(
        name=queue.name if queue.name is not None else table.name,
        attempt=layout.attempt,
        payload=layout.payload,
        headers=layout.headers,
        key=layout.key,
        group=layout.group,
        others=layout.others,
        counted=store.counted,
        columns=layout.columns,
        row_type=table.row_type,
        dialect=dialect,
    )
