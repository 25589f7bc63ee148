"""Credentials: wrong ones end the start, revoked ones are told and mended; none is ever shown."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ruststream_core.testing.servers import NatsServer

from .ledger import Ledger
from .scene import (
    DEADLINE,
    WINDOW,
    Begin,
    Rounds,
    all_handled,
    all_settled,
    back,
    balanced,
    broker,
    producing,
    service,
    under_load,
    until,
)

PASSWORD, WRONG = "correct-horse", "wrong-battery"
MODULE = """
from ruststream_core import App
from ruststream_core_nats import JetStream

app = App("access", broker="nats://localhost:1")

@app.subscriber(JetStream("load.*", stream="LOAD", durable="worker", create=True))
async def load(body: bytes) -> None: ...
"""


async def test_wrong_from_the_start(
    own_server: Callable[..., NatsServer], rounds: Rounds, figures: Begin, tmp_path: Path
) -> None:
    """An operator would see a service that hangs, or one whose log holds the password."""
    row = figures("credentials: wrong at the start")
    server = own_server(users={"alice": PASSWORD})
    (tmp_path / "access.py").write_text(MODULE)
    url = f"nats://alice:{WRONG}@127.0.0.1:{server.port}"
    command = [sys.executable, "-m", "ruststream_core", "run", "access:app", "--broker", f"default={url}"]
    for _ in rounds:
        began = time.monotonic()
        ended = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        row.back.append(time.monotonic() - began)
        row.rounds += 1
        told = ended.stdout + ended.stderr
        assert ended.returncode in (1, 2), told
        assert "alice" in told
        assert f"127.0.0.1:{server.port}" in told
        assert "authorization" in told.lower()
        assert WRONG not in told
        assert PASSWORD not in told
        assert "Traceback" not in told
    row.note = "the figure is the time to the exit, the start of the interpreter included"


def _tells(record: logging.LogRecord) -> bool:
    text = record.getMessage().lower()
    return record.levelno >= logging.WARNING and "authorization violation" in text and "alice" in text


async def test_revoked(
    own_server: Callable[..., NatsServer],
    rounds: Rounds,
    ledger: Ledger,
    figures: Begin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A service that is locked out would stay ready and silent, or stay out when it is let in again."""
    row = figures("credentials: revoked and given back")
    caplog.set_level(logging.DEBUG, logger="ruststream")
    users = {"bob": PASSWORD, "alice": WRONG}
    server = own_server(users=users)
    alice = f"nats://alice:{WRONG}@127.0.0.1:{server.port}"
    async with service(broker(alice), ledger).start() as running, producing(server.url) as producer:
        for _ in rounds:
            load = await under_load(ledger, producer)
            await asyncio.to_thread(server.reload, users={"bob": PASSWORD})
            await until(lambda: not running.health().ready, "the service says that it is out")
            assert "load" in running.health().problems[0]
            await until(lambda: any(map(_tells, caplog.records)), "the reason is told")
            await asyncio.to_thread(server.reload, users=users)
            row.back.append(await back(ledger, time.monotonic()))
            await all_handled(ledger, producer, load)
            await until(lambda: running.health().ready, "the service is ready again")
            row.rounds += 1
            caplog.clear()
        await all_settled(server.url)
        balanced(running)
    row.add(ledger, producer.confirmed)
    assert row.at_most(twice=2 * WINDOW * row.rounds), row
    assert PASSWORD not in caplog.text
    assert WRONG not in caplog.text
