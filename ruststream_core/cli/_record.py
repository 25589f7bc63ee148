"""`ruststream record`: a broker's traffic into a stream file."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable

from ruststream_core.abc import Sender, Subscription
from ruststream_core.cli._progress import Progress
from ruststream_core.cli._traffic import connected, count, file_url, ready_source, refuse_itself, subscribed
from ruststream_core.settlement import ACK
from ruststream_core.wire import Outgoing

__all__ = ["arguments", "execute"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("url", help="the broker")
    parser.add_argument("name", help="subject, topic or queue; wildcards where the broker has them")
    parser.add_argument("file", help="the stream file; an existing one is continued")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="end after N messages, else by a signal")
    parser.add_argument("--key", metavar="KEY", help="one stream key for all; else each message's own name")
    parser.add_argument("--take", action="store_true", help="acknowledge: takes the messages away from consumers")


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    return asyncio.run(_record(options))


async def _record(options: argparse.Namespace) -> int:
    refuse_itself(options.url, options.file)
    progress = Progress("messages", options.count)
    async with connected(options.url) as (broker, connection), connected(file_url(options.file)) as (_, file):
        source = ready_source(broker, options.name, take=options.take)
        sender = await file.sender()
        try:
            async with subscribed(connection, source) as subscription:
                with _stopped_by_signals(subscription.stop):
                    await _copy(subscription, sender, options, progress)
        finally:
            await sender.aclose(5)
    progress.finish()
    return 0


async def _copy(subscription: Subscription, sender: Sender, options: argparse.Namespace, progress: Progress) -> None:
    left = options.count
    while left != 0 and (chunk := await subscription.receive(64 if left is None else min(64, left))):
        # Acknowledged only when written: a record that fails loses nothing.
        await sender.send_many([Outgoing(d.payload, options.key or d.name, d.headers) for d in chunk])
        for delivery in chunk:
            delivery.settle(ACK)
        progress.add(len(chunk))
        left = None if left is None else left - len(chunk)


class _stopped_by_signals:  # noqa: N801  used as a with-statement's word
    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
