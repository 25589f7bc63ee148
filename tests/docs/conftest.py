"""The pages and the code on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<language>[\w+-]*)(?P<options>.*)")
TITLE = re.compile(r'title="(?P<name>[^"]+)"')


@dataclass
class Block:
    """One fenced block: where its first line stands, what it is, what is in it."""

    page: Path
    line: int
    language: str
    options: str
    lines: list[str]


@dataclass
class SourceFile:
    """The blocks of a page that make one file, each line where it stands on the page."""

    page: Path
    name: str
    lines: list[str] = field(default_factory=list)

    @property
    def module(self) -> str:
        """What other files of the page import it as."""
        return self.name.removesuffix(".py")

    @property
    def text(self) -> str:
        """The whole file, with blank lines for the prose."""
        return "\n".join(self.lines) + "\n"

    def add(self, block: Block) -> None:
        """Continues the file with a block."""
        self.lines += [""] * (block.line - 1 - len(self.lines)) + block.lines


def pages() -> list[Path]:
    """Every page that shows code."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("plugins/*/README.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page in their order."""
    block: Block | None = None
    mark = indent = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if block is None and fence:
            mark, indent = fence["mark"], fence["indent"]
            block = Block(page, number + 1, fence["language"], fence["options"], [])
        elif block is not None and line.strip() == mark:
            yield block
            block = None
        elif block is not None:
            block.lines.append(line.removeprefix(indent))
    if block is not None:
        raise ValueError(f"{page}:{block.line - 1}: the block is never closed")


def sources(page: Path) -> list[SourceFile]:
    """The files that the `python` blocks of a page make."""
    files: list[SourceFile] = []
    for block in blocks(page):
        if block.language != "python":
            continue
        title = TITLE.search(block.options)
        if title or not files:
            files.append(SourceFile(page, title["name"] if title else "page.py"))
        files[-1].add(block)
    return files


def commands(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of the `sh` blocks that call `ruststream`, with their numbers."""
    for block in blocks(page):
        if block.language == "sh":
            for number, line in enumerate(block.lines, block.line):
                if line.startswith("ruststream "):
                    yield number, line


def place(page: Path) -> str:
    """A page's path in the checkout."""
    return str(page.relative_to(ROOT))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`files` are those of one page, `command` is one line that calls `ruststream`."""
    if "files" in metafunc.fixturenames:
        found = {place(page): files for page in pages() if (files := sources(page))}
        metafunc.parametrize("files", found.values(), ids=found.keys())
    if "command" in metafunc.fixturenames:
        lines = {f"{place(page)}:{number}": line for page in pages() for number, line in commands(page)}
        metafunc.parametrize("command", lines.values(), ids=lines.keys())


@pytest.fixture(scope="session")
def every_file() -> dict[str, list[SourceFile]]:
    """The files of every page, by the page's path."""
    return {place(page): sources(page) for page in pages()}
