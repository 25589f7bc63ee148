"""What happens at a delivery's end: outcome, retry, dead letter, reply, settlement.

The short way, a handler that returns None, is in `workers`; everything else comes here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from ruststream_core.abc import Clock
from ruststream_core.dispatch._plan import RoutePlan
from ruststream_core.dispatch._publish import Literally, Senders, Target, Transmit, build
from ruststream_core.errors import EncodeError, RustStreamError
from ruststream_core.kit import backoff
from ruststream_core.params import Bound, Later, Reply, Undecodable
from ruststream_core.settlement import ACK, Ack, Drop, FailFast, Outcome, Retry, Skip, Verdict, strongest
from ruststream_core.wire import NO_HEADERS, Delivery, Outgoing
from ruststream_core.workers import Books, Crew, ended, uncancel

__all__ = ["Probe", "Runner"]

log = logging.getLogger("ruststream")

ATTEMPT: Final = "x-ruststream-attempt"
FIRST_FAILED: Final = "x-ruststream-first-failed-at"

# Acks that count as something else; told apart by identity when a transport reports one as lost.
_SKIPPED: Final = Ack()
_DEAD_LETTERED: Final = Ack()
_AS_RETRIED: Final = Ack()
_AS_DROPPED: Final = Ack()
_NAMED: Final = {
    id(_SKIPPED): "skipped",
    id(_DEAD_LETTERED): "dead_lettered",
    id(_AS_RETRIED): "retried",
    id(_AS_DROPPED): "dropped",
}


class Probe(Protocol):
    """What a test sees of a route."""

    def called(self, route: str, delivery: Delivery, args: tuple[Any, ...]) -> None:
        """A handler is about to be called."""

    def outcome(self, route: str, delivery: Delivery, outcome: Outcome) -> None:
        """A handler came to an outcome, or something that counts as one."""

    def replied(self, route: str, value: object) -> None:
        """A handler returned a value."""

    def failed(self, route: str, error: BaseException, *, named: bool) -> None:
        """A handler raised; `named` where a policy mentions the exception's type."""


class Committed:
    """What a transactional call returns: its unit has settled the delivery already."""

    __slots__ = ("later",)

    def __init__(self, later: Later | None) -> None:
        self.later = later


