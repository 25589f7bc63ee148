"""Trying again: by the broker, in place or by a copy; and where a message goes when that is enough."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Final

from ruststream_core.dispatch._ending import AS_RETRIED, ATTEMPT, DEAD_LETTERED, Ending, kind_of
from ruststream_core.dispatch._senders import Target
from ruststream_core.kit import backoff
from ruststream_core.settlement import Drop, Outcome, Retry, Verdict
from ruststream_core.wire import Delivery, Outgoing

__all__ = ["Retrying"]

log = logging.getLogger("ruststream")

FIRST_FAILED: Final = "x-ruststream-first-failed-at"


class Retrying(Ending):
    """An ending that may be a new beginning."""

    def _retry(
        self, worker: int, delivery: Delivery, retry: Retry, error: BaseException | None
    ) -> Awaitable[None] | None:
        policy = self._policy
        attempt = self.attempt(delivery)
        if policy.retry == "none":
            self._unkept(f"Retry on {self.plan.transport}, which brings no message back: the message is dropped")
            return self._give_up(delivery, error or retry, attempt)
        if attempt >= policy.max_attempts:
            return self._give_up(delivery, error or retry, attempt)
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

    def _copy(self, delivery: Delivery, after: float, attempt: int) -> None:
        """Publish a counted copy when its time has come, then settle the original, which is held until then."""

        def publish() -> None:
            self._copies.pop(id(delivery), None)
            if delivery.lost is not None:
                return
            headers = delivery.headers.replaced({ATTEMPT: str(attempt + 1)})
            out = Outgoing(delivery.payload, delivery.name, headers, delivery.key, None, delivery.reply_to)
            self._spawn(self._settle_after(delivery, out, AS_RETRIED))

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

    def _give_up(
        self, delivery: Delivery, cause: BaseException, attempt: int, *, said: bool = False
    ) -> Awaitable[None] | None:
        if not said:
            error = cause if not isinstance(cause, Outcome) else None
            log.error(
                "route %s: gave up a message of %r after attempt %d: %s; %s",
                self.plan.name,
                delivery.name,
                attempt,
                kind_of(cause),
                self._policy.last_resort(),
                exc_info=error,
            )
        if self.plan.dead_letter is None:
            self.settle(delivery, Drop(kind_of(cause)))
            return None
        return self._dead_letter(self.plan.dead_letter, delivery, cause, attempt)

    async def _dead_letter(self, target: Target, delivery: Delivery, cause: BaseException, attempt: int) -> None:
        """Publish to the dead letter, and only then settle the original. While that fails, the original is kept."""
        fields = {
            "x-ruststream-error": kind_of(cause),
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
                self.settle(delivery, DEAD_LETTERED)
                return
