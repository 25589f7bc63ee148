"""The golden files, and the original's own reader, built from source where cargo is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of files that the original wrote."""
    return GOLDEN


@pytest.fixture(scope="session")
def verify_program() -> Path:
    """`verify`, which reads files with the original. Built once per machine, outside the checkout."""
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("cargo is not installed: files are not held against the original's reader")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ruststream-golden-verify"
    source = cache / "src"
    shutil.copytree(GOLDEN / "src", source, dirs_exist_ok=True)
    built = subprocess.run(
        [cargo, "build", "--release", "--bin", "verify", "--target-dir", cache / "target"],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"the original's reader cannot be built here: {built.stderr[-400:]}")
    return cache / "target" / "release" / "verify"


@pytest.fixture
def verify(verify_program: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `verify` on files: `verify("--strict", path)`."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([verify_program, *map(str, arguments)], capture_output=True, text=True, check=False)

    return run
