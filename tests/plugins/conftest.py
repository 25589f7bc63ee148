"""Distributions made of files, as pip would leave them on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ruststream_core import plugins

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with one module and its entry points on the path; returns the module's name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def install(distribution: str, source: str, schemes: Mapping[str, str] | list[str], version: str = "1.0") -> str:
        module = f"plugin_{distribution.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(source)
        meta = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        targets = schemes if isinstance(schemes, Mapping) else dict.fromkeys(schemes, module)
        lines = "\n".join(f"{scheme} = {target}" for scheme, target in targets.items())
        (meta / "entry_points.txt").write_text(f"[ruststream.plugins]\n{lines}\n")
        made.append(module)
        return module

    yield install
    plugins._manager.cache_clear()
    for module in made:
        sys.modules.pop(module, None)


BROKER = """
from ruststream_core.abc import Broker
from ruststream_core.plugins import hookimpl


class {name}(Broker):
    def __init__(self, url): self.url = url
    @classmethod
    def from_url(cls, url): return cls(url)
    def source(self, source): ...
    def features(self, source): ...
    def describe(self): ...
    def stand_in(self, clock): ...
    async def connect(self): ...


@hookimpl
def ruststream_brokers():
    return {{{schemes}}}
"""


@pytest.fixture
def broker_source() -> Callable[..., str]:
    def source(*schemes: str, name: str = "TheBroker") -> str:
        return BROKER.format(name=name, schemes=", ".join(f"{scheme!r}: {name}" for scheme in schemes))

    return source


@pytest.fixture
def loaded() -> Callable[[str], Any]:
    return sys.modules.get
