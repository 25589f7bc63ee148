"""What the entry point names: the broker by its schemes."""

from __future__ import annotations

from collections.abc import Mapping

from ruststream_core.abc import Broker
from ruststream_core.plugins import hookimpl
from ruststream_core_nats._broker import NATSBroker

__all__ = ["ruststream_brokers"]


@hookimpl
def ruststream_brokers() -> Mapping[str, type[Broker]]:  # type: ignore[type-arg]
    """See `ruststream_core.plugins`."""
    return {"nats": NATSBroker, "tls": NATSBroker}
