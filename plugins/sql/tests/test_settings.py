"""Row types, descriptors, DDL and the command line: nothing here needs a server."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core.errors import ConfigError
from ruststream_core_sql import InboxQueue, Role, SqlBroker, inbox, outbox
from ruststream_core_sql._commands import main
from ruststream_core_sql._openers import dialect_of_name
from ruststream_core_sql._table import table_of

MODULE = """
from __future__ import annotations
from datetime import datetime
from typing import Annotated
import msgspec
from ruststream_core_sql import Role, inbox

@inbox("email_jobs")
class EmailJob(msgspec.Struct):
    job_id: Annotated[int, Role.ID, Role.GENERATED]
    name: Annotated[str, Role.GROUP]
    priority: Annotated[int, Role.PRIORITY]
    payload: Annotated[bytes, Role.PAYLOAD]
    headers: Annotated[dict[str, str] | None, Role.HEADERS] = None
    retry_after: Annotated[datetime | None, Role.RETRY_AFTER] = None
    locked_until: Annotated[datetime | None, Role.LOCKED_UNTIL] = None
"""


def make(*fields: tuple[Any, ...], **settings: Any) -> type[Any]:
    return inbox("jobs", **settings)(msgspec.defstruct("Job", fields))


ID = ("id", Annotated[int, Role.ID, Role.GENERATED])
UNTIL = ("until", Annotated[datetime | None, Role.LOCKED_UNTIL])


@pytest.mark.parametrize(
    ("fields", "settings", "words"),
    [
        ([("name", str)], {}, "no column has Role.ID"),
        ([ID, ("other", Annotated[int, Role.ID])], {}, "the role id is on id and other"),
        ([ID, ("x", Annotated[str, Role.FIFO])], {}, "without Role.GROUP"),
        ([ID, ("x", Annotated[int, Role.LEASE_TOKEN])], {}, "without Role.LOCKED_UNTIL"),
        ([ID], {"advisory_lock": "a-{nothing}"}, "no column 'nothing'"),
        ([ID, UNTIL], {"advisory_lock": "a-{id}"}, "two ways to hold a row"),
        ([ID, ("g", Annotated[str, Role.GROUP, Role.FIFO])], {"advisory_lock": "{id}"}, "FIFO does not go with"),
        ([ID], {"count_crashes": True}, "count_crashes needs Role.ATTEMPT"),
        ([ID, UNTIL], {"lease": 0.5}, "at least 1 second"),
    ],
)
def test_roles_that_do_not_go_together(fields: list[Any], settings: Any, words: str) -> None:
    """Wrong: a row type that cannot work is found by the first message, or not at all."""
    with pytest.raises(ConfigError, match=words):
        make(*fields, **settings)


def test_descriptors_that_do_not_fit_the_table() -> None:
    """Wrong: a setting that the table cannot keep is ignored."""
    plain = make(ID)
    grouped = make(ID, ("name", Annotated[str, Role.GROUP]))
    for row_type, arguments, words in (
        (plain, {"name": "x"}, "no Role.GROUP"),
        (grouped, {}, "say which"),
        (plain, {"dead_letter": "x"}, "row type of another table"),
        (grouped, {"name": "x", "dead_letter": plain}, "name of another group"),
        (grouped, {"name": "x", "dead_letter": "y", "max_attempts": 3}, "needs Role.ATTEMPT"),
        (grouped, {"name": "x", "lease": 5.0}, "only with Role.LOCKED_UNTIL"),
        (grouped, {"name": "x", "poll": 0}, "more than 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            InboxQueue(row_type, **arguments)
    with pytest.raises(ConfigError, match="no row type"):
        InboxQueue(int)


def test_what_a_database_cannot_do_is_refused_offline() -> None:
    """Wrong: a wish that the database cannot keep is found when it is connected."""
    lock = make(ID, ("name", Annotated[str, Role.GROUP]))
    with pytest.raises(ConfigError, match="SQLite locks no rows"):
        SqlBroker("sqlite:///x.db").source(InboxQueue(lock, "a"))
    fifo = make(ID, ("name", Annotated[str, Role.GROUP, Role.FIFO]), isolation="serializable")
    with pytest.raises(ConfigError, match="SERIALIZABLE"):
        SqlBroker("mysql://x/y").source(InboxQueue(fifo, "a"))
    with pytest.raises(ConfigError, match="isolation='serializable'"):
        SqlBroker("sqlite:///x.db").source(InboxQueue(make(ID, UNTIL, isolation="serializable")))
    with pytest.raises(ConfigError, match="no LISTEN"):
        SqlBroker("mysql://x/y", listen=True)
    long = inbox("t" * 70)(msgspec.defstruct("Job", [ID]))
    with pytest.raises(ConfigError, match="63 bytes"):
        dialect_of_name("postgresql").quote(table_of(long).name)


def test_features_follow_from_the_roles() -> None:
    """Wrong: start-up lets a policy pass that the table cannot keep."""
    broker = SqlBroker("postgresql://x/y")
    bare = broker.features(InboxQueue(make(ID)))
    assert (bare.delay, bare.attempts, bare.keys, bare.drop) == (False, "process", False, "discard")
    assert (bare.survives_outage, bare.transactions, bare.headers) == (False, True, "none")
    due = ("due", Annotated[datetime | None, Role.RETRY_AFTER])
    attempt = ("attempt", Annotated[int, Role.ATTEMPT])
    rich = broker.features(InboxQueue(make(ID, UNTIL, due, attempt), dead_letter=make(ID)))
    assert (rich.delay, rich.attempts, rich.drop, rich.survives_outage) == (True, "broker", "dead_letter", True)


def test_an_exact_route_wins_over_a_prefix_and_the_longer_prefix_over_the_shorter() -> None:
    """Wrong: a name that reaches another table than the one meant."""
    body = ("body", Annotated[bytes, Role.PAYLOAD])
    one, two, three = (inbox(f"t{k}")(msgspec.defstruct("Job", [ID, body])) for k in range(3))
    routes = SqlBroker("postgresql://x/y", routes={"a*": one, "a.b*": two, "a.b.c": three}).routes
    names = ("a.x", "a.b.x", "a.b.c", "z")
    assert [getattr(routes.find(name), "name", None) for name in names] == ["t0", "t1", "t2", None]


@pytest.mark.parametrize("url", ["sqlite://x.db", "oracle://x", "postgresql://x:y/z"])
def test_urls_that_are_not_understood(url: str) -> None:
    """Wrong: a typing error ends in a database that nobody meant."""
    with pytest.raises(ConfigError):
        SqlBroker(url).describe()


def test_an_outbox_needs_name_and_payload() -> None:
    """Wrong: a relay that finds out."""
    with pytest.raises(ConfigError, match=r"Role.NAME and Role.PAYLOAD"):
        outbox("out")(msgspec.defstruct("Out", [ID]))


def test_ddl_is_printed_for_each_database_and_taken_by_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong: DDL that lacks the index, or that the database refuses."""
    (tmp_path / "ddl_tables.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["ddl", "ddl_tables"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("--")] == [
        "-- postgresql",
        "-- mysql",
        "-- sqlite",
    ]
    assert '("name", "priority", "retry_after" NULLS FIRST, "job_id")' in printed
    assert "(`name`, `priority`, `retry_after`, `job_id`)" in printed
    assert main(["check", "ddl_tables", f"sqlite:///{tmp_path}/x.db"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["ddl", "ddl_tables", "--dialect", "sqlite"]) == 0
    import sqlite3

    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.executescript(capsys.readouterr().out)
    connection.close()
    assert main(["check", "ddl_tables", f"sqlite:///{tmp_path}/x.db"]) == 0
    sys.modules.pop("ddl_tables")


async def test_every_statement_is_taken_by_a_live_database(db: Any) -> None:
    """Wrong: a statement that only fails when its turn has come."""
    from ruststream_core_sql._check import check_tables

    tables = []
    for form in ("lease", "time", "lock", "advisory"):
        if (db.name, form) != ("sqlite", "lock"):
            roles = ("group", "priority", "retry_after", "attempt", "processed_at", "headers", "partition_key")
            tables.append(await db.table(form=form, roles=roles))
            tables.append(await db.table(form=form, roles=()))
    tables.append(await db.table(form="lease", roles=("fifo",)))
    assert await check_tables(db.url, [table_of(row_type) for row_type in tables]) == []


def test_the_plugin_brings_its_schemes_and_its_command() -> None:
    """Wrong: `ruststream sql` or a URL that does not find this package."""
    from ruststream_core.plugins import load_command, load_scheme

    for scheme in ("postgresql", "mysql", "sqlite"):
        assert load_scheme(scheme) is SqlBroker
    assert load_command("sql") is main
