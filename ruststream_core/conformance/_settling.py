"""What becomes of a settled message."""

from __future__ import annotations

import asyncio
from typing import Final

from ruststream_core.abc import Demand
from ruststream_core.conformance._check import Condition, check, feature, hook, lacks
from ruststream_core.conformance._lab import Lab, numbered
from ruststream_core.settlement import ACK, RELEASE, Ack, Drop, Retry, Verdict
from ruststream_core.wire import Headers

DELAY: Final = 2.0
"""Seconds that a delayed retry asks for. Longer than any target's quiet time should be."""

_settles = feature("settles")
_brings_back = feature("retry", "broker")
_released: Condition = feature("release", "free", "counts")


@check("A message that was acknowledged never comes again.", _settles)
async def ack_is_final(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(5))
    await tap.settle(*await tap.take(5))
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again in the same subscription")
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again in a new subscription")


@check("Any instance of Ack acknowledges.", _settles)
async def ack_is_known_by_its_type(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"message")
    await tap.settle(*await tap.take(1), verdict=Ack())
    lab.equal(tap.subscription.statistics().unsettled, 0, "statistics().unsettled")
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check("A message that was not settled comes again in a new subscription.", _settles)
async def unsettled_comes_again(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    await tap.take(3)
    tap = await lab.reopen(tap)
    again = await tap.take(3, "messages that the last subscription left unsettled")
    lab.equal(sorted(d.payload for d in again), numbered(3), "what came again")
    await tap.settle(*again)


@check(
    "Acknowledging out of order loses nothing: what is unsettled comes again, whatever was settled after it.", _settles
)
async def out_of_order_acks_are_safe(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(5))
    chunk = await tap.take(5)
    await tap.settle(chunk[4], chunk[0], chunk[3])
    tap = await lab.reopen(tap)
    again = [d.payload for d in await tap.until_marker()]
    lab.expect(set(again) >= {b"message 1", b"message 2"}, f"two messages were not settled, {again} came again")
    lab.expect(b"message 0" not in again, "the first message was acknowledged and came again")
    if lab.features.retry == "broker":
        lab.equal(sorted(again), [b"message 1", b"message 2"], "what came again")


@check("settle returns None or a future that resolves with None, and never raises, whatever the verdict.")
async def settle_never_raises(lab: Lab) -> None:
    tap = await lab.open()
    verdicts: list[Verdict] = [ACK, RELEASE, Retry(), Drop("no use"), Ack()]
    await lab.publish(*numbered(len(verdicts)))
    chunk = await tap.take(len(verdicts))
    lab.step = "settling with one verdict of each kind"
    pending = [delivery.settle(verdict) for delivery, verdict in zip(chunk, verdicts, strict=True)]
    lab.step = "waiting for pending settlements"
    for future in pending:
        if future is not None:
            lab.expect(asyncio.isfuture(future), f"settle returned {future!r}")
            result: object = (await asyncio.gather(future))[0]
            lab.expect(result is None, f"a settlement's future resolved with {result!r}")


@check("Settlements that nobody awaited are flushed by aclose.", _settles)
async def aclose_flushes_settlements(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(20))
    pending = [delivery.settle(ACK) for delivery in await tap.take(20)]
    await tap.close()
    for future in pending:
        lab.expect(future is None or future.done(), "aclose returned, and a settlement is still pending")
    lost = sorted(delivery.payload for delivery, _, _ in tap.watch.losses)
    tap = await lab.reopen(tap)
    again = sorted(delivery.payload for delivery in await tap.until_marker())
    lab.equal(again, lost, "what came again after aclose, against what it reported lost")


@check("Settling goes on after stop.", _settles)
async def settling_outlives_stop(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    late = await tap.drain()
    lab.equal(late, [], "what receive gave after stop")
    await tap.settle(*chunk)
    lab.equal(len(tap.watch.losses), 0, "deliveries reported lost after stop")
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check("A retried message comes again, unchanged, to the same subscription.", _brings_back)
async def retry_comes_again(lab: Lab) -> None:
    tap = await lab.open()
    headers = Headers([("x-check-a", "1")]) if lab.features.headers != "none" else Headers()
    await lab.send(lab.out(b"message", headers=headers))
    (first,) = await tap.take(1)
    await tap.settle(first, verdict=Retry())
    (again,) = await tap.take(1, "a message that was retried")
    lab.equal(again.payload, b"message", "the payload")
    if lab.features.headers != "none":
        lab.equal(again.headers.get("x-check-a"), "1", "its header")
    if lab.features.keys:
        lab.equal(again.key, first.key, "its key")
    lab.equal(again.name, first.name, "its name")
    await tap.settle(again)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came after the second time was acknowledged")


@check("The broker counts deliveries, from 1.", _brings_back, feature("attempts", "broker"))
async def attempts_are_counted(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"message")
    for attempt in (1, 2, 3):
        (delivery,) = await tap.take(1, f"attempt {attempt}")
        lab.equal(delivery.attempt, attempt, "the attempt")
        await tap.settle(delivery, verdict=ACK if attempt == 3 else Retry())
    await lab.publish(b"another")
    (delivery,) = await tap.take(1)
    lab.equal(delivery.attempt, 1, "the attempt of another message")
    await tap.settle(delivery)


@check("A delayed retry comes after its delay, not before.", _brings_back, feature("delay"))
async def delay_is_kept(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"later")
    await tap.settle(*await tap.take(1), verdict=Retry(after=DELAY))
    await tap.nothing(f"a retry was delayed by {DELAY} s")
    await lab.target.pass_time(DELAY)
    (delivery,) = await tap.take(1, "a retry whose delay is over")
    lab.equal(delivery.payload, b"later", "the payload")
    if lab.features.attempts == "broker":
        lab.equal(delivery.attempt, 2, "the attempt")
    await tap.settle(delivery)


@check("A delayed retry keeps no other message waiting, and does not fill the window.", _brings_back, feature("delay"))
async def delay_holds_nothing_up(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(prefetch=1))
    if tap.subscription.window > 1:
        await lab.publish(b"later", b"next")
    else:
        await lab.publish(b"later")
    await tap.settle(*await tap.take(1), verdict=Retry(after=DELAY))
    if tap.subscription.window == 1:
        await lab.publish(b"next")
    (delivery,) = await tap.take(1, "the next message beside a delayed one")
    lab.equal(delivery.payload, b"next", "the message that comes while another is delayed")
    await tap.settle(delivery)


@check("A delayed retry outlives the subscription that asked for it.", _brings_back, feature("delay"))
async def delay_outlives_the_subscription(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"later")
    await tap.settle(*await tap.take(1), verdict=Retry(after=DELAY))
    tap = await lab.reopen(tap)
    await lab.target.pass_time(DELAY)
    await tap.settle(*await tap.take(1, "a retry that an earlier subscription delayed"))


@check("A dropped message never comes again to its source.", _settles, feature("drop", "discard", "dead_letter"))
async def drop_is_final(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(2))
    chunk = await tap.take(2)
    await tap.settle(*chunk, verdict=Drop("no use"))
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check(
    "A dropped message goes to the broker's own dead letter, unchanged.",
    feature("drop", "dead_letter"),
    hook("dead_letter"),
)
async def drop_goes_to_the_dead_letter(lab: Lab) -> None:
    assert lab.target.dead_letter is not None
    tap = await lab.open()
    dead = await lab.open(lab.target.new_name(), source=lab.target.dead_letter(lab.name))
    await lab.publish(b"good", b"bad")
    good, bad = await tap.take(2)
    await tap.settle(good)
    await tap.settle(bad, verdict=Drop("no use"))
    (delivery,) = await dead.take(1, "a dropped message in the dead letter")
    lab.equal(delivery.payload, b"bad", "what came to the dead letter")
    await dead.settle(delivery)
    await dead.nothing("one message was dropped")


@check("A released message comes again, in this subscription or the next one.", _settles, _released)
async def release_comes_again(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    await tap.drain()
    await tap.settle(chunk[0])
    await tap.settle(*chunk[1:], verdict=RELEASE)
    lab.equal(len(tap.watch.losses), 0, "deliveries reported lost")
    await tap.close()
    tap = await lab.open()
    again = await tap.take(2, "messages that were released")
    lab.equal([d.payload for d in again], [b"message 1", b"message 2"], "what came again, in its order")
    if lab.features.attempts == "broker":
        wanted = 1 if lab.features.release == "free" else 2
        lab.equal([d.attempt for d in again], [wanted, wanted], f"the attempts, release is {lab.features.release!r}")
    await tap.settle(*again)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what else came")


@check("A released message is out of the window at once.", feature("release", "free", "counts", "lost"))
async def release_makes_room(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    await tap.drain()
    await tap.settle(*chunk, verdict=RELEASE)
    lab.equal(tap.subscription.statistics().unsettled, 0, "statistics().unsettled after all were released")


@check(
    "Where release is declared as lost, a released message comes to nobody.",
    feature("release", "lost"),
    lacks("stored"),
)
async def released_is_lost(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"message")
    await tap.settle(*await tap.take(1), verdict=RELEASE)
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check("The books balance: every message is acknowledged once, or comes again after the drain.", _settles)
async def drain_is_accounted(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(prefetch=8))
    payloads = numbered(20)
    await lab.publish(*payloads)
    handed = await tap.take(6)
    await tap.settle(*handed[:4])
    late = await tap.drain()
    before = tap.subscription.statistics()
    lab.equal(before.unsettled, 2 + len(late), "statistics().unsettled while draining")
    await tap.settle(*handed[4:], *late, verdict=RELEASE)
    await tap.close()
    lab.equal(tap.subscription.statistics().unsettled, 0, "statistics().unsettled after aclose")
    lab.expect(not tap.watch.losses, "a delivery was reported lost although it had been settled")
    if lab.features.release != "lost":
        tap = await lab.reopen(tap)
        again = [d.payload for d in await tap.until_marker()]
        lab.equal(sorted(again), sorted(payloads[4:]), "what came again after 4 of 20 were acknowledged")


@check("statistics() counts what is out, says when a message came, and its counters never shrink.")
async def statistics_are_right(lab: Lab) -> None:
    tap = await lab.open()
    lab.equal(tap.subscription.statistics().unsettled, 0, "unsettled before the first message")
    await lab.publish(*numbered(4))
    chunk = await tap.take(4)
    during = tap.subscription.statistics()
    lab.equal(during.unsettled, 4, "unsettled with 4 deliveries in hand")
    lab.equal(during.state, "receiving", "the state")
    lab.expect(during.last_receive is not None, "last_receive is None after 4 messages")
    await tap.settle(*chunk[:3])
    lab.equal(tap.subscription.statistics().unsettled, 1, "unsettled with 1 delivery in hand")
    await tap.settle(chunk[3])
    await tap.close()
    after = tap.subscription.statistics()
    lab.equal(after.state, "ended", "the state after aclose")
    lab.equal(after.unsettled, 0, "unsettled after aclose")
    lab.expect(after.released >= during.released and after.discarded >= during.discarded, "a counter shrank")
