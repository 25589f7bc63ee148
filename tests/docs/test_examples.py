"""The examples run, end in the result that they promise, and the recording is what its script writes."""

from __future__ import annotations

import hashlib
import lzma
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def test_the_demo_accounts_for_every_order(tmp_path: Path) -> None:
    """The main job: 100,000 orders in, each with an end, one of them in the dead letter."""
    command = [sys.executable, str(EXAMPLES / "demo.py"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(line.rsplit(None, 1) for line in done.stdout.splitlines() if line.startswith("  ") and ":" not in line)
    found = {name.strip(): rows[name] for name in rows}
    assert found["received"] == "100,000"
    assert found["acked"] == "99,998"
    assert found["dead-lettered"] == found["skipped"] == "1"
    assert "adds up" in done.stdout
    assert "run again in place after a passing failure: 4" in done.stdout


def test_the_recording_is_what_its_script_writes(tmp_path: Path) -> None:
    """A recording that nobody can make again is a secret, not an example."""
    path = tmp_path / "orders.ss"
    subprocess.run([sys.executable, str(EXAMPLES / "record_orders.py"), str(path)], check=True)
    recorded = hashlib.sha256(lzma.decompress((EXAMPLES / "data" / "orders.ss.xz").read_bytes()))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == recorded.hexdigest()
