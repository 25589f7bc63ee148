"""What `import ruststream_core` brings along, and what it must not: it is start-up time of every service."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNWANTED = (
    "argparse",
    "attr",
    "difflib",
    "email",
    "importlib.metadata",
    "nats",
    "pluggy",
    "pydantic",
    "pytest",
    "ruststream_core.cli",
    "ruststream_core.memory",
    "ruststream_core.plugins",
    "ruststream_core.testing",
    "sqlite3",
    "uvloop",
    "watchfiles",
)


def imported_by(code: str) -> set[str]:
    lines = f"{code}\nimport sys\nprint(*sorted(sys.modules), sep='\\n')"
    run = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import ruststream_core",
        """
from ruststream_core import App
app = App("a", broker="memory:")
@app.subscriber("orders")
async def handle(body: bytes) -> None: ...
""",
    ],
    ids=["import", "declare"],
)
def test_the_package_and_an_app_declared_with_it_import_no_more_than_they_need(code: str) -> None:
    """Declaring an app does no I/O and looks nothing up; that begins with `start` or `check`."""
    assert sorted(imported_by(code) & set(UNWANTED)) == []


def test_what_comes_along_is_what_asyncio_and_msgspec_bring_themselves() -> None:
    """uuid and ssl are there in any asyncio program that uses msgspec; the framework adds neither."""
    base = imported_by("import asyncio, msgspec")
    added = imported_by("import ruststream_core") - base
    assert not added & {"uuid", "ssl", "socket", "subprocess", "multiprocessing", "unittest"}
