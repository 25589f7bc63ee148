"""The process's own stdin and stdout as a broker: a stage of a pipeline."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from ruststream_core.abc import (
    Broker,
    Clock,
    Connection,
    Demand,
    Features,
    PublishOptions,
    Sender,
    ServerInfo,
    Source,
    Watch,
)
from ruststream_core.errors import Closed, ConfigError, PublishError
from ruststream_core.kit import LoopClock
from ruststream_core.wire import Outgoing
from ruststream_core_file._convert import FileDelivery, payload_of
from ruststream_core_file._format._layout import key_error
from ruststream_core_file._format._writer import now_ms
from ruststream_core_file._line_feed import BACKLOG, LineFeed, LineSubscription
from ruststream_core_file._lines import BROADCAST, Line, parse_line, write_line
from ruststream_core_file._pipes import LineReader, LineWriter
from ruststream_core_file._receiving import Receiving
from ruststream_core_file.config import FileStream, checked, window_of
from ruststream_core_file.errors import PipeClosed

__all__ = ["StdioBroker", "StdioConnection"]

FEATURES: Final = Features(
    settles=False,
    retry="none",
    drop="none",
    release="lost",
    empty_payload=False,
    stored=False,
    fan_out=True,
)


class StdioBroker(Broker[FileStream]):
    """Lines `[timestamp | key | sequence] payload` in and out: `stdio:`, `stdio:?key=jobs`.

    `producer | service | consumer` works with ordinary tools. Plain lines are read too: a line without a bracket is a
    payload. Nothing can be settled, and a message that was read is not read again. When standard input ends, its
    subscriptions end, and so does an app that has no others; the same when whoever reads our output has gone.

    Args:
        key: of lines that name none. Without it such a line goes to every subscription, as `broadcast`.
        loopback: read what was published here, instead of the process's own input and output; for tests.
        stdin: a descriptor to read, 0 unless set.
        stdout: a descriptor to write, 1 unless set.

    Raises:
        ConfigError: the key is none.
    """

    def __init__(self, *, key: str | None = None, loopback: bool = False, stdin: int = 0, stdout: int = 1) -> None:
        if key is not None and (not key or (wrong := key_error(key.encode())) is not None):
            raise ConfigError(f"stdio: key={key!r} is no stream key: {'it is empty' if not key else wrong}")
        self.key = key
        self.loopback = loopback
        self.stdin = stdin
        self.stdout = stdout
        self._clock: Clock = LoopClock()
        self._echo: list[StdioConnection] = []

    def __repr__(self) -> str:
        return f"StdioBroker(key={self.key!r}, loopback={self.loopback})"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """See `Broker.from_url`."""
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.scheme != "stdio" or parts.netloc or parts.path not in ("", "/") or set(given) - {"key"}:
            raise ConfigError("a stdio URL is stdio: or stdio:?key=jobs")
        return cls(key=given.get("key"))

    def source(self, source: str | Source) -> FileStream:
        """See `Broker.source`."""
        source = checked(source, replay=False)
        if source.group is not None or source.start_at is not None or source.replay:
            raise ConfigError(f"{source.key!r}: stdio has no groups and no positions: only key and window can be set")
        return source

    def features(self, source: FileStream) -> Features:
        """See `Broker.features`."""
        return FEATURES

    def describe(self) -> ServerInfo:
        """See `Broker.describe`."""
        return ServerInfo(host="stdio", protocol="stdio", description="standard input and output")

    def stand_in(self, clock: Clock) -> StdioBroker:
        """A loopback."""
        stand_in = StdioBroker(key=self.key, loopback=True)
        stand_in._clock = clock
        return stand_in

    async def connect(self) -> StdioConnection:
        """See `Broker.connect`. Always succeeds."""
        return StdioConnection(self, self._clock, self._echo)


class StdioConnection(Connection[FileStream]):
    """See `Connection`."""

    def __init__(self, broker: StdioBroker, clock: Clock, echo: list[StdioConnection]) -> None:
        self._broker = broker
        self._clock = clock
        self._echo = echo
        self._feeds: list[LineFeed] = []
        self._subscriptions: list[Receiving] = []
        self._early: deque[FileDelivery] = deque(maxlen=BACKLOG)
        self._numbers: dict[str, int] = {}
        self._reader: LineReader | None = None
        self._writer: LineWriter | None = None
        self._paused = False
        self._over = False
        self._closed = False
        echo.append(self)

    # ------------------------------------------------------------------------------------------- reading

    async def subscribe(self, source: FileStream, demand: Demand, watch: Watch) -> Receiving:
        """See `Connection.subscribe`. Reading begins in the next turn of the loop.

        Raises:
            Closed: after `aclose`.
            ConfigError: the window does not hold the demand.
        """
        self._check_open()
        source = self._broker.source(source)
        subscription = LineSubscription(source.key, FEATURES, window_of(source, demand), watch, self._clock)
        feed = LineFeed(source, subscription.wake, self._room, self._feeds.remove)
        feed.ended = self._over
        subscription.begin(feed)
        self._feeds.append(feed)
        self._subscriptions.append(subscription)
        for message in tuple(self._early):
            if feed.wants(message.name):
                self._early.remove(message)
                feed.put([message])
        if _closed(self._broker.stdin):
            self.end()
        elif self._reader is None and not self._broker.loopback:
            self._reader = LineReader(self._broker.stdin, self._lines, self.end)
            # Once all routes of an app are open, so that each gets its lines.
            asyncio.get_running_loop().call_soon(self._reader.start)
        return subscription

    def _lines(self, lines: Sequence[bytes]) -> bool:
        """Deal lines out; whether there is room for more."""
        parsed = [line for raw in lines if (line := parse_line(raw)) is not None]
        self._deal([self._message(line) for line in parsed], keep=True)
        self._paused = any(feed.full for feed in self._feeds)
        return not self._paused

    def _room(self) -> None:
        if self._paused and self._reader is not None and not any(feed.full for feed in self._feeds):
            self._paused = False
            self._reader.resume()

    def _message(self, line: Line) -> FileDelivery:
        key = line.key or self._broker.key or BROADCAST
        number = self._next(key) if line.sequence is None else line.sequence
        when = now_ms() if line.timestamp is None else line.timestamp
        return FileDelivery(key, line.shard, number, when, line.payload, 0, 0)

    def _next(self, key: str) -> int:
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        return number

    def _deal(self, messages: list[FileDelivery], *, keep: bool) -> None:
        taken: set[int] = set()
        for feed in self._feeds:
            wanted = [message for message in messages if feed.wants(message.name)]
            # Each subscription settles its own.
            feed.put([_copy(message) if id(message) in taken else message for message in wanted])
            taken.update(map(id, wanted))
        if keep:
            self._early += [message for message in messages if id(message) not in taken]

    def end(self) -> None:
        """Nothing more comes in: the subscriptions end when they have given what is there."""
        self._over = True
        for feed in self._feeds:
            feed.finish()

    def abandon(self) -> None:
        """Nothing more can go out: the subscriptions end at once, though there may be no end of what comes in."""
        self._over = True
        for subscription in self._subscriptions:
            subscription.stop()
        if self._reader is not None:
            self._reader.stop()

    # ------------------------------------------------------------------------------------------- writing

    def write(self, key: str, payload: bytes) -> asyncio.Future[None] | None:
        """One line out.

        Raises:
            PipeClosed: whoever read has gone.
        """
        line = write_line(key, self._next(f">{key}"), now_ms(), payload)
        if self._broker.loopback:
            for connection in self._echo:
                connection.echo(line)
            return None
        writer = self._writer
        if writer is None:
            if _closed(self._broker.stdout):
                self.abandon()
                raise PipeClosed("standard output was closed when this process began")
            writer = self._writer = LineWriter(self._broker.stdout)
            writer.start()
        if writer.broken is not None:
            raise PipeClosed("whoever read our standard output has gone")
        return self._confirmed(writer.write(line))

    def echo(self, line: bytes) -> None:
        """A line of the loopback."""
        parsed = parse_line(line)
        if parsed is not None:
            self._deal([self._message(parsed)], keep=False)

    def _confirmed(self, written: asyncio.Future[None]) -> asyncio.Future[None]:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is not None:
                self.abandon()
            if confirmed.done():
                return
            if error is None:
                confirmed.set_result(None)
            else:
                closed = PipeClosed("whoever read our standard output has gone")
                closed.__cause__ = error
                confirmed.set_exception(closed)
                confirmed.exception()  # nobody need await it

        written.add_done_callback(done)
        return confirmed

    async def drain(self, seconds: float | None = None) -> None:
        """Return when everything is written or cannot be, or when the time is over."""
        if self._writer is not None:
            await self._writer.drain(seconds)

    async def sender(self, options: PublishOptions | None = None) -> Sender:
        """See `Connection.sender`.

        Raises:
            Closed: after `aclose`.
            ConfigError: options were given, and stdio takes none.
        """
        self._check_open()
        if options is not None:
            raise ConfigError(f"stdio takes no publish options, it was given {options!r}")
        return StdioSender(self)

    async def ping(self) -> None:
        """See `Connection.ping`.

        Raises:
            Closed: after `aclose`.
        """
        self._check_open()

    async def aclose(self, grace: float) -> None:
        """See `Connection.aclose`. What waits for a reader of our output that does not read is given up."""
        if self._closed:
            return
        self._closed = True
        self._echo.remove(self)
        for subscription in self._subscriptions:
            await subscription.aclose(grace)
        if self._reader is not None:
            await self._reader.aclose()
        if self._writer is not None:
            await self._writer.drain(grace)
            await self._writer.aclose()

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the stdio connection is closed")


class StdioSender(Sender):
    """See `Sender`. Confirmed when the system has the line."""

    def __init__(self, connection: StdioConnection) -> None:
        self._connection = connection
        self._closed = False

    def send(self, out: Outgoing) -> asyncio.Future[None] | None:
        """See `Sender.send`. What does not fit into a line travels in an envelope."""
        if self._closed or self._connection.closed:
            raise Closed("the stdio sender is closed")
        if out.options is not None:
            raise PublishError(f"stdio takes no publish options, {out.name!r} was given {out.options!r}")
        if not out.name or (wrong := key_error(out.name.encode())) is not None:
            raise PublishError(f"{out.name!r} is no stream key: {wrong if out.name else 'it is empty'}")
        try:
            payload = payload_of(out, line=True)
        except ValueError as exc:
            raise PublishError(f"{out.name!r}: {exc}") from exc
        if not payload:
            raise PublishError(f"{out.name!r}: an empty message cannot be told from none on a line")
        return self._connection.write(out.name, payload)

    async def send_many(self, outs: Sequence[Outgoing]) -> None:
        """See `Sender.send_many`."""
        failed: dict[int, BaseException] = {}
        pending: dict[int, asyncio.Future[None]] = {}
        for index, out in enumerate(outs):
            try:
                confirmed = self.send(out)
            except PublishError as exc:
                failed[index] = exc
            else:
                if confirmed is not None:
                    pending[index] = confirmed
        if pending:
            await asyncio.wait(pending.values())
        failed |= {index: error for index, future in pending.items() if (error := future.exception()) is not None}
        if failed:
            raise PublishError(f"{len(failed)} of {len(outs)} messages were refused", failed=failed)

    async def flush(self) -> None:
        """See `Sender.flush`."""
        await self._connection.drain()

    async def aclose(self, grace: float) -> None:
        """See `Sender.aclose`."""
        if not self._closed:
            self._closed = True
            await self._connection.drain(grace)


def _closed(fd: int) -> bool:
    """Whether the process began without that descriptor: what has the number now is something else."""
    return {0: sys.__stdin__, 1: sys.__stdout__}.get(fd, ...) is None


def _copy(message: FileDelivery) -> FileDelivery:
    m = message
    return FileDelivery(m.name, m.shard, m.sequence, m.timestamp, m.payload, m.start, m.end)
