"""How messages are handed out: order, room, waiting, lingering, the end."""

from __future__ import annotations

import asyncio
from typing import Final

from ruststream_core.abc import Demand
from ruststream_core.conformance._check import Condition, check, feature, lacks
from ruststream_core.conformance._lab import Lab, numbered

LINGER: Final = 1.0
"""Seconds. Nothing is expected earlier or later than that, only in that order."""

_alone: Condition = lambda target, _: "two subscriptions cannot be open" if target.group_of_one else None  # noqa: E731


@check("Messages of one key arrive once, in the order in which they were published.")
async def order_is_kept(lab: Lab) -> None:
    tap = await lab.open()
    payloads = numbered(100)
    await lab.publish(*payloads)
    got: list[bytes] = []
    while len(got) < len(payloads):
        chunk = await tap.take(min(5, len(payloads) - len(got)))
        got += [delivery.payload for delivery in chunk]
        await tap.settle(*chunk)
    lab.equal(got, payloads, "the order")
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check("A message that is published after subscribe has returned arrives.")
async def subscribing_is_complete(lab: Lab) -> None:
    await lab.sender()
    for _ in range(3):
        tap = await lab.open(await lab.other_name())
        await lab.publish(b"first", to=tap.subscription_name)
        await tap.settle(*await tap.take(1))


@check("receive gives at most `limit` deliveries, and at least one.")
async def limit_is_kept(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(10))
    came = 0
    while came < 10:
        chunk = await tap.receive(3)
        lab.expect(1 <= len(chunk) <= 3, f"receive(3) returned {len(chunk)} deliveries")
        came += len(chunk)
        await tap.settle(*chunk)


@check("receive takes what waits in chunks where it can: a backlog does not come one by one for ever.")
async def backlog_comes_in_chunks(lab: Lab) -> None:
    tap = await lab.open()
    sizes: list[int] = []
    for round_ in range(5):
        await lab.publish(*numbered(20, 20 * round_))
        taken = 0
        while taken < 20:
            chunk = await tap.receive(20 - taken)
            sizes.append(len(chunk))
            taken += len(chunk)
            await tap.settle(*chunk)
    lab.expect(max(sizes) > 1, "100 messages came in 100 calls of receive(20)")


@check("receive yields to the loop at least once per call, however much waits.")
async def receive_yields(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(12))
    await tap.settle(*await tap.take(2))
    for number in range(10):
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, number)
        # Not through a task: starting one would be a turn of the loop already.
        chunk = await tap.subscription.receive(1)
        lab.expect(turns, "receive returned before the loop had a turn")
        await tap.settle(*chunk)


@check("While nothing comes, receive waits: it returns nothing and raises nothing.")
async def idle_is_no_end(lab: Lab) -> None:
    tap = await lab.open()
    for payload in (b"one", b"two"):
        await tap.nothing("nothing was published")
        await lab.publish(payload)
        (delivery,) = await tap.take(1)
        lab.equal(delivery.payload, payload, "the message after an idle time")
        await tap.settle(delivery)


@check("No more than `window` deliveries are out and unsettled, and settling one makes room for one.")
async def window_bounds_what_is_out(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(prefetch=4))
    window = tap.subscription.window
    payloads = numbered(window + 3)
    await lab.publish(*payloads)
    out = await tap.take(window)
    lab.equal(tap.subscription.statistics().unsettled, window, "statistics().unsettled with a full window")
    await tap.nothing("the window is full")
    for left in range(3):
        await tap.settle(out.pop(0))
        out += await tap.take(1, "the next message after one was settled")
        if left < 2:
            await tap.nothing("one was settled and one came")
    await tap.settle(*out)
    lab.equal(tap.subscription.statistics().unsettled, 0, "statistics().unsettled when all is settled")


@check("A receive that waits for room goes on when room is made, without a new message.")
async def room_wakes_receive(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(prefetch=2))
    await lab.publish(*numbered(tap.subscription.window + 1))
    out = await tap.take(tap.subscription.window)
    waiting = tap.start()
    await asyncio.wait([waiting], timeout=lab.target.quiet)
    await tap.settle(*out)
    await tap.settle(*await tap.take(1, "the message for which there was no room"))


@check("With linger, receive collects after the first message, and returns at once when it has `limit`.")
async def linger_fills(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(batch=3, linger=20.0))
    lab.step = "lingering for 20 s"
    waiting = tap.start(3, 20.0)
    await lab.publish(b"message 0")
    await asyncio.wait([waiting], timeout=lab.target.quiet)
    lab.expect(not waiting.done(), "receive(3, linger=20) returned one message when the first came")
    await lab.publish(*numbered(2, 1))
    chunk = await tap.receive()
    lab.equal([delivery.payload for delivery in chunk], numbered(3), "receive(3, linger=20) with three messages")
    await tap.settle(*chunk)


@check("With linger, receive returns what it has when the time is over.")
async def linger_ends(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(batch=3, linger=LINGER))
    waiting = tap.start(3, LINGER)
    await lab.publish(b"alone")
    await asyncio.wait([waiting], timeout=lab.target.quiet)
    lab.expect(not waiting.done(), f"receive(3, linger={LINGER}) did not linger")
    lab.step = "waiting for receive to return one message after its linger"
    await lab.target.pass_time(1.5 * LINGER)
    chunk = await tap.receive()
    lab.equal([delivery.payload for delivery in chunk], [b"alone"], "the batch")
    await tap.settle(*chunk)


