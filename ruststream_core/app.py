"""What a service author builds: an app, its brokers, its routes; and what runs: `Running`."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self, TypeVar, Unpack

from ruststream_core.abc import Broker, Clock
from ruststream_core.codecs import resolve_codec
from ruststream_core.dispatch import Outlet, Probe, Wiring, plan_routes
from ruststream_core.errors import ConfigError
from ruststream_core.lifecycle import DrainReport, Health, Runtime, leave, require
from ruststream_core.params import Publisher
from ruststream_core.routing import Defaults, Router
from ruststream_core.wire import Outgoing

__all__ = ["App", "BrokerLike", "Running"]

H = TypeVar("H", bound=Callable[[], Awaitable[None]])
BrokerLike = str | Broker[Any]

log = logging.getLogger("ruststream")


class Running(Publisher):
    """A started app: a publisher on its default broker, and the handle of its life."""

    def __init__(self, app: App, runtime: Runtime, default: str | None) -> None:
        self._app = app
        self._runtime = runtime
        self._default = default
        self._outlets: dict[str, Outlet] = {}

    @property
    def state(self) -> Any:
        """What the lifespan yielded."""
        return self._runtime.state

    def publisher(self, broker: str | None = None) -> Publisher:
        """A publisher on one broker, by its name.

        Raises:
            ConfigError: no such broker, or none was named and there are several.
        """
        name = broker or self._default
        known = self._runtime.senders.connections
        if name is None or (known and name not in known):
            raise ConfigError(f"say which broker: publisher(name) with one of {', '.join(sorted(known))}")
        return self._outlet(name)

    def _outlet(self, name: str) -> Outlet:
        if name not in self._outlets:
            self._outlets[name] = Outlet(self._runtime.senders, name, self._app.codec())
        return self._outlets[name]

    def health(self) -> Health:
        """Whether every route moves, cheap enough for a probe."""
        return self._runtime.health()

    def statistics(self) -> dict[str, dict[str, int]]:
        """The books of each route as they are now; see `Books`."""
        return {name: route.table() for name, route in self._runtime.routes.items()}

    def stop(self) -> None:
        """Let `wait` return. The drain begins when the context is left."""
        self._runtime.stop()

    async def wait(self) -> None:
        """Return when every source has ended or `stop` was called.

        Raises:
            BaseException: a terminal error, a handler's FailFast included.
        """
        await self._runtime.wait()

    @property
    def report(self) -> DrainReport | None:
        """How it ended; None before."""
        return self._runtime.report

    def _through(self) -> Publisher:
        # Where there are several brokers and none is the default, a destination has to name its own by `To`.
        return self._outlet(self._default or "")


class App(Router):
    """A service: brokers, routes and their life. Making one does no I/O and binds to no loop.

    Args:
        title: its name, in logs and documents.
        version: its version, in documents.
        broker: a URL or a broker object; the same as `brokers={"default": ...}`.
        brokers: several, by name.
        drain: seconds that running handlers have to finish at the end.
        lifespan: an async context manager over the app; what it yields is the state.
        defaults: options for routes that do not set them; `codec` also writes what the app publishes.

    Raises:
        ConfigError: both or wrong brokers, an unknown option, a negative drain.
    """

    def __init__(
        self,
        title: str,
        *,
        version: str = "0.0.0",
        broker: BrokerLike | None = None,
        brokers: Mapping[str, BrokerLike] | None = None,
        drain: float = 30.0,
        lifespan: Callable[[App], AbstractAsyncContextManager[Any]] | None = None,
        **defaults: Unpack[Defaults],
    ) -> None:
        super().__init__(**defaults)
        if broker is not None and brokers:
            raise ConfigError("App takes broker= or brokers=, not both")
        if drain < 0:
            raise ConfigError(f"App(drain={drain}): seconds from 0 are expected")
        self.title = title
        self.version = version
        self._declared: dict[str, BrokerLike] = {"default": broker} if broker is not None else dict(brokers or {})
        self._drain = drain
        self._lifespan = lifespan
        self._after_startup: list[Callable[[], Awaitable[None]]] = []
        self._after_drain: list[Callable[[], Awaitable[None]]] = []

    def after_startup(self, hook: H) -> H:
        """Run `hook` when every subscription is open, before `start` returns."""
        self._after_startup.append(hook)
        return hook

    def after_drain(self, hook: H) -> H:
        """Run `hook` when all work has ended, while brokers are still connected."""
        self._after_drain.append(hook)
        return hook

    def codec(self) -> Any:
        """The codec of what the app publishes outside of routes."""
        return resolve_codec(self._defaults.get("codec", "json"), _plugin_codecs(self._defaults.get("codec", "json")))

    def resolve_brokers(self, overrides: Mapping[str, BrokerLike] | None = None) -> dict[str, Broker[Any]]:
        """The brokers as objects; URLs are looked up here and not before.

        Raises:
            ConfigError: an override names none of them, a URL is wrong, or its plugin is missing.
        """
        declared = dict(self._declared)
        for name, broker in (overrides or {}).items():
            if declared and name not in declared:
                raise ConfigError(f"no broker is called {name!r}; the app has {', '.join(sorted(declared))}")
            declared[name] = broker
        return {name: _as_broker(name, broker) for name, broker in declared.items()}

    def wiring(self, brokers: Mapping[str, Broker[Any]] | None = None) -> Wiring:
        """Every route as resolved, and every problem; what `check` shows. No I/O."""
        brokers = self.resolve_brokers() if brokers is None else brokers
        try:
            mounts = list(self.mounts())
        except ConfigError as exc:
            return Wiring([], [str(exc)])
        extra = {}
        for mount in mounts:
            extra.update(_plugin_codecs(mount.options.get("codec", "json")))
        return plan_routes(mounts, brokers, extra, has_state=self._lifespan is not None)

    def runtime(
        self,
        brokers: Mapping[str, Broker[Any]],
        *,
        clock: Clock | None = None,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        probe: Probe | None = None,
        on_publish: Callable[[str, Outgoing], None] | None = None,
    ) -> Runtime:
        """A new run of this app, not started.

        Raises:
            ConfigError: the wiring has problems; all of them are named.
        """
        wiring = self.wiring(brokers)
        require(wiring.problems)
        lifespan = self._lifespan
        return Runtime(
            wiring.routes,
            brokers,
            middleware=self._middleware,
            lifespan=None if lifespan is None else lambda: lifespan(self),
            after_startup=self._after_startup,
            after_drain=self._after_drain,
            drain=self._drain,
            clock=clock,
            overrides=overrides,
            probe=probe,
            on_publish=on_publish,
        )

    def default_broker(self, brokers: Mapping[str, Broker[Any]]) -> str | None:
        """Where a publish goes that names no broker; None where there are several and none is called default."""
        return "default" if "default" in brokers else next(iter(brokers)) if len(brokers) == 1 else None

    @asynccontextmanager
    async def start(self, *, brokers: Mapping[str, BrokerLike] | None = None) -> AsyncGenerator[Running]:
        """Run beside other code: started when entered, drained and closed when left.

        Signals are left alone. The body is never cancelled; leaving it raises a terminal error.

        Args:
            brokers: instead of those that the app names.

        Raises:
            ConfigError: the wiring has problems.
            ConnectError: a broker cannot be reached.
            RustStreamError: on leaving, the error that ended a route.
        """
        resolved = self.resolve_brokers(brokers)
        runtime = self.runtime(resolved)
        await runtime.start()
        try:
            yield Running(self, runtime, self.default_broker(resolved))
        finally:
            await runtime.drain()
        if runtime.error is not None:
            raise runtime.error

    async def serve(self, *, brokers: Mapping[str, BrokerLike] | None = None, signals: bool = True) -> int:
        """Run until a signal, a terminal error or the end of every source.

        Args:
            brokers: instead of those that the app names.
            signals: take SIGINT and SIGTERM, the former handlers being restored at the end. Where this is not the
                main thread they are left alone.

        Returns:
            0 drained, 1 a terminal error or FailFast, 3 the drain's deadline passed, 128+n after a second signal or
            one during the start.

        Raises:
            ConfigError: the wiring has problems.
            ConnectError: a broker cannot be reached.
            SystemExit, KeyboardInterrupt: raised by a handler.
        """
        runtime = self.runtime(self.resolve_brokers(brokers))
        with _Signals(runtime, enabled=signals) as taken:
            starting = asyncio.ensure_future(runtime.start())
            taken.starting = starting
            try:
                await starting
            except asyncio.CancelledError:
                if taken.count:
                    return 128 + taken.last
                raise
            taken.starting = None
            if taken.count:  # it came, and the start went through all the same
                runtime.stop()
            try:
                await runtime.wait()
            except BaseException as exc:
                if runtime.error is not exc:
                    await runtime.drain()
                    raise
            report = await runtime.drain()
        _log_report(report)
        if isinstance(runtime.error, SystemExit | KeyboardInterrupt):
            raise runtime.error
        if taken.count > 1:
            return 128 + taken.last
        if runtime.error is not None:
            return 1
        return 3 if report.late else 0

    def run(
        self,
        *,
        brokers: Mapping[str, BrokerLike] | None = None,
        signals: bool = True,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> int:
        """`serve` in a new event loop; returns its exit code."""
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            try:
                return runner.run(self.serve(brokers=brokers, signals=signals))
            finally:
                leave(runner.get_loop())


class _Signals:
    """SIGINT and SIGTERM for one run: the first drains, the second releases at once."""

    def __init__(self, runtime: Runtime, *, enabled: bool) -> None:
        self._runtime = runtime
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._former: dict[int, Any] = {}
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self.starting: asyncio.Future[None] | None = None
        self.count = 0
        self.last = 0

    def __enter__(self) -> Self:
        # Not by `add_signal_handler`: what the service has given to its loop there would be gone afterwards.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM) if self._enabled else ():
            self._former[number] = signal.signal(number, lambda n, _: loop.call_soon_threadsafe(self._take, n))
        if self._former:
            self._wake_by_signals(loop)
        return self

    def _wake_by_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let a signal end the loop's waiting.

        The system gives it to any thread. Where that is not the loop's own, nothing interrupts the waiting, and the
        handler, which runs on the main thread only, would come with the next event, or never.
        """
        if (former := signal.set_wakeup_fd(-1)) != -1:
            # The loop has one already: uvloop always, asyncio where the service has given it handlers.
            signal.set_wakeup_fd(former, warn_on_full_buffer=False)
            return
        self._wake = heard, said = socket.socketpair()
        heard.settimeout(0)
        said.settimeout(0)
        signal.set_wakeup_fd(said.fileno(), warn_on_full_buffer=False)
        loop.add_reader(heard, heard.recv, 4096)

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former if former is not None else signal.SIG_DFL)
        if self._wake is None:
            return
        heard, said = self._wake
        if (present := signal.set_wakeup_fd(-1)) != said.fileno():
            signal.set_wakeup_fd(present, warn_on_full_buffer=False)  # somebody set another meanwhile
        asyncio.get_running_loop().remove_reader(heard)
        heard.close()
        said.close()

    def _take(self, number: int) -> None:
        self.count += 1
        self.last = number
        if self.starting is not None and not self.starting.done():
            log.info("signal %d during the start: undoing it", number)
            self.starting.cancel()
        elif self.count == 1:
            log.info("signal %d: draining; once more releases at once", number)
            self._runtime.stop()
        else:
            log.warning("signal %d again: releasing what still runs", number)
            self._runtime.hurry()


def _as_broker(name: str, broker: object) -> Broker[Any]:
    if isinstance(broker, Broker):
        return broker
    if not isinstance(broker, str):
        raise ConfigError(f"broker {name!r}: a URL or a Broker is expected, not {broker!r}")
    from ruststream_core.plugins import broker_from_url  # noqa: PLC0415  pluggy only where a URL is resolved

    return broker_from_url(broker)


def _plugin_codecs(codec: object) -> dict[str, Any]:
    if not isinstance(codec, str) or codec in ("json", "msgpack", "auto"):
        return {}
    from ruststream_core.plugins import load_codecs  # noqa: PLC0415  see _as_broker

    return dict(load_codecs())


def _log_report(report: DrainReport) -> None:
    for name, table in report.routes.items():
        shown = ", ".join(f"{count} {what}" for what, count in table.items() if count or what in ("received", "acked"))
        log.info("route %s: %s", name, shown)
