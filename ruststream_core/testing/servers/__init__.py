"""Real servers for the tests of transports, and a proxy that breaks the network in front of them.

Servers run on free ports with their data in temporary folders, from programs that the machine has. They can be
killed, paused and restarted, and end with the test process. Imports no test framework. POSIX systems only.
"""

from __future__ import annotations

from ruststream_core.testing.servers._errors import ServerFailed, ServerMissing, ServerNotOurs
from ruststream_core.testing.servers._link import Direction
from ruststream_core.testing.servers._process import Server
from ruststream_core.testing.servers._programs import build_with_go, cache_folder, find_program
from ruststream_core.testing.servers.mariadb import MariaDBServer
from ruststream_core.testing.servers.nats import NatsOptions, NatsServer
from ruststream_core.testing.servers.postgres import PostgresServer
from ruststream_core.testing.servers.proxy import Proxy, ProxyStatistics
from ruststream_core.testing.servers.tls import Authority, Certificate

__all__ = [
    "Authority",
    "Certificate",
    "Direction",
    "MariaDBServer",
    "NatsOptions",
    "NatsServer",
    "PostgresServer",
    "Proxy",
    "ProxyStatistics",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "ServerNotOurs",
    "build_with_go",
    "cache_folder",
    "find_program",
]
