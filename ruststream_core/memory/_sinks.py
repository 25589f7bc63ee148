"""Where messages wait: queues, and logs with their groups. Synchronous and free of any loop."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, cast

from ruststream_core.errors import ConfigError
from ruststream_core.kit import Mark, Watermark
from ruststream_core.memory._config import MemoryQueue
from ruststream_core.memory._delivery import CrashingDelivery, LogDelivery, MemoryDelivery
from ruststream_core.settlement import Ack, Drop, Release, Retry, Verdict
from ruststream_core.wire import Outgoing, Template

if TYPE_CHECKING:
    from ruststream_core.memory._subscription import MemorySubscription

__all__ = ["Feed", "Group", "Log", "Queue", "Sink"]

Later = Callable[[float, Callable[[], object]], object]


class Feed:
    """What subscriptions take from: a queue, or one group's view of a log."""

    def __init__(self) -> None:
        self.members: list[MemorySubscription] = []
        self.waiting: deque[MemorySubscription] = deque()

    def wake(self) -> None:
        """There is something to take: wake one member that waits for it."""
        while self.waiting:
            if self.waiting.popleft().wake():
                return

    def take(self, room: int) -> list[MemoryDelivery]:
        """At most `room` messages, in order; what came back goes first."""
        raise NotImplementedError

    @property
    def lag(self) -> int:
        """Messages that could be taken now. Those that wait for a timer are not among them."""
        raise NotImplementedError

    def end(self, delivery: MemoryDelivery, verdict: Verdict) -> None:
        """A delivery was settled."""
        raise NotImplementedError

    def bring_back(self, delivery: MemoryDelivery, *, counted: bool) -> None:
        """A delivery was not settled: the message comes again, at its old place."""
        raise NotImplementedError

    def crashing(self, delivery: MemoryDelivery) -> MemoryDelivery:
        """The same delivery with a settlement that never happens."""
        d = delivery
        mark = d.mark if isinstance(d, LogDelivery) else Mark(d.order)
        return CrashingDelivery(
            d.payload, d.name, d.headers, d.key, d.reply_to, d.attempt, d.order, home=d.home, mark=mark
        )


