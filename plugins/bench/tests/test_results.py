"""The file of results: what is written is what is read, and a run replaces only what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ruststream_core.errors import ConfigError
from ruststream_core_bench._results import PackageResult, load, merge, save


def test_round_trip(sample: list[PackageResult], tmp_path: Path) -> None:
    """Nothing is lost on the way through the file."""
    save(tmp_path / "deep" / "results.json", sample)
    assert load(tmp_path / "deep" / "results.json") == sample


def test_form_of_the_file(sample: list[PackageResult], tmp_path: Path) -> None:
    """Others read it: a list with one object a package, each with its schema; spreads on one line for reviewers."""
    save(tmp_path / "results.json", sample)
    text = (tmp_path / "results.json").read_text(encoding="utf-8")
    written = json.loads(text)
    assert [(package["schema"], package["package"]) for package in written] == [
        (3, "ruststream-core-memory"),
        (3, "ruststream-core-nats"),
    ]
    row = written[1]["scenarios"][0]
    assert {"name", "unit", "messages", "rounds", "raw", "adapter", "framework", "overhead_percent", "bound"} <= set(
        row
    )
    assert set(row["raw"]) == {"best", "median", "worst"}
    assert '"raw": { "best": 100000.0, "median": 99000.0, "worst": 98000.0 }' in text


def test_missing_file_is_empty(tmp_path: Path) -> None:
    """The first run has nothing to merge with."""
    assert load(tmp_path / "results.json") == []


@pytest.mark.parametrize("text", ["{}", "[{}]", "nothing"])
def test_another_file(text: str, tmp_path: Path) -> None:
    """A file of something else is refused before it is replaced."""
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no file of results"):
        load(path)


def test_another_schema(sample: list[PackageResult], tmp_path: Path) -> None:
    """Figures of another schema are not shown as if they were of this one."""
    save(tmp_path / "results.json", [msgspec.structs.replace(sample[0], schema=2)])
    with pytest.raises(ConfigError, match="has schema 2"):
        load(tmp_path / "results.json")


def test_merge_keeps_what_was_not_measured(sample: list[PackageResult]) -> None:
    """`--only` must not delete the other rows, and another transport's run not this one's."""
    memory, nats = sample
    again = msgspec.structs.replace(memory.scenarios[0], messages=7)
    new = msgspec.structs.replace(memory, scenarios=[again], code=[], environment={"cpu": "another"})
    merged = merge([memory, nats], [new])
    assert [result.name for result in merged] == ["memory", "nats"]
    assert [row.messages for row in merged[0].scenarios] == [7, 500_000]
    assert merged[0].code == memory.code
    assert merged[0].environment == {"cpu": "another", "round_trip": "60 us"}
    assert merged[1] == nats
