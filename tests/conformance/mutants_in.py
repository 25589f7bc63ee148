# mypy: disable-error-code="misc,attr-defined,no-untyped-def,no-any-return,safe-super,override"
"""Broken ways in: sources, content, receiving, settling, losing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ruststream_core.errors import ConnectError, LeaseLost
from ruststream_core.memory import MemoryLog, MemoryQueue
from ruststream_core.settlement import ACK, Ack, Drop, Release, Retry
from ruststream_core.wire import Headers
from tests.conformance.breaking import (
    BrokenBroker,
    BrokenConnection,
    BrokenDelivery,
    BrokenSender,
    BrokenSubscription,
    mutant,
)
from tests.conformance.targets import group, late_reader, lease, reader

change = msgspec.structs.replace

# ------------------------------------------------------------------------------------------------------- wiring


@mutant("sources-are-offline")
class AcceptsForeignSources(BrokenBroker):
    def source(self, source: Any) -> Any:
        known = isinstance(source, str | MemoryQueue | MemoryLog)
        return super().source(source if known else source.name)


@mutant("sources-are-offline")
class NormalisesTwice(BrokenBroker):
    def source(self, source: Any) -> Any:
        found = super().source(source)
        return change(found, name=found.name + "x")


@mutant("features-are-honest", "capabilities-exist")
class ClaimsToSeek(BrokenSubscription):
    @property
    def features(self) -> Any:
        return change(self.__dict__["features"], seek=True)


@mutant("window-meets-demand")
class WindowOfOne(BrokenSubscription):
    window = property(lambda self: 1)


@mutant("window-is-what-was-asked")
class WindowOfItsOwn(BrokenSubscription):
    window = property(lambda self: 1024)


@mutant("ping-answers")
class NoPing(BrokenConnection):
    async def ping(self) -> None:
        raise ConnectError("no answer")


@mutant("unreachable-is-a-connect-error", on=lease)
class RawConnectError(BrokenBroker):
    async def connect(self) -> Any:
        if self._down:
            raise OSError("connection refused")
        return await super().connect()


@mutant("unreachable-is-a-connect-error", on=lease)
class PasswordInError(BrokenBroker):
    async def connect(self) -> Any:
        if self._down:
            raise ConnectError(f"lease://somebody:{self._password}@nowhere cannot be reached")
        return await super().connect()


@mutant("secrets-stay-hidden", on=lease)
class PasswordInRepr(BrokenBroker):
    def __repr__(self) -> str:
        return f"LeaseBroker({self._password!r})"


@mutant("secrets-stay-hidden", on=lease)
class PasswordInLog(BrokenBroker):
    async def connect(self) -> Any:
        import logging

        logging.getLogger("transport").debug("connecting with %s", self._password)
        return await super().connect()


@mutant("broker-is-only-configuration")
class OneConnection(BrokenBroker):
    _only: Any = None

    async def connect(self) -> Any:
        self._only = self._only or await super().connect()
        return self._only


@mutant("stand-in-is-alike")
class OtherStandIn(BrokenBroker):
    remove = 0

    def stand_in(self, clock: Any) -> Any:
        other = super().stand_in(clock)
        other.remove = self.remove + 1
        return other

    def features(self, source: Any) -> Any:
        return change(super().features(source), delay=self.remove < 2)


# ------------------------------------------------------------------------------------------------------ content


class _Alters(BrokenSender):
    def alter(self, out: Any) -> Any:
        raise NotImplementedError

    def send(self, out: Any) -> Any:
        return super().send(self.alter(out))


@mutant("payload-is-unchanged")
class StripsPayloads(_Alters):
    def alter(self, out: Any) -> Any:
        return change(out, payload=out.payload.strip())


@mutant("payload-is-unchanged")
class GivesMemoryviews(BrokenDelivery):
    payload = property(lambda self: memoryview(self.inner.payload))


@mutant("large-payload-is-whole")
class TruncatesPayloads(_Alters):
    def alter(self, out: Any) -> Any:
        return change(out, payload=out.payload[:65_536])


@mutant("largest-payload-passes", on=lease)
class CountsOneByteTooMany(BrokenSender):
    def send(self, out: Any) -> Any:
        return super().send(change(out, payload=out.payload + b"x"))


@mutant("empty-payload-arrives")
class SwallowsEmptyPayloads(BrokenSender):
    def send(self, out: Any) -> Any:
        return super().send(out) if out.payload else None


class _Headers(_Alters):
    def pairs(self, pairs: Any) -> Any:
        raise NotImplementedError

    def alter(self, out: Any) -> Any:
        return change(out, headers=Headers(self.pairs(out.headers.raw())))


@mutant("text-headers-arrive", "retry-comes-again", "request-is-answered")
class ForgetsHeaders(_Headers):
    def pairs(self, pairs: Any) -> Any:
        return ()


@mutant("text-headers-arrive")
class AsciiHeaders(_Headers):
    def pairs(self, pairs: Any) -> Any:
        return [(n, v if isinstance(v, bytes) else v.encode("ascii", "replace")) for n, v in pairs]


@mutant("empty-header-arrives")
class ForgetsEmptyHeaders(_Headers):
    def pairs(self, pairs: Any) -> Any:
        return [(name, value) for name, value in pairs if value]


@mutant("binary-headers-arrive")
class TextOnlyHeaders(_Headers):
    def pairs(self, pairs: Any) -> Any:
        return [(n, v.decode("utf-8", "replace") if isinstance(v, bytes) else v) for n, v in pairs]


@mutant("repeated-headers-arrive")
class MergesHeaders(_Headers):
    def pairs(self, pairs: Any) -> Any:
        return dict(pairs).items()


@mutant("repeated-headers-are-no-surprise", on=lease)
class JoinsHeaders(_Headers):
    def pairs(self, pairs: Any) -> Any:
        joined: dict[str, str] = {}
        for name, value in pairs:
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        return joined.items()


@mutant("headers-are-not-inherited")
class InheritsHeaders(_Headers):
    def pairs(self, pairs: Any) -> Any:
        seen = self.__dict__.setdefault("seen", {})
        seen.update(pairs)
        return seen.items()


@mutant("key-arrives", "lane-follows-key")
class ForgetsKeys(BrokenDelivery):
    key = property(lambda self: None)
    lane = property(lambda self: object())


@mutant("lane-follows-key")
class OneLaneForEach(BrokenDelivery):
    lane = property(lambda self: id(self))


@mutant("delivery-names-its-origin")
class Nameless(BrokenDelivery):
    name = property(lambda self: "")


@mutant("delivery-names-its-origin", "attempts-are-counted")
class CountsFromZero(BrokenDelivery):
    attempt = property(lambda self: self.inner.attempt - 1)


@mutant("placeholder-matches")
class NamesItsSource(BrokenDelivery):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.source_name = inner.home.source.name

    name = property(lambda self: self.source_name)


# ---------------------------------------------------------------------------------------------------- receiving


@mutant("order-is-kept")
class ReordersAKey(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        return list(reversed(await super().receive(limit, linger)))


@mutant("subscribing-is-complete")
class MissesTheFirst(BrokenSubscription):
    missed = False

    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        if not self.missed:
            self.missed = True
            for delivery in await super().receive(1):
                delivery.settle(ACK)
        return await super().receive(limit, linger)


@mutant("limit-is-kept")
class IgnoresTheLimit(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        return await super().receive(limit + 2, linger)


@mutant("backlog-comes-in-chunks")
class OneByOne(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        return await super().receive(1)


@mutant("receive-yields")
class NeverYields(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        return self._take(min(limit, self.window - self.out)) or await super().receive(limit, linger)


@mutant("idle-is-no-end")
class EndsWhenIdle(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        await asyncio.sleep(0)
        return self._take(min(limit, self.window - self.out))


@mutant("window-bounds-what-is-out")
class OverrunsItsWindow(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        await asyncio.sleep(0)
        return self._take(limit) or await super().receive(limit, linger)


@mutant("room-wakes-receive")
class SleepsWhenFull(BrokenSubscription):
    def wake(self) -> bool:
        return False if self.blocked else super().wake()


@mutant("linger-fills")
class NeverLingers(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        return await super().receive(limit)


@mutant("linger-ends")
class LingersForEver(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        return await super().receive(limit, 1e9 if linger else 0.0)


@mutant("stop-ends-receive", "linger-stops")
class SleepsThroughStop(BrokenSubscription):
    def stop(self) -> None:
        self.stopped = True


@mutant("stop-ends-receive")
class FetchesAfterStop(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        return await super().receive(limit, linger) or self._take(limit)


@mutant("stored-messages-wait")
class KeepsNothing(BrokenSender):
    def send(self, out: Any) -> Any:
        return super().send(out) if self._store.subscriptions else None


class _OtherSource(BrokenConnection):
    changes: Any = None

    async def subscribe(self, source: Any, demand: Any, watch: Any) -> Any:
        subscription = await super().subscribe(change(source, **self.changes), demand, watch)
        subscription.features = subscription.features
        return subscription


@mutant("earlier-messages-stay-away", on=late_reader)
class BeginsTooEarly(_OtherSource):
    changes: Any = {"start": "earliest"}


@mutant("released-is-lost", on=late_reader)
@mutant("subscriptions-fan-out", on=reader)
class OneGroupForAll(_OtherSource):
    changes: Any = {"group": "all"}


@mutant("subscriptions-share")
class SendsTwice(BrokenSender):
    def send(self, out: Any) -> Any:
        super().send(out)
        return super().send(out)


@mutant("full-window-blocks-nobody-else")
class SharedReader(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        while any(other.out >= other.window for other in self._store.subscriptions if other is not self):
            await asyncio.sleep(0)
        return await super().receive(limit, linger)


@mutant("receivers-receive-side-by-side")
class ClaimsManyReceivers(BrokenSubscription):
    receivers = 4


# ----------------------------------------------------------------------------------------------------- settling


class _Settles(BrokenDelivery):
    """Settles with something else."""

    def instead(self, verdict: Any) -> Any:
        raise NotImplementedError

    def settle(self, verdict: Any) -> Any:
        other = self.instead(verdict)
        return None if other is None else super().settle(other)


@mutant("ack-is-final")
class RedeliversAfterAck(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        home = self.inner.home
        if verdict is ACK and home is not None and self.inner.attempt == 1 and not home.stopped:
            home._feed.bring_back(self.inner, counted=True)
        return self.inner.settle(verdict)


@mutant("ack-is-known-by-its-type")
class KnowsOneAck(_Settles):
    def instead(self, verdict: Any) -> Any:
        return None if isinstance(verdict, Ack) and verdict is not ACK else verdict


@mutant("unsettled-comes-again")
class SettlesEarly(BrokenDelivery):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        inner.settle(ACK)


@mutant("out-of-order-acks-are-safe")
class AcksAllBefore(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        if verdict is ACK and (home := self.inner.home) is not None:
            for earlier in [d for d in home._hand if d.home is home and d.order < self.inner.order]:
                earlier.settle(ACK)
        return super().settle(verdict)


@mutant("settle-never-raises")
class RefusesDrop(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        if isinstance(verdict, Drop):
            raise NotImplementedError("no drop here")
        return super().settle(verdict)


@mutant("settle-never-raises")
class NeverDecides(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        super().settle(verdict)
        return asyncio.get_running_loop().create_future()


@mutant("settle-never-raises")
class DecidesWithAValue(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        super().settle(verdict)
        done = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done


@mutant("aclose-flushes-settlements")
class HoldsSettlementsBack(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        return asyncio.get_running_loop().create_future()


@mutant("aclose-flushes-settlements")
class ForgetsSettlementsSilently(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        if (home := self.inner.home) is not None:
            home._return(self.inner)


@mutant("settling-outlives-stop")
class SettlesNothingAfterStop(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        home = self.inner.home
        return None if home is not None and home.stopped else super().settle(verdict)


@mutant("retry-comes-again")
class AcksRetries(_Settles):
    def instead(self, verdict: Any) -> Any:
        return ACK if isinstance(verdict, Retry) else verdict


@mutant("attempts-are-counted")
class CountsNothing(BrokenDelivery):
    attempt = property(lambda self: 1)


@mutant("delay-is-kept")
class IgnoresDelays(_Settles):
    def instead(self, verdict: Any) -> Any:
        return Retry() if isinstance(verdict, Retry) else verdict


@mutant("delay-is-kept")
class DelaysForEver(_Settles):
    def instead(self, verdict: Any) -> Any:
        return Retry(after=1e9) if isinstance(verdict, Retry) else verdict


@mutant("delay-holds-nothing-up")
class HoldsItsRoomWhileDelayed(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        if isinstance(verdict, Retry) and (home := self.inner.home) is not None:
            home.out += 1
        return super().settle(verdict)


@mutant("delay-outlives-the-subscription")
class ForgetsTheDelayed(BrokenSubscription):
    async def aclose(self, grace: float) -> None:
        await super().aclose(grace)
        for token in list(self._store.timers._pending):
            self._store.timers._cancel(token)


@mutant("drop-is-final")
class RetriesDrops(_Settles):
    def instead(self, verdict: Any) -> Any:
        return Retry() if isinstance(verdict, Drop) else verdict


@mutant("drop-goes-to-the-dead-letter")
class DiscardsDrops(_Settles):
    def instead(self, verdict: Any) -> Any:
        return ACK if isinstance(verdict, Drop) else verdict


@mutant("release-comes-again", "drain-is-accounted")
class IgnoresRelease(_Settles):
    def instead(self, verdict: Any) -> Any:
        return ACK if isinstance(verdict, Release) else verdict


@mutant("release-comes-again")
class CountsReleases(_Settles):
    def instead(self, verdict: Any) -> Any:
        return Retry() if isinstance(verdict, Release) else verdict


@mutant("release-makes-room")
class HoldsItsRoomWhenReleased(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        if isinstance(verdict, Release) and (home := self.inner.home) is not None:
            home.out += 1
        return super().settle(verdict)


@mutant("drain-is-accounted", "fetched-messages-go-back")
class LosesOnStop(BrokenSubscription):
    def stop(self) -> None:
        super().stop()
        self._feed.ready.clear()


@mutant("statistics-are-right")
class CountsNoUnsettled(BrokenSubscription):
    def statistics(self) -> Any:
        return change(super().statistics(), unsettled=0)


@mutant("statistics-are-right")
class AlwaysReceiving(BrokenSubscription):
    def statistics(self) -> Any:
        return change(super().statistics(), state="receiving")


# ------------------------------------------------------------------------------------------------------- losing


@mutant("waiting-deliveries-are-kept", on=lease)
class KeepsNoLease(BrokenSubscription):
    def keep(self, delivery: Any) -> None:
        pass


@mutant("draining-deliveries-are-kept", on=lease)
class KeepsNoLeaseAfterStop(BrokenSubscription):
    def keep(self, delivery: Any) -> None:
        if not self.stopped:
            super().keep(delivery)


@mutant("abandoned-lease-ends", "unsettled-comes-again", on=lease)
class ForgetsWhatIsInHand(BrokenSubscription):
    async def aclose(self, grace: float) -> None:
        for delivery in self._hand:
            self.end_lease(delivery)
        self._hand.clear()
        await super().aclose(grace)


@mutant("loss-is-told-once", "late-settlement-changes-nothing", on=lease)
class ReportsNothingLost(BrokenSubscription):
    def expire(self, delivery: Any) -> None:
        self.outer.pop(id(delivery))
        super().expire(delivery)


@mutant("loss-is-told-once", on=lease)
class ReportsLossTwice(BrokenSubscription):
    def expire(self, delivery: Any) -> None:
        error = LeaseLost("the lease ran out")
        outer = self.outer[id(delivery)]
        self.lose(delivery, error)
        self._watch._watch.lost(outer, error, None)


@mutant("loss-frees-its-room-once", on=lease)
class FreesItsRoomTwice(BrokenSubscription):
    def expire(self, delivery: Any) -> None:
        super().expire(delivery)
        self.out -= 2


@mutant("late-settlement-changes-nothing", on=lease)
class LateSettlementCounts(BrokenDelivery):
    def settle(self, verdict: Any) -> Any:
        if self.inner.lost is not None:
            self.inner.owner._feed._returned.clear()
        return self.inner.settle(verdict)


@mutant("commit-of-a-lost-delivery-fails", on=group)
class CommitsLostDeliveries(BrokenSubscription):
    async def begin(self, deliveries: Any) -> Any:
        unit = await super().begin(deliveries)
        commit = unit.commit
        unit.commit = lambda verdicts: commit([pair for pair in verdicts if pair[0].lost is None])
        return unit
