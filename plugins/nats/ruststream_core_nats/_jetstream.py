"""One consumer from its opening to its end: looked after, made again where it may be, given up where it may not."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ruststream_core.errors import ConfigError, ConnectError, LeaseLost, Revoked, RustStreamError
from ruststream_core.kit import backoff
from ruststream_core.settlement import RELEASE
from ruststream_core_nats._convert import AckAddress
from ruststream_core_nats._delivery import body_of
from ruststream_core_nats._hand import QUARTERS, StreamSubscription
from ruststream_core_nats._manage import wanted_config
from ruststream_core_nats.errors import JetStreamError

__all__ = ["JetStreamSubscription"]

log = logging.getLogger("ruststream.nats")


class JetStreamSubscription(StreamSubscription):
    """A consumer that is watched over.

    Subclasses say how messages are asked for; what happens to those that came is in `StreamSubscription`.
    """

    async def _attach(self) -> None:
        """Begin to receive from `self.consumer`."""
        raise NotImplementedError

    async def open(self) -> None:
        """Begin. Raises ConnectError, Closed or ConfigError."""
        await self._attach()
        self._every("progress", self._lease() / QUARTERS, self._progress)
        self._every("watch", self._silence(), self._look)
        self._tell("receiving")
        self._sync()

    def _silence(self) -> float:
        """Seconds without a sign of life that are normal."""
        return self.source.heartbeat

    # ------------------------------------------------------------------------------------------------- watching

    def _look(self) -> None:
        """Nothing was heard for two heartbeats: is the consumer still there?"""
        seen, self._seen = self._seen, 0
        silent = not seen and self._expecting() and self._online and not self.stopped
        self._missed = self._missed + 1 if silent else 0
        if self._missed >= 2:
            self._missed = 0
            self._look_after()

    def _expecting(self) -> bool:
        """Whether a sign of life is due."""
        return True

    def _look_after(self, *, renew: bool = True) -> None:
        """Find out whether the consumer is there; with `renew`, ask it again for what there is room for."""
        self._wanted = True
        self._renew = self._renew or renew
        if self._check is None or self._check.done():
            self._check = asyncio.get_running_loop().create_task(self._examine(), name="nats consumer")

    async def _examine(self) -> None:
        waits = backoff(0.1, most=5.0)
        while self._wanted and self._online and not self.stopped:
            self._wanted = False
            renew, self._renew = self._renew, False
            try:
                await self._examine_once(renew=renew)
            except (ConnectError, JetStreamError) as exc:
                log.debug("%r: its consumer cannot be looked after: %s", self.source.name, exc)
                self._wanted, self._renew = True, self._renew or renew
                await asyncio.sleep(next(waits))
            except RustStreamError as exc:
                self._end_lost(exc)

    async def _examine_once(self, *, renew: bool) -> None:
        made = self._remaking or await self._is_gone()
        if made:
            await self._remake()
        if made or renew:
            self._forget_requests()
            self._sync()

    def _forget_requests(self) -> None:
        """The server does not work on earlier requests any more."""

    async def _is_gone(self) -> bool:
        """Whether the consumer was removed and has to be made again.

        Raises:
            ConfigError: it was removed and cannot be made again without doing work twice, or its stream is gone.
        """
        name, stream, manager = self.consumer.name, self.consumer.stream, self._link.manager
        if await manager.find(stream, name) is not None:
            return False
        await asyncio.sleep(0.1)  # a cluster that elects a leader may not know it for a moment
        if await manager.find(stream, name) is not None:
            return False
        if await manager.last_sequence(stream) is None:
            raise ConfigError(f"{self.source.name!r}: stream {stream!r} was deleted")
        if self.source.durable is not None:
            raise ConfigError(
                f"{self.source.name!r}: consumer {name!r} of stream {stream!r} was deleted, and where it was is not"
                " known any more: decide where a new one begins"
            )
        log.info("%r: the server has removed consumer %r, it is made again", self.source.name, name)
        self._start = self._resume_at()
        self._revoke(Revoked(f"{self.source.name!r}: the consumer was removed by the server, the message comes again"))
        return True

    async def _remake(self) -> None:
        """A consumer in the place of the one that is gone, from `_start` on."""
        self._remaking = True
        self._known = 0
        self._first = b"\x00"
        # Nothing is taken from the old one any more, however late it comes, and its requests have no answer.
        self._forget_requests()
        self.consumer = msgspec.structs.replace(self.consumer, name="")
        self.consumer = await self._link.manager.create(self.source, self.consumer.stream, self._config(self._start))
        self._owed.clear()
        self._remaking = False
        early, self._early = self._early, []
        for one in early:
            found = AckAddress.parse(one.address)
            if found is not None and found.consumer == self.consumer.name:
                self._arrived(one.subject, one.address, one.payload, one.block)

    def _config(self, start: int | None) -> dict[str, object]:
        return wanted_config(self.source, start=start)

    def _resume_at(self) -> int | None:
        """The sequence to go on from: nothing unsettled is before it. What was asked for, while nothing has come."""
        newest = AckAddress.parse(self._newest)
        if newest is None:
            return self._start
        held = (AckAddress.parse(delivery.address) for delivery in self._held)
        return min([newest.stream_sequence + 1, *self._owed, *(one.stream_sequence for one in held if one is not None)])

    def _end_lost(self, error: RustStreamError) -> None:
        self._revoke(Revoked(str(error)))
        self.fail(error)

    # --------------------------------------------------------------------------------------------- the connection

    def interrupted(self, cause: BaseException | None) -> None:
        """See `NATSSubscription.interrupted`."""
        self._online = False
        self._suspect()
        self._forget_requests()
        super().interrupted(cause)

    def _suspect(self) -> None:
        """Look at each message until the first that is really new."""
        if (newest := AckAddress.parse(self._newest)) is not None:
            self._known = newest.stream_sequence
            self._first = b"\x00"

    def resumed(self) -> None:
        """See `NATSSubscription.resumed`. Requests that waited at the server are gone, and maybe the consumer."""
        self._online = True
        self._late.clear()
        if self.stopped:
            return
        super().resumed()
        self._resume()

    def _resume(self) -> None:
        self._sync()
        self._look_after(renew=False)

    def stop(self) -> None:
        """See `Subscription.stop`. What was fetched and not handed out goes back to the server."""
        if self.stopped:
            return
        if self._listener is not None:
            self._listener.silence()
        super().stop()
        if not self._receiving:
            self._return_buffered()

    async def aclose(self, grace: float) -> None:
        """See `Subscription.aclose`."""
        self.stop()
        if self._closed:
            return
        self._closed = True
        if self._check is not None:
            self._check.cancel()
        if self._confirming:
            await asyncio.wait(self._confirming, timeout=grace)
        self._return_buffered()
        await self._retire(grace)
        await self._flush(grace)
        for cancel in self._timers.values():
            cancel()
        error = Revoked(f"{self.source.name!r}: the subscription was closed before the delivery was settled")
        for delivery in list(self._held):
            if self._settles:
                self._refuse(delivery, body_of(RELEASE))
            self._lose(delivery, error)
        if self._listener is not None:
            self._listener.close()
        if self.source.durable is None:
            await self._delete(grace)

    async def _flush(self, grace: float) -> None:
        try:
            await self._wire.flush(max(grace, 0.1))
        except RustStreamError as exc:
            error = LeaseLost(f"{self.source.name!r}: the settlement did not reach the server: {exc}")
            for delivery, verdict in self._late:
                delivery.lost = error
                self._watch.lost(delivery, error, verdict)
        self._late.clear()

    async def _delete(self, grace: float) -> None:
        if not self._online:
            return  # the server removes it by itself, after inactive_threshold
        try:
            async with asyncio.timeout(max(grace, 0.1)):
                await self._link.manager.delete(self.consumer.stream, self.consumer.name)
        except (RustStreamError, TimeoutError) as exc:
            log.debug("%r: its consumer was not deleted: %s", self.source.name, exc)
