"""The real app on in-process brokers, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, overload

import msgspec

from ruststream_core.abc import Fault, FaultInjection
from ruststream_core.app import App, BrokerLike, Running
from ruststream_core.codecs import bind_decoder
from ruststream_core.errors import Closed, ConfigError, PublishError, RustStreamError
from ruststream_core.kit import VirtualClock
from ruststream_core.lifecycle import Runtime
from ruststream_core.params import Message, Publisher
from ruststream_core.settlement import Outcome
from ruststream_core.wire import Delivery, Outgoing

__all__ = ["Call", "RouteRecord", "TestApp"]

R = TypeVar("R")
T = TypeVar("T")

TURNS: Final = 8
"""Turns of the loop without any change after which nothing more will happen by itself."""
STUCK: Final = 10.0
"""Seconds after which messages that wait while no handler takes them are an error of the wiring."""


class Call(msgspec.Struct, frozen=True):
    """One call of a handler."""

    args: tuple[Any, ...]
    """The handler's arguments in the order of its signature."""
    message: Message[bytes]
    """The message as it came. For a batch, its first."""


class RouteRecord(Generic[R]):
    """What one route did so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Call] = []
        self.outcomes: list[Outcome] = []
        self.replies: list[R] = []
        self.errors: list[BaseException] = []


class TestApp(Publisher):
    """Runs an app on the stand-in of each of its brokers.

    `publish` returns when everything that it caused has settled or waits for a timer only; `advance` moves the
    timers. Nothing sleeps and no server is needed; what a stand-in cannot show is in its transport's documentation.

    Args:
        app: the app, left unchanged.
        overrides: what stands in for `Depends` factories, by factory.
        brokers: instead of those that the app names.
        raise_errors: raise here what a handler raised and no policy names, so that a failing assertion inside a
            handler fails the test.
    """

    __test__: ClassVar[bool] = False

    def __init__(
        self,
        app: App,
        *,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        brokers: Mapping[str, BrokerLike] | None = None,
        raise_errors: bool = True,
    ) -> None:
        self._app = app
        self._overrides = overrides
        self._given = brokers
        self._raise = raise_errors
        self.clock = VirtualClock()
        self._records: dict[str, RouteRecord[Any]] = {}
        self._sent: list[tuple[str, Outgoing]] = []
        self._errors: list[BaseException] = []
        self._running: Running | None = None

    async def __aenter__(self) -> Self:
        real = self._app.resolve_brokers(self._given)
        self._brokers = {name: broker.stand_in(self.clock) for name, broker in real.items()}
        self._runtime: Runtime = self._app.runtime(
            self._brokers,
            clock=self.clock,
            overrides=self._overrides,
            probe=self,
            on_publish=lambda broker, out: self._sent.append((broker, out)),
        )
        await self._runtime.start()
        self._running = Running(self._app, self._runtime, self._app.default_broker(self._brokers))
        self._records = {name: RouteRecord(name) for name in self._runtime.routes} | self._records
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runtime.drain()
        if error is None:
            self._raise_errors()
            if self._runtime.error is not None:
                raise self._runtime.error

    # ------------------------------------------------------------------------------------------ probe

    def _record(self, route: str) -> RouteRecord[Any]:
        return self._records.setdefault(route, RouteRecord(route))

    def called(self, route: str, delivery: Delivery, args: tuple[Any, ...]) -> None:
        """See `Probe`."""
        message = Message(delivery.payload, delivery.name, delivery.headers, delivery.key, delivery.attempt, None)
        self._record(route).calls.append(Call(args, message))

    def outcome(self, route: str, delivery: Delivery, outcome: Outcome) -> None:
        """See `Probe`."""
        self._record(route).outcomes.append(outcome)

    def replied(self, route: str, value: object) -> None:
        """See `Probe`."""
        self._record(route).replies.append(value)

    def failed(self, route: str, error: BaseException, *, named: bool) -> None:
        """See `Probe`."""
        self._record(route).errors.append(error)
        if not named:
            self._errors.append(error)

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        if errors and self._raise:
            raise errors[0]

    # ------------------------------------------------------------------------------------ publishing

    @property
    def running(self) -> Running:
        """The app as it runs.

        Raises:
            Closed: before `async with`.
        """
        if self._running is None:
            raise Closed("the app is not running: `async with TestApp(app) as t:` starts it")
        return self._running

    def _through(self) -> Publisher:
        return Settling(self)

    async def settled_by(self, before: list[int], where: object) -> None:
        """Settle what a publish caused; `before` are the figures of `taken` from before it.

        Raises:
            PublishError: no route took it.
            BaseException: what a handler raised and no policy names.
        """
        await self.settle()
        if not any(now > then for now, then in zip(self.taken(), before, strict=True)):
            raise PublishError(f"nobody reads {where!r}: the message reached no route")

    def taken(self) -> list[int]:
        """Figures of which one grows where a message finds a reader, a lingering one included."""
        figures = []
        for route in self._runtime.routes.values():
            statistics = route.statistics()
            figures += [route.books.received, statistics.buffered + (statistics.lag or 0), statistics.unsettled]
        return figures

    # ---------------------------------------------------------------------------------------- waiting

    async def settle(self) -> None:
        """Return when nothing moves any more but for timers.

        Raises:
            RustStreamError: messages wait and no handler takes them.
            BaseException: what a handler raised and no policy names, or the app's terminal error.
        """
        calm, last, since = 0, None, time.monotonic()
        while calm < TURNS:
            now = self._picture()
            still = now == last and not self._moving()
            if now != last:
                since = time.monotonic()
            calm, last = (calm + 1 if still else 0), now
            if time.monotonic() - since > STUCK and not self._handlers_run():
                raise RustStreamError(f"messages wait and no handler takes them: {self._waiting()}")
            # Turns of the loop while things happen there, real time while a handler waits for something outside.
            await asyncio.sleep(0 if time.monotonic() - since < 0.002 else 0.001)
        if self._runtime.error is not None and self._raise:
            self._errors.clear()
            raise self._runtime.error
        self._raise_errors()

    def _picture(self) -> object:
        rows = []
        for route in self._runtime.routes.values():
            s = route.statistics()
            rows.append((route.books.received, route.books.ended(), s.buffered, s.unsettled, s.lag, s.released))
        return rows, len(self._sent), self.clock.waiting

    def _handlers_run(self) -> bool:
        return any(route.running() for route in self._runtime.routes.values())

    def _moving(self) -> bool:
        return self._handlers_run() or bool(self._waiting())

    def _waiting(self) -> list[str]:
        """Routes that have messages to take and a worker to take them."""
        rows = []
        for name, route in self._runtime.routes.items():
            s = route.statistics()
            if (s.buffered or s.lag) and not route.held() and not route.ended:
                rows.append(f"{name}: {s.buffered} buffered, {s.lag or 0} at the broker")
        return rows

    async def advance(self, seconds: float) -> None:
        """Move the clock on, running each timer in its turn and everything that it causes.

        Args:
            seconds: from 0.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time only goes on")
        until = self.clock.time() + seconds
        await self.settle()
        while self.clock.step(until):
            await self.settle()

    # --------------------------------------------------------------------------------------- looking

    @overload
    def route(self, handler: Callable[..., Any]) -> RouteRecord[Any]: ...
    @overload
    def route(self, handler: str) -> RouteRecord[Any]: ...
    def route(self, handler: Callable[..., Any] | str) -> RouteRecord[Any]:
        """What a route did, by its handler or its name.

        Raises:
            ConfigError: no such route, or the handler is mounted more than once.
        """
        if isinstance(handler, str):
            names = [handler] if handler in self._runtime.routes else []
        else:
            names = [name for name, route in self._runtime.routes.items() if route.plan.mount.handler == handler]
        if len(names) != 1:
            known = ", ".join(sorted(self._runtime.routes))
            what = f"is mounted as {', '.join(names)}: name one" if names else f"is no route; there are {known}"
            raise ConfigError(f"{handler!r} {what}")
        return self._record(names[0])

    @overload
    def published(self, to: str, *, broker: str | None = None) -> list[Message[bytes]]: ...
    @overload
    def published(self, to: str, type_: type[T], *, broker: str | None = None) -> list[Message[T]]: ...
    def published(self, to: str, type_: type[Any] = bytes, *, broker: str | None = None) -> list[Message[Any]]:
        """Every message that left for a name so far, by the app or by the test, in order."""
        decode = bind_decoder(self._app.codec(), type_)
        return [
            Message(decode(out.payload), out.name, out.headers, out.key, None, None)
            for name, out in self._sent
            if out.name == to and broker in (None, name)
        ]

    def statistics(self) -> dict[str, dict[str, int]]:
        """The books of each route."""
        return self.running.statistics()

    @contextmanager
    def fault(self, kind: Fault, *, times: int = 1, broker: str | None = None) -> Iterator[None]:
        """Let the brokers misbehave for the next `times` messages, until the block ends.

        Raises:
            ConfigError: no such broker, or its stand-in cannot do that.
        """
        chosen = [stand_in for name, stand_in in self._brokers.items() if broker in (None, name)]
        able = [stand_in for stand_in in chosen if isinstance(stand_in, FaultInjection)]
        if not able:
            raise ConfigError(f"no stand-in of this app can inject {kind!r}")
        with contextlib.ExitStack() as stack:
            for stand_in in able:
                stand_in.inject(kind, times)
                stack.callback(stand_in.inject, kind, 0)
            yield


class Settling(Publisher):
    """Publishes through the running app, and returns when everything that this caused has settled."""

    def __init__(self, test: TestApp) -> None:
        self._test = test
        self._app = test.running

    async def publish(self, value: object, **options: Any) -> None:
        """See `Publisher.publish`."""
        before = self._test.taken()
        await self._app.publish(value, **options)
        await self._test.settled_by(before, options["to"] or type(value).__name__)

    async def publish_many(self, values: Iterable[object], **options: Any) -> None:
        """See `Publisher.publish_many`."""
        before = self._test.taken()
        await self._app.publish_many(values, **options)
        await self._test.settled_by(before, options["to"] or "publish_many")

    async def request(self, value: object, **options: Any) -> Any:
        """See `Publisher.request`."""
        answer = await self._app.request(value, **options)
        await self._test.settle()
        return answer

    def transaction(self) -> AbstractAsyncContextManager[Publisher]:
        """See `Publisher.transaction`."""
        return self._app.transaction()
