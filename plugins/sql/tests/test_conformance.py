"""The shipped suite on every way to hold a row, on every database, and on the stand-ins."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from ruststream_core.conformance import Check, Target, checks
from ruststream_core.wire import Headers, Outgoing
from ruststream_core_sql import InboxQueue, Role, SqlBroker, inbox
from ruststream_core_sql._ddl import create_table
from ruststream_core_sql._openers import dialect_of_name
from ruststream_core_sql._table import table_of

LEASE = 1.5
# Known offline, so that the checks can be chosen before a server runs; the real ones take their place.
URLS = {"postgresql": "postgresql://u@localhost/x", "mysql": "mysql://u@localhost/x", "sqlite": "sqlite:///x.db"}


def job(form: str, *, fifo: bool = False) -> type[Any]:
    """A row type with every role that a check can ask for."""
    moment = datetime | UnsetType | None
    fields: list[Any] = [
        ("name", Annotated[str, Role.GROUP, Role.FIFO] if fifo else Annotated[str, Role.GROUP]),
        ("payload", Annotated[bytes, Role.PAYLOAD]),
        ("headers", Annotated[str | None, Role.HEADERS], None),
        ("customer", Annotated[bytes | None, Role.PARTITION_KEY], None),
        ("job_id", Annotated[int | UnsetType, Role.ID, Role.GENERATED], UNSET),
        ("retry_after", Annotated[moment, Role.RETRY_AFTER, Role.GENERATED], UNSET),
        ("attempt", Annotated[int | UnsetType, Role.ATTEMPT, Role.GENERATED], UNSET),
    ]
    if form in ("lease", "time"):
        fields.append(("locked_until", Annotated[moment, Role.LOCKED_UNTIL, Role.GENERATED], UNSET))
    if form == "lease":
        fields.append(("token", Annotated[int | UnsetType | None, Role.LEASE_TOKEN, Role.GENERATED], UNSET))
    settings: Any = {"advisory_lock": f"conformance-{os.getpid()}-{{job_id}}"} if form == "advisory" else {}
    name = f"{form}_{'fifo' if fifo else 'jobs'}_{os.getpid()}"
    return inbox(name, lease=LEASE, **settings)(msgspec.defstruct("Job", fields, kw_only=True))


FORMS = {form: job(form) for form in ("lease", "time", "lock", "advisory")}


ONE_SESSION = "a session holds what one receive gave out, and a transaction is of one session"


def options(name: str, form: str) -> dict[str, Any]:
    row_type = FORMS[form]
    # The checks hold several deliveries at once; without it these forms hold one for each worker.
    room = None if form in ("lease", "time") else 40
    return {
        "label": f"{name}-{form}",
        "source": lambda queue: InboxQueue(row_type, queue, dead_letter=f"{queue}-dead", poll=0.1, prefetch=room),
        "dead_letter": lambda queue: InboxQueue(row_type, f"{queue}-dead", poll=0.1, prefetch=room),
        "group_of_one": True,
        "lease": LEASE if form in ("lease", "time") else None,
        "differences": {}
        if form in ("lease", "time")
        else dict.fromkeys(("commit-does-both", "commit-takes-any-verdict", "backlog-comes-in-chunks"), ONE_SESSION),
        "unsendable": lambda queue: Outgoing(b"", queue, Headers({"x": "\0"})),
    }


def real(name: str, form: str) -> Target:
    """On the real database."""
    row_type = FORMS[form]

    def make() -> SqlBroker:
        return SqlBroker(URLS[name], routes={"*": row_type}, pool_size=400)

    return (
        Target(
            make_broker=make,
            unreachable=lambda: SqlBroker(f"{name}://u:s3cret@127.0.0.1:1/x", routes={"*": row_type}),
            secrets=("s3cret",),
            quiet=0.3,
            **options(name, form),
        )
        if name != "sqlite"
        else Target(make_broker=make, quiet=0.3, **options(name, form))
    )


def stand_in(name: str, form: str) -> Target:
    """On the stand-in of that database."""
    row_type = FORMS[form]
    settings = options(name, form) | {"label": f"stand-in-{name}-{form}", "lease": None}
    return Target.in_process(lambda: SqlBroker(URLS[name], routes={"*": row_type}), **settings)


TARGETS = {
    target.label: target
    for target in (
        *(real("postgresql", form) for form in FORMS),
        *(real("mysql", form) for form in FORMS),
        *(real("sqlite", form) for form in FORMS if form != "lock"),
        *(stand_in("postgresql", form) for form in ("lease", "lock", "advisory")),
    )
}
CASES = [
    pytest.param(
        label,
        check,
        id=f"{label}-{check}",
        marks=[pytest.mark.xfail(reason=reason, strict=True)] if (reason := target.differences.get(str(check))) else [],
    )
    for label, target in TARGETS.items()
    for check in checks(target)
]


@pytest.fixture(scope="module")
def postgres_ready(postgres_server: Any, request: pytest.FixtureRequest) -> None:
    URLS["postgresql"] = postgres_server.url
    _create("postgresql", request)


@pytest.fixture(scope="module")
def mysql_ready(mariadb_server: Any, request: pytest.FixtureRequest) -> None:
    URLS["mysql"] = mariadb_server.url
    _create("mysql", request)


@pytest.fixture(scope="module")
def sqlite_ready(tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = tmp_path_factory.mktemp("conformance") / "test.db"
    URLS["sqlite"] = f"sqlite:///{path}"
    with sqlite3.connect(path) as connection:
        for form, row_type in FORMS.items():
            if form != "lock":
                for statement in create_table(table_of(row_type), dialect_of_name("sqlite")):
                    connection.execute(statement)
    connection.close()


def _create(name: str, request: pytest.FixtureRequest) -> None:
    import asyncio

    from ruststream_core_sql._openers import opener_of

    async def create() -> None:
        session = await opener_of(URLS[name], 30.0).open()
        for row_type in FORMS.values():
            for statement in create_table(table_of(row_type), dialect_of_name(name)):
                await session.execute(statement)
        await session.aclose()

    with ThreadPoolExecutor(1) as pool:  # the test that asks first has a loop running here
        pool.submit(asyncio.run, create()).result()


@pytest.mark.parametrize(("label", "check"), CASES)
async def test_contract(label: str, check: Check, request: pytest.FixtureRequest) -> None:
    """Wrong: a rule of the contract is broken; the check's own text says which."""
    if not label.startswith("stand-in"):
        name = label.partition("-")[0]
        request.getfixturevalue({"postgresql": "postgres_ready", "mysql": "mysql_ready"}.get(name, "sqlite_ready"))
    await check.run(TARGETS[label])