class Runner:
    """One route at work: `Conclusion` of its crew, for single deliveries and, by `run_batch`, for batches."""

    def __init__(
        self,
        plan: RoutePlan,
        crew: Crew,
        senders: Senders,
        clock: Clock,
        fail_fast: Callable[[BaseException], None],
        probe: Probe | None,
    ) -> None:
        self.plan = plan
        self.crew = crew
        self.books: Books = crew.books
        self._senders = senders
        self._clock = clock
        self._fail_fast = fail_fast
        self._probe = probe
        self._policy = plan.policy
        self._settles = plan.features.settles
        self._reruns: dict[int, int] = {}
        self._again: dict[int, float | None] = {}
        self._held: dict[int, Delivery] = {}
        self._gone: dict[int, Delivery] = {}
        self._said: set[str] = set()
        self.seen: Callable[[Delivery], object] = lambda _: None
        self._calling_back = 0
        self._noted: dict[int, tuple[str, asyncio.Future[None] | None] | None] = {}
        self._waiting: dict[asyncio.Future[None], Delivery] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._copies: dict[int, tuple[Delivery, Callable[[], None], Callable[[], None]]] = {}
        self._send_reply = None if plan.reply is None else senders.transmit(plan.reply.broker)
        self._send_back = senders.transmit(plan.broker)
        self._plain_type = _plain_reply_type(plan) if probe is None else None

    def attach(self, bound: Bound, invoke: Callable[[Delivery], Awaitable[Any]]) -> None:
        """What the crew calls per delivery, and again for each rerun in place."""
        self.bound = bound
        self.invoke = invoke

    # ------------------------------------------------------------------------------------- Conclusion

    def end_of(self, verdict: Verdict) -> str:
        """Which count a verdict of ours went to."""
        if isinstance(verdict, Ack):
            return _NAMED.get(id(verdict), "acked")
        if isinstance(verdict, Retry):
            return "retried"
        if isinstance(verdict, Drop):
            return "dropped"
        return "released" if self.plan.features.release != "lost" else "discarded"

    def returned(self, worker: int, delivery: Delivery, result: object) -> Awaitable[None] | None:
        """See `Conclusion.returned`."""
        if not self.crew.calm and self._was_cut(worker, delivery):
            return None
        self.crew.current[worker] = None
        if type(result) is self._plain_type and delivery.reply_to is None:
            return self._reply_plainly(worker, delivery, result)
        return self.conclude(worker, delivery, result)

    def raised(self, worker: int, delivery: Delivery, error: BaseException) -> Awaitable[None] | None:
        """See `Conclusion.raised`."""
        if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
            if self._was_cut(worker, delivery):
                return None
            self.crew.release(delivery)  # cancelled from outside: the loop is being torn down
            raise error
        if not self.crew.calm and self._was_cut(worker, delivery):
            return None
        self.crew.current[worker] = None
        return self.judge(worker, delivery, error)

    def _was_cut(self, worker: int, delivery: Delivery) -> bool:
        """Whether the handler was cancelled for a loss or by the drain; nothing it returned or raised counts then."""
        crew = self.crew
        if crew.current[worker] is not delivery and not crew.batches[worker]:
            uncancel()
            return True  # abandoned: released while the handler went on
        if delivery.lost is not None:
            uncancel()
            crew.current[worker] = None
            crew.settled_down(worker)
            return True
        if crew.cutting and uncancel():
            crew.current[worker] = None
            crew.release(delivery)
            return True
        return False

    def judge(self, worker: int, delivery: Delivery, error: BaseException) -> Awaitable[None] | None:
        """What an exception comes to."""
        if isinstance(error, Outcome):
            return self.conclude(worker, delivery, error)
        if isinstance(error, Undecodable):
            return self._undecodable(worker, delivery, error.__cause__ or error)
        if isinstance(error, BaseExceptionGroup) and (outcome := strongest(error)) is not None:
            return self.conclude(worker, delivery, outcome)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.crew.release(delivery)
            self._fail_fast(error)
            return None
        return self._failed(worker, delivery, error)

    def conclude(
        self, worker: int, delivery: Delivery, result: object, *, hold: bool = False
    ) -> Awaitable[None] | None:
        """What a result comes to. `hold`: the worker waits for the reply's confirmation."""
        if result is None:
            self._observe(delivery, ACK)
            self.settle(delivery, ACK)
            return None
        if isinstance(result, Outcome):
            return self._outcome(worker, delivery, result, None)
        if isinstance(result, type) and issubclass(result, Outcome):
            return self._outcome(worker, delivery, result(), None)
        if isinstance(result, Later):
            return self._with_callbacks(worker, delivery, result)
        if isinstance(result, Committed):
            self._observe(delivery, ACK)
            return None if result.later is None else self._call_back(result.later)
        return self._reply(worker, delivery, result, hold=hold)

    # -------------------------------------------------------------------------------------- outcomes

    def settle(self, delivery: Delivery, verdict: Verdict) -> None:
        """Hand a verdict over and count it; not for what the end of the drain has given back meanwhile."""
        if self._held and self._held.pop(id(delivery), None) is not None and id(delivery) in self._gone:
            return
        end = self.end_of(verdict)
        if end != "acked" and delivery.lost is None:
            self.books.add(end)
        if not self._settles and not isinstance(verdict, Ack):
            verdict = _AS_RETRIED if isinstance(verdict, Retry) else _AS_DROPPED
        pending = delivery.settle(verdict)
        if pending is not None:
            self.crew.track(pending)
        if id(delivery) in self._noted:
            self._noted[id(delivery)] = (end, pending)

    def _outcome(
        self, worker: int, delivery: Delivery, outcome: Outcome, error: BaseException | None
    ) -> Awaitable[None] | None:
        self._observe(delivery, outcome)
        if isinstance(outcome, Retry):
            return self._retry(worker, delivery, outcome, error)
        if isinstance(outcome, Ack):
            self.settle(delivery, ACK)
        elif isinstance(outcome, Skip):
            self.settle(delivery, _SKIPPED)
        elif isinstance(outcome, FailFast):
            self.crew.release(delivery)
            self._fail_fast(error or outcome)
        else:
            drop = outcome if isinstance(outcome, Drop) else Drop(repr(outcome))
            if error is None:
                log.info("route %s: dropped: %s", self.plan.name, drop.reason)
            self.settle(delivery, drop)
        return None

    def _failed(self, worker: int, delivery: Delivery, error: BaseException) -> Awaitable[None] | None:
        self.books.failed += 1
        named = any(kind in mapping for mapping in self._policy.on_error for kind in type(error).__mro__)
        if self._probe is not None:
            self._probe.failed(self.plan.name, error, named=named)
        try:
            outcome = self._policy.for_error(error)
        except Exception:
            log.exception("route %s: the on_error function failed; the message is retried", self.plan.name)
            outcome = Retry()
        log.warning(
            "route %s: the handler failed on attempt %d: %s",
            self.plan.name,
            self.attempt(delivery),
            _kind(error),
            exc_info=error,
        )
        if not named and self._policy.retry == "none":
            return self._give_up(worker, delivery, error, self.attempt(delivery))
        return self._outcome(worker, delivery, outcome, error)

    def _undecodable(self, worker: int, delivery: Delivery, cause: BaseException) -> Awaitable[None] | None:
        self.books.undecodable += 1
        try:
            outcome = self._policy.for_undecodable(cause, self.attempt(delivery))
        except Exception:
            log.exception("route %s: the on_decode_error function failed", self.plan.name)
            outcome = None
        log.error(
            "route %s: %s does not decode as %s: %s; %s",
            self.plan.name,
            self._where(delivery),
            self.plan.spec.payload_type,
            self.plan.explain(cause),
            outcome if outcome is not None else self._policy.last_resort(),
        )
        if outcome is None:
            return self._give_up(worker, delivery, cause, self.attempt(delivery), said=True)
        return self._outcome(worker, delivery, outcome, cause)

    def _where(self, delivery: Delivery) -> str:
        at = self.position(delivery)
        return f"a message of {delivery.name!r}" + ("" if at is None else f" at {at}")

    def position(self, delivery: Delivery) -> Any:
        """Where the delivery stands, None where the transport has no positions."""
        read = getattr(self.crew.subscription, "position", None)
        return None if read is None or not self.plan.features.seek else read(delivery)

    def attempt(self, delivery: Delivery) -> int:
        """Which attempt this is, from 1: the broker's count or that of the copies, and reruns in place."""
        base = delivery.attempt
        if base is None:
            text = delivery.headers.get(ATTEMPT, "1")
            base = int(text) if text.isdecimal() and len(text) < 10 else 1
        return base + self._reruns.get(id(delivery), 0)

    # ---------------------------------------------------------------------------------------- retrying

    def _retry(
        self, worker: int, delivery: Delivery, retry: Retry, error: BaseException | None
    ) -> Awaitable[None] | None:
        policy = self._policy
        attempt = self.attempt(delivery)
        if policy.retry == "none":
            self._unkept(f"Retry on {self.plan.transport}, which brings no message back: the message is dropped")
            return self._give_up(worker, delivery, error or retry, attempt)
        if attempt >= policy.max_attempts:
            return self._give_up(worker, delivery, error or retry, attempt)
        after = retry.after
        if after is None and error is not None:
            after = policy.backoff(error, attempt)
        if policy.retry == "in_place":
            return self._rerun(worker, delivery, after)
        if policy.retry == "copy" or (after and policy.delay == "in_process"):
            self._copy(delivery, after or 0.0, attempt)
            return None
        if after and policy.delay == "none":
            self._unkept(f"Retry(after={after:g}) on {self.plan.transport}, which keeps no delay: retried at once")
            after = None
        self.settle(delivery, Retry(after=after, reason=retry.reason))
        return None

    def _hold(self, delivery: Delivery) -> None:
        """The delivery's end takes time, with no handler running: `abandon` gives it back where that takes too long."""
        self._held[id(delivery)] = delivery

    def _release(self, delivery: Delivery) -> None:
        self._held.pop(id(delivery), None)
        if id(delivery) not in self._gone:
            self.crew.release(delivery)

    def _unkept(self, what: str) -> None:
        self.books.unkept += 1
        if what not in self._said and len(self._said) < 100:
            self._said.add(what)
            log.warning(
                "route %s: %s. Set retry_copies=True, or use a source that keeps it; said once", self.plan.name, what
            )

    def _rerun(self, worker: int, delivery: Delivery, after: float | None) -> Awaitable[None] | None:
        inside = worker in self._again
        self._again[worker] = after
        return None if inside else self._rerun_until_done(worker, delivery)

    async def _rerun_until_done(self, worker: int, delivery: Delivery) -> None:
        """Keep the delivery in its lane and run it again, until an outcome other than retry."""
        crew = self.crew
        self._hold(delivery)
        try:
            while (after := self._again.pop(worker, -1.0)) != -1.0:
                if not await self._pause(after or 0.0) or delivery.lost is not None:
                    self._release(delivery)
                    return
                self._again[worker] = -1.0
                self._noted.pop(id(delivery), None)  # what the former run wanted to do after its ack is void
                self._reruns[id(delivery)] = self._reruns.get(id(delivery), 0) + 1
                self.books.reruns += 1
                crew.current[worker] = delivery
                self._held.pop(id(delivery), None)  # while its handler runs, the crew has it
                try:
                    result = await self.invoke(delivery)
                except BaseException as error:
                    waiting = self.raised(worker, delivery, error)
                else:
                    waiting = self.returned(worker, delivery, result)
                if waiting is not None:
                    await waiting
                if worker in self._again:
                    self._hold(delivery)
        finally:
            self._again.pop(worker, None)
            self._reruns.pop(id(delivery), None)
            self._held.pop(id(delivery), None)

    async def _pause(self, seconds: float) -> bool:
        if seconds <= 0:
            await asyncio.sleep(0)  # a handler that never suspends must not starve the loop by its retries
            return not self.crew.stopping
        return await self.crew.pause(lambda wake: self._clock.call_later(seconds, wake))

    def _copy(self, delivery: Delivery, after: float, attempt: int) -> None:
        """Publish a counted copy when its time has come, then settle the original, which is held until then."""

        def publish() -> None:
            self._copies.pop(id(delivery), None)
            if delivery.lost is not None:
                return
            headers = delivery.headers.replaced({ATTEMPT: str(attempt + 1)})
            out = Outgoing(delivery.payload, delivery.name, headers, delivery.key, None, delivery.reply_to)
            self._spawn(self._settle_after(delivery, out, _AS_RETRIED))

        self._hold(delivery)
        cancel = self._clock.call_later(after, publish)
        self._copies[id(delivery)] = (delivery, cancel, publish)
        if self.crew.stopping:
            self.stop()

    async def _settle_after(self, delivery: Delivery, out: Outgoing, verdict: Verdict) -> None:
        try:
            if (pending := self._send_back(out)) is not None:
                await pending
        except Exception as exc:
            log.exception("route %s: a copy for retrying could not be published", self.plan.name, exc_info=exc)
            self._release(delivery)
        else:
            self.settle(delivery, verdict)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{self.plan.name}:aside")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------- giving up

    def _give_up(
        self, worker: int | None, delivery: Delivery, cause: BaseException, attempt: int, *, said: bool = False
    ) -> Awaitable[None] | None:
        if not said:
            error = cause if not isinstance(cause, Outcome) else None
            log.error(
                "route %s: gave up a message of %r after attempt %d: %s; %s",
                self.plan.name,
                delivery.name,
                attempt,
                _kind(cause),
                self._policy.last_resort(),
                exc_info=error,
            )
        if self.plan.dead_letter is None:
            self.settle(delivery, Drop(_kind(cause)))
            return None
        return self._dead_letter(self.plan.dead_letter, delivery, cause, attempt)

    async def _dead_letter(self, target: Target, delivery: Delivery, cause: BaseException, attempt: int) -> None:
        """Publish to the dead letter, and only then settle the original. While that fails, the original is kept."""
        fields = {
            "x-ruststream-error": _kind(cause),
            "x-ruststream-route": self.plan.name,
            ATTEMPT: str(attempt),
        }
        if FIRST_FAILED not in delivery.headers:
            fields[FIRST_FAILED] = datetime.now(UTC).isoformat(timespec="milliseconds")
        out = Outgoing(
            delivery.payload, target.name, delivery.headers.replaced(fields), delivery.key, target.options, None
        )
        waits = backoff(0.5)
        self._hold(delivery)
        while delivery.lost is None:
            try:
                if (pending := self._senders.transmit(target.broker)(out)) is not None:
                    await pending
            except Exception as exc:
                log.exception("route %s: the dead letter %r failed", self.plan.name, target.name, exc_info=exc)
                if not await self._pause(next(waits)):
                    self._release(delivery)
                    return
            else:
                self.settle(delivery, _DEAD_LETTERED)
                return

    # ---------------------------------------------------------------------------------------- replying

    def _reply(self, worker: int, delivery: Delivery, value: object, *, hold: bool) -> Awaitable[None] | None:
        if self._probe is not None:
            self._probe.replied(self.plan.name, value.value if isinstance(value, Reply) else value)
        try:
            pending = self.send_reply(delivery, value)
        except Exception as exc:
            return self._unsent(worker, delivery, exc)
        return self._unless_pending(worker, delivery, pending, hold=hold)

    def _reply_plainly(self, worker: int, delivery: Delivery, value: object) -> Awaitable[None] | None:
        """The short way of a reply: its type, name and codec were settled when the route was mounted."""
        target = self.plan.reply
        assert target is not None
        assert self._send_reply is not None
        try:
            out = Outgoing(self.plan.codec.encode(value), target.template.text, NO_HEADERS, None, target.options)
            pending = self._send_reply(out)
        except Exception as exc:
            return self._unsent(worker, delivery, exc)
        if pending is not None:
            return self._unless_pending(worker, delivery, pending, hold=False)
        settling = delivery.settle(ACK)
        if settling is not None:
            self.crew.track(settling)
        return None

    def _unless_pending(
        self, worker: int, delivery: Delivery, pending: asyncio.Future[None] | None, *, hold: bool
    ) -> Awaitable[None] | None:
        if pending is None or pending.done():
            return self._sent(worker, delivery, pending)
        self._hold(delivery)
        if hold or self._policy.retry == "in_place":
            return self._await_reply(worker, delivery, pending)
        self._waiting[pending] = delivery
        pending.add_done_callback(self._confirmed)
        self.crew.track(pending)
        return None

    def send_reply(
        self, delivery: Delivery, value: object, transmit: Transmit | None = None
    ) -> asyncio.Future[None] | None:
        """Encode a reply and hand it over, to the delivery's own address first."""
        plan = self.plan
        own = delivery.reply_to
        to = value.to if isinstance(value, Reply) else None
        if own is not None:
            out = build(plan.codec, _address(plan.broker, own), value, None, None, None)
            if (correlation := delivery.headers.get("correlation-id")) is not None:
                out.headers = out.headers.replaced({"correlation-id": correlation})
            return (transmit or self._send_back)(out)
        target = plan.target_of(to, value)
        if target is None:
            raise EncodeError(f"route {plan.name!r} returned {type(value).__name__} and nothing says where to")
        out = build(plan.codec, target, value, None, None, target.options)
        if transmit is not None and target.broker == plan.broker:
            return transmit(out)
        if target is plan.reply and self._send_reply is not None:
            return self._send_reply(out)
        return self._senders.transmit(target.broker)(out)

    def _sent(self, worker: int, delivery: Delivery, pending: asyncio.Future[None] | None) -> Awaitable[None] | None:
        if pending is not None and (pending.cancelled() or pending.exception() is not None):
            cause = RustStreamError("cancelled") if pending.cancelled() else pending.exception()
            return self._unsent(worker, delivery, cause or RustStreamError("unknown"))
        self._observe(delivery, ACK)
        self.settle(delivery, ACK)
        return None

    async def _await_reply(self, worker: int, delivery: Delivery, pending: asyncio.Future[None]) -> None:
        await ended(pending)
        if (waiting := self._sent(worker, delivery, pending)) is not None:
            await waiting

    def _confirmed(self, pending: asyncio.Future[None]) -> None:
        delivery = self._waiting.pop(pending)
        if id(delivery) in self._gone:
            return  # the drain's last deadline came first
        if (waiting := self._sent(-1, delivery, pending)) is not None:
            self._spawn(waiting)

    def _unsent(self, worker: int, delivery: Delivery, error: BaseException) -> Awaitable[None] | None:
        self.books.failed += 1
        log.warning("route %s: the reply could not be published: %s", self.plan.name, _kind(error), exc_info=error)
        if self._probe is not None:
            self._probe.failed(self.plan.name, error, named=False)
        self._observe(delivery, retry := Retry(reason="the reply could not be published"))
        return self._retry(worker, delivery, retry, error)

    # -------------------------------------------------------------------------------------- after_ack

    async def _with_callbacks(self, worker: int, delivery: Delivery, later: Later) -> None:
        self._noted[id(delivery)] = None
        try:
            waiting = self.conclude(worker, delivery, later.value, hold=True)
            if waiting is not None:
                await waiting
        finally:
            noted = self._noted.pop(id(delivery), None)
        if noted is None or noted[0] not in ("acked", "skipped"):
            return
        if noted[1] is not None:
            await ended(noted[1])
        if delivery.lost is None:
            await self._call_back(later)

    async def _call_back(self, later: Later) -> None:
        self._calling_back += 1
        try:
            for callback in later.callbacks:
                try:
                    await callback()
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                        raise
                    log.exception("route %s: after_ack failed", self.plan.name)
                    if isinstance(error, KeyboardInterrupt | SystemExit):
                        self._fail_fast(error)
        finally:
            self._calling_back -= 1

    # ------------------------------------------------------------------------------------------- drain

    def stop(self) -> None:
        """Copies that wait for their time: give the originals back, or publish now what could not be given back."""
        for delivery, cancel, publish in list(self._copies.values()):
            cancel()
            if self.plan.features.release == "lost":
                publish()
            else:
                self._release(delivery)
        self._copies.clear()

    @property
    def busy(self) -> bool:
        """Work goes on beside the workers: replies unconfirmed, copies and dead letters on their way."""
        return bool(self._tasks or self._waiting or self._calling_back)

    async def finish(self) -> None:
        """Wait for what goes on beside the workers."""
        while self._tasks or self._waiting:
            await asyncio.wait([*self._tasks, *self._waiting])
            await asyncio.sleep(0)  # let the callbacks that settle run

    def abandon(self) -> None:
        """The last deadline passed: what still waits for a confirmation or a dead letter is given back unsettled."""
        for key, delivery in self._held.items():
            self._gone[key] = delivery
            self.crew.release(delivery)
        for task in self._tasks:
            task.cancel()

    def _observe(self, delivery: Delivery, outcome: Outcome) -> None:
        if self._probe is not None:
            self._probe.outcome(self.plan.name, delivery, outcome)


def _kind(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def _plain_reply_type(plan: RoutePlan) -> type | None:
    """The class of replies that need no look at names, headers or options; None where there is no such class."""
    kind, target = plan.spec.reply_type, plan.reply
    if target is None or target.template.fields or plan.codec.name != "json" or plan.mount.options.get("reply") is None:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _address(broker: str, name: str) -> Target:
    return Target(broker=broker, template=Literally(name))
