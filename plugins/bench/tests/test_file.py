"""The plain reader that file scenarios are held against: a raw loop that skips messages would be no measure."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ruststream_core import Batch
from ruststream_core.errors import RustStreamError
from ruststream_core_bench._measure import Plan, run_once
from ruststream_core_bench._payload import counting, counting_batches, replying
from ruststream_core_bench._plain_reader import PlainReader
from ruststream_core_bench._scenario import Loop, Place
from ruststream_core_bench.scenarios import file as scenarios
from ruststream_core_file import StreamWriter

PLAN = Plan(3, 1.0)


def _payloads(count: int) -> list[bytes]:
    source = random.Random(7)
    return [source.randbytes(source.randrange(2000)) for _ in range(count)]


def _write(path: Path, payloads: list[bytes], interval: int) -> None:
    writer = StreamWriter(path, beacon_interval=interval)
    for payload in payloads:
        writer.append("other", b"not wanted")
        writer.append("bench", payload)
    writer.flush()
    writer.close()


@pytest.mark.parametrize("interval", [1024, 4096, 1024 * 1024])
def test_plain_reader_reads_all(tmp_path: Path, interval: int) -> None:
    """Messages that beacons cut included, those of other keys left out, in order."""
    payloads = _payloads(600)
    _write(tmp_path / "f.ss", payloads, interval)
    reader = PlainReader(tmp_path / "f.ss", "bench")
    found: list[bytes] = []
    while more := reader.read():
        found += more
    reader.close()
    assert found == payloads


def test_plain_reader_follows(tmp_path: Path) -> None:
    """From the present end on it gives what is appended, and nothing twice."""
    path = tmp_path / "f.ss"
    writer = StreamWriter(path, beacon_interval=1024)
    writer.append("bench", b"old")
    writer.flush()
    reader = PlainReader(path, "bench", at_end=True)
    found = []
    for payload in (payloads := _payloads(50)):
        writer.append("bench", payload)
        writer.flush()
        found += reader.read()
    writer.close()
    reader.close()
    assert found == payloads


def test_plain_reader_checks(tmp_path: Path) -> None:
    """It computes the checksums, as the transport does: otherwise the two would not do the same work."""
    path = tmp_path / "f.ss"
    _write(path, [b"x" * 100], 1024)
    data = bytearray(path.read_bytes())
    data[data.index(b"xxxx")] ^= 1
    path.write_bytes(data)
    with pytest.raises(RustStreamError, match="damaged"):
        PlainReader(path, "bench").read()


PASSES = {
    "replay-raw": scenarios._passes(scenarios._plain_pass, 2000),
    "replay-adapter": scenarios._passes(scenarios._adapter_pass(scenarios._drive_each), 2000),
    "replay-service": scenarios._passes(scenarios._service_pass(counting), 2000),
    "batch-raw": scenarios._passes(scenarios._plain_batches, 2000),
    "batch-adapter": scenarios._passes(scenarios._adapter_pass(scenarios._drive_batches, 64), 2000),
    "batch-service": scenarios._passes(scenarios._service_pass(counting_batches, {"batch": Batch(64)}), 2000),
    "reply-raw": scenarios._passes(scenarios._plain_replies, 2000, own=True),
    "reply-adapter": scenarios._passes(scenarios._adapter_replies, 2000, own=True),
    "reply-service": scenarios._passes(scenarios._service_pass(replying, {"reply": "replies"}), 2000, own=True),
    "parse-raw": scenarios._passes(scenarios._parse_plain, 2000),
    "parse-ours": scenarios._passes(scenarios._parse_ours, 2000),
    "tail-raw": scenarios._tail_raw,
    "tail-adapter": scenarios._tail_adapter,
    "tail-service": scenarios._tail_service,
}


@pytest.mark.parametrize("loop", PASSES.values(), ids=PASSES.keys())
def test_loops(loop: Loop, tmp_path: Path) -> None:
    """Every loop sees all messages of two passes, or of the tail. What it took is not looked at."""
    assert run_once(loop, 4000, Place("file:", tmp_path), PLAN).wall > 0
