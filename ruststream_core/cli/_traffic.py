"""What the commands share that read or write messages without an app."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ruststream_core.abc import Broker, Connection, Demand, Source, State, Subscription
from ruststream_core.errors import ConfigError, SettleError
from ruststream_core.plugins import broker_from_url
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Delivery, Headers

__all__ = [
    "LoggingWatch",
    "connected",
    "count",
    "file_url",
    "header_pairs",
    "ready_source",
    "refuse_itself",
    "show",
    "stdin_lines",
    "subscribed",
]

log = logging.getLogger("ruststream")


class LoggingWatch:
    """Says what a subscription goes through, until we close it ourselves."""

    closing = False

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        """See `Watch.lost`."""
        if not self.closing:
            log.warning("lost a message of %r: %s", delivery.name, error)

    def state(self, state: State, cause: BaseException | None) -> None:
        """See `Watch.state`."""
        log.log(logging.INFO if cause is None else logging.WARNING, "%s %s", state, cause or "")


def refuse_itself(url: str, file: str) -> None:
    """A file copied into itself would never come to an end.

    Raises:
        ConfigError: the URL is of that file.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and Path(unquote(parts.path)).resolve() == Path(file).resolve():
        raise ConfigError(f"{file} cannot be copied into itself: name another file")


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[tuple[Broker[Any], Connection[Any]]]:
    """A connection to a URL, closed at the end."""
    broker = broker_from_url(url)
    connection = await broker.connect()
    try:
        yield broker, connection
    finally:
        await connection.aclose(5)


def ready_source(broker: Broker[Any], name: str, *, take: bool) -> Source:
    """The source of that name; where reading takes messages away from others, only if that is wanted.

    Raises:
        ConfigError: it would take messages away.
    """
    source: Source = broker.source(name)
    if broker.features(source).settles and not take:
        raise ConfigError(f"{name!r} is shared: reading takes messages away from its consumers; --take does so")
    return source


@asynccontextmanager
async def subscribed(connection: Connection[Any], source: Source) -> AsyncGenerator[Subscription]:
    """A subscription for one reader, stopped and closed at the end."""
    watch = LoggingWatch()
    subscription = await connection.subscribe(source, Demand(batch=1), watch)
    try:
        yield subscription
    finally:
        watch.closing = True
        subscription.stop()
        await subscription.aclose(5)


def count(text: str) -> int:
    """A number of messages as given on the command line."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text}: 0 or more is expected")
    return number


def file_url(path: str) -> str:
    """The URL of a file, whatever characters its name has."""
    return f"file:{quote(path)}"


def header_pairs(pairs: Sequence[str]) -> Headers:
    """`name=value` as given on the command line.

    Raises:
        ConfigError: one is not of that form.
    """
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--header {pair!r}: name=value is expected")
        found.append((name, value))
    return Headers(found)


def show(delivery: Delivery) -> str:
    """One message as a line: name, key, headers in brackets, payload as text or as bytes."""
    head = [delivery.name]
    if delivery.key is not None and delivery.key != delivery.name.encode():
        head.append(f"key={_text(delivery.key)}")
    head += [f"{name}={value if isinstance(value, str) else _text(value)}" for name, value in delivery.headers.raw()]
    return f"[{' '.join(head)}] {_text(delivery.payload)}"


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return repr(raw)
    return text if text.isprintable() or not text else repr(text)[1:-1]


def stdin_lines() -> Iterator[bytes]:
    """Lines of standard input as bytes, without their ends."""
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\r\n")
