"""`ruststream sql ddl MODULE` and `ruststream sql check MODULE URL`."""

# ruff: noqa: T201  a command prints

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ruststream_core.errors import ConfigError
from ruststream_core_sql._check import check_tables
from ruststream_core_sql._ddl import create_table
from ruststream_core_sql._openers import dialect_of_name
from ruststream_core_sql._table import Table, table_of

__all__ = ["main", "tables_of"]

DIALECTS: Final = ("postgresql", "mysql", "sqlite")


def main(argv: list[str]) -> int:
    """Run one command; its exit code."""
    parser = argparse.ArgumentParser(prog="ruststream sql", description="Tables of queues and outboxes")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    ddl = commands.add_parser("ddl", help="print table and index of every row type in a module")
    ddl.add_argument("module", help="the module that has the row types, such as orders.tables")
    ddl.add_argument("--dialect", choices=DIALECTS, help="one database instead of all three")
    check = commands.add_parser("check", help="have a database prepare every statement of every row type in a module")
    check.add_argument("module", help="the module that has the row types")
    check.add_argument("url", help="the database")
    options = parser.parse_args(argv)
    tables = tables_of(options.module)
    if options.command == "ddl":
        return _ddl(tables, [options.dialect] if options.dialect else DIALECTS)
    return _check(tables, options.url)


def tables_of(module_name: str) -> list[Table]:
    """The tables of every row type that a module defines or imports.

    Raises:
        ConfigError: no such module, or it has none.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ImportError as exc:
        raise ConfigError(f"{module_name!r} cannot be imported: {exc}") from exc
    found = list(dict.fromkeys(_tables(vars(module).values())))
    if not found:
        raise ConfigError(f"{module_name!r} has no class with @inbox or @outbox")
    return found


def _tables(values: Any) -> Iterator[Table]:
    for value in values:
        if isinstance(value, type):
            try:
                yield table_of(value)
            except ConfigError:
                continue


def _ddl(tables: list[Table], dialects: Any) -> int:
    for name in dialects:
        print(f"-- {name}")
        for table in tables:
            for statement in create_table(table, dialect_of_name(name)):
                print(f"{statement};")
        print()
    return 0


def _check(tables: list[Table], url: str) -> int:
    problems = asyncio.run(check_tables(url, tables))
    for line in problems:
        print(f"error: {line}", file=sys.stderr)
    if not problems:
        print(f"{len(tables)} tables: every statement prepared")
    return 2 if problems else 0
