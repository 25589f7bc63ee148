"""Every example on a page runs, satisfies the strictest type check, and names commands that exist.

The rules for pages are in CONTRIBUTING.md. A line of an example keeps its number on the page, so that a traceback
and an error of the type checker point there.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Protocol

import pytest

from ruststream_core.cli import main

ROOT = Path(__file__).resolve().parents[2]


class Source(Protocol):
    """One file of a page."""

    page: Path
    name: str
    module: str
    text: str


def test_examples_run(files: Sequence[Source], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files of a page run in their order, each followed by its own tests."""
    monkeypatch.chdir(tmp_path)
    for file in files:
        module = ModuleType(file.module)
        module.__file__ = str(file.page)
        monkeypatch.setitem(sys.modules, file.module, module)
        exec(compile(file.text, file.page, "exec", dont_inherit=True), vars(module))
        _call_entries(module)


def _call_entries(module: ModuleType) -> None:
    """Calls what the file defines to be called: its tests, and its `main`."""
    for name, value in list(vars(module).items()):
        wanted = name == "main" or name.startswith("test_")
        if wanted and isinstance(value, FunctionType) and not inspect.signature(value).parameters:
            result = value()
            if inspect.iscoroutine(result):
                asyncio.run(result)


def test_examples_are_typed(every_file: Mapping[str, Sequence[Source]], tmp_path: Path) -> None:
    """A user who copies an example into a strictly typed project gets no complaint."""
    written = {}
    for number, (page, files) in enumerate(every_file.items()):
        folder = tmp_path / f"page_{number}"
        folder.mkdir()
        for file in files:
            (folder / file.name).write_text(_with_local_imports(file.text, folder.name, files))
            written[f"{folder.name}/{file.name}"] = page
    problems = _mypy(tmp_path)
    for path, page in written.items():
        problems = problems.replace(f"{path}:", f"{page}:")
    assert problems == ""


def _with_local_imports(text: str, folder: str, files: Sequence[Source]) -> str:
    """All pages are checked in one call, where `orders` of one page must not be that of another."""
    names = "|".join(re.escape(file.module) for file in files)
    return re.sub(rf"^(\s*)from ({names}) import", rf"\1from {folder}.\2 import", text, flags=re.MULTILINE)


def _mypy(folder: Path) -> str:
    """What mypy complains about in a folder; nothing where all is well."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"]
    options = ["--explicit-package-bases", "--no-pretty", "--cache-dir", str(ROOT / ".mypy_cache" / "pages"), "."]
    run = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def test_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and every long option on the line are known to the program's own help."""
    _, name, *rest = shlex.split(command, comments=True)
    if name.startswith("-"):
        rest = [name, *rest]
    assert _code_of([*([] if name.startswith("-") else [name]), "--help"]) == 0
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} - known == set()


def _code_of(arguments: Sequence[str]) -> object:
    """The exit code of the program, however it ends."""
    try:
        return main(arguments)
    except SystemExit as exc:
        return exc.code
