"""The writer: opening, continuing, limits, locking, rotation, and what is left when writing fails."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruststream_core_file._format import (
    AfterTime,
    FromSequence,
    Position,
    Record,
    Rotation,
    StreamReader,
    StreamWriter,
    check_file,
    read_stream,
)
from ruststream_core_file.errors import DamagedTail, FileLocked, FileRemoved, FileTooLarge, NotAStreamFile, StreamEnded

KEYS = st.text("abcXYZ019._-", min_size=1, max_size=12)


def write(path: Path, *payloads: bytes, key: str = "orders", eos: bool = False, interval: int = 1024) -> None:
    writer = StreamWriter(path, beacon_interval=interval)
    for payload in payloads:
        writer.append(key, payload)
    writer.close(eos=eos)


def payloads(path: Path) -> list[bytes]:
    return [record.payload for record in read_stream(path)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.tuples(KEYS, st.integers(0, 2**64 - 1), st.binary(max_size=900)), max_size=12), max_size=4),
    st.sampled_from([128, 1024, 4096]),
    st.booleans(),
)
def test_what_is_written_in_several_sessions_is_read(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[list[tuple[str, int, bytes]]], interval: int, eos: bool
) -> None:
    path = tmp_path_factory.mktemp("w") / "x.ss"
    expected: list[tuple[str, int, int, bytes]] = []
    highest: dict[tuple[str, int], int] = {}
    for session in sessions:
        writer = StreamWriter(path, beacon_interval=interval)
        for key, shard, payload in session:
            highest[key, shard] = highest.get((key, shard), 0) + 1
            assert writer.append(key, payload, shard) == highest[key, shard]
            expected.append((key, shard, highest[key, shard], payload))
        writer.close(eos=eos)
    if sessions:
        report = check_file(path)
        assert report.good
        assert report.eos == eos
        assert [(r.key, r.shard, r.sequence, r.payload) for r in read_stream(path)] == expected


def test_sequences_go_on_for_streams_that_no_beacon_names(tmp_path: Path) -> None:
    """A beacon names a few streams in turn; those that it leaves out must not begin at 1 again."""
    path = tmp_path / "x.ss"
    writer = StreamWriter(path, beacon_interval=1024)
    for key in range(40):
        writer.append(f"k{key}", bytes(100))
    for _ in range(200):
        writer.append("busy", bytes(100))
    writer.close()
    again = StreamWriter(path)
    assert again.append("busy", b"") == 201
    assert [again.append(f"k{key}", b"") for key in range(40)] == [2] * 40
    assert again.append("new", b"") == 1
    again.close()
    assert check_file(path).good


@pytest.mark.parametrize("interval", [128, 1024])
def test_a_tail_torn_anywhere_is_cut_off_and_the_sequence_goes_on(tmp_path: Path, interval: int) -> None:
    """Through messages, beacons and messages over several beacons."""
    path = tmp_path / "x.ss"
    rng = random.Random(2)
    bodies = [rng.randbytes(size) for size in (10, 300, 1500, 0, 40, 700)]
    write(path, *bodies, interval=interval)
    raw = path.read_bytes()
    records = list(read_stream(path))
    for length in range(128, len(raw), 3):
        path.write_bytes(raw[:length])
        whole = [record.payload for record in records if record.end <= length]
        writer = StreamWriter(path)
        assert writer.append("orders", b"next") == len(whole) + 1
        writer.close()
        assert check_file(path).good
        assert payloads(path) == [*whole, b"next"]


def test_a_torn_message_of_many_intervals_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    write(path, b"one", bytes(300_000))
    os.truncate(path, 250_000)
    write(path, b"two")
    assert payloads(path) == [b"one", b"two"]


def test_a_long_last_message_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    write(path, b"one", bytes(300_000))
    write(path, b"two")
    assert payloads(path) == [b"one", bytes(300_000), b"two"]


def test_zeros_behind_the_last_message_are_cut_off(tmp_path: Path) -> None:
    """What some file systems leave of a write that a power cut interrupted."""
    path = tmp_path / "x.ss"
    write(path, b"one")
    with path.open("ab") as file:
        file.write(bytes(5000))
    write(path, b"two")
    assert payloads(path) == [b"one", b"two"]
    assert check_file(path).good


def test_whole_messages_behind_a_damaged_one_are_not_cut_off(tmp_path: Path) -> None:
    """No beacon leads to them, but they are there: somebody has to decide."""
    path = tmp_path / "x.ss"
    write(path, b"one", b"two", b"three")
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"two")] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamagedTail, match="repair"):
        StreamWriter(path)
    assert path.read_bytes() == raw


def test_damage_that_a_beacon_leads_past_does_not_stop_appending(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    write(path, b"first", *[bytes([n]) * 50 for n in range(100)])
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"first")] ^= 1
    path.write_bytes(raw)
    write(path, b"last")
    assert payloads(path)[-2:] == [bytes([99]) * 50, b"last"]


@pytest.mark.parametrize("content", [b"", b"Ss", b"Ss\x01\x04", b"Ss\x01\x04x.ss" + bytes(100)])
def test_a_header_that_was_not_written_whole_is_written(tmp_path: Path, content: bytes) -> None:
    """The original's create_if_not_exists leaves a file of no bytes."""
    path = tmp_path / "x.ss"
    path.write_bytes(content)
    write(path, b"one")
    assert payloads(path) == [b"one"]


