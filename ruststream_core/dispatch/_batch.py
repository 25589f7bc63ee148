"""Batches: one call of the handler for many deliveries, each with an end of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ruststream_core.dispatch._run import Runner
from ruststream_core.middleware import BatchHandle, compose_batch
from ruststream_core.params import Bound
from ruststream_core.settlement import ACK, Outcome, Retry, strongest
from ruststream_core.wire import Delivery
from ruststream_core.workers import uncancel

__all__ = ["BatchRunner"]

log = logging.getLogger("ruststream")


class Chunk(list[Delivery]):
    """The deliveries of one call, with what their payloads decoded to."""

    __slots__ = ("values",)

    values: list[Any]


class BatchRunner(Runner):
    """A route whose handler takes lists."""

    def attach_batch(self, bound: Bound, decode: Callable[[Delivery], Any]) -> None:
        """What `run` calls."""
        self._decode = decode
        self._batch_again: dict[int, float] = {}

        async def call(deliveries: Sequence[Delivery]) -> object:
            assert bound.call_batch is not None
            self.seen(deliveries[0])
            # A middleware may have left some out, and then what it passes on is a list of its own.
            values = deliveries.values if isinstance(deliveries, Chunk) else [bound.decode(each) for each in deliveries]
            return await bound.call_batch(deliveries, values)

        self._call: BatchHandle = compose_batch(self.plan.mount.middleware, call, self.plan.name)

    async def run(self, worker: int, deliveries: Sequence[Delivery]) -> None:
        """One batch to its end, reruns in place included."""
        todo = await self._decoded(worker, deliveries)
        while todo:
            todo = await self._once(worker, todo)

    async def _decoded(self, worker: int, deliveries: Sequence[Delivery]) -> Chunk:
        """The elements that decode; each other one follows `on_decode_error` alone."""
        decode = self._decode
        good, waiting = Chunk(), []
        values = good.values = []
        for delivery in deliveries:
            try:
                values.append(decode(delivery))
            except BaseException as error:  # a type that raises while it is built fails alone as well
                waiting.append(self.judge(worker, delivery, error))
            else:
                good.append(delivery)
        if waiting:
            await _all(waiting)
        return good

    async def _once(self, worker: int, deliveries: Chunk) -> Chunk:
        """Call the handler; returns what is to be run again."""
        self.crew.batches[worker] = deliveries
        waiting: list[Awaitable[None] | None] = []
        try:
            result = await self._call(deliveries)
        except BaseException as error:
            if self._stopped(worker, deliveries, error):
                return Chunk()
            self.crew.batches[worker] = ()
            waiting = self._all_raised(worker, deliveries, error)
        else:
            if result is None and self.crew.calm:
                self._ack_all(worker, deliveries)
                return Chunk()
            if self._stopped(worker, deliveries, None):
                return Chunk()
            self.crew.batches[worker] = ()
            waiting = self._all_returned(worker, deliveries, result)
        await _all(waiting)
        return await self._collect(deliveries)

    def _ack_all(self, worker: int, deliveries: Chunk) -> None:
        """The short way, as in the crew's loop for single deliveries."""
        self.crew.batches[worker] = ()
        if self._reruns:
            for delivery in deliveries:
                self._reruns.pop(id(delivery), None)
        last = None
        for delivery in deliveries:
            settling = delivery.settle(ACK)
            if settling is not None and settling is not last:
                last = settling
                self.crew.track(settling)

    def _stopped(self, worker: int, deliveries: Chunk, error: BaseException | None) -> bool:
        crew = self.crew
        cancelled = isinstance(error, asyncio.CancelledError) or not crew.calm
        if not cancelled:
            return False
        if not crew.batches[worker]:
            uncancel()
            return True  # abandoned, and released then
        if not uncancel():
            return False
        for delivery in deliveries:
            crew.release(delivery)
        if not crew.cutting and isinstance(error, asyncio.CancelledError):
            raise error  # from outside: the loop is being torn down
        return True

    def _all_raised(self, worker: int, deliveries: Chunk, error: BaseException) -> list[Awaitable[None] | None]:
        outcome = strongest(error) if isinstance(error, BaseExceptionGroup) else None
        if outcome is None and isinstance(error, Outcome):
            outcome = error
        if outcome is not None:
            return [self.conclude(worker, delivery, outcome) for delivery in deliveries if delivery.lost is None]
        if isinstance(error, KeyboardInterrupt | SystemExit):
            for delivery in deliveries:
                self.crew.release(delivery)
            self._fail_fast(error)
            return []
        return [self._failed(worker, delivery, error) for delivery in deliveries if delivery.lost is None]

    def _all_returned(self, worker: int, deliveries: Chunk, result: object) -> list[Awaitable[None] | None]:
        single = result is None or isinstance(result, Outcome)
        if single or (isinstance(result, type) and issubclass(result, Outcome)):
            results: list[object] = [result] * len(deliveries)
        elif isinstance(result, list | tuple) and len(result) == len(deliveries):
            results = list(result)
        else:
            size = len(result) if isinstance(result, list | tuple) else type(result).__name__
            log.error(
                "route %s: a batch of %d came back as %s; one outcome or a list of the same length is expected, "
                "so all are retried",
                self.plan.name,
                len(deliveries),
                size,
            )
            results = [Retry(reason="the batch handler returned another length")] * len(deliveries)
        # A chunk is settled whole before any of it is awaited.
        return [
            self.conclude(worker, delivery, one)
            for delivery, one in zip(deliveries, results, strict=True)
            if delivery.lost is None
        ]

    def _rerun(self, worker: int, delivery: Delivery, after: float | None) -> Awaitable[None] | None:
        self._batch_again[id(delivery)] = after or 0.0
        return None

    async def _collect(self, deliveries: Chunk) -> Chunk:
        """The deliveries to run again in place, after the longest of their waits."""
        todo = Chunk()
        todo.values = []
        wait = 0.0
        for delivery, value in zip(deliveries, deliveries.values, strict=True):
            again = self._batch_again.pop(id(delivery), None)
            if again is None:
                self._reruns.pop(id(delivery), None)
                continue
            wait = max(wait, again)
            todo.append(delivery)
            todo.values.append(value)
            self._reruns[id(delivery)] = self._reruns.get(id(delivery), 0) + 1
            self._hold(delivery)
        if not todo:
            return todo
        go_on = await self._pause(wait)
        return self._resumed(todo) if go_on else self._given_back(todo)

    def _resumed(self, todo: Chunk) -> Chunk:
        kept = Chunk()
        kept.values = []
        for delivery, value in zip(todo, todo.values, strict=True):
            self._held.pop(id(delivery), None)
            if delivery.lost is None:
                kept.append(delivery)
                kept.values.append(value)
            else:
                self._reruns.pop(id(delivery), None)
        self.books.reruns += len(kept)
        return kept

    def _given_back(self, todo: Chunk) -> Chunk:
        for delivery in todo:
            self._reruns.pop(id(delivery), None)
            self._release(delivery)
        return Chunk()


async def _all(waiting: Sequence[Awaitable[None] | None]) -> None:
    for one in waiting:
        if one is not None:
            await one
