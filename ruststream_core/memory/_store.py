"""What all connections of one broker share: names and where they lead, timers, faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, get_args

from ruststream_core.abc import Clock, Fault
from ruststream_core.errors import ConfigError, PublishError
from ruststream_core.memory._config import MemoryQueue, MemorySource
from ruststream_core.memory._delivery import MemoryDelivery
from ruststream_core.memory._sinks import Feed, Log, Queue, Sink
from ruststream_core.wire import Outgoing, Template

if TYPE_CHECKING:
    from ruststream_core.memory._subscription import MemorySubscription

__all__ = ["Faults", "Store", "Timers"]

ROUTES: Final = 10_000
"""Names whose way is remembered."""
REPLIES: Final = "_reply."
"""How the names begin on which requests wait for their answers."""


class Timers:
    """Callbacks on a clock, moved along when the loop that they were made on has gone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = itertools.count()
        self._pending: dict[int, tuple[float, Callable[[], object], Callable[[], None]]] = {}

    def later(self, delay: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Run `callback` in `delay` seconds; call the result to cancel it."""
        token = next(self._tokens)
        self._arm(token, self._clock.time() + delay, callback)
        return lambda: self._cancel(token)

    def _arm(self, token: int, due: float, callback: Callable[[], object]) -> None:
        wait = max(0.0, due - self._clock.time())
        self._pending[token] = (due, callback, self._clock.call_later(wait, lambda: self._run(token)))

    def _run(self, token: int) -> None:
        if (found := self._pending.pop(token, None)) is not None:
            found[1]()

    def _cancel(self, token: int) -> None:
        if (found := self._pending.pop(token, None)) is not None:
            found[2]()

    def rearm(self) -> None:
        """Set every timer again, on the loop that runs now."""
        for token, (due, callback, cancel) in list(self._pending.items()):
            cancel()
            self._arm(token, due, callback)


class Faults:
    """What goes wrong for the next messages."""

    def __init__(self) -> None:
        self.left: dict[Fault, int] = {}

    def inject(self, fault: Fault, times: int) -> None:
        """See `FaultInjection.inject`."""
        if fault not in get_args(Fault):
            raise ConfigError(f"no fault {fault!r}: {', '.join(get_args(Fault))} are known")
        self.left.pop(fault, None)
        if times > 0:
            self.left[fault] = times

    def use(self, fault: Fault) -> bool:
        """Whether it happens now."""
        times = self.left.get(fault, 0)
        if times:
            self.inject(fault, times - 1)
        return times > 0


class Store:
    """The messages of one broker.

    Args:
        clock: what delays, lingering and time limits run on.
        limit: most messages that wait in one queue, or are kept in one log.
    """

    def __init__(self, clock: Clock, limit: int) -> None:
        self.limit = limit
        self.timers = Timers(clock)
        self.faults = Faults()
        self.replies: dict[str, Callable[[Outgoing], None]] = {}
        self.subscriptions: list[MemorySubscription] = []
        self._queues: dict[str, Queue] = {}
        self._logs: dict[str, Log] = {}
        self._unread: dict[str, Queue] = {}
        self._routes: dict[str, Sequence[Sink]] = {}
        self._numbers = itertools.count(1)
        self._reply_numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Be used on the running loop. What an earlier loop left behind is brought over."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            for subscription in list(self.subscriptions):
                subscription.forsake()
            self.replies.clear()
            self.timers.rearm()
        self._loop = loop

    # ------------------------------------------------------------------------------------------------ publishing

    def publish(self, out: Outgoing) -> None:
        """Put a message wherever its name leads.

        Raises:
            PublishError: no such name can be, the message brings options, or there is no room; it went nowhere.
        """
        sinks = self._routes.get(out.name) or self._route(out.name)
        if out.options is not None:
            raise PublishError(f"memory takes no publish options, {out.name!r} was given {out.options!r}")
        for sink in sinks:
            if sink.full:
                raise PublishError(f"{sink.template.text!r} is full: {self.limit} messages wait there")
        for sink in sinks:
            sink.put(out)

    def check(self, out: Outgoing) -> None:
        """Raise what `publish` would raise, and do nothing."""
        for sink in self._routes.get(out.name) or self._route(out.name):
            if sink.full:
                raise PublishError(f"{sink.template.text!r} is full: {self.limit} messages wait there")
        if out.options is not None:
            raise PublishError(f"memory takes no publish options, {out.name!r} was given {out.options!r}")

    def force(self, out: Outgoing) -> None:
        """Publish beyond the limit, for what was stored already under another name."""
        for sink in self._routes.get(out.name) or self._route(out.name):
            sink.put(out)

    def _route(self, name: str) -> Sequence[Sink]:
        if name.startswith(REPLIES):
            return (_Answer(name, self.replies.get(name)),)
        _check_destination(name)
        bound: list[Sink] = [*self._queues.values(), *self._logs.values()]
        sinks: list[Sink] = [sink for sink in bound if sink.template.match(name) is not None]
        if not sinks:
            if name not in self._unread:
                self._unread[name] = self._queue(Template(name))
            sinks = [self._unread[name]]
        if len(self._routes) >= ROUTES:
            self._routes.clear()
        self._routes[name] = sinks
        return sinks

    def _queue(self, template: Template) -> Queue:
        return Queue(template, self._numbers.__next__, self.limit, self.timers.later, self.force)

    def reply_name(self, answer: Callable[[Outgoing], None]) -> str:
        """A name of its own for one answer, until `replies` forgets it."""
        name = f"{REPLIES}{next(self._reply_numbers)}"
        self.replies[name] = answer
        return name

    # ------------------------------------------------------------------------------------------------- receiving

    def feed(self, source: MemorySource) -> Feed:
        """What a new subscription to that source takes from.

        Raises:
            ConfigError: the source is open with other settings.
        """
        template = Template(source.name)
        if isinstance(source, MemoryQueue):
            queue = self._bound_queue(template)
            queue.configure(source)
            return queue
        return self._bound_log(template).group(source.group, source.start)

    def _bound_queue(self, template: Template) -> Queue:
        text = template.wildcard("*")
        if text not in self._queues:
            queue = self._unread.pop(text, None) or self._queue(template)
            queue.adopt(self._claim(template))
            self._queues[text] = queue
            self._routes.clear()
        return self._queues[text]

    def _bound_log(self, template: Template) -> Log:
        text = template.wildcard("*")
        if text not in self._logs:
            log = Log(template, self.limit)
            log.adopt(self._claim(template))
            self._logs[text] = log
            self._routes.clear()
        return self._logs[text]

    def _claim(self, template: Template) -> list[MemoryDelivery]:
        """What waits, read by nobody, under names that fit."""
        fitting = [name for name in self._unread if template.match(name) is not None]
        return [delivery for name in fitting for delivery in self._unread.pop(name).empty()]


class _Answer:
    """The way of an answer: to whoever waits for it, else nowhere."""

    full = False

    def __init__(self, name: str, answer: Callable[[Outgoing], None] | None) -> None:
        self.template = Template(name)
        self._answer = answer

    def put(self, out: Outgoing) -> None:
        if self._answer is not None:
            self._answer(out)


def _check_destination(name: str) -> None:
    tokens = name.split(".")
    if not name or name.isspace() or any(token in ("*", ">", "#") or "{" in token for token in tokens):
        raise PublishError(f"{name!r} is no destination: a plain name without wildcards and placeholders is needed")
