"""What the tests of the repository itself look at."""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
PACKAGES = ["ruststream_core", *(f"ruststream_core_{name}" for name in PLUGINS)]


def _modules(package: str) -> list[str]:
    """Every module of a package that a user may import: no part of its name is private."""
    root = importlib.import_module(package)
    found = [package, *(module.name for module in pkgutil.walk_packages(root.__path__, f"{package}."))]
    return [name for name in found if not any(part.startswith("_") for part in name.split("."))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`name` is each plugin's, `module` each public module's."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", PLUGINS)
    if "module" in metafunc.fixturenames:
        metafunc.parametrize("module", [module for package in PACKAGES for module in _modules(package)])


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def core(root: Path) -> dict[str, Any]:
    """The root's pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture
def plugin(root: Path, name: str) -> dict[str, Any]:
    """A plugin's pyproject.toml."""
    return tomllib.loads((root / "plugins" / name / "pyproject.toml").read_text())
