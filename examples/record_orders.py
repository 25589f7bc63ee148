"""Writes the recording that the demo runs over: 100,000 orders of three regions, the same bytes every time.

    python record_orders.py orders.ss

Among them are a few that a service has to cope with: one is cut off in the middle, one has no lines.
"""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import msgspec

from ruststream_core_file import StreamWriter

ORDERS = 100_000
BEGIN = 1_767_225_600_000  # 2026-01-01T00:00:00Z, in milliseconds
REGIONS = (("eu", "EUR"), ("us", "USD"), ("apac", "JPY"))
CUT_OFF = 50_003
EMPTY = 70_001


def record(path: Path, orders: int = ORDERS) -> None:
    """Write them to a new file."""
    choose = random.Random(20260101)  # noqa: S311  the same bytes every time are the point
    names = [f"{choose.choice('bcdfglmnprst')}{choose.choice('aeiou')}{n:04d}" for n in range(2_000)]
    writer = StreamWriter(path, clock=lambda: BEGIN)
    now = BEGIN
    for number in range(1, orders + 1):
        region, currency = choose.choices(REGIONS, weights=(5, 3, 2))[0]
        now += choose.randrange(40)
        lines = [
            {"sku": f"A-{choose.randrange(400):03d}", "quantity": choose.randrange(1, 5), "price": f"{price}.90"}
            for price in itertools.islice(iter(lambda: choose.randrange(2, 80), None), choose.choice((1, 1, 1, 2, 3)))
        ]
        order = {
            "id": number,
            "customer": choose.choice(names),
            "currency": currency,
            "lines": [] if number == EMPTY else lines,
        }
        body = msgspec.json.encode(order)
        writer.append(f"orders.{region}", body[:40] if number == CUT_OFF else body, timestamp=now)
        if number % 1_000 == 0:
            writer.flush()
    writer.close(eos=True)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
