"""Closing: within bounds, for good, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import time

from ruststream_core.abc import Demand, RequestReply
from ruststream_core.conformance._check import check, feature, hook
from ruststream_core.conformance._lab import Lab, Recorder, numbered
from ruststream_core.errors import Closed, RustStreamError
from ruststream_core.settlement import RELEASE
from ruststream_core.wire import Delivery


@check("aclose of subscription, sender and connection may be called again.")
async def aclose_is_idempotent(lab: Lab) -> None:
    tap, sender, connection = await lab.open(), await lab.sender(), await lab.connection()
    for closing in (tap.subscription, sender, connection):
        for _ in range(3):
            lab.step = f"closing {type(closing).__name__} again"
            await closing.aclose(1.0)


@check("A sender that is used after its aclose raises Closed.")
async def closed_sender_refuses(lab: Lab) -> None:
    sender = await lab.sender()
    await sender.aclose(1.0)
    await lab.raises(Closed, lambda: sender.send(lab.out(b"late")), "send after aclose")
    await lab.raises(Closed, lambda: sender.send_many([lab.out(b"late")]), "send_many after aclose")


@check("A connection that is used after its aclose raises Closed, its senders too.")
async def closed_connection_refuses(lab: Lab) -> None:
    connection, sender = await lab.connection(), await lab.sender()
    source = lab.broker.source(lab.target.source(lab.name))
    await connection.aclose(1.0)
    await lab.raises(Closed, lambda: connection.subscribe(source, Demand(), Recorder()), "subscribe after aclose")
    await lab.raises(Closed, connection.sender, "sender() after aclose")
    await lab.raises(Closed, lambda: sender.send(lab.out(b"late")), "send after the connection's aclose")
    await lab.raises(RustStreamError, connection.ping, "ping after aclose")
    if lab.features.request and isinstance(connection, RequestReply):
        asking = connection
        await lab.raises(Closed, lambda: asking.request(lab.out(b"late"), 1.0), "request after aclose")


@check("Sends that nobody awaited have arrived when the sender's aclose has returned.")
async def aclose_flushes_sends(lab: Lab) -> None:
    tap, sender = await lab.open(), await lab.sender()
    payloads = numbered(20)
    pending = [sender.send(lab.out(payload)) for payload in payloads]
    await sender.aclose(5.0)
    for future in pending:
        lab.expect(future is None or future.done(), "aclose returned, and a send is still pending")
        if future is not None:
            future.result()
    chunk = await tap.take(20, "messages that were sent before aclose")
    lab.equal([delivery.payload for delivery in chunk], payloads, "what was sent before aclose")
    await tap.settle(*chunk)


@check("aclose returns within about its grace, deliveries in hand or not, and reports what it could not decide.")
async def aclose_is_bounded(lab: Lab) -> None:
    tap = await lab.open()
    await lab.publish(*numbered(3))
    handed = await tap.take(3)
    late = await tap.drain()
    lab.step = "closing with a grace of 0.1 s"
    began = time.monotonic()
    await tap.subscription.aclose(0.1)
    await (await lab.connection()).aclose(0.1)
    spent = time.monotonic() - began
    lab.expect(spent < 10.0 * lab.target.scale, f"closing with a grace of 0.1 s took {spent:.1f} s")
    for delivery in (*handed, *late):
        delivery.settle(RELEASE)


@check(
    "What was fetched and never handed out goes back, uncounted, when the subscription closes.",
    feature("settles"),
    feature("stored"),
)
async def fetched_messages_go_back(lab: Lab) -> None:
    tap = await lab.open()
    payloads = numbered(20)
    await lab.publish(*payloads)
    (first,) = await tap.take(1)
    await tap.settle(first)
    late = await tap.drain()
    await tap.settle(*late, verdict=RELEASE)
    await tap.close()
    tap = await lab.open()
    rest: list[Delivery] = []
    while len(rest) < 19:
        chunk = await tap.take(1, "messages that nobody had been given")
        rest += chunk
        await tap.settle(*chunk)
    lab.equal(sorted(d.payload for d in rest), sorted(payloads[1:]), "what the next subscription got")
    if lab.features.attempts == "broker" and lab.features.release == "free":
        lab.equal({d.attempt for d in rest}, {1}, "the attempts of messages that nobody had been given")


@check("No task is left behind when everything is closed.")
async def no_task_is_left(lab: Lab) -> None:
    before = asyncio.all_tasks()
    tap = await lab.open()
    await lab.publish(*numbered(3))
    chunk = await tap.take(3)
    await tap.settle(*chunk)
    await _stand_by(tap.start())
    await tap.close()
    await (await lab.sender()).aclose(1.0)
    await (await lab.connection()).aclose(1.0)
    lab.step = "waiting for the transport's tasks to end"
    left: set[asyncio.Task[object]] = set()
    for _ in range(200):
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        if not left:
            return
        await asyncio.sleep(0.01)
    lab.fail(f"tasks still running: {', '.join(sorted(task.get_name() for task in left))}")


async def _stand_by(task: asyncio.Task[object]) -> None:
    await asyncio.wait([task], timeout=0.05)


@check("A connection is closed while a receive waits: the receive ends, it does not hang.")
async def closing_wakes_receive(lab: Lab) -> None:
    tap = await lab.open()
    waiting = tap.start()
    await _stand_by(waiting)
    connection = await lab.connection()
    lab.step = "waiting for receive to end after its connection was closed"
    await connection.aclose(1.0)
    await asyncio.wait([waiting])
    error = waiting.exception()
    lab.expect(error is None or isinstance(error, RustStreamError), f"receive raised {error!r}")
    if error is None:
        lab.equal(list(waiting.result()), [], "what receive returned")


@check(
    "A source that has ended for good is raised by receive as one of the framework's errors, not hidden.",
    hook("terminate"),
)
async def terminal_error_is_raised(lab: Lab) -> None:
    assert lab.target.terminate is not None
    tap = await lab.open()
    await lab.publish(b"before")
    await tap.settle(*await tap.take(1))
    waiting = tap.start()
    await _stand_by(waiting)
    await lab.target.terminate(lab.name)
    lab.step = "waiting for receive to raise, its source is gone for good"
    await asyncio.wait([waiting])
    error = waiting.exception()
    lab.expect(error is not None, f"receive returned {waiting.result() if error is None else ()!r}")
    lab.expect(isinstance(error, RustStreamError), f"receive raised {type(error).__name__}, no error of the framework")
    lab.equal(tap.subscription.statistics().state, "ended", "the state")
