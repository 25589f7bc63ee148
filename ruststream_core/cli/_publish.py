"""`ruststream publish`: one message, or one for each line of standard input."""

from __future__ import annotations

import argparse
import asyncio
import sys
from itertools import islice

from ruststream_core.cli._progress import Progress
from ruststream_core.cli._traffic import connected, header_pairs, stdin_lines
from ruststream_core.errors import ConfigError
from ruststream_core.wire import Outgoing

__all__ = ["arguments", "execute"]

BATCH = 500


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("url", help="the broker")
    parser.add_argument("name", help="subject, topic, queue or stream key")
    parser.add_argument("payload", nargs="?", help="the body as text; - or nothing reads standard input whole")
    parser.add_argument("--lines", action="store_true", help="one message for each line of standard input")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--key", help="the message key")


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    if options.lines and options.payload not in (None, "-"):
        raise ConfigError(f"a payload, {options.payload!r}, and --lines: one of them is expected")
    return asyncio.run(_publish(options))


async def _publish(options: argparse.Namespace) -> int:
    headers = header_pairs(options.header)
    key = options.key.encode() if options.key is not None else None
    async with connected(options.url) as (_, connection):
        sender = await connection.sender()
        try:
            if options.lines:
                progress = Progress("messages")
                lines = stdin_lines()
                while batch := await asyncio.to_thread(list, islice(lines, BATCH)):
                    await sender.send_many([Outgoing(line, options.name, headers, key) for line in batch])
                    progress.add(len(batch))
                progress.finish()
            else:
                whole = options.payload in (None, "-")
                body = sys.stdin.buffer.read() if whole else options.payload.encode()
                await sender.send_many([Outgoing(body, options.name, headers, key)])
        finally:
            await sender.aclose(5)
    return 0