@check("stop ends lingering: receive returns what it has collected.")
async def linger_stops(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(batch=3, linger=60.0))
    waiting = tap.start(3, 60.0)
    await lab.publish(b"alone")
    await asyncio.wait([waiting], timeout=lab.target.quiet)
    lab.expect(not waiting.done(), "receive(3, linger=60) did not linger")
    tap.subscription.stop()
    lab.step = "waiting for a lingering receive to return after stop"
    chunk = await tap.receive()
    lab.expect([d.payload for d in chunk] in ([b"alone"], []), f"receive returned {len(chunk)} messages after stop")
    await tap.settle(*chunk)


@check("stop ends a waiting receive; then receive returns () every time, however much waits at the broker.")
async def stop_ends_receive(lab: Lab) -> None:
    tap = await lab.open()
    waiting = tap.start()
    await asyncio.wait([waiting], timeout=lab.target.quiet)
    lab.expect(not waiting.done(), "receive returned with nothing published")
    tap.subscription.stop()
    lab.step = "waiting for receive to return () after stop"
    lab.equal(list(await tap.receive()), [], "receive after stop")
    await lab.publish(*numbered(3))
    lab.equal(list(await tap.receive()), [], "receive, called after stop")
    tap.subscription.stop()
    await tap.close()
    lab.equal(list(await tap.receive()), [], "receive, called after aclose")


@check("A message that is published while nobody subscribes waits for the next subscription.", feature("stored"))
async def stored_messages_wait(lab: Lab) -> None:
    await lab.connection()
    payloads = numbered(3)
    await lab.publish(*payloads)
    tap = await lab.open()
    chunk = await tap.take(3, "messages that were published before subscribing")
    lab.equal([delivery.payload for delivery in chunk], payloads, "what waited")
    await tap.settle(*chunk)


@check("Where nothing is stored, a subscription begins with what is published after it.", lacks("stored"))
async def earlier_messages_stay_away(lab: Lab) -> None:
    await lab.connection()
    await lab.publish(b"too early")
    await lab.flush()
    tap = await lab.open()
    lab.equal([delivery.payload for delivery in await tap.until_marker()], [], "what came from before")


@check("Two subscriptions of one source share its messages: each goes to one of them.", lacks("fan_out"), _alone)
async def subscriptions_share(lab: Lab) -> None:
    taps = [await lab.open(), await lab.open(connection=await lab.connect())]
    payloads = numbered(30)
    await lab.publish(*payloads)
    got: list[bytes] = []
    lab.step = "two subscriptions take 30 messages together"
    while len(got) < len(payloads):
        waiting = [tap.start() for tap in taps]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for tap in taps:
            if tap.start().done():
                chunk = await tap.receive()
                got += [delivery.payload for delivery in chunk]
                await tap.settle(*chunk)
    for tap in taps:
        await tap.nothing("all messages were taken")
    lab.equal(sorted(got), sorted(payloads), "what the two took together")


@check("Two subscriptions of one source get each message both.", feature("fan_out"), _alone)
async def subscriptions_fan_out(lab: Lab) -> None:
    taps = [await lab.open(), await lab.open(connection=await lab.connect())]
    payloads = numbered(10)
    await lab.publish(*payloads)
    for number, tap in enumerate(taps):
        chunk = await tap.take(10, f"messages for subscription {number + 1} of 2")
        lab.equal([delivery.payload for delivery in chunk], payloads, f"what subscription {number + 1} got")
        await tap.settle(*chunk)


@check("A subscription that is full does not keep another one on the same connection from receiving.")
async def full_window_blocks_nobody_else(lab: Lab) -> None:
    full = await lab.open(demand=Demand(prefetch=2))
    other = await lab.open(await lab.other_name())
    await lab.publish(*numbered(full.subscription.window + 5))
    out = await full.take(full.subscription.window)
    waiting = full.start()
    await lab.publish(b"for the other", to=other.subscription_name)
    await other.settle(*await other.take(1, "a message beside a full subscription"))
    lab.expect(not waiting.done(), "the full subscription returned from receive")
    await full.settle(*out)


@check("Where `receivers` is more than 1, that many receive calls may be open, and each message goes to one of them.")
async def receivers_receive_side_by_side(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(workers=4))
    count = min(tap.subscription.receivers, 4)
    calls = [lab.spawn(tap.subscription.receive(1)) for _ in range(count)]
    done, _ = await asyncio.wait(calls, timeout=lab.target.quiet)
    lab.expect(not done, f"{len(done)} of {count} receive calls returned or raised with nothing published")
    await lab.publish(*numbered(count))
    lab.step = f"waiting for {count} receive calls side by side"
    await asyncio.wait(calls)
    got = [delivery for call in calls for delivery in call.result()]
    lab.equal(sorted(delivery.payload for delivery in got), numbered(count), "what they returned together")
    await tap.settle(*got)
