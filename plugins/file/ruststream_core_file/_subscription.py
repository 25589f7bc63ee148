"""Receiving: what was read ahead is handed out, settled, lost at a seek, and for a group its position kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruststream_core.abc import Clock, Demand, State, Subscription, SubscriptionStatistics, Watch
from ruststream_core.errors import ConfigError, RustStreamError, SettleError, Superseded
from ruststream_core.kit import Watermark
from ruststream_core.settlement import Release, Retry, Verdict
from ruststream_core.wire import Delivery
from ruststream_core_file._ahead import ReadAhead
from ruststream_core_file._convert import FileDelivery, GroupDelivery
from ruststream_core_file._cursor import Cursor
from ruststream_core_file._format import Position, Start, StreamReader
from ruststream_core_file._publisher import existing_writer
from ruststream_core_file.config import FileStream, check_start, features_of, keys_of, window_of
from ruststream_core_file.errors import FileRemoved

__all__ = ["FileSubscription", "GroupSubscription"]

log = logging.getLogger("ruststream.file")


class FileSubscription(Subscription):
    """Reads one stream for itself. Made by `open`."""

    kind: type[FileDelivery] = FileDelivery

    def __init__(self, path: Path, source: FileStream, demand: Demand, watch: Watch, clock: Clock) -> None:
        self.path = path
        self.source = source
        self.features = features_of(source)
        self.window = window_of(source, demand)
        self.out = 0
        self.blocked = False
        self.follow = not source.replay
        self._watch = watch
        self._clock = clock
        self._stopped = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._chunk: list[FileDelivery] = []
        self._file = 0
        self._at = 0
        self._hand: list[FileDelivery] = []
        self._ahead: ReadAhead | None = None
        self._state: State = "connecting"
        self._last: float | None = None
        self._released = 0

    async def open(self) -> None:
        """Find the place to begin and start reading.

        Raises:
            ConfigError: the place is not there, or the file is no stream file.
        """
        self._ahead = ReadAhead(await self._reader(self.begins()), self.wake)
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

    # ------------------------------------------------------------------------------------------ receiving

    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        """See `Subscription.receive`. One caller at a time.

        Raises:
            FileRemoved: the file was deleted, replaced or cut short.
        """
        await asyncio.sleep(0)
        while not self._stopped:
            room = min(limit, self.window - self.out)
            if room > 0 and (part := self._take(room)):
                if linger > 0 and len(part) < limit:
                    await self._fill(part, limit, linger)
                self._last = time.monotonic()
                return part
            if room > 0 and self._over():
                break
            await self._wait(room)
        return ()

    def _take(self, room: int) -> list[FileDelivery]:
        at = self._at
        if at >= len(self._chunk):
            found = self._ahead.pop() if self._ahead is not None else None
            if found is None:
                return []
            self._file, self._chunk = found
            at = 0
        part = self._chunk[at : at + room]
        self._at = at + len(part)
        self._adopt(part)
        self.out += len(part)
        # Whom a delivery belongs to is in the delivery; the list is only read at a seek, and swept now and then.
        if len(self._hand) > 2 * self.window:
            self._hand = [delivery for delivery in self._hand if delivery.home is self]
        self._hand += part
        return part

    def _adopt(self, part: list[FileDelivery]) -> None:
        file = self._file
        for delivery in part:
            delivery.home = self
            delivery.file = file
            if delivery.payload.startswith(b"rs"):
                delivery.unseal()

    def _over(self) -> bool:
        """Whether nothing more will come; raises what ended it."""
        ahead = self._ahead
        if ahead is None or not ahead.ended or ahead.buffered:
            return False
        error = ahead.error
        self._tell("ended", error)
        if error is None:
            return True
        if isinstance(error, RustStreamError):
            raise error
        raise FileRemoved(f"{self.path} cannot be read any more: {error}") from error

    async def _wait(self, room: int) -> None:
        if self._waiter is not None:
            raise RuntimeError("receive is for one caller at a time")
        self.blocked = room <= 0
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None
            self.blocked = False

    def wake(self) -> None:
        """Let a waiting `receive` look again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _fill(self, part: list[FileDelivery], limit: int, linger: float) -> None:
        over = False

        def end() -> None:
            nonlocal over
            over = True
            self.wake()

        cancel = self._clock.call_later(linger, end)
        try:
            while not over and not self._stopped and (room := min(limit - len(part), self.window - self.out)) > 0:
                if more := self._take(room):
                    part += more
                elif self._ahead is not None and self._ahead.ended and not self._ahead.buffered:
                    return
                else:
                    await self._wait(room)
        finally:
            cancel()

    # --------------------------------------------------------------------------------------------- ending

    def stop(self) -> None:
        """See `Subscription.stop`."""
        if self._stopped:
            return
        self._stopped = True
        if self._ahead is not None:
            self._ahead.stop()
        self._tell("ended")
        self.wake()

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`."""
        self.stop()
        if self._closed:
            return
        self._closed = True
        if self._ahead is not None:
            self._released += len(self._chunk) - self._at + self._ahead.buffered
            await self._ahead.aclose()
        self._chunk, self._at = [], 0
        self._lose_all(SettleError("the subscription was closed before the delivery was settled"))

    def _lose_all(self, error: SettleError) -> None:
        gone = [delivery for delivery in self._hand if delivery.home is self]
        self._hand = []
        for delivery in gone:
            delivery.home = None
            delivery.lost = error
        self.out -= len(gone)
        for delivery in gone:
            self._watch.lost(delivery, error, None)

    def _tell(self, state: State, cause: BaseException | None = None) -> None:
        if state != self._state:
            self._state = state
            self._watch.state(state, cause)

    def statistics(self) -> SubscriptionStatistics:
        """See `Subscription.statistics`. `lag` is known for what this process writes: 1 where any of it is unread."""
        ahead = self._ahead
        return SubscriptionStatistics(
            state=self._state,
            buffered=0 if self._closed or ahead is None else len(self._chunk) - self._at + ahead.buffered,
            unsettled=self.out,
            released=self._released,
            last_receive=self._last,
            lag=self._lag(),
        )

    def _lag(self) -> int | None:
        writer = existing_writer(self.path)
        if writer is None or self._ahead is None:
            return None
        return int(not self._stopped and writer.place > self._ahead.place)

    # ------------------------------------------------------------------------------------------- positions

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
        assert former is not None
        self._released += len(self._chunk) - self._at + former.buffered
        self._chunk, self._at = [], 0
        self._moved(reader.position or Position(0, 0))
        self._ahead = ReadAhead(reader, self.wake)
        self._lose_all(Superseded(f"{self.source.key!r} was moved to {position!r}"))
        self.wake()
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
        self._watermark: Watermark[Position | GroupDelivery | None] = Watermark(None)
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
            self.out += len(part)
            for delivery in part:
                delivery.home = self
            self._hand += part
            return part
        return super()._take(room)

    def _adopt(self, part: list[FileDelivery]) -> None:
        super()._adopt(part)
        opened = self._watermark.open
        for delivery in part:
            delivery.mark = opened(delivery)  # type: ignore[attr-defined]  # the parser made GroupDelivery

    def decide(self, delivery: GroupDelivery, verdict: Verdict) -> asyncio.Future[None] | None:
        """Settle: what is done moves the position, what comes back is handed out again or left for the next reader."""
        if isinstance(verdict, Retry | Release):
            if not self._stopped:
                self._again.append(_fresh(delivery))
                self.wake()
            return None
        assert delivery.mark is not None
        if not self._watermark.close(delivery.mark) and self._group is None:
            return None
        return self._keep()

    def _keep(self) -> asyncio.Future[None]:
        group = self._group
        if group is None:
            loop = asyncio.get_running_loop()
            group = self._group = loop.create_future()
            if self._keeping is None:
                self._keeping = loop.create_task(self._keep_on(), name="file-cursor")
        return group

    async def _keep_on(self) -> None:
        """One write after the other; each covers all that was settled before it began."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # let the turn that began it end
        while (group := self._group) is not None:
            self._group = None
            position = _place(self._watermark.position)
            if position is not None:
                try:
                    await loop.run_in_executor(None, self._cursor.save, position)
                except OSError as exc:
                    log.error("%s: the position cannot be kept, messages will come again: %s", self._cursor.path, exc)
            if not group.done():
                group.set_result(None)
        self._keeping = None

    def _moved(self, position: Position) -> None:
        self._again.clear()
        self._watermark.reset(position)
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


def _place(mark: Position | GroupDelivery | None) -> Position | None:
    return Position(mark.file, mark.end) if isinstance(mark, GroupDelivery) else mark


def _fresh(delivery: GroupDelivery) -> GroupDelivery:
    """The same message once more; the runtime tells deliveries apart by their objects."""
    d = delivery
    again = GroupDelivery(d.name, d.shard, d.sequence, d.timestamp, d.payload, d.start, d.end)
    again.file, again.carried, again.mark = d.file, d.carried, d.mark
    return again

