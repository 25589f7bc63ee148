"""What the core finds through the entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ruststream_core.plugins import hookimpl

if TYPE_CHECKING:
    from ruststream_core_sql._broker import SqlBroker

__all__ = ["ruststream_brokers", "ruststream_commands"]


@hookimpl
def ruststream_brokers() -> Mapping[str, type[SqlBroker]]:
    """One class for all databases."""
    from ruststream_core_sql._broker import SqlBroker  # noqa: PLC0415  imported when a URL names it

    return {"postgresql": SqlBroker, "mysql": SqlBroker, "sqlite": SqlBroker}


@hookimpl
def ruststream_commands() -> Mapping[str, Callable[[list[str]], int]]:
    """`ruststream sql`."""
    from ruststream_core_sql._commands import main  # noqa: PLC0415  imported when the command line names it

    return {"sql": main}
