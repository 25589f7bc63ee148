"""What the core finds through the entry points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruststream_core.abc import Broker
from ruststream_core.plugins import hookimpl
from ruststream_core_file import FileBroker, StdioBroker

__all__ = ["ruststream_brokers"]


@hookimpl
def ruststream_brokers() -> Mapping[str, type[Broker[Any]]]:
    """The schemes of this transport."""
    return {"file": FileBroker, "stdio": StdioBroker}
