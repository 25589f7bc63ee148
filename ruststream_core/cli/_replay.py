"""`ruststream replay`: a stream file published again, at its own pace or another."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruststream_core.abc import Sender
from ruststream_core.cli._progress import Progress
from ruststream_core.cli._traffic import connected, file_url, refuse_itself, subscribed
from ruststream_core.errors import ConfigError
from ruststream_core.settlement import ACK
from ruststream_core.wire import Delivery, Outgoing

__all__ = ["arguments", "execute"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("file", help="the stream file")
    parser.add_argument("url", help="the broker")
    parser.add_argument("--to", metavar="NAME", help="one name for all; else each message's stream key")
    parser.add_argument("--key", metavar="KEY", help="only messages of this stream key")
    parser.add_argument("--pace", default="own", metavar="own|FACTOR|fast", help="distances in time (own)")


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    if not Path(options.file).exists():
        raise ConfigError(f"{options.file} is not there")
    return asyncio.run(_replay(options, pace(options.pace)))


def pace(text: str) -> float | None:
    """How many times as fast as the recording; None for as fast as it goes.

    Raises:
        ConfigError: not `own`, `fast` or a number above 0.
    """
    if text in ("own", "fast"):
        return 1.0 if text == "own" else None
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ConfigError(f"--pace {text!r}: own, fast or a number above 0 is expected")
    return factor


async def _replay(options: argparse.Namespace, factor: float | None) -> int:
    refuse_itself(options.url, options.file)
    progress = Progress("messages")
    url = f"{file_url(options.file)}?replay=true"
    async with connected(url) as (broker, file), connected(options.url) as (_, target):
        sender = await target.sender()
        clock = _Pacer(factor)
        try:
            async with subscribed(file, broker.source(options.key or "*")) as subscription:
                while chunk := await subscription.receive(256):
                    await _send(sender, chunk, options.to, clock)
                    progress.add(len(chunk))
        finally:
            await sender.aclose(5)
    progress.finish()
    return 0


async def _send(sender: Sender, chunk: Sequence[Delivery], to: str | None, clock: _Pacer) -> None:
    if clock.factor is None:
        await sender.send_many([_outgoing(delivery, to) for delivery in chunk])
    for delivery in chunk:
        if clock.factor is not None:
            await clock.until(delivery)
            if (pending := sender.send(_outgoing(delivery, to))) is not None:
                await pending
        delivery.settle(ACK)


def _outgoing(delivery: Delivery, to: str | None) -> Outgoing:
    kept = [pair for pair in delivery.headers.raw() if pair[0].lower() != "stream-sequence"]
    return Outgoing(delivery.payload, to or delivery.name, type(delivery.headers)(kept), delivery.key)


class _Pacer:
    """Keeps the distances of the recording, divided by a factor."""

    def __init__(self, factor: float | None) -> None:
        self.factor = factor
        self._first: float | None = None
        self._began = time.monotonic()

    async def until(self, delivery: Delivery) -> None:
        """Wait for the delivery's time."""
        recorded: Any = delivery.transport("file.timestamp")
        if self._first is None:
            self._first, self._began = recorded, time.monotonic()
        assert self.factor is not None
        due = self._began + (recorded - self._first) / 1000 / self.factor
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
