"""What is in the repository: nothing of one machine, nothing that a registry generates."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

# Written with brackets, so that this file does not name what it forbids.
FORBIDDEN = {
    "a folder of one machine": re.compile(r"[/](?:home|Users)/\w|[/](?:root|work)/|[/]tmp/\w"),
    "the address of a registry": re.compile(
        r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|crates[.]io-index|static[.]crates[.]io"
        r"|proxy[.]golang|repo1?[.]maven|deb[.]debian[.]org"
    ),
}
GENERATED = {"uv.lock", "poetry.lock", "Cargo.lock", "package-lock.json"}
IGNORED = {".git", ".nox", ".venv", "build", "dist", "site"}


def _tracked(root: Path) -> list[Path]:
    """The files that git keeps or would add; outside a git checkout, those that are not generated."""
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        return [root / name for name in listed if name and (root / name).is_file()]
    return list(_walk(root))


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in IGNORED and not name.endswith(("_cache", "__"))]
        yield from (Path(folder, name) for name in names if name not in GENERATED)


def _text(path: Path) -> str:
    """The text of a file, or nothing where it is binary."""
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode(errors="replace")


@pytest.fixture(scope="module")
def tracked(root: Path) -> list[Path]:
    """Every file of the repository."""
    files = _tracked(root)
    assert root / "pyproject.toml" in files
    return files


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_nothing_of_one_machine(root: Path, tracked: list[Path], kind: str) -> None:
    """A path or an address that works here fails for everybody else."""
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()[:100]}"
        for path in tracked
        for number, line in enumerate(_text(path).splitlines(), 1)
        if FORBIDDEN[kind].search(line)
    ]
    assert found == []


def test_no_lock_files(root: Path, tracked: list[Path]) -> None:
    """They hold addresses; `constraints.txt` holds the versions."""
    assert [str(path.relative_to(root)) for path in tracked if path.name in GENERATED] == []


def test_constraints_are_exact(root: Path) -> None:
    """Every line is one name and one version: no address, no range, no package of this repository."""
    lines = (root / "constraints.txt").read_text().splitlines()
    pinned = re.compile(r"[a-z0-9][a-z0-9.-]*==[0-9][A-Za-z0-9.!+-]*")
    assert [line for line in lines if not pinned.fullmatch(line) or line.startswith("ruststream-core")] == []
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))


def test_no_symbolic_links(root: Path, tracked: list[Path]) -> None:
    """They break in a source distribution and on some checkouts."""
    assert [str(path.relative_to(root)) for path in tracked if path.is_symlink()] == []
