"""Files that the original wrote: read as it reads them, and written again to the same bytes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ruststream_core.wire import Headers
from ruststream_core_file._envelope import open_envelope, seal
from ruststream_core_file._format import Record, StreamReader, StreamWriter, check_file, read_stream
from ruststream_core_file._format._composer import Composer
from ruststream_core_file._format._layout import EOS, INTERNAL_KEY, Beacon, Header
from ruststream_core_file._format._parser import Parser
from ruststream_core_file.errors import NotAStreamFile

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.ss"))
BAD = [json.loads(line) for line in (GOLDEN / "bad" / "expected.jsonl").read_text().splitlines()]
OTHERS = ("quirk-append-over-eos.ss", "garbage-tail.ss")
"""Bad files that were not made from 04-eos."""
NAMES = [path.stem for path in FILES]


def time_of(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dump(path: Path, hex_up_to: int) -> Iterator[dict[str, Any]]:
    """What the original's own dump of a file holds, made by our reader."""
    raw = path.read_bytes()
    header = Header.decode(raw)
    yield {
        "t": "header",
        "version": 1,
        "file_name": header.file_name,
        "created_at": time_of(header.created_at),
        "created_at_ms": header.created_at,
        "beacon_interval": header.beacon_interval,
    }
    beacons: list[tuple[int, Beacon]] = []
    parser = Parser(header.beacon_interval, hidden=True, beacons=lambda at, beacon: beacons.append((at, beacon)))
    records: list[Record] = parser.feed(raw[128:])
    rows: list[tuple[int, dict[str, Any]]] = [(at, beacon_row(at, beacon, header)) for at, beacon in beacons]
    rows += [(record.end, message_row(n, record, hex_up_to)) for n, record in enumerate(records)]
    # A beacon at a message's end comes after it.
    yield from (row for _, row in sorted(rows, key=lambda pair: (pair[0], pair[1]["t"] == "beacon")))
    eos = bool(records) and records[-1].key == INTERNAL_KEY and records[-1].payload == EOS
    tail = len(raw) - parser.checkpoint[0]
    yield {
        "t": "end",
        "messages": len(records),
        "beacons": len(beacons),
        "eos": eos,
        "file_size": len(raw),
        "tail_bytes": tail,
    }


def beacon_row(at: int, beacon: Beacon, header: Header) -> dict[str, Any]:
    return {
        "t": "beacon",
        "index": at // header.beacon_interval,
        "offset": at,
        "size": len(beacon.encode()),
        "remaining": beacon.remaining,
        "markers": [
            {"key": m.key, "shard": m.shard, "seq": m.sequence, "ts_ms": m.timestamp, "running_crc": f"{m.running:04x}"}
            for m in beacon.markers
        ],
    }


def message_row(number: int, record: Record, hex_up_to: int) -> dict[str, Any]:
    body = (
        {"hex": record.payload.hex()}
        if len(record.payload) <= hex_up_to
        else {"sha256": hashlib.sha256(record.payload).hexdigest()}
    )
    return {
        "t": "message",
        "n": number,
        "key": record.key,
        "shard": record.shard,
        "seq": record.sequence,
        "ts": time_of(record.timestamp),
        "ts_ms": record.timestamp,
        "start": record.start,
        "end": record.end,
        "len": len(record.payload),
        "crc": f"{record.checksum:04x}",
        **body,
    }


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_golden_file_reads_as_the_original_reads_it(path: Path) -> None:
    """Every header field, message, beacon, marker and offset."""
    expected = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    assert list(dump(path, 4096 if path.stem.startswith("10-") else 64)) == expected


@pytest.mark.parametrize("path", [p for p in FILES if not p.stem.startswith("09-")], ids=lambda path: path.stem)
def test_a_golden_file_is_written_again_to_the_same_bytes(path: Path) -> None:
    raw = path.read_bytes()
    header = Header.decode(raw)
    composer = Composer(header.beacon_interval)
    out = bytearray(composer.begin(header))
    for record in Parser(header.beacon_interval, hidden=True).feed(raw[128:]):
        composer.add(out, record.key, record.shard, record.sequence, record.timestamp, record.payload)
    assert bytes(out) == raw


