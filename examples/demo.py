"""The main job on real input: the service of `orders.py` over a recording of 100,000 orders.

    python demo.py [FOLDER]

It unpacks the recording into the folder, runs the service to its end and says what became of every order.
"""

from __future__ import annotations

import asyncio
import logging
import lzma
import os
import shutil
import sys
import time
from importlib import import_module
from itertools import islice
from pathlib import Path

from ruststream_core import App
from ruststream_core_file import read_stream

HERE = Path(__file__).resolve().parent
RECORDING = HERE / "data" / "orders.ss.xz"
ROWS = ("received", "acked", "retried", "dropped", "dead_lettered", "skipped", "released", "lost", "discarded")


def unpack(folder: Path) -> Path:
    """A fresh folder with the recording in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with lzma.open(RECORDING) as packed, (folder / "orders.ss").open("wb") as orders:
        shutil.copyfileobj(packed, orders)
    return folder / "orders.ss"


async def run(total: int) -> dict[str, int]:
    """Run the service until the recording ends; returns its books."""
    app: App = import_module("orders").app  # now that the environment says where its files are
    async with app.start() as running:
        ended = asyncio.ensure_future(running.wait())
        while not ended.done():
            await asyncio.wait([ended], timeout=0.2)
            _progress(running.statistics()["confirm"]["received"], total)
        await ended
    assert running.report is not None
    return running.report.total


def _progress(received: int, total: int) -> None:
    if sys.stderr.isatty():
        full = 40 * received // total
        print(f"\r[{'#' * full}{'.' * (40 - full)}] {received:,} orders", end="", file=sys.stderr, flush=True)


def report(books: dict[str, int], seconds: float, receipts: Path) -> int:
    """Print the table; 1 where it does not add up."""
    print("\nwhat became of the orders\n")
    for row in ROWS:
        print(f"  {row.replace('_', '-'):<14}{books[row]:>9,}")
    ends = sum(books[row] for row in ROWS[1:])
    print(f"  {'sum of ends':<14}{ends:>9,}   {'adds up' if ends == books['received'] else 'DOES NOT ADD UP'}")
    print(f"\n  run again in place after a passing failure: {books['reruns']}")
    print(f"  {books['received'] / seconds:,.0f} orders a second, {seconds:.1f} s in all")
    print(f"\nresult: {receipts} ({receipts.stat().st_size / 1e6:.1f} MB), it begins with")
    for record in islice(read_stream(receipts), 3):
        print(f"  {record.key} {record.payload.decode()}")
    print(f"all of it: {Path(sys.executable).parent / 'ruststream'} tail 'file:{receipts}?replay=true' '*'")
    return 0 if ends == books["received"] else 1


def main() -> int:
    """Run the demo."""
    logging.basicConfig(level=logging.ERROR, format="  log: %(message)s", stream=sys.stdout)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "out").resolve()
    orders = unpack(folder)
    os.environ.update(ORDERS=str(orders), RECEIPTS=str(folder / "receipts.ss"))
    print(f"recording: {orders} ({orders.stat().st_size / 1e6:.1f} MB)")
    began = time.monotonic()
    books = asyncio.run(run(100_000))
    return report(books, time.monotonic() - began, folder / "receipts.ss")


if __name__ == "__main__":
    sys.exit(main())
