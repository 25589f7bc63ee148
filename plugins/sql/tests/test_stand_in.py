"""The real app on the in-process stand-in, for services and for this transport alike."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from ruststream_core import App, Retry
from ruststream_core.testing import TestApp
from ruststream_core_sql import InboxQueue, Repository, Role, SqlBroker, inbox


class Email(msgspec.Struct):
    to: str


def jobs(form: str, fifo: bool = False) -> type[Any]:
    """A row type held in that form."""
    group = Annotated[str, Role.GROUP, Role.FIFO] if fifo else Annotated[str, Role.GROUP]
    fields: list[Any] = [
        ("name", group),
        ("payload", Annotated[bytes, Role.PAYLOAD]),
        ("headers", Annotated[str | None, Role.HEADERS], None),
        ("job_id", Annotated[int | UnsetType, Role.ID, Role.GENERATED], UNSET),
        ("retry_after", Annotated[datetime | UnsetType | None, Role.RETRY_AFTER, Role.GENERATED], UNSET),
        ("attempt", Annotated[int | UnsetType, Role.ATTEMPT, Role.GENERATED], UNSET),
    ]
    if form == "lease":
        moment = datetime | None | UnsetType
        fields.append(("locked_until", Annotated[moment, Role.LOCKED_UNTIL, Role.GENERATED], UNSET))
    settings: Any = {"advisory_lock": "job-{job_id}"} if form == "advisory" else {}
    return inbox(f"{form}_jobs", **settings)(msgspec.defstruct("Job", fields, kw_only=True))


@pytest.mark.parametrize("form", ["lease", "lock", "advisory"])
@pytest.mark.parametrize("url", ["postgresql://nowhere/db", "mysql://nowhere/db"])
async def test_a_service_runs_without_its_database(form: str, url: str) -> None:
    """Wrong: a test of a service needs its server, or delays run on the real clock."""
    if form == "lock":
        pass  # which SQLite itself would refuse
    row_type = jobs(form)
    broker = SqlBroker(url, routes={"emails": row_type, "receipts": row_type})
    app = App("mail", version="1", broker=broker)
    tries = []

    @app.subscriber(InboxQueue(row_type, "emails"), reply="receipts", workers=2)
    async def send(email: Email) -> Email:
        tries.append(email.to)
        if len(tries) == 1:
            raise Retry(after=60)
        return Email("done " + email.to)

    receipts = []

    @app.subscriber("receipts")
    async def received(email: Email) -> None:
        receipts.append(email.to)

    async with TestApp(app) as t:
        await t.publish(Email("a@b"), to="emails")
        assert (tries, receipts) == (["a@b"], [])
        await t.advance(59)
        assert tries == ["a@b"]
        await t.advance(2)
        assert (tries, receipts) == (["a@b", "a@b"], ["done a@b"])
        await Repository(row_type, broker).publish(row_type(name="emails", payload=b'{"to":"c"}'))
        await t.advance(1)
        assert receipts == ["done a@b", "done c"]


async def test_fifo_on_the_stand_in() -> None:
    """Wrong: a queue whose order matters is tested without its order."""
    row_type = jobs("lock", fifo=True)
    app = App("mail", version="1", broker=SqlBroker("postgresql://nowhere/db", routes={"emails": row_type}))
    seen = []

    @app.subscriber("emails")
    async def send(email: Email) -> None:
        seen.append(email.to)
        if len(seen) == 1:
            raise Retry

    async with TestApp(app) as t:
        await t.publish_many([Email("1"), Email("2"), Email("3")], to="emails")
        assert seen == ["1", "1", "2", "3"]
