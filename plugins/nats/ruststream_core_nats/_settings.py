"""How to reach a NATS server: addresses, credentials, patience."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from ruststream_core.errors import ConfigError

__all__ = ["Settings", "from_url"]

_SCHEMES: Final = ("nats", "tls", "ws", "wss")
PORT: Final = 4222


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a connection. See `NATSBroker` for what each means."""

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: str | None = None
    nkey_seed: str | None = None
    nkey_file: str | None = None
    tls: ssl.SSLContext | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_hostname: str | None = None
    tls_first: bool = False
    name: str = "ruststream"
    domain: str | None = None
    connect_timeout: float = 5.0
    request_timeout: float = 5.0
    reconnects: int | None = None
    reconnect_wait: float = 10.0
    heartbeat: float = 20.0
    buffer: int = 8 << 20
    inbox_prefix: str = "_INBOX"
    no_echo: bool = False
    internals: bool = True

    def __repr__(self) -> str:
        return f"NATS({', '.join(self.hosts)})"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host and port of each server, no credential."""
        return tuple(_host(urlsplit(server)) for server in self.servers)

    @property
    def where(self) -> str:
        """Servers and user for errors."""
        return f"NATS {', '.join(self.hosts)}" + ("" if self.user is None else f" as user {self.user!r}")

    def check(self) -> None:
        """Raise ConfigError for what cannot work."""
        if not self.servers:
            raise ConfigError("NATS: at least one server is needed, nats://localhost:4222 for example")
        for server in self.servers:
            _check_server(server)
        if len({urlsplit(server).scheme in ("ws", "wss") for server in self.servers}) > 1:
            raise ConfigError("NATS: servers by WebSocket and by plain TCP do not mix")
        ways = {
            "user": self.user is not None,
            "token": self.token is not None,
            "credentials": self.credentials is not None,
            "nkey_seed": self.nkey_seed is not None,
            "nkey_file": self.nkey_file is not None,
        }
        if len(given := [way for way, is_given in ways.items() if is_given]) > 1:
            raise ConfigError(f"NATS: {' and '.join(given)} are given, one way to log in is enough")
        if (self.user is None) != (self.password is None):
            raise ConfigError("NATS: user and password go together")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("NATS: tls_cert and tls_key go together")
        self._check_numbers()

    def _check_numbers(self) -> None:
        for setting in ("connect_timeout", "request_timeout", "reconnect_wait", "heartbeat"):
            if not 0 < getattr(self, setting) < 1e6:
                raise ConfigError(f"NATS: {setting}={getattr(self, setting)!r}, a number of seconds is needed")
        if self.reconnects is not None and self.reconnects < 0:
            raise ConfigError(f"NATS: reconnects={self.reconnects}, 0 or more is needed, or None for no limit")
        if self.buffer < 1:
            raise ConfigError(f"NATS: buffer={self.buffer}, a number of bytes is needed")

    @property
    def encrypted(self) -> bool:
        """Whether TLS is wanted."""
        wanted = (self.tls, self.tls_ca, self.tls_cert, self.tls_hostname)
        schemes = {urlsplit(server).scheme for server in self.servers}
        return any(setting is not None for setting in wanted) or self.tls_first or bool(schemes & {"tls", "wss"})

    def context(self) -> ssl.SSLContext | None:
        """What TLS is done with; None where none is wanted.

        Raises:
            ConfigError: a file cannot be read; names it.
        """
        if self.tls is not None or not self.encrypted:
            return self.tls
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as exc:
            files = [file for file in (self.tls_ca, self.tls_cert, self.tls_key) if file is not None]
            raise ConfigError(f"NATS: TLS cannot be set up with {', '.join(files)}: {exc}") from exc
        return context

    def login(self) -> dict[str, Any]:
        """The client's options for logging in.

        Raises:
            ConfigError: a file is missing, or the package that signs with nkeys.
        """
        for setting, file in (("credentials", self.credentials), ("nkey_file", self.nkey_file)):
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"NATS: {setting}: there is no file {file}")
        if self.credentials or self.nkey_seed or self.nkey_file:
            _need_nkeys()
        options: Mapping[str, Any] = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.credentials,
            "nkeys_seed": self.nkey_file,
            "nkeys_seed_str": self.nkey_seed,
        }
        return {name: value for name, value in options.items() if value is not None}


def _need_nkeys() -> None:
    if find_spec("nkeys") is None:
        raise ConfigError('NATS: nkeys and credentials need: pip install "ruststream-core-nats[nkeys]"')


def _host(parts: SplitResult) -> str:
    return f"{parts.hostname}:{parts.port or PORT}"


def _check_server(server: str) -> None:
    try:
        parts = urlsplit(server)
        known = parts.scheme in _SCHEMES and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known:
        raise ConfigError("NATS: a server is nats://host:port or tls://host:port")


# --------------------------------------------------------------------------------------------------------- URLs

_TEXT: Final = frozenset({
    "user", "password", "token", "credentials", "nkey_seed", "nkey_file", "tls_ca", "tls_cert", "tls_key",
    "tls_hostname", "name", "domain", "inbox_prefix",
})  # fmt: skip
_SECONDS: Final = frozenset({"connect_timeout", "request_timeout", "reconnect_wait", "heartbeat"})
_COUNTS: Final = frozenset({"reconnects", "buffer"})
_SWITCHES: Final = frozenset({"tls_first", "no_echo", "internals"})


def from_url(url: str) -> Settings:
    """`nats://user:password@one:4222,two:4222?name=orders&heartbeat=5`.

    Several servers are separated by commas; the login may be given once, for all. Settings follow the question mark.

    Raises:
        ConfigError: it is not understood; says what, and shows no credential.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ConfigError("a NATS URL is nats://host:port, several servers as nats://one:4222,two:4222")
    authority, _, query = rest.partition("?")
    authority = authority.rstrip("/")
    if "/" in authority:
        raise ConfigError("a NATS URL has no path: settings follow a question mark")
    login, at, hosts = authority.rpartition("@")
    servers = tuple(f"{scheme}://{host}" for host in hosts.split(",") if host) or (f"{scheme}://localhost:{PORT}",)
    if "@" in login:
        raise ConfigError("a NATS URL has one login, before its first server: nats://user:password@one:4222,two:4222")
    settings = Settings(servers=servers, **(_login(login) if at else {}), **_query(query))
    settings.check()
    return settings


