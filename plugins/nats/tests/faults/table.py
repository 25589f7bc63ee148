"""Prints the figures of a run as the table of a page: `python table.py figures.json`.

The file is written by the tests of this folder where `RUSTSTREAM_TEST_FIGURES` names it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = ("Scenario", "Server", "Rounds", "Messages", "Lost", "Twice", "Back at work, s: median / most", "Note")
SERVERS = {"debian": "2.9", "newest": "2.15"}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, those of one scenario together."""
    order = list(dict.fromkeys(row["scenario"] for row in rows))
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|--:|--:|--:|--:|--:|---|"]
    lines += map(_line, sorted(rows, key=lambda row: (order.index(row["scenario"]), row["server"])))
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    times = f"{row['back_median']:.2f} / {row['back_most']:.2f}" if "back_median" in row else ""
    counts = ["" if row[name] is None else f"{row[name]:,}" for name in ("rounds", "published", "lost", "duplicates")]
    return f"| {' | '.join([row['scenario'], SERVERS[row['server']], *counts, times, row['note']])} |"


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
