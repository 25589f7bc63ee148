"""GEN-22: a start either happens or leaves nothing open, and says why with the error that stopped it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from ruststream_core import App, ConfigError, ConnectError, PluginError, Router, lifecycle
from ruststream_core.abc import Features
from tests.dispatch.chaos import ChaosBroker, ChaosConnection, ChaosSender

QUEUE = Features(settles=True, retry="broker", attempts="broker")


class Order(msgspec.Struct):
    id: int


class Told(ChaosBroker):
    """Says what happens to it, and fails where it is told to."""

    def __init__(self, name: str, said: list[str], *, fail: str = "", error: BaseException | None = None) -> None:
        super().__init__(QUEUE)
        self.name, self.said, self.fail = name, said, fail
        self.error = error or ConnectError("no route to host")

    async def connect(self) -> ChaosConnection:
        if self.fail == "connect":
            raise self.error
        self.said.append(f"{self.name} connected")
        return ToldConnection(self)


class ToldConnection(ChaosConnection):
    broker: Told

    async def subscribe(self, *args: Any) -> Any:
        if self.broker.fail == "subscribe":
            raise self.broker.error
        self.broker.said.append(f"{self.broker.name} subscribed")
        subscription = await super().subscribe(*args)
        close = subscription.aclose

        async def aclose(grace: float) -> None:
            self.broker.said.append(f"{self.broker.name} unsubscribed")
            await close(grace)
            if self.broker.fail == "unsubscribe":
                raise OSError("the socket is gone")

        subscription.aclose = aclose  # type: ignore[method-assign]
        return subscription

    async def sender(self, *args: Any) -> ChaosSender:
        if self.broker.fail == "sender":
            raise self.broker.error
        return await super().sender(*args)

    async def aclose(self, grace: float) -> None:
        self.broker.said.append(f"{self.broker.name} closed")
        if self.broker.fail == "close":
            raise OSError("the socket is gone")


async def handle(order: Order) -> None: ...


def app_of(said: list[str], *brokers: Told) -> App:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncGenerator[None]:
        said.append("lifespan entered")
        try:
            yield
        finally:
            said.append("lifespan exited")

    app = App("app", brokers={broker.name: broker for broker in brokers}, lifespan=lifespan)
    for broker in brokers:
        router = Router()
        router.subscriber("orders", name=broker.name)(handle)
        app.include(router, broker=broker.name)
    return app


async def started(app: App) -> None:
    async with app.start():
        raise AssertionError("it started")


async def test_a_second_broker_that_is_down_closes_the_first() -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said), Told("b", said, fail="connect"))
    with pytest.raises(ConnectError, match="broker 'b': no route to host"):
        await started(app)
    assert said == ["lifespan entered", "a connected", "a closed", "lifespan exited"]


async def test_whatever_a_client_raises_in_connect_is_named_and_attached() -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said, fail="connect", error=OSError("client")))
    with pytest.raises(PluginError, match=r"broker 'a': Told\.connect failed: OSError") as caught:
        await started(app)
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_subscription_that_fails_closes_those_before_it_in_reverse() -> None:
    said: list[str] = []
    refused = Told("b", said, fail="subscribe", error=ConfigError("no such stream"))
    app = app_of(said, Told("a", said), refused)
    with pytest.raises(ConfigError, match="route 'b': no such stream"):
        await started(app)
    assert said == [
        "lifespan entered",
        "a connected",
        "b connected",
        "a subscribed",
        "a unsubscribed",
        "b closed",
        "a closed",
        "lifespan exited",
    ]


async def test_a_sender_that_fails_is_undone_as_well() -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said), Told("b", said, fail="sender"))
    with pytest.raises(ConnectError):
        await started(app)
    assert said[-3:] == ["b closed", "a closed", "lifespan exited"]


async def test_a_hook_that_raises_is_the_error_and_everything_is_closed() -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said))

    @app.after_startup
    async def hook() -> None:
        raise ValueError("the cache does not warm up")

    with pytest.raises(ValueError, match="warm up"):
        await started(app)
    assert said[-3:] == ["a unsubscribed", "a closed", "lifespan exited"]


@pytest.mark.parametrize("fail", ["unsubscribe", "close"])
async def test_an_error_of_undoing_hides_neither_the_first_one_nor_the_rest_of_the_undoing(fail: str) -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said, fail=fail))

    @app.after_startup
    async def hook() -> None:
        raise ValueError("the first one")

    with pytest.raises(ValueError, match="the first one"):
        await started(app)
    assert said[-3:] == ["a unsubscribed", "a closed", "lifespan exited"]


async def test_a_lifespan_that_fails_at_its_end_is_a_note_on_the_first_error() -> None:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            raise OSError("the pool does not close")

    app = App("app", brokers={"a": Told("a", [], fail="connect")}, lifespan=lifespan)
    with pytest.raises(ConnectError) as caught:
        await started(app)
    assert any("the pool does not close" in note for note in caught.value.__notes__)


async def test_a_lifespan_that_fails_at_its_beginning_opens_nothing() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncGenerator[None]:
        if app.title:
            raise RuntimeError("no configuration")
        yield

    app = App("app", brokers={"a": Told("a", said)}, lifespan=lifespan)
    with pytest.raises(RuntimeError, match="no configuration"):
        await started(app)
    assert said == []


async def test_handlers_that_run_already_are_stopped_by_a_start_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscriptions are open while hooks run: what a handler had in hand goes back."""
    monkeypatch.setattr(lifecycle, "CLEANUP", 0.05)
    said: list[str] = []
    broker = Told("a", said)
    app = App("app", broker=broker)
    cancelled: list[str] = []
    begun = asyncio.Event()
    forever = asyncio.Event()

    @app.subscriber("orders", workers=2)
    async def slow(order: Order) -> None:
        begun.set()
        while True:
            try:
                await forever.wait()
            except asyncio.CancelledError:
                cancelled.append("cancelled")
                if order.id == 1:
                    raise
            else:
                return

    @app.after_startup
    async def hook() -> None:
        await begun.wait()
        await asyncio.sleep(0)
        raise ValueError("the hook")

    broker.put("orders", b'{"id":1}')
    broker.put("orders", b'{"id":2}')
    with pytest.raises(ValueError, match="the hook"):
        await started(app)
    assert cancelled[:2] == ["cancelled", "cancelled"]
    assert not broker.subscriptions[0].out, "nothing stays in the hands of a process that did not start"
    assert broker.subscriptions[0].ledger["released"] == 2
    forever.set()
    await asyncio.sleep(0)


