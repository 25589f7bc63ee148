"""Keeping what is in hand alive, and losing it."""

from __future__ import annotations

import asyncio
from typing import cast

from ruststream_core.abc import Demand, Transactions
from ruststream_core.conformance._check import Condition, check, feature, hook
from ruststream_core.conformance._lab import Lab, Tap, numbered, settled
from ruststream_core.errors import SettleError
from ruststream_core.settlement import ACK
from ruststream_core.wire import Delivery

_settles = feature("settles")
_leased: Condition = hook("lease")
_can_lose: tuple[Condition, ...] = (feature("loses"), hook("lose"))


async def _rival(lab: Lab) -> Tap | None:
    """Somebody else who would get what is not kept; None where that cannot be."""
    if lab.target.group_of_one or lab.features.fan_out:
        return None
    return await lab.open(connection=await lab.connect())


@check("A delivery is kept alive from receive until it is settled, longer than its lease.", _settles, _leased)
async def waiting_deliveries_are_kept(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    rival = await _rival(lab)
    waiting = None if rival is None else rival.start()
    lab.step = "outlasting the lease twice"
    await lab.target.pass_time(2.5 * (lab.target.lease or 0))
    lab.expect(waiting is None or not waiting.done(), "another subscription got a delivery that was still in hand")
    lab.expect(not tap.watch.losses, "a delivery in hand was reported lost")
    await tap.settle(*chunk)
    if rival is not None:
        await rival.nothing("everything was settled")
        await rival.close()
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check("Keeping goes on after stop, until what is in hand is settled.", _settles, _leased)
async def draining_deliveries_are_kept(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    chunk += await tap.drain()
    lab.step = "outlasting the lease twice, after stop"
    await lab.target.pass_time(2.5 * (lab.target.lease or 0))
    lab.expect(not tap.watch.losses, "a delivery in hand was reported lost while draining")
    await tap.settle(*chunk)
    lab.expect(not tap.watch.losses, "a delivery was lost although it was settled in time")
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check(
    "What was never kept by anybody comes again when its lease is over.", _settles, _leased, feature("retry", "broker")
)
async def abandoned_lease_ends(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"message")
    await tap.take(1)
    await tap.close()
    tap = await lab.reopen(tap)
    await tap.settle(*await tap.take(1, "a message whose lease is over"))


async def _lose_one(lab: Lab, tap: Tap) -> Delivery:
    assert lab.target.lose is not None
    (delivery,) = await tap.take(1)
    await lab.target.lose(tap.subscription, delivery)
    lab.step = "waiting for Watch.lost"
    await tap.watch.wait_for_losses(1)
    return delivery


@check("A lost delivery is reported once, with `lost` set before, and makes room.", *_can_lose)
async def loss_is_told_once(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(prefetch=1))
    await lab.publish(b"message")
    delivery = await _lose_one(lab, tap)
    lost, error, verdict = tap.watch.losses[0]
    lab.expect(lost is delivery, "Watch.lost was given another object than receive had returned")
    lab.expect(isinstance(error, SettleError), f"the reason is a {type(error).__name__}, no SettleError")
    lab.expect(delivery.lost is error, f"delivery.lost is {delivery.lost!r}, Watch.lost was told {error!r}")
    lab.expect(verdict is None, f"the verdict is {verdict!r}, nothing was settled")
    lab.equal(tap.subscription.statistics().unsettled, 0, "statistics().unsettled after the loss")
    delivery.settle(ACK)
    await tap.close()
    lab.equal(len(tap.watch.losses), 1, "calls of Watch.lost for one loss")


@check("Settling a lost delivery changes nothing: the message still comes again.", *_can_lose, _settles)
async def late_settlement_changes_nothing(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"message")
    delivery = await _lose_one(lab, tap)
    late = delivery.settle(ACK)
    lab.expect(late is None or late.done(), "the settlement of a lost delivery is pending")
    tap = await lab.reopen(tap)
    (again,) = await tap.take(1, "a message that was lost and then settled")
    lab.equal(again.payload, b"message", "what came again")
    await tap.settle(again)


@check("Losing is never counted as a settlement: unsettled goes down by one, not by two.", *_can_lose)
async def loss_frees_its_room_once(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(2))
    delivery = await _lose_one(lab, tap)
    delivery.settle(ACK)
    await asyncio.sleep(0)
    lab.expect(tap.subscription.statistics().unsettled >= 0, "statistics().unsettled is below zero")


@check(
    "A unit over a lost delivery does not commit: SettleError, nothing becomes visible, and all comes again.",
    *_can_lose,
    feature("transactions"),
)
async def commit_of_a_lost_delivery_fails(lab: Lab) -> None:
    tap = await lab.open()
    other = await lab.open(await lab.other_name())
    await lab.publish(b"message")
    delivery = await _lose_one(lab, tap)
    unit = await cast("Transactions", tap.subscription).begin([delivery])
    await settled([unit.send(lab.out(b"never", to=other.subscription_name))])
    await lab.raises(SettleError, lambda: unit.commit([(delivery, ACK)]), "committing a lost delivery")
    lab.equal([d.payload for d in await other.until_marker()], [], "what the unit sent")
    tap = await lab.reopen(tap)
    await tap.settle(*await tap.take(1, "a message whose unit could not commit"))
