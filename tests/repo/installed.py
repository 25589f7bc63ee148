"""Tries installed packages: `python -I installed.py PACKAGE...`, outside the checkout and without any test tool.

Every module imports without an optional dependency, types and licence are in the wheel, tests are not,
and every plugin registers.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

# Modules that wait for an optional dependency.
OPTIONAL = {"ruststream_core.codecs._pydantic"}


def modules(package: str) -> list[str]:
    """Names every module of a package, itself included; `__main__` would run."""
    root = importlib.import_module(package)
    found = [module.name for module in pkgutil.walk_packages(root.__path__, f"{package}.")]
    return [package, *(name for name in found if not name.endswith(".__main__"))]


def check(package: str) -> None:
    """Imports all of one package and looks at what its wheel brought."""
    distribution = metadata.distribution(package.replace("_", "-"))
    files = [str(path) for path in distribution.files or ()]
    for name in modules(package):
        if name not in OPTIONAL:
            importlib.import_module(name)
    home = Path(str(importlib.import_module(package).__file__))
    if "site-packages" not in home.parts:
        sys.exit(f"{package} is imported from {home.parent}, not from its wheel")
    if f"{package}/py.typed" not in files:
        sys.exit(f"{package} has no py.typed in its wheel")
    if not any(path.endswith("licenses/LICENSE") for path in files):
        sys.exit(f"{package} has no licence in its wheel")
    if strangers := {path.split("/")[0] for path in files} - {package, "..", home.parent.name} - infos(files):
        sys.exit(f"{package} ships {sorted(strangers)} beside the package")


def infos(files: list[str]) -> set[str]:
    """The folder of the metadata."""
    return {path.split("/")[0] for path in files if ".dist-info/" in path}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        check(argument)
    command = Path(sys.executable).with_name("ruststream")
    subprocess.run([command, "plugins", "--load"], check=True)
    sys.stdout.write(f"{len(sys.argv) - 1} wheels work\n")
