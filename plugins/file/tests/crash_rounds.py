"""Rounds of: a writer is killed at any moment, what it had flushed is still there. A program of its own: it forks.

    python crash_rounds.py FOLDER ROUNDS SEED

Each file lives through ten rounds. After a round its tail is torn off at random within what was not flushed. The
program ends with an error where a flushed message is missing, one is there that nobody wrote, or the file is not good.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
from pathlib import Path

from ruststream_core_file._format import StreamWriter, check_file, read_stream

ROUNDS_PER_FILE = 10
SIZES = (0, 1, 40, 300, 900, 5000)


def body(number: int) -> bytes:
    """What message `number` of a file holds; the same in every process."""
    size = SIZES[number * 7919 % 97 % len(SIZES)]
    return number.to_bytes(8) + (number % 251).to_bytes(1) * size


def write_for_ever(path: Path, done: int, shared: mmap.mmap, interval: int) -> None:
    """Append, and after each flush tell how far it came."""
    writer = StreamWriter(path, beacon_interval=interval)
    while True:
        for _ in range(1 + done % 4):
            writer.append("orders", body(done))
            done += 1
        writer.flush()
        shared[:16] = done.to_bytes(8) + writer.offset.to_bytes(8)


def crash(path: Path, done: int, shared: mmap.mmap, rng: random.Random, interval: int) -> None:
    """Let a child write, and kill it when it has come some way."""
    goal = done + rng.randrange(12)
    child = os.fork()
    if child == 0:
        try:
            write_for_ever(path, done, shared, interval)
        finally:
            os._exit(1)
    while int.from_bytes(shared[:8]) < goal and os.waitpid(child, os.WNOHANG) == (0, 0):
        pass
    for _ in range(rng.randrange(3000)):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def check(path: Path, flushed: int) -> int:
    """How many messages there are, after a writer has opened the file again."""
    StreamWriter(path).close()
    found = list(read_stream(path))
    if len(found) < flushed:
        raise SystemExit(f"{path}: {flushed} messages were flushed, {len(found)} are there")
    for number, record in enumerate(found):
        if record.payload != body(number) or record.sequence != number + 1:
            raise SystemExit(f"{path}: message {number} is not what was written")
    report = check_file(path)
    if not report.good:
        raise SystemExit(f"{path}: {report.damages} {report.torn}")
    return len(found)


def main(folder: Path, rounds: int, seed: int) -> None:
    """Run them all."""
    rng = random.Random(seed)
    shared = mmap.mmap(-1, 16)
    path, done, interval = folder, 0, 1024
    for turn in range(rounds):
        if turn % ROUNDS_PER_FILE == 0:
            path, done = folder / f"{turn // ROUNDS_PER_FILE:02}.ss", 0
            interval = rng.choice((512, 1024, 65_536))
        shared[:16] = done.to_bytes(8) + bytes(8)
        crash(path, done, shared, rng, interval)
        flushed, offset = int.from_bytes(shared[:8]), int.from_bytes(shared[8:])
        size = path.stat().st_size if path.exists() else 0
        if size > offset > 0:
            os.truncate(path, rng.randrange(offset, size + 1))
        if size:
            done = check(path, flushed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
