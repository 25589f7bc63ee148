"""What the generated pages say, in the languages of the site."""

# ruff: noqa: RUF001 - titles are written in three languages

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ruststream_core_bench._results import Text

__all__ = ["LANGUAGES", "TEXTS", "Language", "say"]

Language = Literal["en", "ru", "zh"]
LANGUAGES: Final[tuple[Language, ...]] = ("en", "ru", "zh")

TEXTS: Final[Mapping[str, Text]] = {
    "intro": Text(
        "The same messages through three loops: the client library driven directly (raw), the transport without the"
        " runtime (plugin), and a handler in an app (service). Rounds are interleaved. Each cell is the best round,"
        " with the median in parentheses.",
        "Одни и те же сообщения проходят через три цикла: клиентская библиотека напрямую (raw), транспорт без среды"
        " выполнения (plugin) и обработчик в приложении (service). Раунды чередуются. В ячейке лучший раунд, в скобках"
        " медиана.",
        "同样的消息经过三种循环：直接使用客户端库（raw）、不带运行时的传输层（plugin）、应用中的处理函数（service）。"
        "各轮交替进行。单元格中是最好的一轮，括号内是中位数。",
    ),
    "chart": Text(
        "Rates relative to the raw loop's best round",
        "Скорость относительно лучшего раунда цикла raw",
        "相对于 raw 循环最好一轮的速率",
    ),
    "legend": Text(
        "bar: best to worst round; dot: best; notch: median; hollow: indistinguishable from raw",
        "полоса: от лучшего до худшего раунда; точка: лучший; засечка: медиана; контур: неотличимо от raw",
        "横条：最好到最差一轮；圆点：最好；刻痕：中位数；空心：与 raw 无法区分",
    ),
    "scenario": Text("scenario", "сценарий", "场景"),
    "unit": Text("unit", "единица", "单位"),
    "messages": Text("messages", "сообщений", "消息数"),
    "rounds": Text("rounds", "раундов", "轮数"),
    "raw": Text("raw", "raw", "raw"),
    "adapter": Text("plugin", "plugin", "plugin"),
    "framework": Text("service", "service", "service"),
    "adapter_over": Text("plugin over raw", "plugin к raw", "plugin 比 raw"),
    "framework_over": Text("service over raw", "service к raw", "service 比 raw"),
    "note": Text("note", "примечание", "备注"),
    "indistinguishable": Text("indistinguishable", "неотличимо", "无法区分"),
    "incomplete": Text("incomplete", "не завершено", "未完成"),
    "slower": Text("more time", "больше времени", "更多时间"),
    "faster": Text("less time", "меньше времени", "更少时间"),
    "broker-bound": Text("broker-bound", "ограничено брокером", "受限于代理"),
    "database-bound": Text("database-bound", "ограничено базой данных", "受限于数据库"),
    "storage-bound": Text("storage-bound", "ограничено хранилищем", "受限于存储"),
    "peers": Text("Other frameworks", "Другие фреймворки", "其他框架"),
    "peer": Text("framework", "фреймворк", "框架"),
    "ours": Text("service", "service", "service"),
    "times": Text("service is faster by", "service быстрее в", "service 快"),
    "code": Text("Cost of the code", "Стоимость кода", "代码成本"),
    "metric": Text("measure", "величина", "指标"),
    "with": Text("with the framework", "с фреймворком", "使用框架"),
    "without": Text("without", "без него", "不使用"),
    "difference": Text("difference", "разница", "差值"),
    "goals": Text("Goals", "Цели", "目标"),
    "goal": Text("goal", "цель", "目标"),
    "limit": Text("limit", "предел", "限值"),
    "value": Text("measured", "измерено", "实测"),
    "result": Text("result", "итог", "结果"),
    "reached": Text("reached", "достигнута", "达到"),
    "not reached": Text("not reached", "не достигнута", "未达到"),
    "not measured": Text("not measured", "не измерено", "未测量"),
    "environment": Text("Environment", "Окружение", "环境"),
    "measured_at": Text("measured on", "измерено", "测量日期"),
    "methodology": Text("Methodology", "Методика", "方法"),
    "numbers": Text("Numbers", "Числа", "数据"),
    "all_numbers": Text("Numbers of all transports", "Числа всех транспортов", "所有传输层的数据"),
    "instructions": Text("instructions per message", "инструкций на сообщение", "每条消息的指令数"),
    "allocations": Text("allocations per message", "выделений памяти на сообщение", "每条消息的内存分配次数"),
    "in_flight": Text("bytes per message in flight", "байт на сообщение в работе", "每条处理中消息的字节数"),
    "milliseconds": Text("milliseconds", "миллисекунд", "毫秒"),
    "kept": Text("blocks kept per message", "удержано блоков на сообщение", "每条消息保留的内存块数"),
    "rss": Text("resident memory, MiB", "резидентная память, МиБ", "常驻内存，MiB"),
}


def say(key: str, language: Language) -> str:
    """A phrase; a key that has none stands for itself."""
    text = TEXTS.get(key)
    return key if text is None else str(getattr(text, language))
