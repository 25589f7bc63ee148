"""Stdio: lines, pipes, and pipelines of processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream_core.abc import Demand
from ruststream_core.conformance import Check, Target, checks
from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.settlement import ACK
from ruststream_core.wire import Headers, Outgoing
from ruststream_core_file import FileStream, StdioBroker
from ruststream_core_file._lines import Line, parse_line, write_line


class NoWatch:
    """A runtime that does not care."""

    def lost(self, *_: Any) -> None: ...
    def state(self, *_: Any) -> None: ...


# ------------------------------------------------------------------------------------------------------- contract


def target() -> Target:
    return Target.in_process(
        lambda: StdioBroker(),
        label="stdio",
        unsendable=lambda name: Outgoing(b"", name),
        pattern=lambda name: (FileStream(f"{name}.{{x}}"), f"{name}.one"),
    )


@pytest.mark.parametrize("check", checks(target()), ids=str)
async def test_the_loopback_keeps_the_contract(check: Check) -> None:
    await check.run(target())


# ---------------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"plain text", Line("", b"plain text")),
        (b'{"id": 1}\r', Line("", b'{"id": 1}')),
        (b"[1, 2]", Line("", b"[1, 2]")),
        (b"[1]", Line("", b"[1]")),
        (b'["a"] x', Line("", b'["a"] x')),
        (b"[ ] x", Line("", b"[ ] x")),
        (b"[jobs] x", Line("jobs", b"x")),
        (b"[jobs | 7] [1, 2]", Line("jobs", b"[1, 2]", 7)),
        (b"[jobs|7|3]x", Line("jobs", b"x", 7, 3)),
        (b"[2022-01-02T03:04:05] x", Line("", b"x", None, 0, 1641092645000)),
        (b"[2022-01-02T03:04:05.678 | a.b_c-D | 1] x", Line("a.b_c-D", b"x", 1, 0, 1641092645678)),
        (b"[2022-01-02T03:04:05.6789 | a] x", Line("a", b"x", None, 0, 1641092645678)),
        (b"[2022-13-02T03:04:05 | a] x", Line("", b"[2022-13-02T03:04:05 | a] x")),
        (b"[Jan 1, 2022] x", Line("", b"[Jan 1, 2022] x")),
        (b"  \t", None),
    ],
)
def test_lines_are_read_as_other_tools_write_them(line: bytes, expected: Line | None) -> None:
    assert parse_line(line) == expected


@given(
    st.text("abcXYZ019._-", min_size=1, max_size=20),
    st.integers(0, 2**64 - 1),
    st.integers(0, 253_402_300_799_999),
    st.text("ab[]| {}:0", min_size=1).filter(lambda text: text.strip() == text and text),
)
def test_a_written_line_says_the_same_when_it_is_read(key: str, sequence: int, timestamp: int, payload: str) -> None:
    line = write_line(key, sequence, timestamp, payload.encode())
    assert parse_line(line.removesuffix(b"\n")) == Line(key, payload.encode(), sequence, 0, timestamp)


# ---------------------------------------------------------------------------------------------------------- pipes


class Pipes:
    """A broker between two pipes."""

    def __init__(self, **options: Any) -> None:
        stdin, self.feed = os.pipe()
        self.output, stdout = os.pipe()
        self.open = {stdin, self.feed, self.output, stdout}
        self.broker = StdioBroker(stdin=stdin, stdout=stdout, **options)

    def close(self, *fds: int) -> None:
        for fd in fds or tuple(self.open):
            self.open.discard(fd)
            os.close(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes(key="jobs")
    yield made
    made.close()


async def everything(connection: Any, source: str) -> list[tuple[str, bytes]]:
    subscription = await connection.subscribe(FileStream(source), Demand(), NoWatch())
    found = []
    while chunk := await subscription.receive(100):
        found += [(delivery.name, delivery.payload) for delivery in chunk]
        for delivery in chunk:
            delivery.settle(ACK)
    return found


async def test_plain_lines_have_the_key_that_was_given_and_the_end_of_input_ends_the_subscription(pipes: Pipes) -> None:
    os.write(pipes.feed, b'{"id": 1}\n\n[audit | 3] seen\n{"id": 2}')
    pipes.close(pipes.feed)
    connection = await pipes.broker.connect()
    assert await everything(connection, "jobs") == [("jobs", b'{"id": 1}'), ("jobs", b'{"id": 2}')]
    await connection.aclose(1)


async def test_without_a_key_a_plain_line_goes_to_everybody() -> None:
    pipes = Pipes()
    connection = await pipes.broker.connect()
    both = asyncio.gather(everything(connection, "a"), everything(connection, "b"))
    await asyncio.sleep(0)
    os.write(pipes.feed, b"for all\n[a] for a\n[b] for b\n")
    pipes.close(pipes.feed)
    for_a, for_b = await both
    assert for_a == [("broadcast", b"for all"), ("a", b"for a")]
    assert for_b == [("broadcast", b"for all"), ("b", b"for b")]
    await connection.aclose(1)
    pipes.close()


async def test_a_slow_service_slows_its_producer_and_loses_nothing(pipes: Pipes) -> None:
    """Input is left in the pipe while too much is unread; memory stays flat."""
    connection = await pipes.broker.connect()
    count = 60_000
    lines = b"".join(b"%d\n" % number for number in range(count))
    loop = asyncio.get_running_loop()
    feeding = loop.run_in_executor(None, _write_all, pipes, lines)
    subscription = await connection.subscribe(FileStream("jobs"), Demand(), NoWatch())
    found: list[bytes] = []
    most = 0
    while chunk := await subscription.receive(100):
        most = max(most, subscription.statistics().buffered)
        for delivery in chunk:
            found.append(delivery.payload)
            delivery.settle(ACK)
    await feeding
    assert found == [b"%d" % number for number in range(count)]
    assert most < 45_000
    await connection.aclose(1)


def _write_all(pipes: Pipes, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipes.feed, view) :]
    pipes.close(pipes.feed)


async def test_headers_and_bytes_that_no_line_can_hold_travel_in_an_envelope(pipes: Pipes) -> None:
    connection = await pipes.broker.connect()
    sender = await connection.sender()
    await sender.send_many(
        [Outgoing(b'{"id":1}', "out"), Outgoing(b"two\nlines", "out"), Outgoing(b"", "out", Headers([("a", "1")]))]
    )
    lines = os.read(pipes.output, 65_536).splitlines()
    assert [line.partition(b"] ")[2][:4] for line in lines] == [b'{"id', b"rs1:", b"rs1:"]
    os.write(pipes.feed, b"\n".join(lines))
    pipes.close(pipes.feed)
    assert await everything(connection, "out") == [("out", b'{"id":1}'), ("out", b"two\nlines"), ("out", b"")]
    await connection.aclose(1)


async def test_an_empty_message_is_refused(pipes: Pipes) -> None:
    connection = await pipes.broker.connect()
    with pytest.raises(PublishError, match="empty message"):
        (await connection.sender()).send(Outgoing(b"", "out"))
    await connection.aclose(1)


async def test_a_reader_that_goes_away_ends_the_subscriptions(pipes: Pipes) -> None:
    """`service | head` ends: nothing that it does from now on is seen by anybody."""
    connection = await pipes.broker.connect()
    reading = asyncio.ensure_future(everything(connection, "jobs"))
    pipes.close(pipes.output)
    sender = await connection.sender()
    pending = sender.send(Outgoing(b"x", "out"))
    assert pending is not None
    with pytest.raises(PublishError, match="gone"):
        await pending
    assert await reading == []
    with pytest.raises(PublishError, match="gone"):
        sender.send(Outgoing(b"x", "out"))
    await connection.aclose(1)


async def test_output_that_nobody_reads_holds_neither_the_loop_nor_the_end(pipes: Pipes) -> None:
    connection = await pipes.broker.connect()
    sender = await connection.sender()
    pending = [sender.send(Outgoing(bytes(50_000).hex().encode(), "out")) for _ in range(4)]
    await asyncio.sleep(0)
    assert not all(future is None or future.done() for future in pending)
    await connection.aclose(0.01)


def test_positions_and_groups_are_refused() -> None:
    for source in (FileStream("a", group="g"), FileStream("a", replay=True), FileStream("a", start_at="end")):
        with pytest.raises(ConfigError, match="only key and window"):
            StdioBroker().source(source)


# ------------------------------------------------------------------------------------------------------ processes

SERVICE = """
import sys
from ruststream_core import App
app = App("stage", broker="stdio:?key=jobs")

