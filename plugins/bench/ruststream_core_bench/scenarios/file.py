"""Stream files, against the plain reading loop, since there is no client library.

Plain: read a block, take the messages out of it, handle them, read the next. A recorded file is read as often as the
count of messages wants, each time from its start.
"""

# ruff: noqa: RUF001 - titles are written in three languages

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from ruststream_core import App, Batch, RouteOptions
from ruststream_core.abc import Connection, Demand, Sender, Source, Subscription
from ruststream_core.errors import RustStreamError
from ruststream_core.plugins import broker_from_url
from ruststream_core.settlement import ACK
from ruststream_core.wire import Outgoing
from ruststream_core_bench._contract import NoWatch, drive_contract
from ruststream_core_bench._environment import version_of
from ruststream_core_bench._feeding import STEP, produce
from ruststream_core_bench._payload import BODY, Order, counting, counting_batches, decode, encode, replying
from ruststream_core_bench._plain_reader import PlainReader
from ruststream_core_bench._scenario import Loop, Place, Scenario, Suite, Tally, Task, Text

__all__ = ["SUITE"]

KEY: Final = "bench"
REPLIES: Final = "replies"
RECORDED: Final = 200_000
"""Messages of the recorded file: a pass over it takes the better part of a second."""
ANSWERED: Final = 50_000
"""The same where every pass needs a file of its own, since replies go into it."""
BATCH: Final = 64
POLL: Final = 0.001
"""Seconds that the plain tail sleeps at the end of the file."""
MESSAGE_BYTES: Final = 1 + len(KEY) + 28 + len(BODY) + 3

Handler = Callable[[Order], Awaitable[Any]]


# --------------------------------------------------------------------------------------------------- the files


def _url(path: Path) -> str:
    return f"file:{path}"


@asynccontextmanager
async def _connection(path: Path) -> AsyncIterator[Connection[Any]]:
    connection = await broker_from_url(_url(path)).connect()
    try:
        yield connection
    finally:
        await connection.aclose(5.0)


async def _record(path: Path, messages: int) -> None:
    async with _connection(path) as connection:
        sender = await connection.sender()
        for first in range(0, messages, STEP):
            await sender.send_many([Outgoing(BODY, KEY)] * min(STEP, messages - first))


async def _recorded(task: Task, messages: int) -> Path:
    """The recorded file of so many messages; written once for all loops."""
    path = task.place.folder / f"recorded-{messages}.ss"
    if not path.exists():
        await _record(path, messages)
    return path


def _replayed() -> Source:
    from ruststream_core_file import FileStream  # noqa: PLC0415  only when files are measured

    source: Source = FileStream(KEY, replay=True)
    return source


Pass = Callable[[Path, Tally], Awaitable[None]]


