"""What the project wants to reach, each against the newest figures. Printed and published, never asserted."""

# ruff: noqa: RUF001 - titles are written in three languages

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from ruststream_core_bench._results import CodeRow, PackageResult, Row, Text

__all__ = ["GOALS", "Goal", "Outcome", "judge_goals"]

State = Literal["reached", "not reached", "not measured"]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that shall not be passed."""

    title: Text
    suite: str
    limit: float
    unit: str
    value: Callable[[PackageResult], float | None]
    at_least: bool = False
    """The figure shall be the limit or more; otherwise the limit or less."""


class Outcome(msgspec.Struct, frozen=True):
    """A goal and what was measured for it."""

    goal: Goal
    value: float | None
    state: State


def _row(result: PackageResult, name: str) -> Row | None:
    return next((row for row in result.scenarios if row.name == name and row.loop == "asyncio"), None)


def _code(result: PackageResult, name: str, metric: str) -> CodeRow | None:
    return next((row for row in result.code if (row.name, row.metric) == (name, metric)), None)


def _microseconds(row: Row) -> float:
    return 1e6 / row.framework.best - 1e6 / row.raw.best


def _over_raw(name: str) -> Callable[[PackageResult], float | None]:
    def value(result: PackageResult) -> float | None:
        row = _row(result, name)
        return None if row is None else _microseconds(row)

    return value


def _each_middleware(result: PackageResult) -> float | None:
    none, three = _row(result, "consume"), _row(result, "middleware-3")
    return None if none is None or three is None else (1e6 / three.framework.best - 1e6 / none.framework.best) / 3


def _overhead(name: str) -> Callable[[PackageResult], float | None]:
    """Percent of time over raw; 0 where the rounds do not tell them apart."""

    def value(result: PackageResult) -> float | None:
        row = _row(result, name)
        return None if row is None or row.verdict == "incomplete" else row.overhead_percent or 0.0

    return value


def _rate(name: str) -> Callable[[PackageResult], float | None]:
    def value(result: PackageResult) -> float | None:
        row = _row(result, name)
        return None if row is None else row.framework.best

    return value


def _times(name: str, peer: str) -> Callable[[PackageResult], float | None]:
    def value(result: PackageResult) -> float | None:
        row = _row(result, name)
        return None if row is None or peer not in row.peers else row.peers[peer].times

    return value


def _over_raw_times(name: str) -> Callable[[PackageResult], float | None]:
    """How often the service's best contains the raw loop's."""

    def value(result: PackageResult) -> float | None:
        row = _row(result, name)
        return None if row is None else row.framework.best / row.raw.best

    return value


def _measured(name: str, metric: str) -> Callable[[PackageResult], float | None]:
    def value(result: PackageResult) -> float | None:
        row = _code(result, name, metric)
        return None if row is None else row.framework

    return value


def _ratio(name: str, metric: str) -> Callable[[PackageResult], float | None]:
    def value(result: PackageResult) -> float | None:
        row = _code(result, name, metric)
        return None if row is None or not row.raw else row.framework / row.raw

    return value


def _growth(name: str, metric: str) -> Callable[[PackageResult], float | None]:
    def value(result: PackageResult) -> float | None:
        row = _code(result, name, metric)
        return None if row is None or row.raw is None else row.framework - row.raw

    return value


def _like_raw(suite: str, name: str, title: Text) -> Goal:
    over = Text(f"{title.en}: service over raw", f"{title.ru}: service к raw", f"{title.zh}：service 比 raw")
    return Goal(title=over, suite=suite, limit=5, unit="%", value=_overhead(name))


GOALS: Final[Sequence[Goal]] = (
    Goal(
        title=Text(
            "typed handler that acks, over raw", "типизированный обработчик, сверх raw", "类型化处理函数，比 raw 多"
        ),
        suite="memory",
        limit=0.4,
        unit="µs",
        value=_over_raw("consume"),
    ),
    Goal(
        title=Text("workers=8, over raw", "workers=8, сверх raw", "workers=8，比 raw 多"),
        suite="memory",
        limit=0.6,
        unit="µs",
        value=_over_raw("workers-8"),
    ),
    Goal(
        title=Text("by_key(8), over raw", "by_key(8), сверх raw", "by_key(8)，比 raw 多"),
        suite="memory",
        limit=1.0,
        unit="µs",
        value=_over_raw("by-key-8"),
    ),
    Goal(
        title=Text("each middleware", "каждое middleware", "每个中间件"),
        suite="memory",
        limit=0.3,
        unit="µs",
        value=_each_middleware,
    ),
    Goal(
        title=Text("1,000 routes against one", "1000 маршрутов против одного", "1000 个路由对比一个"),
        suite="memory",
        limit=5,
        unit="%",
        value=_overhead("routes-1000"),
    ),
    Goal(
        title=Text("blocks kept per message", "удержано блоков на сообщение", "每条消息保留的内存块"),
        suite="memory",
        limit=0.001,
        unit="",
        value=_measured("flat", "kept"),
    ),
    Goal(
        title=Text("growth of resident memory", "рост резидентной памяти", "常驻内存增长"),
        suite="memory",
        limit=2,
        unit="MiB",
        value=_growth("flat", "rss"),
    ),
    Goal(
        title=Text(
            "import, times that of asyncio and msgspec", "импорт к asyncio и msgspec", "导入时间对比 asyncio 与 msgspec"
        ),
        suite="memory",
        limit=1.25,
        unit="×",
        value=_ratio("import", "milliseconds"),
    ),
    Goal(
        title=Text("first message after start", "первое сообщение после запуска", "启动后的第一条消息"),
        suite="memory",
        limit=150,
        unit="ms",
        value=_measured("first-message", "milliseconds"),
    ),
    Goal(
        title=Text("replay, times the plain reading loop", "воспроизведение к простому чтению", "回放对比普通读取循环"),
        suite="file",
        limit=1,
        unit="×",
        value=_over_raw_times("replay"),
        at_least=True,
    ),
    Goal(
        title=Text("parser, 512-byte messages", "разбор, сообщения по 512 байт", "解析器，512 字节消息"),
        suite="file",
        limit=400,
        unit="MB/s",
        value=_rate("parse"),
        at_least=True,
    ),
    _like_raw("file", "tail", Text("live tail", "живой хвост", "实时跟随")),
    _like_raw("file", "reply", Text("reply into the same file", "ответ в тот же файл", "应答写入同一文件")),
    _like_raw("nats", "core", Text("Core NATS", "Core NATS", "Core NATS")),
    _like_raw("nats", "jetstream", Text("JetStream, ack each", "JetStream, ack на каждое", "JetStream，逐条确认")),
    _like_raw("nats", "reply", Text("reply on Core", "ответ через Core", "经 Core 应答")),
    _like_raw("nats", "batch-64", Text("fetches of 64", "выборки по 64", "每次取 64 条")),
    Goal(
        title=Text("Core NATS, times FastStream", "Core NATS к FastStream", "Core NATS 对比 FastStream"),
        suite="nats",
        limit=12,
        unit="×",
        value=_times("core", "faststream"),
        at_least=True,
    ),
    Goal(
        title=Text("JetStream, times FastStream", "JetStream к FastStream", "JetStream 对比 FastStream"),
        suite="nats",
        limit=3,
        unit="×",
        value=_times("jetstream", "faststream"),
        at_least=True,
    ),
)


def judge_goals(results: Sequence[PackageResult]) -> list[Outcome]:
    """Every goal with its figure, in order."""
    by_name = {result.name: result for result in results}
    return [_judge(goal, by_name.get(goal.suite)) for goal in GOALS]


def _judge(goal: Goal, result: PackageResult | None) -> Outcome:
    value = None if result is None else goal.value(result)
    if value is None:
        return Outcome(goal, None, "not measured")
    kept = value >= goal.limit if goal.at_least else value <= goal.limit
    return Outcome(goal, value, "reached" if kept else "not reached")