@app.subscriber("jobs", reply="done")
async def work(job: dict[str, int]) -> dict[str, int]:
    return {"double": 2 * job["n"]}
"""


@pytest.fixture
def service(tmp_path: Path) -> list[str]:
    (tmp_path / "stage.py").write_text(SERVICE)
    return [sys.executable, "-m", "ruststream_core", "run", "stage:app"]


def test_a_service_is_a_stage_of_a_pipeline(tmp_path: Path, service: list[str]) -> None:
    lines = "".join(f'{{"n": {number}}}\n' for number in range(500))
    run = subprocess.run(service, cwd=tmp_path, input=lines, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    payloads = [line.partition("] ")[2] for line in run.stdout.splitlines()]
    assert payloads == [f'{{"double":{2 * number}}}' for number in range(500)]


def running(service: list[str], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(service, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def test_a_stage_whose_reader_leaves_ends_with_success(tmp_path: Path, service: list[str]) -> None:
    with running(service, tmp_path) as stage:
        assert stage.stdin is not None
        assert stage.stdout is not None
        stage.stdin.write(b'{"n": 1}\n')
        assert b'"double":2' in stage.stdout.readline()
        stage.stdout.close()
        stage.stdin.write(b'{"n": 2}\n')
        assert stage.wait(30) == 0


def test_a_stage_whose_reader_leaves_ends_though_its_input_does_not(tmp_path: Path, service: list[str]) -> None:
    with (
        subprocess.Popen(["/usr/bin/yes", '{"n": 1}'], stdout=subprocess.PIPE) as producer,
        subprocess.Popen(service, cwd=tmp_path, stdin=producer.stdout, stdout=subprocess.PIPE) as stage,
    ):
        assert stage.stdout is not None
        assert producer.stdout is not None
        producer.stdout.close()
        assert b'"double":2' in stage.stdout.readline()
        stage.stdout.close()
        assert stage.wait(30) == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_descriptor_that_was_closed_from_the_start_is_not_taken_for_whatever_has_its_number(
    closed: str, tmp_path: Path, service: list[str]
) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *service]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as stage:
        assert stage.stdin is not None
        assert stage.stderr is not None
        if closed == ">&-":
            stage.stdin.write(b'{"n": 1}\n')
            stage.stdin.flush()
        log = stage.stderr.read().decode()
        assert stage.wait(30) == 0, log
    assert ("standard output was closed" in log) == (closed == ">&-")


def test_a_stage_that_waits_for_input_ends_on_a_signal(tmp_path: Path, service: list[str]) -> None:
    with running(service, tmp_path) as stage:
        assert stage.stdin is not None
        assert stage.stdout is not None
        stage.stdin.write(b'{"n": 1}\n')
        assert stage.stdout.readline()
        stage.send_signal(signal.SIGTERM)
        assert stage.wait(30) == 0
