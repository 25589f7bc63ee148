"""The transports that are measured. A new one is a module here with a `SUITE`, and one line in `MODULES`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from ruststream_core.errors import ConfigError
from ruststream_core_bench._scenario import Suite

__all__ = ["MODULES", "load_suite"]

MODULES: Final[Mapping[str, str]] = {
    "memory": "ruststream_core_bench.scenarios.memory",
    "file": "ruststream_core_bench.scenarios.file",
    "nats": "ruststream_core_bench.scenarios.nats",
}


def load_suite(name: str) -> Suite:
    """The scenarios of one transport.

    Raises:
        ConfigError: there is no such suite.
    """
    if name not in MODULES:
        raise ConfigError(f"nothing is measured under {name!r}; known are {', '.join(MODULES)}")
    suite: Suite = import_module(MODULES[name]).SUITE
    return suite
