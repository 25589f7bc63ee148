"""Appends messages to a stream file: `python -m ... URL KEY`. Each allowance is one flush."""

from __future__ import annotations

import asyncio
import sys

from ruststream_core.plugins import broker_from_url
from ruststream_core.wire import Outgoing
from ruststream_core_bench._feeding import STEP, allowances
from ruststream_core_bench._payload import BODY

__all__ = ["main"]


async def main(url: str, key: str) -> None:
    """Run until no more is wanted."""
    connection = await broker_from_url(url).connect()
    sender = await connection.sender()
    block = [Outgoing(BODY, key)] * STEP
    for _ in allowances():  # it blocks this loop, and nothing else runs in this process
        await sender.send_many(block)
    await connection.aclose(5.0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
