"""Positions, outages and injected faults."""

from __future__ import annotations

import asyncio
from typing import cast

from ruststream_core.abc import FaultInjection, Positioned, Seekable
from ruststream_core.conformance._check import Condition, check, feature, hook
from ruststream_core.conformance._lab import Lab, Tap, numbered, settled
from ruststream_core.errors import ConfigError, ConnectError, PublishError, SettleError, Superseded
from ruststream_core.settlement import ACK

_seeks = feature("seek")
_outage: Condition = hook("outage")


@check("Seeking to a delivery's position brings that very message, and all that follow.", _seeks)
async def seek_is_inclusive(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(6))
    chunk = await tap.take(6)
    position = cast("Positioned", tap.subscription).position(chunk[3])
    await tap.settle(*chunk)
    lab.step = "seeking"
    await cast("Seekable", tap.subscription).seek(position)
    again = [d.payload for d in await tap.until_marker()]
    lab.equal(again, numbered(3, 3), "what came after seeking to the position of message 3")


@check(
    "What is in hand when a subscription seeks is lost as Superseded, told once, and comes again by its position.",
    _seeks,
)
async def seek_supersedes(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    await tap.settle(chunk[0])
    position = cast("Positioned", tap.subscription).position(chunk[1])
    await cast("Seekable", tap.subscription).seek(position)
    lab.step = "waiting for Watch.lost after a seek"
    await tap.watch.wait_for_losses(2)
    lab.equal([d for d, _, _ in tap.watch.losses], chunk[1:], "the deliveries that were reported lost")
    kinds = {type(error).__name__ for _, error, _ in tap.watch.losses if not isinstance(error, Superseded)}
    lab.expect(not kinds, f"they were lost as {kinds}, not as Superseded")
    await tap.settle(*chunk[1:])
    again = [d.payload for d in await tap.until_marker()]
    lab.equal(again, numbered(2, 1), "what came after the seek")
    lab.equal(len(tap.watch.losses), 2, "calls of Watch.lost")


@check("What is no position is a ConfigError, and the subscription goes on as if nothing had been.", _seeks)
async def wrong_position_is_refused(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"one")
    (delivery,) = await tap.take(1)
    seekable = cast("Seekable", tap.subscription)
    await lab.raises(ConfigError, lambda: seekable.seek(object()), "seeking to an object()")
    lab.expect(delivery.lost is None, "a refused seek lost what was in hand")
    await tap.settle(delivery)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came after a refused seek")


# -------------------------------------------------------------------------------------------------------- outages


async def _break(lab: Lab) -> None:
    assert lab.target.outage is not None
    lab.step = "the outage itself"
    await lab.target.outage()


async def _publish_again(lab: Lab, tap: Tap, payload: bytes) -> None:
    """Publish until one is accepted; while the sender reconnects it may refuse."""
    sender = await lab.sender()
    lab.step = "publishing after an outage"
    while True:
        try:
            await settled([sender.send(lab.out(payload, to=tap.subscription_name))])
            await sender.flush()
        except (PublishError, ConnectError):
            await asyncio.sleep(0.05)
        else:
            return


@check("After an outage a waiting subscription resumes by itself, and says that it was interrupted.", _outage)
async def outage_is_survived(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"before")
    await tap.settle(*await tap.take(1))
    waiting = tap.start()
    await asyncio.wait([waiting], timeout=0.05)
    await _break(lab)
    lab.step = "waiting for a message after an outage"
    # What is published while a subscription that stores nothing is away is gone, so one is not enough.
    while not waiting.done():
        await _publish_again(lab, tap, b"after")
        await asyncio.wait([waiting], timeout=2 * lab.target.quiet)
    chunk = await tap.receive()
    lab.expect(chunk, "receive ended after an outage")
    lab.equal(chunk[0].payload, b"after", "the first message after the outage")
    await tap.settle(*chunk)
    lab.expect("interrupted" in tap.watch.states, f"Watch.state was told {tap.watch.states}, no interruption")
    lab.equal(tap.subscription.statistics().state, "receiving", "the state after the outage")


@check("What waits at the broker is there after an outage.", _outage, feature("stored"), feature("settles"))
async def outage_keeps_what_is_stored(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(5))
    await _break(lab)
    got: set[bytes] = set()
    while len(got) < 5:
        lab.step = f"waiting for 5 stored messages after an outage, {len(got)} came"
        for delivery in await tap.receive(5) or lab.fail("receive ended after an outage"):
            if delivery.lost is None:
                got.add(delivery.payload)
                await tap.settle(delivery)
    lab.equal(got, set(numbered(5)), "what came after the outage")


@check(
    "What was in hand at an outage can be settled, or is reported lost and comes again; never neither.",
    _outage,
    feature("settles"),
)
async def outage_decides_what_is_in_hand(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    await _break(lab)
    if not lab.features.survives_outage:
        lab.step = "waiting for Watch.lost: what is in hand does not survive an outage here"
        await tap.watch.wait_for_losses(3)
    await _publish_again(lab, tap, b"after")
    await tap.settle(*chunk)
    lost = [delivery.payload for delivery, _, _ in tap.watch.losses]
    lab.equal(len(lost), len(set(lost)), "calls of Watch.lost, against deliveries lost")
    lab.expect(all(isinstance(error, SettleError) for _, error, _ in tap.watch.losses), "a loss without SettleError")
    if lab.features.survives_outage:
        lab.equal(lost, [], "deliveries reported lost, although they survive an outage")
    tap = await lab.reopen(tap)
    came = [delivery.payload for delivery in await tap.until_marker()]
    again = sorted({payload for payload in came if payload != b"after"})
    if lab.features.survives_outage:
        lab.equal(again, [], "what came again although it was settled after the outage")
    else:
        lab.equal(again, sorted(lost), "what came again, against what was lost")


@check("A connection answers a ping again after an outage.", _outage)
async def outage_ends_for_ping(lab: Lab) -> None:
    connection = await lab.connection()
    await connection.ping()
    await _break(lab)
    lab.step = "waiting for a ping to be answered after an outage"
    while True:
        try:
            await connection.ping()
        except ConnectError:
            await asyncio.sleep(0.05)
        else:
            return


# --------------------------------------------------------------------------------------------------------- faults


def _faulty(target: object, _: object) -> str | None:
    broker = target.make_broker()  # type: ignore[attr-defined]
    return None if isinstance(broker, FaultInjection) else "the broker injects no faults"


@check("The fault duplicate delivers a message twice.", _faulty)
async def fault_duplicates(lab: Lab) -> None:
    tap = await lab.open()
    cast("FaultInjection", lab.broker).inject("duplicate", 1)
    await lab.publish(*numbered(2))
    came = [delivery.payload for delivery in await tap.until_marker()]
    lab.equal(sorted(came), [b"message 0", b"message 0", b"message 1"], "what came")


@check("The fault reorder delivers a message after the one that follows.", _faulty)
async def fault_reorders(lab: Lab) -> None:
    tap = await lab.open()
    cast("FaultInjection", lab.broker).inject("reorder", 1)
    await lab.publish(*numbered(3))
    came = [delivery.payload for delivery in await tap.until_marker()]
    lab.equal(sorted(came), numbered(3), "what came")
    lab.expect(came.index(b"message 0") > came.index(b"message 1"), f"the order was {came}")


@check("The fault crash_before_settle loses a settlement and brings the message again.", _faulty, feature("settles"))
async def fault_loses_a_settlement(lab: Lab) -> None:
    tap = await lab.open()
    cast("FaultInjection", lab.broker).inject("crash_before_settle", 1)
    await lab.publish(b"message")
    (delivery,) = await tap.take(1)
    await settled([delivery.settle(ACK)])
    (again,) = await tap.take(1, "a message whose settlement was lost")
    lab.equal(again.payload, b"message", "what came again")
    lab.equal([(d, v) for d, _, v in tap.watch.losses], [(delivery, ACK)], "what Watch.lost was told")
    await tap.settle(again)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what else came")


@check("The fault disconnect interrupts, and the subscription resumes.", _faulty)
async def fault_disconnects(lab: Lab) -> None:
    tap = await lab.open()
    cast("FaultInjection", lab.broker).inject("disconnect", 1)
    await lab.publish(b"message")
    await tap.settle(*await tap.take(1, "a message behind an outage"))
    lab.expect("interrupted" in tap.watch.states, f"Watch.state was told {tap.watch.states}, no interruption")
    lab.equal(tap.subscription.statistics().state, "receiving", "the state afterwards")


@check("inject with times=0 takes back what is left.", _faulty)
async def fault_is_taken_back(lab: Lab) -> None:
    tap = await lab.open()
    faulty = cast("FaultInjection", lab.broker)
    faulty.inject("duplicate", 5)
    faulty.inject("duplicate", 0)
    await lab.publish(*numbered(3))
    lab.equal([d.payload for d in await tap.until_marker()], numbered(3), "what came")
