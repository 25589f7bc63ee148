"""Subscriptions of a stream file: where they begin and are moved to, and for a group the position that is kept."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from pathlib import Path
from typing import Any, Final

from ruststream_core.abc import Clock, Demand, Watch
from ruststream_core.errors import ConfigError, Superseded
from ruststream_core.kit import Watermark
from ruststream_core.settlement import Release, Retry, Verdict
from ruststream_core.wire import Delivery
from ruststream_core_file._ahead import ReadAhead
from ruststream_core_file._convert import FileDelivery, GroupDelivery
from ruststream_core_file._cursor import Cursor
from ruststream_core_file._format import Position, Start, StreamReader
from ruststream_core_file._publisher import existing_writer
from ruststream_core_file._receiving import Receiving
from ruststream_core_file.config import FileStream, check_start, features_of, keys_of, window_of
from ruststream_core_file.errors import FileRemoved

__all__ = ["FileSubscription", "GroupSubscription"]

log = logging.getLogger("ruststream.file")

COMES_BACK: Final = (Retry, Release)
PAUSE: Final = 0.005
"""Seconds between two writes of a position."""


class FileSubscription(Receiving):
    """Reads one stream for itself, once `open` has found where to begin."""

    kind: type[FileDelivery] = FileDelivery

    def __init__(self, path: Path, source: FileStream, demand: Demand, watch: Watch, clock: Clock) -> None:
        super().__init__(source.key, features_of(source), window_of(source, demand), watch, clock)
        self.path = path
        self.source = source
        self.follow = not source.replay
        self._ahead: ReadAhead | None = None

    async def open(self) -> None:
        """Find the place to begin and start reading.

        Raises:
            ConfigError: the place is not there, or the file is no stream file.
        """
        self._feed = self._ahead = ReadAhead(await self._reader(self.begins()), self.wake)
        self._tell("receiving")

    def begins(self) -> Start:
        """Where this subscription begins."""
        return self.source.begins

    async def _reader(self, start: Start) -> StreamReader:
        reader = StreamReader(self.path, start, follow=self.follow, keys=keys_of(self.source), make=self.kind)
        try:
            there = await asyncio.get_running_loop().run_in_executor(None, reader.open)
        except FileRemoved as exc:
            raise ConfigError(f"{self.source.key!r}: {exc}") from exc
        except OSError as exc:
            raise ConfigError(f"{self.path} cannot be read: {exc}") from exc
        if not there and start == "end":
            reader.seek("beginning")  # what will be written is all behind the end
        return reader

    def _lag(self) -> int | None:
        """Known for what this process writes: 1 where any of it is unread."""
        writer = existing_writer(self.path)
        if writer is None or self._ahead is None:
            return None
        return int(not self._stopped and writer.place > self._ahead.place)

    def position(self, delivery: Delivery) -> Position:
        """See `Positioned.position`."""
        assert isinstance(delivery, FileDelivery)
        return delivery.position

    async def seek(self, position: Any) -> None:
        """Go on from a position, "beginning", "end", `FromSequence` or `AfterTime`, for messages of this key.

        Raises:
            ConfigError: no such position; nothing was changed.
        """
        check_start(self.source.key, position)
        reader = await self._reader(position)
        former = self._ahead
        self._let_go(former)
        self._moved(reader.position or Position(0, 0))
        self._feed = self._ahead = ReadAhead(reader, self.wake)
        self._lose_all(Superseded(f"{self.source.key!r} was moved to {position!r}"))
        self.wake()
        if former is not None:
            await former.aclose()

    def _moved(self, position: Position) -> None:
        """Reading goes on from there."""


class GroupSubscription(FileSubscription):
    """Reads one stream for a group, and keeps the position below which everything is settled."""

    kind = GroupDelivery

    def __init__(
        self, path: Path, source: FileStream, demand: Demand, watch: Watch, clock: Clock, *, sync: bool
    ) -> None:
        super().__init__(path, source, demand, watch, clock)
        assert source.group is not None
        self._cursor = Cursor(path, source.group, source.key, sync=sync)
        try:
            self._begins = self._cursor.load() or source.begins
        except BaseException:
            self._cursor.close()
            raise
        self._watermark: Watermark[tuple[int, int]] = Watermark((0, 0))
        self._keeping: asyncio.Task[None] | None = None
        self._group: asyncio.Future[None] | None = None
        self._again: deque[GroupDelivery] = deque()

    def begins(self) -> Start:
        """The kept position, else what the source says."""
        return self._begins

    async def open(self) -> None:
        """See `FileSubscription.open`."""
        try:
            await super().open()
        except BaseException:
            self._cursor.close()
            raise

    def _take(self, room: int) -> list[FileDelivery]:
        if self._again:
            part: list[FileDelivery] = [self._again.popleft() for _ in range(min(room, len(self._again)))]
            for delivery in part:
                delivery.home = self
            self._hand_out(part)
            return part
        return super()._take(room)

    def _adopt(self, part: list[FileDelivery]) -> None:
        super()._adopt(part)
        opened, file = self._watermark.open, self._file
        for delivery in part:
            # Not the delivery itself: the two would keep each other alive, out of the collector's sight.
            delivery.mark = opened((file, delivery.end))

    def decide(self, delivery: GroupDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """Settle: what is done moves the position, what comes back is handed out again or left for the next reader."""
        if isinstance(verdict, COMES_BACK):
            if not self._stopped:
                self._again.append(_fresh(delivery))
                self.wake()
            return None
        assert delivery.mark is not None
        if self._watermark.close(delivery.mark):
            self._keep()
        return self._group

    def _keep(self) -> None:
        """Have the position written by the next turn."""
        if self._group is None:
            loop = asyncio.get_running_loop()
            self._group = loop.create_future()
            if self._keeping is None:
                self._keeping = loop.create_task(self._keep_on(), name="file-cursor")

    async def _keep_on(self) -> None:
        """One write after the other; each covers all that was settled before it began."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # let the turn that began it end
        while (group := self._group) is not None:
            self._group = None
            file, offset = self._watermark.position
            if file:
                try:
                    await loop.run_in_executor(None, self._cursor.save, Position(file, offset))
                except OSError:
                    log.exception("%s: the position cannot be kept, messages will come again", self._cursor.path)
            if not group.done():
                group.set_result(None)
            # A write costs as much as some hundred messages: those that are settled meanwhile share the next one.
            await asyncio.sleep(PAUSE)
        self._keeping = None

    def _moved(self, position: Position) -> None:
        self._again.clear()
        self._watermark.reset((position.file, position.offset))
        if position.file:
            self._keep()

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`. The position is kept before it returns."""
        if self._closed:
            return
        while (task := self._keeping) is not None:
            await asyncio.wait([task])
        await super().aclose(grace)
        self._cursor.close()


def _fresh(delivery: GroupDelivery) -> GroupDelivery:
    """The same message once more; the runtime tells deliveries apart by their objects."""
    d = delivery
    again = GroupDelivery(d.name, d.shard, d.sequence, d.timestamp, d.payload, d.start, d.end)
    again.file, again.carried, again.mark = d.file, d.carried, d.mark
    return again
