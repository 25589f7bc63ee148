"""The file as a broker: services on files, followers, groups, positions, settings."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from ruststream_core import App, Context, FromHeader, FromPath, FromTransport, Retry, To, by_key
from ruststream_core.abc import Demand
from ruststream_core.errors import Closed, ConfigError, PublishError, RustStreamError
from ruststream_core.settlement import ACK, RELEASE
from ruststream_core.testing import TestApp
from ruststream_core.wire import Headers, Outgoing
from ruststream_core_file import (
    AfterTime,
    FileBroker,
    FileOptions,
    FileRemoved,
    FileStream,
    FromSequence,
    Rotation,
    StreamWriter,
    check_file,
    read_stream,
)
from ruststream_core_file._watch import FileWatcher


class NoWatch:
    """A runtime that does not care."""

    def lost(self, *_: Any) -> None: ...
    def state(self, *_: Any) -> None: ...


class Job(msgspec.Struct):
    n: int


def record(path: Path, *numbers: int, key: str = "jobs", eos: bool = False, **options: Any) -> None:
    writer = StreamWriter(path, **options)
    for number in numbers:
        writer.append(key, b'{"n":%d}' % number, timestamp=1000 + number)
    writer.close(eos=eos)


async def take(subscription: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        chunk = await subscription.receive(count - len(found))
        assert chunk, f"the subscription ended after {len(found)} of {count}"
        found += chunk
    return found


async def subscribed(path: Path, source: FileStream | str, demand: Demand | None = None, **options: Any) -> Any:
    broker = FileBroker(path, **options)
    connection = await broker.connect()
    return await connection.subscribe(broker.source(source), demand or Demand(), NoWatch())


# ------------------------------------------------------------------------------------------------------ services


async def test_a_service_replays_a_recording_and_ends(tmp_path: Path) -> None:
    """Placeholders, the header and the transport's fields; replies into another file."""
    path, answers = tmp_path / "jobs.ss", tmp_path / "answers.ss"
    record(path, *range(1, 101), key="jobs.eu.placed")
    record(path, 1, key="other")
    app = App("replay", brokers={"default": FileBroker(path), "out": FileBroker(answers, end_with_eos=True)})
    seen: list[tuple[str, str, int]] = []

    @app.subscriber(FileStream("jobs.{region}.placed", replay=True), reply=To("answers", broker="out"))
    async def work(
        job: Job,
        region: Annotated[str, FromPath],
        sequence: Annotated[str, FromHeader("stream-sequence")],
        stamp: Annotated[int, FromTransport("file.timestamp")],
    ) -> Job:
        seen.append((region, sequence, stamp))
        return Job(2 * job.n)

    async with app.start() as running:
        await running.wait()
    assert seen == [("eu", str(number), 1000 + number) for number in range(1, 101)]
    assert [record.payload for record in read_stream(answers)] == [b'{"n":%d}' % (2 * n) for n in range(1, 101)]
    assert check_file(answers).eos


async def test_a_group_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    record(path, *range(1, 31))
    seen: list[int] = []

    def service() -> App:
        app = App("billing", broker=FileBroker(path))

        @app.subscriber(FileStream("jobs", group="billing", replay=True), workers=by_key(4, lambda job: job.n))
        async def work(job: Job) -> None:
            seen.append(job.n)

        return app

    for _ in range(3):
        async with service().start() as running:
            await running.wait()
        record(path, *range(len(seen) + 1, len(seen) + 11))
    assert sorted(seen) == list(range(1, 51))


