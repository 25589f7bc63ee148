"""The broker: configuration, and how it becomes a connection."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from ruststream_core.abc import Broker, Clock, Features, ServerInfo, Source
from ruststream_core.errors import ConfigError
from ruststream_core_nats._settings import Settings, from_url, many
from ruststream_core_nats._sources import checked, features_of
from ruststream_core_nats.config import NATSSource

if TYPE_CHECKING:
    from ruststream_core_nats._connection import NATSConnection
    from ruststream_core_nats._standin import StandInBroker

__all__ = ["NATSBroker"]


class NATSBroker(Broker[NATSSource]):
    """A NATS server, or several of one cluster. A URL is the same, with the settings in its query.

    Args:
        servers: one URL or several, `nats://`, `tls://`, `ws://` or `wss://`; also `host:port`. A login in it is
            percent-encoded.
        user: with `password`.
        password: with `user`.
        token: instead of user and password.
        credentials: a `.creds` file, with a JWT and the seed that signs.
        nkey_seed: the seed itself.
        nkey_file: a file that holds the seed.
        tls: what TLS is done with; the next four build one.
        tls_ca: file of the authorities that are trusted, instead of the system's.
        tls_cert: file of the client's own certificate, with `tls_key`.
        tls_key: file of its key.
        tls_hostname: the name that the server's certificate has, where the address is another.
        tls_first: begin with TLS, as servers with `handshake_first` want it.
        name: what the server's monitoring shows.
        domain: the JetStream domain.
        connect_timeout: seconds for one attempt to connect to one server.
        request_timeout: seconds for an answer of the server's own interfaces.
        reconnects: failed attempts for each server after which subscriptions end with an error and senders refuse;
            None for no limit.
        reconnect_wait: most seconds between two attempts; the waits begin at 0.1 s, double, and are spread.
        heartbeat: seconds between pings. A link on which nothing comes back is given up after two.
        buffer: most bytes that wait to be sent; beyond it publishing is refused.
        inbox_prefix: what subjects for answers begin with, where the server's permissions are narrow.
        no_echo: do not receive what this connection itself publishes.
        internals: use private attributes of nats-py where they have the expected shape, which is faster; False keeps
            to its public interface, which cannot carry a repeated header.

    Raises:
        ConfigError: settings contradict each other; shows no credential.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://localhost:4222",
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | os.PathLike[str] | None = None,
        nkey_seed: str | None = None,
        nkey_file: str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_hostname: str | None = None,
        tls_first: bool = False,
        name: str = "ruststream",
        domain: str | None = None,
        connect_timeout: float = 5.0,
        request_timeout: float = 5.0,
        reconnects: int | None = None,
        reconnect_wait: float = 10.0,
        heartbeat: float = 20.0,
        buffer: int = 8 << 20,
        inbox_prefix: str = "_INBOX",
        no_echo: bool = False,
        internals: bool = True,
    ) -> None:
        addresses, login = many(servers)
        if login and (user is not None or password is not None or token is not None):
            raise ConfigError("NATS: the login is in the servers and beside them, once is enough")
        settings = Settings(
            servers=addresses,
            **(login or {"user": user, "password": password, "token": token}),
            credentials=_path(credentials),
            nkey_seed=nkey_seed,
            nkey_file=_path(nkey_file),
            tls=tls,
            tls_ca=_path(tls_ca),
            tls_cert=_path(tls_cert),
            tls_key=_path(tls_key),
            tls_hostname=tls_hostname,
            tls_first=tls_first,
            name=name,
            domain=domain,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            reconnects=reconnects,
            reconnect_wait=reconnect_wait,
            heartbeat=heartbeat,
            buffer=buffer,
            inbox_prefix=inbox_prefix,
            no_echo=no_echo,
            internals=internals,
        )
        settings.check()
        self._settings = settings

    def __repr__(self) -> str:
        return f"NATSBroker({', '.join(self._settings.hosts)})"

    def __reduce__(self) -> Any:
        raise TypeError("a broker holds credentials and is not pickled: build it in the process that uses it")

    @classmethod
    def from_url(cls, url: str) -> Self:
        """See `Broker.from_url`: `nats://user:password@one:4222,two:4222?name=orders`."""
        broker = cls()
        broker._settings = from_url(url)
        return broker

    def source(self, source: str | Source) -> NATSSource:
        """See `Broker.source`."""
        return checked(source)

    def features(self, source: NATSSource) -> Features:
        """See `Broker.features`."""
        return features_of(source, exact=self._settings.internals)

    def describe(self) -> ServerInfo:
        """See `Broker.describe`."""
        protocol = "nats-tls" if self._settings.encrypted else "nats"
        return ServerInfo(host=",".join(self._settings.hosts), protocol=protocol, protocol_version="1")

    def stand_in(self, clock: Clock) -> StandInBroker:
        """A NATS inside the process, with the same sources; its streams come into being with their sources."""
        from ruststream_core_nats._standin import StandInBroker  # noqa: PLC0415  for tests only

        return StandInBroker(self._settings.hosts, clock, exact=self._settings.internals)

    async def connect(self) -> NATSConnection:
        """See `Broker.connect`. Each server is tried twice."""
        from ruststream_core_nats._connection import NATSConnection  # noqa: PLC0415  it imports the client

        return await NATSConnection.open(self._settings)


def _path(file: str | os.PathLike[str] | None) -> str | None:
    return None if file is None else os.fspath(file)