def _login(login: str) -> dict[str, Any]:
    user, colon, password = login.partition(":")
    if colon:
        return {"user": unquote(user), "password": unquote(password)}
    return {"token": unquote(user)}


def _query(query: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in found:
            raise ConfigError(f"NATS: {name} is given twice")
        found[name] = _value(name, value)
    return found


def _value(name: str, value: str) -> Any:
    if name in _TEXT:
        return value
    if name in _SWITCHES and value in ("true", "false"):
        return value == "true"
    try:
        if name in _SECONDS:
            return float(value)
        if name in _COUNTS:
            return int(value)
    except ValueError:
        pass
    if name in _SECONDS | _COUNTS | _SWITCHES:
        kind = "a number" if name not in _SWITCHES else "true or false"
        raise ConfigError(f"NATS: {name} in the URL is {kind}")
    raise ConfigError(f"NATS: no setting {name}; known are {', '.join(sorted(_TEXT | _SECONDS | _COUNTS | _SWITCHES))}")


def many(servers: str | Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Addresses as a service may write them, `localhost` included; and the login that is in them.

    Raises:
        ConfigError: they have different logins.
    """
    given = servers.split(",") if isinstance(servers, str) else servers
    found: list[str] = []
    logins: list[dict[str, Any]] = []
    for server in map(str.strip, given):
        scheme, separator, rest = server.rpartition("://")
        login, at, host = rest.rpartition("@")
        if at:
            logins.append(_login(login))
        if host:
            found.append(f"{scheme if separator else 'nats'}://{host}")
    if any(login != logins[0] for login in logins):
        raise ConfigError("NATS: the servers have different logins, and a broker has one for all")
    return tuple(found), logins[0] if logins else {}
