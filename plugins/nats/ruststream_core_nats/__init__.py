"""NATS as a transport of RustStream: Core subjects, JetStream consumers, request/reply.

Configuration only. The client library is imported when a connection is made.
"""

from __future__ import annotations

from ruststream_core_nats._broker import NATSBroker
from ruststream_core_nats.config import CoreSubject, DeliverPolicy, JetStream, JetStreamPublish, KeyValueWatch

__all__ = ["CoreSubject", "DeliverPolicy", "JetStream", "JetStreamPublish", "KeyValueWatch", "NATSBroker"]
