"""What the packages say they export is what they define."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from types import ModuleType

import ruststream_core

# What `import ruststream_core` must not add to `import asyncio, msgspec`: each costs a service start-up time.
LAZY = {
    "argparse",
    "attr",
    "importlib.metadata",
    "pluggy",
    "pydantic",
    "ruststream_core.asyncapi",
    "ruststream_core.cli",
    "ruststream_core.conformance",
    "ruststream_core.memory",
    "ruststream_core.testing",
    "ssl",
    "uuid",
    "uvloop",
}


def test_all_is_true(module: str) -> None:
    """`__all__` names what exists, once, in order, and everything public that the module defines."""
    loaded = importlib.import_module(module)
    exported: list[str] = getattr(loaded, "__all__", [])
    assert [name for name in exported if not hasattr(loaded, name)] == []
    assert len(exported) == len(set(exported))
    assert _defined(loaded) - set(exported) == set()


def _defined(module: ModuleType) -> set[str]:
    """Public classes and functions of a module; of a package also those of its private modules that it imports."""
    homes = (module.__name__, f"{module.__name__}._")
    return {
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and not name.startswith("_")
        and (value.__module__ == homes[0] or value.__module__.startswith(homes[1]))
    }


def test_public_modules_declare_all(module: str) -> None:
    """A module without `__all__` exports its imports."""
    assert "__all__" in vars(importlib.import_module(module)) or not _defined(importlib.import_module(module))


def test_no_export_is_a_submodule() -> None:
    """`from ruststream_core import message` must never give a module, whatever was imported before."""
    submodules = {module.name for module in pkgutil.iter_modules(ruststream_core.__path__)}
    assert submodules.intersection(ruststream_core.__all__) == set()


def test_import_is_light() -> None:
    """The core imports what it needs to run a route; the rest waits until it is asked for."""
    code = (
        "import json, sys, asyncio, msgspec; before = set(sys.modules); import ruststream_core;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert LAZY.intersection(json.loads(run.stdout)) == set()