class Queue(Feed):
    """Messages for competing subscriptions.

    Args:
        template: which names it takes.
        numbers: gives each message its order.
        limit: most messages that wait, the delayed ones included.
        later: runs a callback after so many seconds.
        dead: publishes what is dropped, where there is a dead letter.
    """

    def __init__(
        self,
        template: Template,
        numbers: Callable[[], int],
        limit: int,
        later: Later,
        dead: Callable[[Outgoing], None],
    ) -> None:
        super().__init__()
        self.template = template
        self.settings = MemoryQueue(template.text)
        self.ready: deque[MemoryDelivery] = deque()
        self.delayed = 0
        self._numbers = numbers
        self._limit = limit
        self._later = later
        self._dead = dead
        self._returned: list[tuple[int, int, MemoryDelivery]] = []
        self._ties = itertools.count()

    def configure(self, source: MemoryQueue) -> None:
        """Take the settings of a new subscription.

        Raises:
            ConfigError: another subscription is open with other settings.
        """
        ours, theirs = self.settings, source
        if self.members and (ours.max_deliveries, ours.dead_letter) != (theirs.max_deliveries, theirs.dead_letter):
            raise ConfigError(
                f"queue {source.name!r} is open with max_deliveries={ours.max_deliveries}, "
                f"dead_letter={ours.dead_letter!r}, and was asked for with max_deliveries={theirs.max_deliveries}, "
                f"dead_letter={theirs.dead_letter!r}: use the same settings in every route"
            )
        self.settings = source

    @property
    def full(self) -> bool:
        """Whether the next message would exceed the limit."""
        return len(self.ready) + self.delayed >= self._limit

    @property
    def lag(self) -> int:
        """See `Feed.lag`."""
        return len(self.ready) + len(self._returned)

    def put(self, out: Outgoing) -> None:
        """Append a message."""
        self.ready.append(MemoryDelivery(out.payload, out.name, out.headers, out.key, out.reply_to, 1, self._numbers()))
        if self.waiting:
            self.wake()

    def adopt(self, deliveries: Iterable[MemoryDelivery]) -> None:
        """Take over what waited elsewhere, in the order of publishing."""
        self.ready.extend(sorted(deliveries, key=lambda delivery: delivery.order))

    def empty(self) -> list[MemoryDelivery]:
        """Give away everything that waits."""
        taken = self.take(self.lag)
        self.ready.clear()
        return taken

    def take(self, room: int) -> list[MemoryDelivery]:
        """See `Feed.take`."""
        ready = self.ready
        if self._returned:
            return self._take_returned(room)
        if len(ready) <= room:
            chunk = list(ready)
            ready.clear()
            return chunk
        take = ready.popleft
        return [take() for _ in range(room)]

    def _take_returned(self, room: int) -> list[MemoryDelivery]:
        chunk: list[MemoryDelivery] = []
        while self._returned and len(chunk) < room:
            chunk.append(heapq.heappop(self._returned)[2])
        while self.ready and len(chunk) < room:
            chunk.append(self.ready.popleft())
        return chunk

    def end(self, delivery: MemoryDelivery, verdict: Verdict) -> None:
        """See `Feed.end`."""
        if isinstance(verdict, Release):
            self.bring_back(delivery, counted=False)
        elif isinstance(verdict, Drop):
            self._drop(delivery)
        elif isinstance(verdict, Retry):
            self._retry(delivery, verdict)

    def bring_back(self, delivery: MemoryDelivery, *, counted: bool) -> None:
        """See `Feed.bring_back`."""
        heapq.heappush(self._returned, (delivery.order, next(self._ties), _again(delivery, counted=counted)))
        if self.waiting:
            self.wake()

    def _retry(self, delivery: MemoryDelivery, verdict: Retry) -> None:
        most = self.settings.max_deliveries
        if most is not None and (delivery.attempt or 1) >= most:
            self._drop(delivery)
            return
        again = _again(delivery, counted=True)
        if verdict.after:
            self.delayed += 1
            self._later(verdict.after, lambda: self._due(again))
        else:
            self._append(again)

    def _due(self, delivery: MemoryDelivery) -> None:
        self.delayed -= 1
        self._append(delivery)

    def _append(self, delivery: MemoryDelivery) -> None:
        # At the tail: a message that always fails must not keep the others waiting.
        self.ready.append(delivery)
        if self.waiting:
            self.wake()

    def _drop(self, delivery: MemoryDelivery) -> None:
        d = delivery
        if self.settings.dead_letter is not None:
            self._dead(Outgoing(d.payload, self.settings.dead_letter, d.headers, d.key, reply_to=d.reply_to))


def _again(delivery: MemoryDelivery, *, counted: bool) -> MemoryDelivery:
    # A new object: the old one is still in somebody's hands.
    d = delivery
    attempt = (d.attempt or 1) + counted
    return MemoryDelivery(d.payload, d.name, d.headers, d.key, d.reply_to, attempt, d.order)


