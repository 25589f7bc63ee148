"""What a handler's result or exception comes to.

The short way, a handler that returns None, is in `workers`; everything else comes here, and from here to `_replying`,
`_retrying` and, at last, to `settle` in `_ending`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ruststream_core.dispatch._ending import SKIPPED, kind_of
from ruststream_core.dispatch._replying import Replying
from ruststream_core.params import Later, Undecodable
from ruststream_core.settlement import ACK, Ack, Drop, FailFast, Outcome, Retry, Skip, strongest
from ruststream_core.wire import Delivery
from ruststream_core.workers import ended, uncancel

__all__ = ["Committed", "Runner"]

log = logging.getLogger("ruststream")


class Committed:
    """What a transactional call returns: its unit has settled the delivery already."""

    __slots__ = ("later",)

    def __init__(self, later: Later | None) -> None:
        self.later = later


class Runner(Replying):
    """One route at work: `Conclusion` of its crew."""

    def attach(self, invoke: Callable[[Delivery], Awaitable[Any]]) -> None:
        """What the crew calls per delivery, and again for each rerun in place."""
        self.invoke = invoke

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

    def _outcome(
        self, worker: int, delivery: Delivery, outcome: Outcome, error: BaseException | None
    ) -> Awaitable[None] | None:
        self._observe(delivery, outcome)
        if isinstance(outcome, Retry):
            return self._retry(worker, delivery, outcome, error)
        if isinstance(outcome, Ack):
            self.settle(delivery, ACK)
        elif isinstance(outcome, Skip):
            self.settle(delivery, SKIPPED)
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
            kind_of(error),
            exc_info=error,
        )
        if not named and self._policy.retry == "none":
            return self._give_up(delivery, error, self.attempt(delivery))
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
            return self._give_up(delivery, cause, self.attempt(delivery), said=True)
        return self._outcome(worker, delivery, outcome, cause)

    def _where(self, delivery: Delivery) -> str:
        at = self.position(delivery)
        return f"a message of {delivery.name!r}" + ("" if at is None else f" at {at}")

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
