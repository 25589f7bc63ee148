"""What users' type checkers refuse. Each comment names the complaint; one that does not come is an error as well."""

from __future__ import annotations

from ruststream_core import App, Batch, Publisher, Reply, Retry, Router, by_key, subscriber
from ruststream_core.testing import TestApp

app = App("x", broker="memory:", on_eror={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
app.include(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.include(app, max_attempts="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@app.subscriber("a", replay="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue, reportUntypedFunctionDecorator]
async def misspelt(body: bytes) -> None: ...


@app.subscriber("a", workers="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def text_for_a_number(body: bytes) -> None: ...


@subscriber("a", batch=64)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def number_for_a_batch(bodies: list[bytes]) -> None: ...


@app.subscriber(8)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def no_source(body: bytes) -> None: ...


def routers() -> None:
    Router(reply="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    by_key("8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Batch("64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Retry(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Reply(1, "x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def publishers(publisher: Publisher, t: TestApp) -> None:
    await publisher.publish(b"", "subject")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await publisher.request(b"", to="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with t.fault("explode"):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await t.advance("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    publisher.publish(b"")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
