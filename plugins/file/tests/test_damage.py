"""Damaged files: what is lost is told, what is not is read, and nothing is made up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruststream_core_file._format import Damage, Record, StreamReader, StreamWriter, check_file, read_stream, repair
from ruststream_core_file._format._composer import Composer
from ruststream_core_file._format._layout import HEADER_SIZE, Header
from ruststream_core_file._format._parser import Parser
from ruststream_core_file.errors import NotAStreamFile

INTERVAL = 512
START = 1_760_000_000_000


def compose(count: int = 30, interval: int = INTERVAL, seed: int = 1) -> tuple[bytes, list[Record]]:
    """A small file with two streams, some messages over several beacons, and what is in it."""
    rng = random.Random(seed)
    composer = Composer(interval)
    out = bytearray(composer.begin(Header(file_name="x.ss", created_at=START, beacon_interval=interval)))
    for number in range(1, count + 1):
        payload = rng.randbytes(1200 if number == count // 2 else rng.randrange(60))
        composer.add(out, ("orders", "audit")[number % 2], 0, number, START + number, payload)
    return bytes(out), Parser(interval).feed(bytes(out[HEADER_SIZE:]))


RAW, RECORDS = compose()


def read(raw: bytes, block: int | None = None) -> tuple[list[Record], list[Damage], bool]:
    """Everything that can be read, what was reported, and whether the end is torn."""
    parser = Parser(INTERVAL)
    records: list[Record] = []
    while parser.offset < len(raw) and not parser.ended:
        records += parser.feed(raw[parser.offset : parser.offset + (block or len(raw))])
        if parser.rewind is not None:
            parser.restart(parser.rewind, resync=True)
    return records, parser.damages, parser.torn


def checked(record: Record) -> tuple[bytes, int]:
    """What the checksum of a message vouches for; sequence, time and key stand outside it."""
    return record.payload, len(record.key)


def boundary_after(offset: int) -> int:
    return (offset // INTERVAL + 1) * INTERVAL


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_one_changed_byte_costs_no_more_than_up_to_the_next_beacon_that_can_be_read(mask: int) -> None:
    """Each byte behind the header in turn. The beacon itself may be what is damaged, hence the one after it."""
    for at in range(HEADER_SIZE, len(RAW)):
        raw = bytearray(RAW)
        raw[at] ^= mask
        records, damages, torn = read(bytes(raw))
        given_ = [checked(record) for record in records]
        assert set(given_) <= {checked(record) for record in RECORDS}, at
        before = [checked(record) for record in RECORDS if record.end <= at]
        assert given_[: len(before)] == before, at
        hit = next((record.start for record in RECORDS if record.start <= at < record.end), at)
        cut = max((record.end for record in RECORDS if record.start <= at), default=0)
        good_from = boundary_after(max(boundary_after(hit), cut))
        behind = [checked(record) for record in RECORDS if record.start >= good_from]
        assert given_[len(given_) - len(behind) :] == behind, at
        if len(records) < len(RECORDS):
            assert damages or torn, at


def test_every_length_gives_exactly_the_messages_that_are_whole() -> None:
    """A file that ends anywhere is no damage: it may be in the middle of being written."""
    ends = {record.end for record in RECORDS}
    for length in range(HEADER_SIZE, len(RAW) + 1):
        records, damages, torn = read(RAW[:length])
        assert records == [record for record in RECORDS if record.end <= length]
        assert not damages
        if length in ends:
            assert not torn


@pytest.mark.parametrize("block", [1, 7, 100, 511, 512, 513])
def test_the_size_of_blocks_makes_no_difference(block: int) -> None:
    assert read(RAW, block) == read(RAW)


def test_damage_is_found_the_same_way_whatever_the_blocks() -> None:
    rng = random.Random(5)
    for _ in range(60):
        raw = bytearray(RAW)
        for _ in range(3):
            raw[rng.randrange(HEADER_SIZE, len(raw))] = rng.randrange(256)
        assert read(bytes(raw), 13) == read(bytes(raw))


@pytest.mark.parametrize("length", [1, 40, 300, 700])
def test_zeros_are_no_messages(length: int) -> None:
    """What a file system leaves after a power cut."""
    payloads = {record.payload for record in RECORDS}
    for at in range(HEADER_SIZE, len(RAW) - length, 17):
        raw = RAW[:at] + bytes(length) + RAW[at + length :]
        records, damages, torn = read(raw)
        assert {record.payload for record in records} <= payloads
        if length > 28:  # more than sequence, shard and time, which no checksum covers
            assert damages or torn
    records, damages, torn = read(RAW + bytes(length))
    assert records == RECORDS
    assert damages or torn


def test_blocks_in_another_order_give_no_message_that_was_not_there() -> None:
    rng = random.Random(3)
    payloads = {record.payload for record in RECORDS}
    blocks = [RAW[at : at + INTERVAL] for at in range(INTERVAL, len(RAW), INTERVAL)]
    for _ in range(50):
        rng.shuffle(blocks)
        records, _, _ = read(RAW[:INTERVAL] + b"".join(blocks))
        assert {record.payload for record in records} <= payloads


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_splices_give_no_message_that_was_not_there(data: st.DataObject) -> None:
    """Cut, doubled, moved and foreign bytes, anywhere behind the header."""
    at = data.draw(st.integers(HEADER_SIZE, len(RAW)))
    length = data.draw(st.integers(0, 200))
    other = data.draw(st.integers(HEADER_SIZE, len(RAW)))
    piece = data.draw(st.one_of(st.binary(max_size=64), st.just(RAW[other : other + length])))
    records, damages, torn = read(RAW[:at] + piece + RAW[at + length :])
    assert {record.payload for record in records} <= {record.payload for record in RECORDS}
    if len(records) < len(RECORDS) and at + length < len(RAW):
        assert damages or torn or at in {record.end for record in RECORDS}


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=4000), st.sampled_from([128, 512, 1024]))
def test_garbage_behind_a_header_ends(garbage: bytes, interval: int) -> None:
    parser = Parser(interval)
    raw = bytes(HEADER_SIZE) + garbage
    turns = 0
    while parser.offset < len(raw) and not parser.ended:
        parser.feed(raw[parser.offset :])
        if parser.rewind is not None:
            parser.restart(parser.rewind, resync=True)
        turns += 1
        assert turns <= len(raw) // interval + 2, "it never goes back further than it came"


def test_an_announced_size_of_four_gigabytes_is_found_out_at_the_second_beacon() -> None:
    """Without the beacons' word a reader would wait for the rest of it, or run out of memory."""
    first = RECORDS[0]
    raw = bytearray(RAW)
    size_at = first.start + 1 + len(first.key) + 24
    raw[size_at : size_at + 4] = b"\xff" * 4
    records, damages, _ = read(bytes(raw))
    assert damages[0].offset == first.start
    assert records == [record for record in RECORDS if record.start > INTERVAL]