def _passes(one: Pass, recorded: int = RECORDED, *, own: bool = False) -> Loop:
    """A loop of passes over a recorded file; with `own`, each over a copy that it may write to."""

    async def loop(task: Task) -> None:
        original = await _recorded(task, recorded)
        tally = Tally()
        for number in range(task.messages // recorded):
            path = original
            if own:
                path = task.place.folder / f"{task.name}-{number}.ss"
                shutil.copyfile(original, path)
            seen = tally.more(recorded)
            with task.watch:
                await one(path, tally)
            if not seen.done():
                raise RustStreamError(f"a pass saw {tally.count - number * recorded} of {recorded} messages")
            if own:
                path.unlink()

    return loop


# ------------------------------------------------------------------------------------------------------- replay


async def _plain_pass(path: Path, tally: Tally) -> None:
    handle = counting(tally)
    reader = PlainReader(path, KEY)
    while payloads := reader.read():
        for payload in payloads:
            await handle(decode(payload))
        await asyncio.sleep(0)
    reader.close()


def _adapter_pass(drive: Callable[[Subscription, Tally], Awaitable[None]], batch: int = 1) -> Pass:
    async def one(path: Path, tally: Tally) -> None:
        async with _connection(path) as connection:
            source = broker_from_url(_url(path)).source(_replayed())
            subscription = await connection.subscribe(source, Demand(batch=batch), NoWatch())
            await drive(subscription, tally)
            await subscription.aclose(5.0)

    return one


async def _drive_each(subscription: Subscription, tally: Tally) -> None:
    await drive_contract(subscription, counting(tally))


async def _drive_batches(subscription: Subscription, tally: Tally) -> None:
    handle = counting_batches(tally)
    while chunk := await subscription.receive(BATCH):
        await handle([decode(delivery.payload) for delivery in chunk])
        for delivery in chunk:
            delivery.settle(ACK)


def _service_pass(handler: Callable[[Tally], Any], options: RouteOptions | None = None) -> Pass:
    async def one(path: Path, tally: Tally) -> None:
        app = App("bench", broker=_url(path))
        app.subscriber(_replayed(), **(options or {}))(handler(tally))
        async with app.start() as running:
            await running.wait()

    return one


async def _plain_batches(path: Path, tally: Tally) -> None:
    handle = counting_batches(tally)
    reader = PlainReader(path, KEY)
    while payloads := reader.read():
        for first in range(0, len(payloads), BATCH):
            await handle([decode(payload) for payload in payloads[first : first + BATCH]])
        await asyncio.sleep(0)
    reader.close()


# --------------------------------------------------------------------------------------------- replies, same file


def _answering(sender: Sender, tally: Tally) -> Handler:
    handle = replying(tally)

    async def answer(order: Order) -> None:
        confirmed = sender.send(Outgoing(encode(await handle(order)), REPLIES))
        if confirmed is not None:
            await confirmed

    return answer


async def _plain_replies(path: Path, tally: Tally) -> None:
    """Writing is the transport's own: a second writer of the format would measure itself.

    Replies of a block are on their way together, as somebody writes it who has to wait for them.
    """
    async with _connection(path) as connection:
        sender = await connection.sender()
        handle = replying(tally)
        reader = PlainReader(path, KEY)
        while payloads := reader.read():
            answers = [Outgoing(encode(await handle(decode(payload))), REPLIES) for payload in payloads]
            confirmed = [future for answer in answers if (future := sender.send(answer)) is not None]
            await asyncio.gather(*confirmed)
        reader.close()


async def _adapter_replies(path: Path, tally: Tally) -> None:
    async with _connection(path) as connection:
        answer = _answering(await connection.sender(), tally)
        source = broker_from_url(_url(path)).source(_replayed())
        subscription = await connection.subscribe(source, Demand(), NoWatch())
        await drive_contract(subscription, answer)
        await subscription.aclose(5.0)


# --------------------------------------------------------------------------------------------------------- tail


async def _tailed(task: Task) -> Path:
    path = task.place.folder / f"{task.name}.ss"
    await _record(path, 1)
    return path


async def _append(task: Task, path: Path, tally: Tally) -> None:
    await produce(task, tally, "ruststream_core_bench._appender", _url(path), KEY)


async def _tail_raw(task: Task) -> None:
    tally, path = Tally(), await _tailed(task)
    handle = counting(tally)
    reader = PlainReader(path, KEY, at_end=True)

    async def follow() -> None:
        while tally.count < task.messages:
            payloads = reader.read()
            for payload in payloads:
                await handle(decode(payload))
            await asyncio.sleep(0 if payloads else POLL)

    following = asyncio.ensure_future(follow())
    await _append(task, path, tally)
    await following
    reader.close()


async def _tail_adapter(task: Task) -> None:
    tally, path = Tally(), await _tailed(task)
    async with _connection(path) as connection:
        source = broker_from_url(_url(path)).source(KEY)
        subscription = await connection.subscribe(source, Demand(), NoWatch())
        work = asyncio.ensure_future(drive_contract(subscription, counting(tally)))
        await _append(task, path, tally)
        subscription.stop()
        await work
        await subscription.aclose(5.0)


async def _tail_service(task: Task) -> None:
    tally, path = Tally(), await _tailed(task)
    app = App("bench", broker=_url(path))
    app.subscriber(KEY)(counting(tally))
    async with app.start():
        await _append(task, path, tally)


# -------------------------------------------------------------------------------------------------------- parser


async def _parse_plain(path: Path, tally: Tally) -> None:
    reader = PlainReader(path, KEY)
    while payloads := reader.read():
        _seen(tally, len(payloads))
    reader.close()


async def _parse_ours(path: Path, tally: Tally) -> None:
    from ruststream_core_file import StreamReader  # noqa: PLC0415  only when files are measured

    reader = StreamReader(path, keys={KEY})
    while records := reader.read():
        _seen(tally, len(records))
    reader.close()


def _seen(tally: Tally, messages: int) -> None:
    tally.count += messages
    if tally.count == tally.goal:
        tally.hit()


# ------------------------------------------------------------------------------------------------------ the table


@contextmanager
def _open() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="ruststream-bench-") as folder:
        facts = {"fastcrc": version_of("fastcrc"), "file_system": _file_system(folder), "round_trip": _flush(folder)}
        yield Place("file:", Path(folder), facts)


