"""`ruststream tail`: messages as they come, a line each."""

from __future__ import annotations

import argparse
import asyncio

from ruststream_core.cli._traffic import connected, count, ready_source, show, subscribed
from ruststream_core.settlement import ACK

__all__ = ["arguments", "execute"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("url", help="the broker")
    parser.add_argument("name", help="subject, topic, queue or stream key; wildcards where the broker has them")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="end after N messages")
    parser.add_argument("--take", action="store_true", help="acknowledge: takes the messages away from consumers")


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    return asyncio.run(_tail(options))


async def _tail(options: argparse.Namespace) -> int:
    left = options.count
    async with connected(options.url) as (broker, connection):
        source = ready_source(broker, options.name, take=options.take)
        async with subscribed(connection, source) as subscription:
            while left != 0 and (chunk := await subscription.receive(64 if left is None else min(64, left))):
                for delivery in chunk:
                    print(show(delivery), flush=True)
                    delivery.settle(ACK)
                left = None if left is None else left - len(chunk)
    return 0
