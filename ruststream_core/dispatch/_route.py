"""One running route: its subscription, its crew and its runner, put together once."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from ruststream_core.abc import (
    Clock,
    Connection,
    Seekable,
    State,
    Subscription,
    SubscriptionStatistics,
    Transactions,
    Unit,
)
from ruststream_core.dispatch._batch import BatchRunner
from ruststream_core.dispatch._ending import Probe
from ruststream_core.dispatch._plan import RoutePlan
from ruststream_core.dispatch._publish import Outlet
from ruststream_core.dispatch._run import Committed, Runner
from ruststream_core.dispatch._senders import Senders
from ruststream_core.errors import ConfigError, PluginError, SettleError
from ruststream_core.middleware import Handle, compose
from ruststream_core.params import Bound, Later, Seeker, Services, Undecodable
from ruststream_core.settlement import ACK, Ack, Outcome
from ruststream_core.wire import Delivery
from ruststream_core.workers import Books, Crew

__all__ = ["Route", "Surroundings"]

_MISSING: Any = object()
_observed_delivery: ContextVar[Delivery] = ContextVar("_observed_delivery")


class Surroundings(msgspec.Struct, kw_only=True):
    """What all routes of one running app share."""

    state: object
    senders: Senders
    clock: Clock
    overrides: Mapping[Callable[..., Any], Callable[..., Any]]
    run_sync: Callable[[Callable[[], Any]], Awaitable[Any]]
    fail_fast: Callable[[BaseException], None]
    on_state: Callable[[str, State, BaseException | None], None]
    probe: Probe | None = None


class SubscriptionSeeker(Seeker):
    """What a handler gets that asks for a `Seeker`."""

    def __init__(self, subscription: Callable[[], Subscription]) -> None:
        self._subscription = subscription

    async def seek(self, position: object) -> None:
        """See `Seeker.seek`."""
        subscription = self._subscription()
        if not isinstance(subscription, Seekable):
            raise PluginError(f"{type(subscription).__name__} declares seek and has none")
        await subscription.seek(position)


class Route:
    """One route at work."""

    def __init__(self, plan: RoutePlan, around: Surroundings) -> None:
        self.plan = plan
        self.books = Books()
        self._around = around
        self._stored: dict[int, Any] = {}
        self._units: dict[int, Unit] = {}
        self._busy_since: tuple[int, float] | None = None
        """Settled so far and when that was seen, while there was work in hand."""
        self._closed: SubscriptionStatistics | None = None
        self.crew = Crew(
            plan.name,
            plan.demand,
            self.books,
            self._lane_by_payload if plan.key_of is not None else plan.lane_of(),
            lambda state, cause: around.on_state(plan.name, state, cause),
            cancel_lost=plan.mount.options.get("on_lost", "cancel") == "cancel",
        )
        if around.probe is not None:
            self.crew.watched = True
            self.crew.calm = False
        kind = Runner if plan.demand.batch == 1 and plan.mount.options.get("batch") is None else BatchRunner
        self.runner = kind(plan, self.crew, around.senders, around.clock, around.fail_fast, around.probe)
        if around.probe is not None:
            self.runner.seen = _observed_delivery.set
        self.bound = plan.spec.bind(self._services())

    def _services(self) -> Services:
        plan, around = self.plan, self._around
        publisher = Outlet(around.senders, plan.broker, plan.codec, plan.reply)
        return Services(
            route=plan.name,
            decode=plan.decode,
            decode_with_headers=plan.decode_with_headers,
            state=around.state,
            template=plan.template,
            publisher=publisher,
            out={slot: Outlet(around.senders, target.broker, plan.codec, target) for slot, target in plan.out.items()},
            seeker=SubscriptionSeeker(lambda: self.crew.subscription),
            unit=lambda delivery: self._units[id(delivery)],
            position=self.runner.position,
            overrides=around.overrides,
            run_sync=around.run_sync,
            attempt=self.runner.attempt,
            around=None if around.probe is None else self._recorder,
        )

    async def open(self, connection: Connection[Any]) -> None:
        """Subscribe and begin to work.

        Raises:
            ConfigError, ConnectError: as `Connection.subscribe`, with the route named.
        """
        plan = self.plan
        try:
            subscription = await connection.subscribe(plan.source, plan.demand, self.crew)
        except ConfigError as exc:
            raise ConfigError(f"route {plan.name!r}: {exc}") from exc
        needed = plan.demand.workers * plan.demand.batch
        if subscription.window < needed:
            await subscription.aclose(0)
            raise ConfigError(
                f"route {plan.name!r}: workers times batch is {needed}, the window of {plan.transport} is "
                f"{subscription.window}: set prefetch={needed} or more"
            )
        if plan.demand.transactional and not isinstance(subscription, Transactions):
            await subscription.aclose(0)
            raise PluginError(f"route {plan.name!r}: {plan.transport} declares transactions and has none")
        if isinstance(self.runner, BatchRunner):
            keyed = self.plan.key_of is not None
            self.runner.attach_batch(self.bound, self._decode_once if keyed else self.bound.decode)
            self.crew.start(subscription, self.runner, None, self.runner.run)
            return
        call = compose(plan.mount.middleware, self._observed(self._call()), plan.name)
        invoke = self._transactional(subscription, call) if plan.demand.transactional else call
        self.runner.attach(invoke)
        self.crew.start(subscription, self.runner, invoke, None)

    def _observed(self, call: Handle) -> Handle:
        """For tests: lets the recorder around the handler see the delivery."""
        if self._around.probe is None:
            return call

        def observed(delivery: Delivery) -> Awaitable[object]:
            _observed_delivery.set(delivery)
            return call(delivery)

        return observed

    def _recorder(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        probe, name = self._around.probe, self.plan.name
        assert probe is not None

        def recorded(*args: Any, **kwargs: Any) -> Any:
            probe.called(name, _observed_delivery.get(), (*args, *kwargs.values()))
            return fn(*args, **kwargs)

        return recorded

    def _call(self) -> Handle:
        bound: Bound = self.bound
        if self.plan.key_of is None:
            return bound.call
        stored = self._stored

        def call(delivery: Delivery) -> Awaitable[object]:
            value = stored.pop(id(delivery), _MISSING)
            if value is _MISSING:
                return bound.call(delivery)
            if isinstance(value, _KeyFailed):
                return value.reraise()
            return bound.call_value(delivery, value)

        return call

    def _decode_once(self, delivery: Delivery) -> Any:
        """What the pump has decoded already."""
        value = self._stored.pop(id(delivery), _MISSING)
        if isinstance(value, _KeyFailed):
            raise value.error
        return self.bound.decode(delivery) if value is _MISSING else value

    def _lane_by_payload(self, delivery: Delivery) -> Hashable | None:
        """Decode once, in the pump; the value waits for its handler. What does not decode is judged in its lane."""
        stored = self._stored
        stored.pop(id(delivery), None)
        try:
            value = self.bound.decode(delivery)
        except Undecodable:
            return None
        except BaseException as exc:
            stored[id(delivery)] = _KeyFailed(exc)
            return None
        key_of = self.plan.key_of
        assert key_of is not None
        try:
            key = key_of(value)
            hash(key)
        except BaseException as exc:  # an outcome raised here is none of the pump's business either
            stored[id(delivery)] = _KeyFailed(exc)
            return None
        stored[id(delivery)] = value
        return key

    def _transactional(self, subscription: Any, call: Handle) -> Handle:
        """The handler inside the delivery's own transaction: its ack commits, everything else rolls back first."""
        runner, units, plan, senders = self.runner, self._units, self.plan, self._around.senders

        async def invoke(delivery: Delivery) -> object:
            unit: Unit = await subscription.begin((delivery,))
            units[id(delivery)] = unit
            ended = False
            try:
                result = await call(delivery)
                value = result.value if isinstance(result, Later) else result
                if _is_ack(value) or not _is_outcome(value):
                    transmit, committed = senders.joined(plan.broker, unit)
                    if not _is_outcome(value) and value is not None:
                        pending = runner.send_reply(delivery, value, transmit)
                        if pending is not None:
                            await pending
                    ended = True
                    await _commit(unit, delivery, plan.name)
                    committed()
                    return Committed(result if isinstance(result, Later) else None)
            except SettleError:
                return None  # the delivery is lost, and the crew has been told
            except BaseException:
                if not ended:
                    await unit.rollback()
                raise
            finally:
                del units[id(delivery)]
            await unit.rollback()
            return value

        return invoke

    # -------------------------------------------------------------------------------------------- state

    def statistics(self) -> SubscriptionStatistics:
        """The subscription's own, the last ones after its end."""
        return self._closed if self._closed is not None else self.crew.subscription.statistics()

    def running(self) -> bool:
        """Whether a handler, a callback or something published on the way is at work."""
        crew = self.crew
        return any(d is not None for d in crew.current) or any(crew.batches) or self.runner.busy

    def held(self) -> bool:
        """Whether a worker waits for a timer with a delivery in its hand."""
        return self.crew.pauses > 0

    @property
    def ended(self) -> bool:
        """Whether the source has come to its end."""
        return all(task.done() for task in self.crew.tasks)

    def table(self) -> dict[str, int]:
        """The books as they are now."""
        return self.books.table(self.statistics().unsettled)

    def healthy(self, stall: float) -> str | None:
        """None, or why the route does not move: its state, or nothing settled for `stall` seconds with work in hand."""
        statistics = self.statistics()
        if statistics.state != "receiving":
            return f"{self.plan.name}: {statistics.state}"
        settled = self.books.received - statistics.unsettled
        now = time.monotonic()
        if statistics.unsettled == 0:
            self._busy_since = None
        elif self._busy_since is None or settled != self._busy_since[0]:
            self._busy_since = (settled, now)
        elif (seconds := now - self._busy_since[1]) > stall:
            return f"{self.plan.name}: {statistics.unsettled} in hand, none settled for {seconds:.0f} s"
        return None

    async def close(self, grace: float) -> None:
        """Flush settlements and detach."""
        try:
            await self.crew.subscription.aclose(grace)
        finally:
            self._closed = self.crew.subscription.statistics()


class _KeyFailed:
    """The key function of `by_key` raised: it counts as if the handler had."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def reraise(self) -> object:
        raise self.error


def _is_outcome(value: object) -> bool:
    return isinstance(value, Outcome) or (isinstance(value, type) and issubclass(value, Outcome))


def _is_ack(value: object) -> bool:
    return isinstance(value, Ack) or (isinstance(value, type) and issubclass(value, Ack))


async def _commit(unit: Unit, delivery: Delivery, route: str) -> None:
    try:
        await unit.commit([(delivery, ACK)])
    except SettleError:
        raise
    except Exception as exc:
        raise PluginError(f"route {route!r}: the transaction could not be committed: {exc}") from exc