def _file_system(folder: str) -> str:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    fields = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    covering = [field for field in fields if Path(folder).is_relative_to(field[1])]
    return max(covering, key=lambda field: len(field[1]))[2]


def _flush(folder: str, times: int = 200) -> str:
    """One append that is flushed to the disk: the median of some."""
    taken = []
    with Path(folder, "flush").open("ab", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(BODY)
            os.fdatasync(file)
            taken.append(time.perf_counter() - began)
    return f"{median(taken) * 1e6:.1f} us, median of {times} appends with fdatasync"


SUITE: Final = Suite(
    name="file",
    title=Text("Stream files", "Потоковые файлы", "流文件"),
    package="ruststream-core-file",
    needs=("ruststream-core-file", "fastcrc"),
    bound="storage-bound",
    open=_open,
    scenarios=(
        Scenario(
            name="replay",
            title=Text("replay of a recorded file", "воспроизведение записанного файла", "回放已录制的文件"),
            raw=_passes(_plain_pass),
            adapter=_passes(_adapter_pass(_drive_each)),
            framework=_passes(_service_pass(counting)),
            step=RECORDED,
        ),
        Scenario(
            name="tail",
            title=Text("live tail", "живой хвост", "实时跟随"),
            raw=_tail_raw,
            adapter=_tail_adapter,
            framework=_tail_service,
            step=STEP,
        ),
        Scenario(
            name="reply",
            title=Text("reply into the same file", "ответ в тот же файл", "应答写入同一文件"),
            raw=_passes(_plain_replies, ANSWERED, own=True),
            adapter=_passes(_adapter_replies, ANSWERED, own=True),
            framework=_passes(_service_pass(replying, {"reply": REPLIES}), ANSWERED, own=True),
            step=ANSWERED,
        ),
        Scenario(
            name="batch-64",
            title=Text("batches of 64", "пакеты по 64", "每批 64 条"),
            raw=_passes(_plain_batches),
            adapter=_passes(_adapter_pass(_drive_batches, BATCH)),
            framework=_passes(_service_pass(counting_batches, {"batch": Batch(BATCH)})),
            step=RECORDED,
        ),
        Scenario(
            name="parse",
            title=Text(
                "parser, messages of 512 bytes (raw: the plain one)",
                "разбор, сообщения по 512 байт (raw: простой)",
                "解析器，512 字节消息（raw：简单解析器）",
            ),
            raw=_passes(_parse_plain),
            adapter=None,
            framework=_passes(_parse_ours),
            unit="MB/s",
            per_message=MESSAGE_BYTES / 1e6,
            step=RECORDED,
        ),
    ),
)
