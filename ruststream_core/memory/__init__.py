"""The in-process transport: queues and logs that live as long as their broker object.

For tests, for examples and for work that need not outlive the process. It keeps the whole contract, so that what
runs here runs on a server: competing consumers, attempts, delays, dead letters, transactions, requests, logs with
groups and positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruststream_core.abc import Broker
from ruststream_core.memory._broker import MemoryBroker
from ruststream_core.memory._config import MemoryLog, MemoryQueue
from ruststream_core.plugins import hookimpl

__all__ = ["MemoryBroker", "MemoryLog", "MemoryQueue", "ruststream_brokers"]


@hookimpl
def ruststream_brokers() -> Mapping[str, type[Broker[Any]]]:
    """The scheme of this transport."""
    return {"memory": MemoryBroker}