@pytest.mark.parametrize("content", [b"text", b"#!/bin/sh\n" * 40, b"Ss\x02" + bytes(125)])
def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.ss"
    path.write_bytes(content)
    with pytest.raises(NotAStreamFile):
        StreamWriter(path)
    assert path.read_bytes() == content


def test_the_last_writer_that_closes_may_end_the_stream_and_the_next_takes_the_end_back(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    write(path, b"one", eos=True)
    assert check_file(path).eos
    write(path, b"two")
    assert not check_file(path).eos
    assert payloads(path) == [b"one", b"two"]


def test_an_end_of_stream_at_any_place_between_two_beacons_is_cut_off(tmp_path: Path) -> None:
    for size in range(700, 1000, 7):
        path = tmp_path / f"{size}.ss"
        write(path, bytes(size), eos=True)
        write(path, b"two", eos=True)
        assert payloads(path) == [bytes(size), b"two"], size
        assert check_file(path).good


# ------------------------------------------------------------------------------------------------ one writer


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """In this process too, and by whatever path it comes."""
    path, link = tmp_path / "x.ss", tmp_path / "link.ss"
    first = StreamWriter(path)
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(FileLocked, match="another writer"):
            StreamWriter(name)
    first.close()
    StreamWriter(link).close()


def test_a_writer_in_another_process_is_refused_until_this_one_ends(tmp_path: Path) -> None:
    program = "import sys; from ruststream_core_file._format import StreamWriter; StreamWriter(sys.argv[1])"
    path = tmp_path / "x.ss"
    first = StreamWriter(path)
    blocked = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert "FileLocked" in blocked.stderr
    first.close()
    subprocess.run([sys.executable, "-c", program, path], check=True)


def test_existing_only_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StreamWriter(tmp_path / "x.ss", existing_only=True)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------- limits, failures


def test_a_message_over_the_limit_is_refused_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    writer = StreamWriter(path, size_limit=3000)
    assert writer.append("orders", bytes(1500)) == 1
    with pytest.raises(FileTooLarge, match="3000"):
        writer.append("orders", bytes(2000))
    assert writer.append("orders", b"small") == 2
    writer.close()
    assert payloads(path) == [bytes(1500), b"small"]


@pytest.mark.parametrize("key", ["a b", "ä", "k" * 250, "a/b"])
def test_a_key_that_the_format_does_not_know_is_refused(tmp_path: Path, key: str) -> None:
    writer = StreamWriter(tmp_path / "x.ss")
    with pytest.raises(ValueError, match="stream key"):
        writer.append(key, b"")
    writer.close()


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path / "x.ss")
    writer.close()
    writer.close()
    with pytest.raises(StreamEnded):
        writer.append("orders", b"")


