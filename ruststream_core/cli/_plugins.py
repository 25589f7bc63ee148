"""`ruststream plugins`: what is installed, read from metadata alone unless loading is asked for."""

from __future__ import annotations

import argparse

from ruststream_core.cli._check import table
from ruststream_core.plugins import list_plugins

__all__ = ["arguments", "execute"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--load", action="store_true", help="import each one and say whether that works")


def execute(options: argparse.Namespace) -> int:
    """Run it; 1 where a plugin does not load."""
    found = list_plugins(load=options.load)
    heads = ("scheme", "distribution", "version", "module", "state")
    print(table(heads, [(p.scheme, p.distribution, p.version, p.module, p.state) for p in found]))
    return 1 if any(p.error for p in found) else 0
