"""The generated pages and charts, in three languages, from a sample."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ruststream_core_bench._report import page, write_pages
from ruststream_core_bench._results import PackageResult
from ruststream_core_bench._svg import chart
from ruststream_core_bench._texts import LANGUAGES, TEXTS, Language, say

DOCS = Path(__file__).resolve().parents[3] / "docs" / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


def _parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314  our own chart


def test_what_is_written(sample: list[PackageResult], tmp_path: Path) -> None:
    """A page and a chart for each package, one page of numbers, each in every language."""
    names = {path.name for path in write_pages(sample, tmp_path / "benchmarks")}
    expected = {
        f"{name}.{language}.{kind}" for name in ("memory", "nats") for language in LANGUAGES for kind in ("md", "svg")
    }
    assert names == expected | {f"numbers.{language}.md" for language in LANGUAGES}
    assert {path.name for path in (tmp_path / "benchmarks").iterdir()} == names


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_lead_somewhere(sample: list[PackageResult], language: Language, tmp_path: Path) -> None:
    """Every link of a page is another one, its chart, or the methodology, which is written by hand."""
    write_pages(sample, tmp_path)
    for path in tmp_path.glob(f"*.{language}.md"):
        for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (tmp_path / target).exists() or (DOCS / target).exists()


@pytest.mark.parametrize("language", LANGUAGES)
def test_tables_are_whole(sample: list[PackageResult], language: Language) -> None:
    """Each line of a table has as many cells as its head, although titles contain the separator."""
    widths = set()
    for line in [*page(sample[0], language).splitlines(), ""]:
        if line.startswith("|"):
            widths.add(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(widths) <= 1
            widths.clear()


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_percentage_without_a_difference(sample: list[PackageResult], language: Language) -> None:
    """Where rounds do not tell two loops apart the page says so and gives no figure."""
    text = page(sample[1], language)
    row = next(line for line in text.splitlines() if "100,000 (99,000)" in line)
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
    assert cells[7] == say("indistinguishable", language)
    assert say("broker-bound", language) in cells[8]


@pytest.mark.parametrize("language", LANGUAGES)
def test_chart_is_well_formed(sample: list[PackageResult], language: Language) -> None:
    """It is XML, has a title for screen readers, no script, and follows the reader's choice of light or dark."""
    text = chart(sample[0].scenarios, language)
    root = _parsed(text)
    assert root.tag == SVG + "svg"
    assert root.findtext(SVG + "title") == say("chart", language)
    assert not list(root.iter(SVG + "script"))
    assert "prefers-color-scheme:dark" in text


def test_bars_of_the_chart(sample: list[PackageResult]) -> None:
    """One bar and one dot for each loop and peer; hollow exactly where the loop is indistinguishable."""
    root = _parsed(chart(sample[1].scenarios, "en"))
    bars = [element.get("class") for element in root.iter(SVG + "rect")]
    assert bars == ["raw bar", "adapter bar", "framework hollow", "peer bar"]
    assert len(list(root.iter(SVG + "circle"))) == len(bars)


def test_zero_is_the_best_of_raw(sample: list[PackageResult]) -> None:
    """The dot of the raw loop stands on the line of zero, and a slower loop's to the left of it."""
    root = _parsed(chart(sample[0].scenarios[:1], "en"))
    zero = next(line for line in root.iter(SVG + "line") if line.get("class") == "zero")
    raw, adapter, framework = (float(dot.get("cx", "nan")) for dot in root.iter(SVG + "circle"))
    assert raw == float(zero.get("x1", "nan"))
    assert framework < adapter < raw


@pytest.mark.parametrize("key", TEXTS)
def test_every_phrase_in_every_language(key: str) -> None:
    """An empty phrase would leave a hole in a page."""
    assert all(say(key, language).strip() for language in LANGUAGES)