class Log:
    """Messages that stay.

    Args:
        template: which names it takes.
        limit: most messages kept; beyond it those go that every group has finished.
    """

    def __init__(self, template: Template, limit: int) -> None:
        self.template = template
        self.first = 0
        """The position of the oldest message kept."""
        self.entries: list[Outgoing] = []
        self.groups: dict[str, Group] = {}
        self.readers: list[Group] = []
        """Every group, those without a name included."""
        self._limit = limit

    @property
    def end(self) -> int:
        """The position of the next message."""
        return self.first + len(self.entries)

    @property
    def full(self) -> bool:
        """Whether there is no room, not even after forgetting what every group has finished."""
        if len(self.entries) < self._limit:
            return False
        keep = min((group.committed for group in self.readers), default=self.first)
        del self.entries[: keep - self.first]
        self.first = max(self.first, keep)
        return len(self.entries) >= self._limit

    def put(self, out: Outgoing) -> None:
        """Append a message."""
        self.entries.append(Outgoing(out.payload, out.name, out.headers, out.key, reply_to=out.reply_to))
        for group in self.readers:
            if group.waiting:
                group.wake()

    def adopt(self, deliveries: Iterable[MemoryDelivery]) -> None:
        """Begin with what waited elsewhere, in the order of publishing."""
        for d in sorted(deliveries, key=lambda delivery: delivery.order):
            self.put(Outgoing(d.payload, d.name, d.headers, d.key, reply_to=d.reply_to))

    def group(self, name: str | None, start: str | int) -> Group:
        """The group of that name, made where it is missing; a new one of its own for None."""
        if name is not None and name in self.groups:
            return self.groups[name]
        position = self.position_of(start)
        group = Group(self, self.end if position is None else min(max(position, self.first), self.end))
        self.readers.append(group)
        if name is not None:
            self.groups[name] = group
        return group

    def position_of(self, wanted: object) -> int | None:
        """What `start=` or `seek` means as a position; None for what means nothing."""
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            return wanted
        return self.first if wanted == "earliest" else self.end if wanted == "latest" else None

    def forget(self, group: Group) -> None:
        """A reader without a name has gone."""
        if group not in self.groups.values() and group in self.readers:
            self.readers.remove(group)


class Group(Feed):
    """One position in a log and what is open above it."""

    def __init__(self, log: Log, start: int) -> None:
        super().__init__()
        self.log = log
        self._next = start
        self._done = Watermark(start - 1)
        self._returned: list[tuple[int, int, Mark]] = []
        self._ties = itertools.count()

    @property
    def committed(self) -> int:
        """Everything below it is finished."""
        return self._done.position + 1

    @property
    def lag(self) -> int:
        """See `Feed.lag`."""
        return self.log.end - self._next + len(self._returned)

    def take(self, room: int) -> list[MemoryDelivery]:
        """See `Feed.take`."""
        chunk: list[MemoryDelivery] = []
        while self._returned and len(chunk) < room:
            _, _, mark = heapq.heappop(self._returned)
            chunk.append(self._delivery(mark))
        last = min(self._next + room - len(chunk), self.log.end)
        chunk.extend(self._delivery(self._done.open(position)) for position in range(self._next, last))
        self._next = max(self._next, last)
        return chunk

    def _delivery(self, mark: Mark) -> LogDelivery:
        position = mark.position
        out = self.log.entries[position - self.log.first]
        return LogDelivery(out.payload, out.name, out.headers, out.key, out.reply_to, None, position, mark=mark)

    def end(self, delivery: MemoryDelivery, verdict: Verdict) -> None:
        """See `Feed.end`."""
        if isinstance(verdict, Ack | Drop):
            self._done.close(_mark(delivery))
        else:
            self.bring_back(delivery, counted=False)

    def bring_back(self, delivery: MemoryDelivery, *, counted: bool) -> None:
        """See `Feed.bring_back`."""
        mark = _mark(delivery)
        if not mark.done:
            heapq.heappush(self._returned, (delivery.order, next(self._ties), mark))
            if self.waiting:
                self.wake()

    def seek(self, position: int) -> None:
        """Go on from `position`; what is open is forgotten."""
        self._returned.clear()
        self._next = max(position, self.log.first)
        self._done.reset(self._next - 1)
        self.wake()


def _mark(delivery: MemoryDelivery) -> Mark:
    return cast("LogDelivery", delivery).mark


class Sink(Protocol):
    """What a name leads to."""

    @property
    def template(self) -> Template:
        """Which names it takes."""

    @property
    def full(self) -> bool:
        """Whether it refuses more."""

    def put(self, out: Outgoing) -> None:
        """Append a message."""
