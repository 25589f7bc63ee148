"""Where the programs come from: the machine, or a folder of programs built once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ruststream_core.testing.servers._errors import ServerFailed, ServerMissing

__all__ = ["build_with_go", "cache_folder", "find_program"]

# Servers are often installed where only the administrator's PATH looks.
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/homebrew/bin", "/opt/homebrew/sbin")
_GO_FOLDERS = ("/usr/local/go/bin",)
_BUILD_SECONDS = 900


def find_program(*names: str, install: str, folders: Sequence[str | Path] = ()) -> str:
    """The path of the first of some programs that is installed.

    Args:
        names: The program's names, the preferred one first.
        install: How to get it, for the error.
        folders: Where to look before the PATH.

    Raises:
        ServerMissing: None of them is there.
    """
    places = [*map(str, folders), *os.environ.get("PATH", os.defpath).split(os.pathsep), *_SYSTEM_FOLDERS]
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join(places)):
            return found
    raise ServerMissing(f"the program {' or '.join(names)} is not installed; {install}")


def cache_folder() -> Path:
    """Where built programs are kept between runs: `RUSTSTREAM_CACHE`, else a folder in the user's cache."""
    if chosen := os.environ.get("RUSTSTREAM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ruststream-tests"


def build_with_go(module: str, version: str) -> str:
    """Build a program from a Go module once, and keep it.

    Runs that need the same program at the same time wait for the one that builds it.

    Args:
        module: The import path of the program.
        version: The module's version, with its "v".

    Returns:
        The program's path.

    Raises:
        ServerMissing: The Go toolchain is not installed.
        ServerFailed: The build failed; the message ends with the compiler's last lines.
    """
    folder = cache_folder() / f"{module.replace('/', '-')}@{version}"
    if found := _built(folder):
        return found
    go = find_program("go", folders=_GO_FOLDERS, install=f"it builds {module}: see https://go.dev/doc/install")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        return _built(folder) or _build(go, f"{module}@{version}", folder)


def _built(folder: Path) -> str | None:
    return next((str(path) for path in folder.glob("bin/*")), None)


def _build(go: str, target: str, folder: Path) -> str:
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        environment = {**os.environ, "GOBIN": f"{fresh}/bin", "CGO_ENABLED": "0"}
        try:
            subprocess.run(
                [go, "install", target], env=environment, cwd=fresh, check=True, timeout=_BUILD_SECONDS,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        except subprocess.CalledProcessError as exc:
            raise ServerFailed(f"go install {target} failed:\n{exc.output[-2000:]}") from exc
        except subprocess.TimeoutExpired as exc:
            raise ServerFailed(f"go install {target} took longer than {_BUILD_SECONDS} s") from exc
        # A rename is whole or not at all: a build that was interrupted leaves nothing that looks finished.
        Path(fresh, "bin").rename(folder / "bin")
    program = _built(folder)
    assert program is not None
    return program


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