async def test_a_retry_of_a_group_runs_in_place_with_its_attempt(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    record(path, 1, 2)
    app = App("retry", broker=FileBroker(path))
    seen: list[tuple[int, int]] = []

    @app.subscriber(FileStream("jobs", group="g", replay=True))
    async def work(job: Job, ctx: Context) -> None:
        seen.append((job.n, ctx.attempt))
        if ctx.attempt < 3 and job.n == 1:
            raise Retry(after=0)

    async with app.start() as running:
        await running.wait()
    assert seen == [(1, 1), (1, 2), (1, 3), (2, 1)]


async def test_a_retry_without_a_group_is_a_copy_where_the_route_opts_in(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    app = App("copies", broker=FileBroker(path))
    seen: list[tuple[int, str]] = []

    @app.subscriber("jobs", retry_copies=True)
    async def work(job: Job, ctx: Context, sequence: Annotated[str, FromHeader("stream-sequence")]) -> None:
        seen.append((ctx.attempt, sequence))
        if ctx.attempt < 2:
            raise Retry
        running.stop()

    async with app.start() as running:
        await running.publish(Job(1), to="jobs")
        await running.wait()
    assert seen == [(1, "1"), (2, "2")]


async def test_an_unwished_retry_without_a_group_is_refused_at_the_start(tmp_path: Path) -> None:
    app = App("wish", broker=FileBroker(tmp_path / "jobs.ss"))

    @app.subscriber("jobs", on_error={ValueError: Retry})
    async def work(job: Job) -> None: ...

    with pytest.raises(ConfigError, match="retry_copies"):
        async with app.start():
            pass


async def test_the_stand_in_tells_the_test_when_everything_has_settled() -> None:
    """Reading happens on a thread there too; `publish` must not return before it has come round."""
    app = App("test", broker="file:nowhere.ss")

    @app.subscriber("jobs", reply="done")
    async def work(job: Job) -> Job:
        return Job(2 * job.n)

    @app.subscriber(FileStream("done", group="g"))
    async def note(job: Job) -> None: ...

    async with TestApp(app) as t:
        for number in range(20):
            await t.publish(Job(number), to="jobs")
            assert t.published("done", Job)[-1].value == Job(2 * number)
            assert len(t.route(note).calls) == number + 1
        with pytest.raises(PublishError, match="nobody reads"):
            await t.publish(Job(1), to="elsewhere")


# ------------------------------------------------------------------------------------------------------ following

APPENDER = """
import sys
import tracemalloc
from ruststream_core_file import Rotation, StreamWriter
writer = StreamWriter(sys.argv[1], beacon_interval=1024, rotation=Rotation(size=int(sys.argv[2])))
for line in sys.stdin:
    writer.append("jobs", line.strip().encode())
    writer.flush()
"""


@pytest.mark.parametrize("inotify", [True, False])
async def test_a_follower_gets_what_another_process_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inotify: bool
) -> None:
    """Before the file is there, over rotations, with and without the system's help."""
    if not inotify:
        monkeypatch.setattr("ruststream_core_file._watch._libc", lambda: None)
    path = tmp_path / "jobs.ss"
    subscription = await subscribed(path, "jobs")
    with subprocess.Popen([sys.executable, "-c", APPENDER, path, "3000"], stdin=subprocess.PIPE, bufsize=0) as appender:
        assert appender.stdin is not None
        for start in range(0, 200, 20):
            appender.stdin.write(b"".join(b"%d\n" % number for number in range(start, start + 20)))
            chunk = await take(subscription, 20)
            assert [delivery.payload for delivery in chunk] == [b"%d" % number for number in range(start, start + 20)]
            for delivery in chunk:
                delivery.settle(ACK)
        appender.stdin.close()
    assert len(list(tmp_path.glob("jobs.ss.0*"))) > 1
    subscription.stop()
    await subscription.aclose(1)


async def test_a_deleted_file_is_an_error_and_no_silence(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    record(path, 1)
    subscription = await subscribed(path, FileStream("jobs", start_at="beginning"))
    await take(subscription, 1)
    waiting = asyncio.ensure_future(subscription.receive(1))
    await asyncio.sleep(0)
    path.unlink()
    with pytest.raises(FileRemoved, match="deleted"):
        await waiting
    assert subscription.statistics().state == "ended"
    await subscription.aclose(1)


async def test_the_end_of_stream_ends_a_follower(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    record(path, 1)
    subscription = await subscribed(path, FileStream("jobs", start_at="beginning"))
    record(path, 2, eos=True)
    assert [delivery.sequence for delivery in await take(subscription, 2)] == [1, 2]
    assert await subscription.receive(1) == ()
    await subscription.aclose(1)


async def test_damage_is_told_in_the_log_and_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "jobs.ss"
    record(path, *range(1, 101), beacon_interval=1024)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b'{"n":5}')] ^= 1
    path.write_bytes(raw)
    with caplog.at_level(logging.WARNING, "ruststream.file"):
        subscription = await subscribed(path, FileStream("jobs", replay=True))
        numbers = []
        while chunk := await subscription.receive(100):
            numbers += [msgspec.json.decode(delivery.payload)["n"] for delivery in chunk]
            for delivery in chunk:
                delivery.settle(ACK)
    before = next(record.end for record in read_stream(path) if record.sequence == 4)
    assert f"damaged at offset {before}: its payload" in caplog.text
    assert numbers[:4] == [1, 2, 3, 4]
    assert numbers[-1] == 100
    assert numbers == sorted(set(numbers) - {5})
    await subscription.aclose(1)


def test_a_watcher_wakes_for_what_happened_before_it_waited(tmp_path: Path) -> None:
    """Else a message that comes between the last look and the wait is seen only at the next one."""
    path = tmp_path / "x"
    path.write_bytes(b"")
    watcher = FileWatcher(path)
    watcher.wait()
    path.write_bytes(b"1")
    watcher.wait()
    watcher.wake()
    watcher.wait()
    watcher.close()


# -------------------------------------------------------------------------------------------------------- groups


async def test_a_group_is_read_by_one_subscription_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    record(path, 1)
    first = await subscribed(path, FileStream("jobs", group="g"))
    with pytest.raises(ConfigError, match="another subscription"):
        await subscribed(path, FileStream("jobs", group="g"))
    other = await subscribed(path, FileStream("jobs", group="h"))
    for subscription in (first, other):
        await subscription.aclose(1)
    again = await subscribed(path, FileStream("jobs", group="g"))
    await again.aclose(1)


async def test_the_position_passes_nothing_that_is_not_settled(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    record(path, *range(1, 7))
    subscription = await subscribed(path, FileStream("jobs", group="g"))
    chunk = await take(subscription, 6)
    for index in (5, 0, 3, 1):
        chunk[index].settle(ACK)
    chunk[2].settle(RELEASE)
    released = await take(subscription, 1)
    assert released[0].sequence == 3
    await subscription.aclose(1)
    again = await subscribed(path, FileStream("jobs", group="g"))
    assert [delivery.sequence for delivery in await take(again, 4)] == [3, 4, 5, 6]
    await again.aclose(1)


async def test_a_position_outlives_rotation(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    options: dict[str, Any] = {"rotation": Rotation(size=2000), "beacon_interval": 1024}
    record(path, *range(1, 101), **options)
    subscription = await subscribed(path, FileStream("jobs", group="g"))
    for delivery in await take(subscription, 30):
        delivery.settle(ACK)
    await subscription.aclose(1)
    record(path, *range(101, 201), **options)
    again = await subscribed(path, FileStream("jobs", group="g"))
    assert [delivery.sequence for delivery in await take(again, 170)] == list(range(31, 201))
    await again.aclose(1)


async def test_a_position_that_cannot_be_read_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "jobs.ss"
    record(path, 1)
    subscription = await subscribed(path, FileStream("jobs", group="g"))
    (await take(subscription, 1))[0].settle(ACK)
    await subscription.aclose(1)
    (cursor,) = tmp_path.glob("*.cursor")
    cursor.write_text("{")
    with pytest.raises(ConfigError, match="delete it to begin anew"):
        await subscribed(path, FileStream("jobs", group="g"))


@pytest.mark.parametrize(
    ("position", "first"), [("beginning", 1), (FromSequence(4), 4), (AfterTime(1004), 5), ("end", 11)]
)
async def test_a_group_moves_for_good_when_it_seeks(tmp_path: Path, position: Any, first: int) -> None:
    path = tmp_path / "jobs.ss"
    record(path, *range(1, 11))
    subscription = await subscribed(path, FileStream("jobs", group="g"))
    for delivery in await take(subscription, 7):
        delivery.settle(ACK)
    await subscription.seek(position)
    await subscription.aclose(1)
    record(path, 11)
    again = await subscribed(path, FileStream("jobs", group="g"))
    while (delivery := (await take(again, 1))[0]).sequence < first:
        pass  # a position by sequence or time leads to a beacon before it
    assert delivery.sequence == first
    await again.aclose(1)


# ----------------------------------------------------------------------------------------------------- publishing


async def test_many_messages_are_one_write_and_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    connection = await FileBroker(tmp_path / "x.ss", fsync="each").connect()
    sender = await connection.sender()
    await sender.send_many([Outgoing(b"%d" % number, "jobs") for number in range(100)])
    assert len(syncs) == 1
    await connection.aclose(1)
    assert len(list(read_stream(tmp_path / "x.ss"))) == 100


async def test_a_message_is_confirmed_when_it_is_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: order.append("fsync"))
    connection = await FileBroker(tmp_path / "x.ss", fsync="each").connect()
    sender = await connection.sender()
    await sender.send(Outgoing(b"1", "jobs"))
    order.append("confirmed")
    assert order == ["fsync", "confirmed"]
    await connection.aclose(1)


async def test_senders_of_one_process_share_the_file_and_the_last_one_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    broker = FileBroker(path, end_with_eos=True)
    first, second = await broker.connect(), await broker.connect()
    senders = [await connection.sender() for connection in (first, second)]
    for sender in senders:
        await sender.send(Outgoing(b"1", "jobs"))
    await first.aclose(1)
    assert not check_file(path).eos
    await senders[1].send(Outgoing(b"2", "jobs"))
    await second.aclose(1)
    assert check_file(path).eos
    assert [message.sequence for message in read_stream(path)] == [1, 2, 3]
    with pytest.raises(Closed):
        await senders[0].send(Outgoing(b"3", "jobs"))


async def test_other_settings_for_the_same_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    first, second = await FileBroker(path).connect(), await FileBroker(path, fsync="each").connect()
    await (await first.sender()).send(Outgoing(b"1", "jobs"))
    with pytest.raises(PublishError, match="other settings"):
        await (await second.sender()).send(Outgoing(b"1", "jobs"))
    await first.aclose(1)
    await second.aclose(1)


async def test_a_file_that_another_process_writes_refuses_our_messages(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    holder = (
        "import sys; from ruststream_core_file import StreamWriter; w = StreamWriter(sys.argv[1]);"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        connection = await FileBroker(path).connect()
        sender = await connection.sender()
        with pytest.raises(PublishError, match="another writer"):
            await sender.send(Outgoing(b"1", "jobs"))
        process.stdin.close()
        process.wait()
        await sender.send(Outgoing(b"2", "jobs"))
        await connection.aclose(1)
    assert [message.payload for message in read_stream(path)] == [b"2"]


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_has_gone_takes_no_message(how: str, tmp_path: Path) -> None:
    """Nobody would ever read what is written into a file without a name: it must not be confirmed."""
    path = tmp_path / "x.ss"
    connection = await FileBroker(path).connect()
    sender = await connection.sender()
    await sender.send(Outgoing(b"1", "jobs"))
    if how == "replaced":
        (tmp_path / "other").touch()
        (tmp_path / "other").replace(path)
    else:
        path.unlink()
    with pytest.raises(PublishError, match="deleted or replaced"):
        await sender.send(Outgoing(b"2", "jobs"))
    with pytest.raises(PublishError, match="1 of 1"):
        await sender.send_many([Outgoing(b"3", "jobs")])
    await connection.aclose(1)


async def test_options_set_shard_and_time_and_headers_travel_inside(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    subscription = await subscribed(path, "jobs")
    connection = await FileBroker(path).connect()
    sender = await connection.sender(FileOptions(shard=3))
    headers = Headers([("x-a", "1"), ("stream-sequence", "77"), ("x-b", b"\xff")])
    await sender.send(Outgoing(b"1", "jobs", headers))
    await sender.send(Outgoing(b"2", "jobs", options=FileOptions(timestamp=5)))
    first, second = await take(subscription, 2)
    assert first.payload == b"1"
    assert first.headers.raw() == (("x-a", b"1"), ("x-b", b"\xff"), ("stream-sequence", "1"))
    assert (first.transport("file.shard"), first.transport("file.sequence")) == (3, 1)
    assert (second.transport("file.shard"), second.transport("file.timestamp")) == (0, 5)
    assert second.headers.raw() == (("stream-sequence", "1"),)
    await subscription.aclose(1)
    await connection.aclose(1)


# ------------------------------------------------------------------------------------------------------- settings


def test_a_url_says_what_the_constructor_takes() -> None:
    broker = FileBroker.from_url(
        "file:logs/my%20orders.ss?replay=true&fsync=each&beacon_interval=4096&rotate_size=1000000&rotate_keep=3"
    )
    assert broker.path == Path("logs/my orders.ss")
    assert broker.replay
    assert (broker.settings.fsync, broker.settings.beacon_interval) == ("each", 4096)
    assert broker.settings.rotation == Rotation(size=1_000_000, keep=3)
    assert broker.source("a") == FileStream("a", replay=True)
    assert FileBroker.from_url("file:///var/x.ss").path == Path("/var/x.ss")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:", "names no file"),
        ("file://host/x.ss", "a file URL is"),
        ("file:x.ss?beacon_interval=1000", "multiple of 1024"),
        ("file:x.ss?fsync=maybe", "fsync"),
        ("file:x.ss?colour=red", "colour"),
        ("file:x.ss?rotate_size=0", "rotation.size"),
        ("file:x.ss?size_limit=-1", "size_limit"),
    ],
)
def test_a_wrong_url_is_refused_and_says_why(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FileBroker.from_url(url)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (FileStream(""), "needs a key"),
        (FileStream("a b"), "stream key"),
        (FileStream("a{x}"), "placeholder"),
        (FileStream("a", group="a/b"), "group"),
        (FileStream("a", window=0), "window"),
        (FileStream("a", start_at="latest"), "position"),
    ],
)
def test_a_wrong_source_is_refused_and_says_why(source: FileStream, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FileBroker("x.ss").source(source)


async def test_what_cannot_be_opened_is_refused_at_the_start(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"text")
    for broker, says in (
        (FileBroker(tmp_path / "no" / "x.ss"), "folder"),
        (FileBroker(tmp_path / "x.ss", existing_only=True), "existing_only"),
        (FileBroker(other), "no stream file"),
        (FileBroker(tmp_path), "no regular file"),
    ):
        with pytest.raises(RustStreamError, match=says):
            await broker.connect()


@pytest.mark.parametrize("key", ["*", ">", "jobs.*", "jobs.>", "jobs.{x}"])
async def test_patterns_choose_keys(tmp_path: Path, key: str) -> None:
    path = tmp_path / "x.ss"
    record(path, 1, key="jobs.a")
    record(path, 2, key="jobs.b")
    record(path, 3, key="audit")
    subscription = await subscribed(path, FileStream(key, replay=True))
    found = []
    while chunk := await subscription.receive(10):
        found += [delivery.name for delivery in chunk]
    assert found == ["jobs.a", "jobs.b"] + (["audit"] if key in "*>" else [])
    await subscription.aclose(1)


async def test_memory_stays_flat_however_much_a_group_reads(tmp_path: Path) -> None:
    """Deliveries are out of the garbage collector's sight: what refers to itself would stay for ever."""
    path = tmp_path / "x.ss"
    record(path, *range(20_000))

    async def read(group: str) -> None:
        subscription = await subscribed(path, FileStream("jobs", group=group, replay=True))
        while chunk := await subscription.receive(64):
            for delivery in chunk:
                delivery.settle(ACK)
        await subscription.aclose(1)

    await read("first")
    tracemalloc.start()
    try:
        await read("second")
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
