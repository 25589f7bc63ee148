"""Pages from `results.json`: one for each transport and one with all numbers, in every language of the site."""

# ruff: noqa: RUF001 - the multiplication sign is meant

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ruststream_core_bench._goals import Outcome, judge_goals
from ruststream_core_bench._results import CodeRow, PackageResult, Row
from ruststream_core_bench._stats import Spread, Verdict
from ruststream_core_bench._svg import chart
from ruststream_core_bench._texts import LANGUAGES, Language, say

__all__ = ["page", "table_of", "write_pages"]


def write_pages(results: Sequence[PackageResult], folder: Path) -> list[Path]:
    """Write all pages and charts; each is replaced whole.

    Returns:
        What was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    for language in LANGUAGES:
        for result in results:
            files[f"{result.name}.{language}.md"] = page(result, language)
            if result.scenarios:
                files[f"{result.name}.{language}.svg"] = chart(result.scenarios, language)
        files[f"numbers.{language}.md"] = _numbers(results, language)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def page(result: PackageResult, language: Language) -> str:
    """The page of one transport."""
    parts = [f"# {result.package}: {result.name}", say("intro", language)]
    if result.scenarios:
        parts.append(f"![{say('chart', language)}]({result.name}.{language}.svg)")
        parts.append(table_of(result.scenarios, language))
    parts += _tail(result, language)
    parts.append(f"{_methodology(language)} · [{say('numbers', language)}](numbers.{language}.md)")
    return "\n\n".join(parts) + "\n"


def _methodology(language: Language) -> str:
    """The link to the one page that is written by hand."""
    return f"[{say('methodology', language)}](methodology{'' if language == 'en' else f'.{language}'}.md)"


def _tail(result: PackageResult, language: Language) -> Iterator[str]:
    if any(row.peers for row in result.scenarios):
        yield f"## {say('peers', language)}"
        yield _peers(result.scenarios, language)
    if result.code:
        yield f"## {say('code', language)}"
        yield _code(result.code, language)
    yield f"## {say('environment', language)}"
    yield _environment(result, language)


def _numbers(results: Sequence[PackageResult], language: Language) -> str:
    parts = [f"# {say('all_numbers', language)}", _methodology(language)]
    for result in results:
        parts.append(f"## [{result.package}: {result.name}]({result.name}.{language}.md)")
        if result.scenarios:
            parts.append(table_of(result.scenarios, language))
        if result.code:
            parts.append(_code(result.code, language))
    parts += [f"## {say('goals', language)}", _goals(judge_goals(results), language)]
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------------- tables


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """A table whose last columns after the first `numbers` texts are aligned to the right."""
    rule = ["---" if column < numbers else "---:" for column in range(len(head))]
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table_of(rows: Sequence[Row], language: Language) -> str:
    """Best and median of every loop, and what they amount to."""
    columns = ("scenario", "unit", "raw", "adapter", "framework", "adapter_over", "framework_over", "note")
    return _table([say(key, language) for key in columns], [_cells(row, language) for row in rows], 2)


def _cells(row: Row, language: Language) -> list[str]:
    title: str = getattr(row.title, language)
    notes = [f"{row.messages:,} × {row.rounds}"]
    if row.bound is not None:
        notes.insert(0, say(row.bound, language))
    return [
        title if row.loop == "asyncio" else f"{title} ({row.loop})",
        row.unit,
        _rate(row.raw),
        _rate(row.adapter),
        _rate(row.framework),
        _verdict(row.adapter_verdict, row.adapter_overhead_percent, language),
        _verdict(row.verdict, row.overhead_percent, language),
        ", ".join(notes),
    ]


def _rate(rates: Spread | None) -> str:
    return "" if rates is None else f"{rates.best:,.0f} ({rates.median:,.0f})"


def _verdict(verdict: Verdict | None, percent: float | None, language: Language) -> str:
    if verdict is None:
        return ""
    return say(verdict, language) if percent is None else f"{percent:+.1f} % ({say(verdict, language)})"


def _peers(rows: Sequence[Row], language: Language) -> str:
    head = [say(key, language) for key in ("scenario", "peer", "ours", "peer", "times")]
    return _table(
        head,
        [
            [
                getattr(row.title, language),
                f"{name} {peer.version}",
                _rate(row.framework),
                _rate(peer.rates),
                f"{peer.times:.1f} ×",
            ]
            for row in rows
            for name, peer in row.peers.items()
        ],
        2,
    )


def _code(rows: Sequence[CodeRow], language: Language) -> str:
    head = [say(key, language) for key in ("scenario", "metric", "without", "with", "difference")]
    return _table(head, [_code_cells(row, language) for row in rows], 2)


def _code_cells(row: CodeRow, language: Language) -> list[str]:
    raw = "" if row.raw is None else f"{row.raw:,.4g}" if row.raw < 1000 else f"{row.raw:,.0f}"
    ours = f"{row.framework:,.4g}" if row.framework < 1000 else f"{row.framework:,.0f}"
    difference = "" if row.raw is None else f"{row.framework - row.raw:+,.4g}"
    if row.raw is not None and abs(row.framework - row.raw) >= 1000:
        difference = f"{row.framework - row.raw:+,.0f}"
    return [getattr(row.title, language), say(row.metric, language), raw, ours, difference]


def _goals(outcomes: Sequence[Outcome], language: Language) -> str:
    head = [say(key, language) for key in ("goal", "limit", "value", "result")]
    return _table(head, [_goal_cells(outcome, language) for outcome in outcomes], 1)


def _goal_cells(outcome: Outcome, language: Language) -> list[str]:
    goal = outcome.goal
    value = "" if outcome.value is None else f"{outcome.value:.4g} {goal.unit}".rstrip()
    limit = f"{'≥' if goal.at_least else '≤'} {goal.limit:g} {goal.unit}".rstrip()
    return [f"{goal.suite}: {getattr(goal.title, language)}", limit, value, say(outcome.state, language)]


def _environment(result: PackageResult, language: Language) -> str:
    facts = {
        result.package: result.package_version,
        "ruststream-core": result.core_version,
        say("measured_at", language): result.measured_at,
        **result.environment,
    }
    return _table(["", ""], [[name.replace("_", " "), value] for name, value in facts.items()], 2)