async def test_a_start_that_is_cancelled_closes_what_it_opened() -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said))
    begun = asyncio.Event()

    @app.after_startup
    async def hook() -> None:
        begun.set()
        await asyncio.Event().wait()

    starting = asyncio.ensure_future(started(app))
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert said[-3:] == ["a unsubscribed", "a closed", "lifespan exited"]


async def test_a_signal_during_the_start_ends_it_promptly_with_everything_closed() -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said))

    @app.after_startup
    async def hook() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    assert await app.serve() == 128 + signal.SIGTERM
    assert said[-3:] == ["a unsubscribed", "a closed", "lifespan exited"]


async def test_a_signal_that_a_hook_swallows_is_not_forgotten() -> None:
    """The start went through all the same: the app must then drain, not run for ever."""
    said: list[str] = []
    app = app_of(said, Told("a", said))

    @app.after_startup
    async def hook() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            said.append("swallowed")

    assert await app.serve() == 0
    assert said[-4:] == ["swallowed", "a unsubscribed", "a closed", "lifespan exited"]


async def test_a_window_that_does_not_hold_the_workers_closes_the_subscription() -> None:
    said: list[str] = []
    broker = Told("a", said)
    app = App("app", broker=broker)
    subscribe = ToldConnection.subscribe

    async def narrow(self: ToldConnection, *args: Any) -> Any:
        subscription = await subscribe(self, *args)
        subscription.window = 3
        return subscription

    class Narrow(ToldConnection):
        subscribe = narrow

    async def connect() -> ChaosConnection:
        return Narrow(broker)

    broker.connect = connect  # type: ignore[method-assign]
    app.subscriber("orders", workers=4)(handle)
    with pytest.raises(ConfigError, match="workers times batch is 4, the window of .* is 3: set prefetch=4 or more"):
        await started(app)
    assert said == ["a subscribed", "a unsubscribed", "a closed"]


def test_all_problems_of_the_wiring_are_told_at_once_before_anything_opens() -> None:
    said: list[str] = []
    app = app_of(said, Told("a", said))

    async def bad() -> None: ...

    checks: list[Callable[..., Any]] = [bad, bad]
    for number, handler in enumerate(checks):
        router = Router()
        router.subscriber("x", name=f"bad{number}")(handler)
        app.include(router, broker="a")
    with pytest.raises(ConfigError) as caught:
        asyncio.run(started(app))
    assert len(str(caught.value).splitlines()) == 2
    assert said == []
