"""`results.json`: what was measured, in the form that pages, goals and other tools read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ruststream_core.errors import ConfigError
from ruststream_core_bench._stats import Spread, Verdict

__all__ = ["SCHEMA", "CodeRow", "PackageResult", "PeerResult", "Row", "Text", "load", "merge", "save"]

SCHEMA: Final = 3


class Text(msgspec.Struct, frozen=True):
    """One phrase in the languages of the site."""

    en: str
    ru: str
    zh: str


class PeerResult(msgspec.Struct, frozen=True):
    """Another framework in the same interleaved run, with a message count of its own."""

    version: str
    messages: int
    rates: Spread
    times: float
    """How often the service's best rate contains the peer's best."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario: three loops over the same messages."""

    name: str
    title: Text
    unit: str
    loop: str
    """The event loop: asyncio or uvloop."""
    messages: int
    rounds: int
    raw: Spread
    adapter: Spread | None
    framework: Spread
    adapter_overhead_percent: float | None
    adapter_verdict: Verdict | None
    overhead_percent: float | None
    verdict: Verdict
    bound: str | None
    """`broker-bound` and the like, where the raw loop waits half of its time or more."""
    waiting: float
    """The share of its time that the raw loop waited, from 0 to 1."""
    peers: dict[str, PeerResult] = {}


class CodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One property of the code, in `unit`: for a scenario per message, else of the process."""

    name: str
    title: Text
    metric: str
    unit: str
    raw: float | None
    """What the same costs without the framework, where there is such a thing."""
    framework: float


class PackageResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one plugin."""

    schema: int = SCHEMA
    name: str
    package: str
    package_version: str
    core_version: str
    python: str
    measured_at: str
    environment: dict[str, str]
    scenarios: list[Row] = []
    code: list[CodeRow] = []


def load(path: Path) -> list[PackageResult]:
    """What a file holds; nothing where there is none.

    Raises:
        ConfigError: it is not such a file, or of another schema.
    """
    if not path.exists():
        return []
    try:
        results = msgspec.json.decode(path.read_bytes(), type=list[PackageResult])
    except msgspec.DecodeError as exc:
        raise ConfigError(f"{path} is no file of results: {exc}") from exc
    if wrong := {result.schema for result in results} - {SCHEMA}:
        raise ConfigError(f"{path} has schema {min(wrong)}, this version reads {SCHEMA}: measure again")
    return results


def save(path: Path, results: Iterable[PackageResult]) -> None:
    """Write a file whole or not at all; one element of a list is one line, so that a change is easy to review."""
    text = msgspec.json.format(msgspec.json.encode(sorted(results, key=lambda result: result.name)), indent=2).decode()
    text = re.sub(r"\{\n\s+(\"(?:best|en)\"[^{}]+?)\n\s+\}", _on_one_line, text)
    scratch = path.with_name(path.name + ".new")
    scratch.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text(text + "\n", encoding="utf-8")
    scratch.replace(path)


def _on_one_line(found: re.Match[str]) -> str:
    return "{ " + re.sub(r"\n\s+", " ", found[1]) + " }"


def merge(old: Iterable[PackageResult], new: Iterable[PackageResult]) -> list[PackageResult]:
    """Replace the packages of `old` that `new` measured; rows that it did not measure stay."""
    merged = {result.name: result for result in old}
    for result in new:
        former = merged.get(result.name)
        merged[result.name] = result if former is None else _over(former, result)
    return [merged[name] for name in sorted(merged)]


def _over(old: PackageResult, new: PackageResult) -> PackageResult:
    rows = {(row.name, row.loop): row for row in (*old.scenarios, *new.scenarios)}
    code = {(row.name, row.metric): row for row in (*old.code, *new.code)}
    environment = {**old.environment, **new.environment}
    return msgspec.structs.replace(
        new, scenarios=list(rows.values()), code=list(code.values()), environment=environment
    )
