"""A row type read once: its columns, their roles and what follows from them."""

from __future__ import annotations

import dataclasses
import string
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from ruststream_core.errors import ConfigError

if TYPE_CHECKING:
    from ruststream_core_sql.roles import Role

__all__ = ["Column", "Form", "Table", "register", "table_of"]

Form = Literal["lock", "lease", "advisory"]

_TABLES: WeakKeyDictionary[type, Table] = WeakKeyDictionary()
_ONCE = "id group priority partition_key retry_after attempt processed_at locked_until lease_token headers payload name"


class Column(msgspec.Struct, frozen=True):
    """One field of the row type."""

    field: str
    name: str
    type: Any
    """The annotation without metadata, None and UNSET."""
    nullable: bool
    roles: frozenset[Role]

    def has(self, role: str) -> bool:
        """Whether it carries the role of that value."""
        return any(mine.value == role for mine in self.roles)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table as its row type describes it."""

    name: str
    schema: str | None
    row_type: type
    columns: tuple[Column, ...]
    lease: float = 30.0
    advisory_lock: str | None = None
    isolation: str | None = None
    count_crashes: bool = False
    kind: Literal["inbox", "outbox"] = "inbox"

    @classmethod
    def of(cls, row_type: type, name: str, schema: str | None, names: Mapping[str, Any], **settings: Any) -> Table:
        """Read a row type.

        Raises:
            ConfigError: its columns do not make a queue.
        """
        columns = tuple(_columns(row_type, name, names))
        table = cls(name=name, schema=schema, row_type=row_type, columns=columns, **settings)
        for problem in _problems(table):
            raise ConfigError(f"{row_type.__name__} (table {name!r}): {problem}")
        return table

    def get(self, role: str) -> Column | None:
        """The column of that role, None where there is none."""
        return next((column for column in self.columns if column.has(role)), None)

    def name_of(self, role: str) -> str | None:
        """The name of the column of that role."""
        column = self.get(role)
        return None if column is None else column.name

    @property
    def id(self) -> Column:
        """The column that addresses a row."""
        column = self.get("id")
        assert column is not None
        return column

    @property
    def full_name(self) -> str:
        """For messages: with the schema where one was given."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    @property
    def form(self) -> Form:
        """How a row is held."""
        if self.get("locked_until") is not None:
            return "lease"
        return "lock" if self.advisory_lock is None else "advisory"

    @property
    def fifo(self) -> bool:
        """One row of a group at a time."""
        return self.get("fifo") is not None

    @property
    def ordered(self) -> bool:
        """An outbox whose rows keep their order by key, over all relays."""
        return self.kind == "outbox" and self.get("partition_key") is not None and self.form == "lease"

    @property
    def guarded(self) -> bool:
        """Claims have to go one after the other, because what one may take depends on what another has."""
        return self.fifo or self.ordered

    @property
    def others(self) -> tuple[Column, ...]:
        """The columns without a role: the service's own."""
        return tuple(c for c in self.columns if not c.roles or {role.value for role in c.roles} == {"generated"})

    @property
    def inserted(self) -> tuple[Column, ...]:
        """The columns that an INSERT names."""
        return tuple(column for column in self.columns if not column.has("generated"))

    def advisory_columns(self) -> tuple[Column, ...]:
        """The columns that the advisory lock's key is made of."""
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[field] for field in _fields(self.advisory_lock or ""))


def register(table: Table) -> None:
    """Remember the table of a row type."""
    _TABLES[table.row_type] = table


def table_of(row_type: type) -> Table:
    """The table of a row type.

    Raises:
        ConfigError: the class carries neither @inbox nor @outbox.
    """
    table = _TABLES.get(row_type)
    if table is None:
        raise ConfigError(f"{row_type!r} is no row type: decorate the class with @inbox('table') or @outbox('table')")
    return table


def _columns(row_type: type, table: str, names: Mapping[str, Any]) -> list[Column]:
    from ruststream_core_sql.roles import Role  # noqa: PLC0415  roles imports this module

    module = vars(sys.modules.get(row_type.__module__, types))
    try:
        hints = get_type_hints(row_type, globalns={**module, **names}, include_extras=True)
    except NameError as exc:
        raise ConfigError(
            f"{row_type.__name__} (table {table!r}): {exc}; import it where the class is defined"
        ) from exc
    encoded = _encoded_names(row_type, table)
    out = []
    for field, column in encoded.items():
        hint = hints[field]
        metadata = getattr(hint, "__metadata__", ())
        base = get_args(hint)[0] if metadata else hint
        plain, nullable = _plain(base)
        out.append(Column(field, column, plain, nullable, frozenset(m for m in metadata if isinstance(m, Role))))
    return out


def _encoded_names(row_type: type, table: str) -> dict[str, str]:
    if issubclass(row_type, msgspec.Struct):
        return dict(zip(row_type.__struct_fields__, row_type.__struct_encode_fields__, strict=True))
    if dataclasses.is_dataclass(row_type):
        return {field.name: field.name for field in dataclasses.fields(row_type)}
    raise ConfigError(f"{row_type.__name__} (table {table!r}): a row type is a msgspec.Struct or a dataclass")


def _plain(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = get_args(annotation)
    kept = [member for member in members if member not in (type(None), msgspec.UnsetType)]
    return (kept[0] if len(kept) == 1 else Union[tuple(kept)]), type(None) in members  # noqa: UP007  built at run time


def _fields(template: str) -> list[str]:
    return [field for _, field, _, _ in string.Formatter().parse(template) if field]


def _problems(table: Table) -> list[str]:
    found = []
    for role in _ONCE.split():
        holders = [column.name for column in table.columns if column.has(role)]
        if len(holders) > 1:
            found.append(f"the role {role} is on {' and '.join(holders)}, it goes on one column")
    if table.get("id") is None:
        found.append("no column has Role.ID, which addresses every settlement")
        return found
    found.extend(_problems_of_roles(table))
    if table.kind == "outbox" and (table.get("name") is None or table.get("payload") is None):
        found.append("an outbox needs columns with Role.NAME and Role.PAYLOAD")
    if table.lease < 1:
        found.append(f"lease={table.lease!r}: at least 1 second")
    return found


def _problems_of_roles(table: Table) -> list[str]:
    found = []
    group, fifo = table.get("group"), table.get("fifo")
    if fifo is not None and fifo is not group:
        found.append(f"Role.FIFO on {fifo.name} without Role.GROUP: they go on the same column")
    if table.get("lease_token") is not None and table.get("locked_until") is None:
        found.append("Role.LEASE_TOKEN without Role.LOCKED_UNTIL")
    if table.advisory_lock is not None:
        if fifo is not None:
            found.append("FIFO does not go with advisory_lock: take a lease (Role.LOCKED_UNTIL) or the row lock")
        if table.get("locked_until") is not None:
            found.append("advisory_lock and Role.LOCKED_UNTIL are two ways to hold a row: take one")
        known = {column.name for column in table.columns}
        found.extend(f"advisory_lock names no column {f!r}" for f in _fields(table.advisory_lock) if f not in known)
    if table.count_crashes and (table.form != "lock" or table.get("attempt") is None):
        found.append("count_crashes needs Role.ATTEMPT and the row lock: a lease counts every claim already")
    return found
