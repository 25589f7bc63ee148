"""Held against the original: its own reader accepts what we write, and what a crash of ours leaves."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ruststream_core_file._format import Rotation, StreamWriter, repair

# Without an end-of-stream message the original's consumer now and then stops before the last messages, however often
# it is asked; only its decoder is held against such files.
Verify = Callable[..., subprocess.CompletedProcess[str]]

# The first use builds the original's reader.
pytestmark = pytest.mark.timeout(1200)


def fill(path: Path, interval: int, *, eos: bool, seed: int) -> None:
    """One session: several streams, all sizes."""
    rng = random.Random(seed)
    writer = StreamWriter(path, beacon_interval=interval)
    for _ in range(rng.randrange(1, 150)):
        size = rng.choice((0, 1, 30, 100, 990, 5000))
        # An empty payload at a multiple of its block makes the original panic.
        writer.append(rng.choice(("orders", "audit", "k" * 249, "a.b_c-D")), rng.randbytes(size or 1), rng.randrange(3))
    writer.close(eos=eos)


def test_the_original_reads_what_one_session_wrote(tmp_path: Path, verify: Verify) -> None:
    """Strictly: every beacon says what its own writer would have said."""
    for interval in (128, 1024, 4096, 1024 * 1024):
        for seed in range(6):
            fill(tmp_path / f"{interval}-{seed}.ss", interval, eos=seed % 2 == 0, seed=seed)
    ended = sorted(tmp_path.glob("*-[024].ss"))
    run = verify("--strict", "--consumer", "--quiet", *ended)
    assert run.returncode == 0, run.stderr
    run = verify("--strict", "--quiet", *sorted(tmp_path.glob("*-[135].ss")))
    assert run.returncode == 0, run.stderr


def test_the_original_reads_what_several_sessions_wrote(tmp_path: Path, verify: Verify) -> None:
    """Not strictly: as in its own files, the sums of beacons begin anew."""
    for seed in range(6):
        for session in range(3):
            fill(tmp_path / f"{seed}.ss", 1024, eos=session % 2 == 0, seed=seed * 10 + session)
    run = verify("--consumer", "--quiet", *sorted(tmp_path.glob("*.ss")))
    assert run.returncode == 0, run.stderr


def test_the_original_reads_every_file_of_a_rotation(tmp_path: Path, verify: Verify) -> None:
    writer = StreamWriter(tmp_path / "x.ss", beacon_interval=1024, rotation=Rotation(size=5000))
    for number in range(300):
        writer.append("orders", bytes([number % 256]) * 70)
    writer.close()
    files = [path for path in tmp_path.iterdir() if path.suffix != ".sequences"]
    assert len(files) > 3
    run = verify("--strict", "--quiet", *files)
    assert run.returncode == 0, run.stderr


def test_the_original_reads_what_repair_saved(tmp_path: Path, golden: Path, verify: Verify) -> None:
    saved = tmp_path / "saved.ss"
    repair(golden / "bad" / "payload-bit.ss", saved)
    run = verify("--strict", "--consumer", "--quiet", saved)
    assert run.returncode == 0, run.stderr


@pytest.fixture(scope="session")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files whose writers were killed two hundred times."""
    folder = tmp_path_factory.mktemp("crashed")
    program = Path(__file__).with_name("crash_rounds.py")
    run = subprocess.run(
        [sys.executable, program, folder, "200", "7"], capture_output=True, text=True, check=False, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return sorted(folder.glob("*.ss"))


def test_a_killed_writer_loses_nothing_that_it_had_flushed(crashed: list[Path]) -> None:
    """The program checks every round by itself."""
    assert len(crashed) == 20


def test_the_original_reads_what_killed_writers_left(crashed: list[Path], verify: Verify) -> None:
    run = verify("--quiet", *crashed)
    assert run.returncode == 0, run.stderr