def test_a_write_that_fails_half_way_leaves_whole_messages_and_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes part of a message; the next one must not stand behind that part."""
    path = tmp_path / "x.ss"
    writer = StreamWriter(path, beacon_interval=1024)
    for number in range(30):
        writer.append("orders", bytes([number]) * 60)
    writer.flush()
    real = os.pwrite

    def full(fd: int, data: memoryview, at: int) -> int:
        real(fd, data[:50], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    writer.append("orders", bytes(200))
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    monkeypatch.setattr(os, "pwrite", real)
    assert writer.append("orders", b"after") == 31
    writer.close()
    assert payloads(path)[-1] == b"after"
    assert check_file(path).good


@pytest.mark.parametrize(("fsync", "expected"), [("never", 0), ("each", 3), ("interval", 1)])
def test_fsync_happens_as_often_as_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, expected: int
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    writer = StreamWriter(tmp_path / "x.ss", fsync=fsync, fsync_interval=3600)  # type: ignore[arg-type]
    calls.clear()
    for _ in range(3):
        writer.append("orders", b"")
        writer.flush()
    writer.close()
    assert len(calls) == expected


# ------------------------------------------------------------------------------------------------- rotation


def test_rotation_by_size_keeps_every_message_and_every_sequence(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    rotation = Rotation(size=2048)
    for session in range(3):
        writer = StreamWriter(path, beacon_interval=1024, rotation=rotation)
        for number in range(50):
            assert writer.append("orders", b"%d" % (session * 50 + number)) == session * 50 + number + 1
        writer.append(f"seldom-{session}", b"")
        writer.close()
    files = sorted(tmp_path.glob("x.ss.0*"))
    assert len(files) >= 2
    assert all(check_file(file).good and file.stat().st_size <= 2048 for file in (*files, path))
    assert [r.payload for r in read_stream(path, keys=["orders"])] == [b"%d" % n for n in range(150)]
    writer = StreamWriter(path, rotation=rotation)
    assert writer.append("seldom-0", b"") == 2
    writer.close()


@pytest.mark.parametrize("step", ["sequences", "header", "link", "replace"])
def test_a_rotation_that_fails_leaves_the_file_as_it_was(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is confirmed afterwards must stand where readers find it, not in the file that never got its name."""
    path = tmp_path / "x.ss"
    writer = StreamWriter(path, beacon_interval=1024, rotation=Rotation(size=2048))
    written = []

    def put(number: int) -> None:
        writer.append("orders", b"%d" % number * 100)
        writer.flush()
        written.append(b"%d" % number * 100)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = os.pwrite
    fakes: dict[str, tuple[object, str, object]] = {
        "sequences": (os, "write", full),
        "header": (os, "pwrite", lambda fd, data, at: full() if at == 0 else real(fd, data, at)),
        "link": (os, "link", full),
        "replace": (Path, "replace", full),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*fakes[step])
        for number in range(30):
            with contextlib.suppress(OSError):
                put(number)
    assert len(written) < 30
    before = len(written)
    assert payloads(path) == written
    for number in range(30, 50):
        put(number)
    writer.close()
    assert len(written) == before + 20
    assert payloads(path) == written
    assert [r.sequence for r in read_stream(path)] == list(range(1, len(written) + 1))
    assert all(check_file(file).good for file in (path, *tmp_path.glob("x.ss.0*")))
    assert not list(tmp_path.glob(".*"))