def test_a_beacon_that_says_too_much_costs_no_message() -> None:
    """The message that it cuts has its own size and its own checksum: these are believed."""
    for boundary in range(INTERVAL, len(RAW), INTERVAL):
        raw = bytearray(RAW)
        raw[boundary + 4] ^= 1
        records, damages, _ = read(bytes(raw))
        assert records == RECORDS
        assert [damage.offset for damage in damages] == [boundary]


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [(0, 0x58, "no stream file"), (2, 2, "version 2"), (3, 112, "name of 112 bytes")],
)
def test_a_header_that_cannot_be_read_says_why(at: int, value: int, says: str) -> None:
    raw = bytearray(RAW)
    raw[at] = value
    with pytest.raises(NotAStreamFile, match=says):
        Header.decode(bytes(raw), "orders.ss")


def test_repair_cuts_the_file_off_before_the_first_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    hit = RECORDS[10]
    raw = bytearray(RAW)
    raw[hit.end - 4] ^= 1
    path.write_bytes(raw)
    report = repair(path)
    assert [damage.offset for damage in report.damages] == [hit.start]
    assert check_file(path).good
    assert list(read_stream(path)) == RECORDS[:10]
    writer = StreamWriter(path)
    writer.append("audit", b"next")
    writer.close()
    assert [record.payload for record in read_stream(path)][-1] == b"next"


def test_repair_can_copy_everything_that_is_left(tmp_path: Path) -> None:
    path, copy = tmp_path / "x.ss", tmp_path / "copy.ss"
    raw = bytearray(RAW)
    raw[RECORDS[10].end - 4] ^= 1
    path.write_bytes(raw)
    repair(path, copy)
    assert path.read_bytes() == raw
    assert check_file(copy).good
    assert not check_file(copy).deviations
    left = list(read_stream(path))
    assert [(r.key, r.sequence, r.timestamp, r.payload) for r in read_stream(copy)] == [
        (r.key, r.sequence, r.timestamp, r.payload) for r in left
    ]
    with pytest.raises(FileExistsError):
        repair(path, copy)


def test_repair_leaves_a_good_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.ss"
    path.write_bytes(RAW)
    assert repair(path).good
    assert path.read_bytes() == RAW


def test_a_half_written_message_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """A follower meets the tail in every state that a slow writer leaves it in."""
    path = tmp_path / "x.ss"
    path.write_bytes(b"")
    reader = StreamReader(path, follow=True)
    seen: list[Record] = []
    with path.open("ab", buffering=0) as file:
        for at in range(0, len(RAW), 37):
            file.write(RAW[at : at + 37])
            while found := reader.read():
                seen += found
    assert seen == RECORDS
    assert not reader.damages
    reader.close()


def test_a_torn_message_that_a_new_writer_cuts_off_is_not_mixed_with_the_next(tmp_path: Path) -> None:
    """A follower has read half of it already; what then stands there is another message."""
    path = tmp_path / "x.ss"
    whole = RECORDS[20]
    path.write_bytes(RAW[: whole.end - 5])
    reader = StreamReader(path, follow=True)
    seen = [record for chunk in iter(reader.read, []) for record in chunk]
    assert seen == RECORDS[:20]
    writer = StreamWriter(path)
    writer.append("other", b"in its place")
    writer.flush()
    assert [record.payload for record in reader.read()] == [b"in its place"]
    assert not reader.damages
    writer.close()
    reader.close()
