"""Rounds and figures of the scenarios; see `scene` and `ledger`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .ledger import Ledger
from .scene import Figures, Rounds, load_seconds, write_figures


@pytest.fixture(params=[pytest.param(3, id="short"), pytest.param(30, id="long", marks=pytest.mark.load)])
def rounds(request: pytest.FixtureRequest) -> Rounds:
    """How often a scenario is repeated, on one server and in one ledger."""
    return Rounds(request.param, load_seconds())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """The ledger of one test."""
    made = Ledger(tmp_path / "ledger")
    yield made
    made.close()


@pytest.fixture(scope="session")
def all_figures() -> Iterator[list[Figures]]:
    """Written at the end, where `RUSTSTREAM_TEST_FIGURES` names a file."""
    rows: list[Figures] = []
    yield rows
    if file := os.environ.get("RUSTSTREAM_TEST_FIGURES"):
        write_figures(Path(file), rows)


@pytest.fixture
def figures(all_figures: list[Figures], version: str) -> Callable[[str], Figures]:
    """A new row of the table."""

    def begin(scenario: str) -> Figures:
        row = Figures(scenario, version)
        all_figures.append(row)
        return row

    return begin