def test_a_file_of_three_sessions_is_written_again_to_the_same_bytes(golden: Path, tmp_path: Path) -> None:
    """Reopening cuts the end-of-stream message off, goes on with the sequences, and begins the beacons anew."""
    source = golden / "09-reopened.ss"
    reader = StreamReader(source, hidden=True)
    records = [record for chunk in iter(reader.read, []) for record in chunk]
    reader.close()
    assert reader.header is not None
    *records, end = records
    clock = [reader.header.created_at]
    target = tmp_path / source.name
    for session in range(3):
        writer = StreamWriter(target, beacon_interval=1024, clock=lambda: clock[0])
        for record in records[30 * session : 30 * session + 30]:
            assert writer.append(record.key, record.payload, timestamp=record.timestamp) == record.sequence
        clock[0] = end.timestamp
        writer.close(eos=session != 1)
    assert target.read_bytes() == source.read_bytes()


def test_headers_travel_as_the_rust_adapter_sends_them(golden: Path) -> None:
    """Both ways: what it published comes out of its payloads, and goes into the same payloads."""
    path = golden / "10-ruststream-headers.ss"
    published = [json.loads(line) for line in path.with_suffix(".published.jsonl").read_text().splitlines()]
    records = list(read_stream(path))
    assert [record.key for record in records] == [row["key"] for row in published]
    for record, row in zip(records, published, strict=True):
        headers = Headers([(name, bytes.fromhex(value)) for name, value in row["headers"]])
        payload = bytes.fromhex(row["hex"])
        assert seal(headers, payload) == record.payload
        assert open_envelope(record.payload) == (headers, payload)


def test_the_adapters_own_message_is_hidden_unless_asked_for(golden: Path) -> None:
    """A handler for every key would be given a payload that no publisher sent."""
    path = golden / "10-ruststream-headers.ss"
    assert "ruststream-internal" not in {record.key for record in read_stream(path)}
    reader = StreamReader(path, hidden=True)
    assert "ruststream-internal" in {record.key for record in reader.read()}
    reader.close()


@pytest.mark.parametrize("row", BAD, ids=lambda row: row["file"])
def test_a_bad_file_is_not_taken_for_a_good_one(row: dict[str, Any], golden: Path) -> None:
    """At least as strict as the original's reader; where that only warns in strict mode, we tell too."""
    path = golden / "bad" / row["file"]
    try:
        report = check_file(path)
    except NotAStreamFile:
        assert row["exit"] in (2, 3)
        return
    found = bool(report.damages or report.torn)
    if row["exit"]:
        assert found
    assert found or report.deviations, row["why"]


@pytest.mark.parametrize("row", [row for row in BAD if row["file"] not in OTHERS], ids=lambda row: row["file"])
def test_what_a_bad_file_still_holds_is_exactly_what_was_in_the_good_one(row: dict[str, Any], golden: Path) -> None:
    """No message is invented, and none is given after the damage that a beacon does not vouch for."""
    try:
        records = list(read_stream(golden / "bad" / row["file"]))
    except NotAStreamFile:
        return
    good = {record.payload for record in read_stream(golden / "04-eos.ss")}
    assert {record.payload for record in records} <= good
    if row["why"].startswith(("payload bit", "checksum bit", "end mark of a message")):
        # The first beacon stands at 1024 and leads to the eighth message.
        assert len(records) == len(good) - 7


def test_bytes_that_an_append_left_behind_are_told_and_then_cut_off(golden: Path, tmp_path: Path) -> None:
    """The original writes over an old end-of-stream message without cutting it off."""
    path = tmp_path / "left.ss"
    shutil.copy(golden / "bad" / "quirk-append-over-eos.ss", path)
    before = list(read_stream(path))
    assert before[-1].payload == b"x"
    assert check_file(path).torn
    writer = StreamWriter(path)
    assert writer.append("a", b"y") == 2
    writer.close()
    assert check_file(path).good
    assert [record.payload for record in read_stream(path)] == [*(record.payload for record in before), b"y"]