def test_a_draft_that_a_crash_left_is_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException): ...

    def killed(_: int) -> None:
        raise Killed

    path = tmp_path / "x.ss"
    for pid in (11, 12, None):
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            if pid is not None:
                patch.setattr(os, "getpid", lambda pid=pid: pid)
                patch.setattr(os, "fsync", killed)
            writer = StreamWriter(path)
            writer.append("orders", b"x")
            writer.rotate()
        writer.close()
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_what_waits_when_a_rotation_fails_still_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotation writes what was taken before; where the disk is full, the next flush has to say so, not to succeed."""
    path = tmp_path / "x.ss"
    writer = StreamWriter(path, rotation=Rotation(size=400))
    writer.append("orders", bytes(200))
    real = os.pwrite

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        writer.append("orders", bytes(201))
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    monkeypatch.setattr(os, "pwrite", real)
    assert writer.append("orders", bytes(202)) == 1
    writer.close()
    assert payloads(path) == [bytes(202)]


def test_a_file_is_on_the_device_before_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards nobody would sync it: what stands in it and was not confirmed yet is confirmed by a later sync."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    path = tmp_path / "x.ss"
    writer = StreamWriter(path, rotation=Rotation(size=400), sync_rotated=True)
    writer.append("orders", bytes(200))
    writer.append("orders", bytes(201))
    writer.close()
    assert (tmp_path / "x.ss.000001").stat().st_ino in synced


def test_rotation_by_age_and_the_number_of_files_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    now = [1_760_000_000_000]
    writer = StreamWriter(path, rotation=Rotation(age=60, keep=2), clock=lambda: now[0])
    for number in range(6):
        writer.append("orders", b"%d" % number)
        now[0] += 61_000
    writer.close()
    assert len(list(tmp_path.glob("x.ss.0*"))) == 2
    assert payloads(path) == [b"3", b"4", b"5"]


def test_a_follower_goes_from_file_to_file_and_misses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    writer = StreamWriter(path, beacon_interval=1024, rotation=Rotation(size=3000))
    reader = StreamReader(path, follow=True)
    seen: list[Record] = []
    for number in range(200):
        writer.append("orders", b"%d" % number)
        writer.flush()
        if number % 17 == 0:
            while found := reader.read():
                seen += found
    while found := reader.read():
        seen += found
    assert [record.payload for record in seen] == [b"%d" % number for number in range(200)]
    writer.close()
    reader.close()


# ------------------------------------------------------------------------------------------------ positions


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Two streams over several beacons and files: sequence n has the time 1000 + n."""
    path = tmp_path / "n.ss"
    writer = StreamWriter(path, beacon_interval=1024, rotation=Rotation(size=8000))
    for number in range(1, 301):
        writer.append("orders", b"o%d" % number, timestamp=1000 + number)
        writer.append("audit", b"a%d" % number, sequence=10_000 - number, timestamp=900_000)
    writer.close()
    return path


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("beginning", 1),
        (FromSequence(1), 1),
        (FromSequence(150), 150),
        (FromSequence(300), 300),
        (AfterTime(0), 1),
        (AfterTime(1150), 151),
        (AfterTime(1299), 300),
    ],
)
def test_a_start_is_found_by_the_messages_of_its_key_alone(numbered: Path, start: object, first: int) -> None:
    """The other stream's sequences fall and its time is far ahead; neither matters."""
    found = [r.sequence for r in read_stream(numbered, start, keys=["orders"])]  # type: ignore[arg-type]
    assert found == list(range(first, 301))


@pytest.mark.parametrize("start", ["end", FromSequence(301), AfterTime(1300)])
def test_a_start_behind_the_last_message_gives_the_next_one(numbered: Path, start: object) -> None:
    reader = StreamReader(numbered, start, keys=["orders"], follow=True)  # type: ignore[arg-type]
    assert reader.read() == []
    writer = StreamWriter(numbered)
    writer.append("orders", b"next", timestamp=1301)
    writer.close()
    assert [record.payload for record in reader.read()] == [b"next"]
    reader.close()


def test_a_position_leads_back_to_its_message(numbered: Path) -> None:
    reader = StreamReader(numbered, keys=["orders"])
    places: list[tuple[Position, Record]] = []
    while found := reader.read():
        assert reader.header is not None
        places += [(Position(reader.header.created_at, record.start), record) for record in found]
    for position, record in places[::29]:
        reader.seek(position)
        assert reader.read()[0] == record
    reader.close()


def test_a_position_in_a_file_that_rotation_deleted_leads_to_the_oldest_that_is_left(numbered: Path) -> None:
    oldest = min(numbered.parent.glob("n.ss.0*"))
    header = check_file(oldest).header
    oldest.unlink()
    assert next(read_stream(numbered, Position(header.created_at, 128))).sequence > 1


@pytest.mark.parametrize("how", [Path.unlink, lambda path: os.truncate(path, 150)])
def test_a_file_that_disappears_under_its_reader_is_an_error(tmp_path: Path, how: Callable[[Path], object]) -> None:
    path = tmp_path / "x.ss"
    write(path, b"one", b"two")
    reader = StreamReader(path, follow=True)
    assert len(reader.read()) == 2
    how(path)
    with pytest.raises(FileRemoved, match=r"x\.ss"):
        reader.read()
    reader.close()
