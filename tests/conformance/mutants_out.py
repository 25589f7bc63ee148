# mypy: disable-error-code="misc,attr-defined,no-untyped-def,no-any-return,safe-super,override"
"""Broken ways out: closing, sending, requests, transactions, positions, outages, faults."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ruststream_core.errors import ConfigError, ConnectError, PublishError, Revoked
from ruststream_core.settlement import ACK
from ruststream_core.wire import Headers
from tests.conformance.breaking import BrokenBroker, BrokenConnection, BrokenSender, BrokenSubscription, mutant, soon
from tests.conformance.targets import group, lease, reader

change = msgspec.structs.replace

# ------------------------------------------------------------------------------------------------------- ending


@mutant("aclose-is-idempotent")
class ClosesOnce(BrokenSubscription):
    async def aclose(self, grace: float) -> None:
        if not self._open:
            raise RuntimeError("closed already")
        await super().aclose(grace)


@mutant("closed-sender-refuses")
class SendsAfterClose(BrokenSender):
    async def aclose(self, grace: float) -> None:
        pass


@mutant("closed-connection-refuses")
class ServesAfterClose(BrokenConnection):
    async def aclose(self, grace: float) -> None:
        for subscription in self._subscriptions:
            await subscription.aclose(grace)


@mutant("aclose-flushes-sends")
class ForgetsWhatIsOnItsWay(BrokenSender):
    def send(self, out: Any) -> Any:
        return soon(lambda: None if self._closed else self._store.publish(out))


@mutant("aclose-is-bounded")
class HangsInClose(BrokenSubscription):
    async def aclose(self, grace: float) -> None:
        if self.out:
            await asyncio.Event().wait()
        await super().aclose(grace)


@mutant("fetched-messages-go-back")
class CountsWhatItOnlyFetched(BrokenSubscription):
    def stop(self) -> None:
        for delivery in self._feed.take(100):
            self._feed.bring_back(delivery, counted=True)
        super().stop()


@mutant("no-task-is-left")
class LeaksATask(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        if "heartbeat" not in self.__dict__:
            self.heartbeat = asyncio.create_task(asyncio.Event().wait(), name="heartbeat")
            asyncio.get_running_loop().call_later(5, self.heartbeat.cancel)
        return await super().receive(limit, linger)


@mutant("closing-wakes-receive")
class ClosesOnlyItself(BrokenConnection):
    async def aclose(self, grace: float) -> None:
        self._closed = True


@mutant("terminal-error-is-raised", on=lease)
class HidesATerminalError(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        try:
            return await super().receive(limit, linger)
        except ConfigError:
            return ()


@mutant("terminal-error-is-raised", on=lease)
class RaisesTheClientsError(BrokenSubscription):
    async def receive(self, limit: int, linger: float = 0.0) -> Any:
        try:
            return await super().receive(limit, linger)
        except ConfigError as exc:
            raise KeyError("queue") from exc


@mutant("terminal-error-is-raised", on=lease)
class AliveAndSilent(BrokenSubscription):
    def fail(self, error: Any) -> None:
        pass


# ------------------------------------------------------------------------------------------------------ sending


@mutant("sends-keep-their-order")
class SendsEveryOtherLater(BrokenSender):
    number = 0

    def send(self, out: Any) -> Any:
        self.number += 1
        if self.number % 2:
            return soon(lambda: self._store.publish(out))
        return super().send(out)


@mutant("send-many-sends-all")
class ForgetsTheLast(BrokenSender):
    async def send_many(self, outs: Any) -> None:
        await super().send_many(outs[:-1])


@mutant("unsendable-is-refused")
class SwallowsRefusals(BrokenSender):
    def send(self, out: Any) -> Any:
        try:
            return super().send(out)
        except PublishError:
            return None


@mutant("unsendable-is-refused")
class BreaksAfterARefusal(BrokenSender):
    def send(self, out: Any) -> Any:
        try:
            return super().send(out)
        except PublishError:
            self._closed = True
            raise


@mutant("send-many-names-failures")
class NamesNoFailure(BrokenSender):
    async def send_many(self, outs: Any) -> None:
        try:
            await super().send_many(outs)
        except PublishError as exc:
            raise PublishError("some were refused") from exc


@mutant("send-many-names-failures")
class NamesEveryMessage(BrokenSender):
    async def send_many(self, outs: Any) -> None:
        try:
            await super().send_many(outs)
        except PublishError as exc:
            raise PublishError("some were refused", failed=dict.fromkeys(range(len(outs)), exc)) from exc


@mutant("cancelled-confirmation-is-harmless")
class TakesBackWhatIsCancelled(BrokenSender):
    def send(self, out: Any) -> Any:
        return soon(lambda: self._store.publish(out))


class _Asks(BrokenConnection):
    """`request` with another message or another limit."""

    async def request(self, out: Any, timeout: float) -> Any:
        return await super().request(*self.instead(out, timeout))

    def instead(self, out: Any, timeout: float) -> Any:
        raise NotImplementedError


@mutant("request-is-answered")
class AsksWithoutHeaders(_Asks):
    def instead(self, out: Any, timeout: float) -> Any:
        return change(out, headers=Headers()), timeout


@mutant("request-times-out")
class WaitsForEver(_Asks):
    def instead(self, out: Any, timeout: float) -> Any:
        return out, 1e9


@mutant("requests-get-their-own-answers")
class MixesUpAnswers(BrokenConnection):
    async def request(self, out: Any, timeout: float) -> Any:
        waiting = self.__dict__.setdefault("waiting", [])
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        task = asyncio.ensure_future(super().request(out, timeout))
        task.add_done_callback(lambda done: waiting.pop(0).set_result(done.result()))
        return await mine


# ------------------------------------------------------------------------------------------------- transactions


class _Unit(BrokenSubscription):
    """Units with something else instead of their methods."""

    def spoil(self, unit: Any) -> None:
        raise NotImplementedError

    async def begin(self, deliveries: Any) -> Any:
        unit = await super().begin(deliveries)
        self.spoil(unit)
        return unit


@mutant("commit-does-both", "rollback-undoes-all")
class ShowsWhatIsNotCommitted(_Unit):
    def spoil(self, unit: Any) -> None:
        unit.send = self._store.publish


@mutant("commit-does-both")
class CommitsHalf(_Unit):
    def spoil(self, unit: Any) -> None:
        commit = unit.commit
        unit.commit = lambda _: commit([])


@mutant("rollback-undoes-all")
class SettlesOnRollback(BrokenSubscription):
    async def begin(self, deliveries: Any) -> Any:
        unit = await super().begin(deliveries)
        unit.rollback = lambda: unit.commit([(delivery, ACK) for delivery in deliveries])
        return unit


@mutant("commit-takes-any-verdict")
class CommitsAcksOnly(_Unit):
    def spoil(self, unit: Any) -> None:
        commit = unit.commit
        unit.commit = lambda verdicts: commit([(delivery, ACK) for delivery, _ in verdicts])


@mutant("send-transactions-are-whole")
class SendsBeforeTheCommit(BrokenSender):
    async def begin(self) -> Any:
        unit: Any = await super().begin()
        unit.send = self._store.publish
        return unit


@mutant("unit-ends-once")
class UnitNeverEnds(_Unit):
    def spoil(self, unit: Any) -> None:
        unit._end = lambda: None


# ---------------------------------------------------------------------------------------------------- positions


@mutant("seek-is-inclusive", on=group)
@mutant("seek-is-inclusive", on=reader)
class SeeksBehind(BrokenSubscription):
    async def seek(self, position: Any) -> None:
        await super().seek(position + 1)


@mutant("seek-supersedes", on=group)
class SeeksSilently(BrokenSubscription):
    def tell_lost(self, delivery: Any, error: Any) -> None:
        pass


@mutant("seek-supersedes", on=group)
class SeeksAsRevoked(BrokenSubscription):
    def supersede(self, error: Any) -> Any:
        return super().supersede(Revoked("moved"))

    def tell_lost(self, delivery: Any, error: Any) -> None:
        super().tell_lost(delivery, delivery.lost)


@mutant("wrong-position-is-refused", on=group)
class SeeksAnywhere(BrokenSubscription):
    async def seek(self, position: Any) -> None:
        await super().seek(position if isinstance(position, int) else "earliest")


# ------------------------------------------------------------------------------------------------------ outages


@mutant("outage-is-survived", on=lease)
class SilentAfterAnOutage(BrokenSubscription):
    def interrupt(self) -> None:
        super().interrupt()
        self._feed.waiting.clear()


@mutant("outage-is-survived", on=lease)
class SaysNothingOfAnOutage(BrokenSubscription):
    def _tell(self, state: Any, cause: Any) -> None:
        if state == "ended":
            super()._tell(state, cause)


@mutant("outage-keeps-what-is-stored", on=lease)
class ForgetsInAnOutage(BrokenSubscription):
    def interrupt(self) -> None:
        super().interrupt()
        self._feed.ready.clear()


@mutant("outage-decides-what-is-in-hand", on=lease)
class LosesSilentlyInAnOutage(BrokenSubscription):
    def interrupt(self) -> None:
        self.outer.clear()
        super().interrupt()


@mutant("outage-decides-what-is-in-hand", on=lease)
class LosesForGoodInAnOutage(BrokenSubscription):
    def interrupt(self) -> None:
        super().interrupt()
        self._feed._returned.clear()


@mutant("outage-ends-for-ping", on=lease)
class NeverReconnects(BrokenBroker):
    def outage(self) -> None:
        super().outage()
        for connection in self.connections:
            connection.ping = _no_answer


async def _no_answer() -> None:
    raise ConnectError("no answer")


# ------------------------------------------------------------------------------------------------------- faults


@mutant("fault-duplicates", "fault-reorders", "fault-loses-a-settlement", "fault-disconnects")
class InjectsNothing(BrokenBroker):
    def inject(self, fault: Any, times: int) -> None:
        pass


@mutant("fault-is-taken-back")
class TakesNoFaultBack(BrokenBroker):
    def inject(self, fault: Any, times: int) -> None:
        super().inject(fault, times or 1)
