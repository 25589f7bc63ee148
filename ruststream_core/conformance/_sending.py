"""Senders, requests and transactions."""

from __future__ import annotations

import asyncio
from typing import cast

from ruststream_core.abc import RequestReply, SendTransactions, Transactions
from ruststream_core.conformance._check import check, feature, hook
from ruststream_core.conformance._lab import Lab, numbered, settled
from ruststream_core.errors import Closed, PublishError
from ruststream_core.settlement import ACK, Retry
from ruststream_core.wire import Headers, Outgoing


@check("send returns None or a future that resolves with None, and messages leave in the order of the calls.")
async def sends_keep_their_order(lab: Lab) -> None:
    tap, sender = await lab.open(), await lab.sender()
    payloads = numbered(20)
    pending = [sender.send(lab.out(payload)) for payload in payloads]
    for future in pending:
        lab.expect(future is None or asyncio.isfuture(future), f"send returned {future!r}")
    await settled(pending)
    await sender.flush()
    chunk = await tap.take(20)
    lab.equal([delivery.payload for delivery in chunk], payloads, "the order")
    await tap.settle(*chunk)


@check("send_many sends all, in order, also none and one.")
async def send_many_sends_all(lab: Lab) -> None:
    tap, sender = await lab.open(), await lab.sender()
    payloads = numbered(15)
    await sender.send_many([])
    await sender.send_many([lab.out(payloads[0])])
    await sender.send_many([lab.out(payload) for payload in payloads[1:]])
    chunk = await tap.take(15)
    lab.equal([delivery.payload for delivery in chunk], payloads, "what arrived")
    await tap.settle(*chunk)


def _refused(lab: Lab) -> Outgoing:
    assert lab.target.unsendable is not None
    return lab.target.unsendable(lab.target.destination(lab.name))


@check(
    "What cannot be sent is refused by send with PublishError, no byte of it leaves, and the sender goes on.",
    hook("unsendable"),
)
async def unsendable_is_refused(lab: Lab) -> None:
    tap, sender = await lab.open(), await lab.sender()
    await settled([sender.send(lab.out(b"before"))])
    await lab.raises(PublishError, lambda: sender.send(_refused(lab)), "sending what cannot be sent")
    lab.step = "sending after a message was refused"
    await settled([sender.send(lab.out(b"after"))])
    chunk = await tap.take(2)
    lab.equal([delivery.payload for delivery in chunk], [b"before", b"after"], "what arrived")
    await tap.settle(*chunk)


@check(
    "PublishError.failed of send_many names exactly the messages that were not accepted; the others arrive.",
    hook("unsendable"),
)
async def send_many_names_failures(lab: Lab) -> None:
    tap, sender = await lab.open(), await lab.sender()
    outs = [lab.out(b"first"), _refused(lab), lab.out(b"third")]
    error = await lab.raises(PublishError, lambda: sender.send_many(outs), "send_many with one that cannot be sent")
    failed = cast("PublishError", error).failed
    accepted = [out.payload for index, out in enumerate(outs) if index not in failed]
    lab.expect(1 in failed, f"failed is {dict(failed)!r}, index 1 cannot have been accepted")
    came = [delivery.payload for delivery in await tap.until_marker()]
    lab.equal(came, accepted, "what arrived, against what `failed` leaves as accepted")


@check("A confirmation that is cancelled takes nothing back and disturbs no other.")
async def cancelled_confirmation_is_harmless(lab: Lab) -> None:
    tap, sender = await lab.open(), await lab.sender()
    payloads = numbered(3)
    pending = [sender.send(lab.out(payload)) for payload in payloads]
    if (first := pending.pop(0)) is not None:
        first.cancel()
    # One future may serve several messages: then all that wait for it are cancelled, and the messages still leave.
    await settled([future for future in pending if future is not None and not future.cancelled()])
    chunk = await tap.take(3, "messages, the confirmation of the first was cancelled")
    lab.equal([delivery.payload for delivery in chunk], payloads, "what arrived")
    await tap.settle(*chunk)


# ------------------------------------------------------------------------------------------------------- requests


@check(
    "A request carries its payload, headers and an address for the answer, and gets the first answer.",
    feature("request"),
)
async def request_is_answered(lab: Lab) -> None:
    tap, asking = await lab.open(), cast("RequestReply", await lab.connection())
    textual = lab.features.headers != "none"
    headers = Headers([("x-check-a", "1")]) if textual else Headers()
    request = lab.spawn(asking.request(lab.out(b"question", headers=headers), 60.0))
    (delivery,) = await tap.take(1, "a request")
    lab.equal(delivery.payload, b"question", "the request")
    lab.expect(delivery.reply_to, "the request has no reply_to")
    if textual:
        lab.equal(delivery.headers.get("x-check-a"), "1", "the request's header")
    await lab.send(Outgoing(b"answer", delivery.reply_to or "", headers))
    await tap.settle(delivery)
    lab.step = "waiting for the answer"
    answer = await request
    lab.equal(answer.payload, b"answer", "the answer")
    if textual:
        lab.equal(answer.headers.get("x-check-a"), "1", "the answer's header")
    lab.expect(answer.settle(ACK) is None, "the answer waits to be settled")


@check(
    "Requests that are open at the same time get their own answers, in whatever order these come.", feature("request")
)
async def requests_get_their_own_answers(lab: Lab) -> None:
    tap, asking = await lab.open(), cast("RequestReply", await lab.connection())
    payloads = numbered(5)
    requests = [lab.spawn(asking.request(lab.out(payload), 60.0)) for payload in payloads]
    for delivery in reversed(await tap.take(5, "requests")):
        await lab.send(Outgoing(b"answer to " + delivery.payload, delivery.reply_to or ""))
        await tap.settle(delivery)
    lab.step = "waiting for five answers"
    answers = [(await request).payload for request in requests]
    lab.equal(answers, [b"answer to " + payload for payload in payloads], "the answers")


@check("A request that nobody answers ends with TimeoutError, and a late answer harms nobody.", feature("request"))
async def request_times_out(lab: Lab) -> None:
    tap, asking = await lab.open(), cast("RequestReply", await lab.connection())
    request = lab.spawn(asking.request(lab.out(b"question"), 0.5))
    (delivery,) = await tap.take(1, "a request")
    await lab.target.pass_time(1.0)
    lab.step = "waiting for the request's TimeoutError"
    await lab.raises(TimeoutError, lambda: request, "a request without an answer")
    await lab.send(Outgoing(b"too late", delivery.reply_to or ""))
    await tap.settle(delivery)
    second = lab.spawn(asking.request(lab.out(b"another"), 60.0))
    (delivery,) = await tap.take(1, "another request")
    await lab.send(Outgoing(b"in time", delivery.reply_to or ""))
    await tap.settle(delivery)
    lab.equal((await second).payload, b"in time", "the answer to another request")


# --------------------------------------------------------------------------------------------------- transactions


@check("A committed unit settles its deliveries and shows its messages, together.", feature("transactions"))
async def commit_does_both(lab: Lab) -> None:
    tap = await lab.open()
    other = await lab.open(await lab.other_name())
    await lab.publish(*numbered(2))
    chunk = await tap.take(2)
    unit = await cast("Transactions", tap.subscription).begin(chunk)
    await settled([unit.send(lab.out(payload, to=other.subscription_name)) for payload in numbered(2, 10)])
    await other.nothing("the unit is not committed")
    lab.step = "committing"
    await unit.commit([(delivery, ACK) for delivery in chunk])
    sent = await other.take(2, "messages of a committed unit")
    lab.equal([delivery.payload for delivery in sent], numbered(2, 10), "what the unit had sent")
    await other.settle(*sent)
    lab.equal(tap.subscription.statistics().unsettled, 0, "statistics().unsettled after the commit")
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again")


@check("A unit that is rolled back sends nothing, and its deliveries stay in hand.", feature("transactions"))
async def rollback_undoes_all(lab: Lab) -> None:
    tap = await lab.open()
    other = await lab.open(await lab.other_name())
    await lab.publish(b"message")
    chunk = await tap.take(1)
    unit = await cast("Transactions", tap.subscription).begin(chunk)
    await settled([unit.send(lab.out(b"never", to=other.subscription_name))])
    lab.step = "rolling back"
    await unit.rollback()
    lab.equal([d.payload for d in await other.until_marker()], [], "what a unit sent that was rolled back")
    lab.expect(not tap.watch.losses, "a rollback was reported as a loss")
    await tap.settle(*chunk)
    tap = await lab.reopen(tap)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what came again after it was settled")


@check("A unit can commit other verdicts than Ack.", feature("transactions"), feature("retry", "broker"))
async def commit_takes_any_verdict(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(2))
    chunk = await tap.take(2)
    unit = await cast("Transactions", tap.subscription).begin(chunk)
    await unit.commit([(chunk[0], ACK), (chunk[1], Retry())])
    (again,) = await tap.take(1, "a message that a unit retried")
    lab.equal(again.payload, b"message 1", "what came again")
    await tap.settle(again)


@check("A unit without deliveries publishes all or nothing.", feature("transactions"))
async def send_transactions_are_whole(lab: Lab) -> None:
    sender = await lab.sender()
    if not isinstance(sender, SendTransactions):
        return
    tap = await lab.open()
    unit = await sender.begin()
    await settled([unit.send(lab.out(payload)) for payload in numbered(3)])
    await unit.rollback()
    unit = await sender.begin()
    await settled([unit.send(lab.out(payload)) for payload in numbered(3, 10)])
    await tap.nothing("the unit is not committed")
    await unit.commit([])
    chunk = await tap.take(3, "messages of a committed unit")
    lab.equal([delivery.payload for delivery in chunk], numbered(3, 10), "what arrived")
    await tap.settle(*chunk)
    lab.equal([d.payload for d in await tap.until_marker()], [], "what else arrived")


@check("A unit ends once: after commit or rollback it refuses with Closed.", feature("transactions"))
async def unit_ends_once(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(b"message")
    chunk = await tap.take(1)
    unit = await cast("Transactions", tap.subscription).begin(chunk)
    await unit.commit([(chunk[0], ACK)])
    await lab.raises(Closed, lambda: unit.commit([]), "a second commit")
    await lab.raises(Closed, lambda: unit.send(lab.out(b"late")), "send after commit")
