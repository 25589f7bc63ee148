"""A NATS server, of the oldest version that is supported or of the newest."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from ruststream_core.testing.servers._errors import ServerFailed
from ruststream_core.testing.servers._ports import LOOPBACK
from ruststream_core.testing.servers._process import Server
from ruststream_core.testing.servers._programs import build_with_go, find_program
from ruststream_core.testing.servers.tls import Certificate

__all__ = ["NatsOptions", "NatsServer"]

_MODULE = "github.com/nats-io/nats-server/v2"
_NEWEST = "v2.15.3"
_RELOADED = re.compile(r"Reloaded server configuration|Failed to reload server configuration.*")
_ACCOUNT = "TEST"
_ANONYMOUS = "anonymous"


class NatsOptions(TypedDict, total=False):
    """What the configuration of a NATS server may say."""

    max_payload: int
    """Bytes; the server's default is 1 MiB."""
    users: Mapping[str, str]
    """Passwords by name; the URL carries the first."""
    token: str
    """The one token that every client shows; the URL carries it."""
    nkeys: Sequence[str]
    """Public keys ("U...") of users that sign the server's nonce."""
    tls: Certificate
    """The server's certificate; clients must use TLS then."""
    verify_clients: bool
    """Clients need a certificate of the same authority."""
    max_storage: int
    """Bytes that the file streams of the clients' account may hold together."""
    max_streams: int
    """Streams that the clients' account may have."""
    extra: Mapping[str, Any]
    """Further settings of the configuration file's top level, by the server's own names."""


class NatsServer(Server):
    """nats-server with its monitoring port open and JetStream on, unless told otherwise."""

    name = "nats"
    ready_line = re.compile(r"Server is ready")
    port_taken = re.compile(r"address already in use")
    port_count = 2

    def __init__(
        self,
        version: Literal["debian", "newest"] = "debian",
        *,
        jetstream: bool = True,
        deadline: float = 60.0,
        **options: Unpack[NatsOptions],
    ) -> None:
        """Describe a server.

        Args:
            version: "debian" is the one that is installed, with Debian 12 a 2.9; "newest" a pinned one, which is
                built once by the Go toolchain and kept in `RUSTSTREAM_CACHE`.
            jetstream: Whether it keeps streams, in its folder.
            deadline: Seconds within which a start has to succeed, the build not counted.
            options: See `NatsOptions`.
        """
        super().__init__(configured=bool(options) or not jetstream, deadline=deadline)
        self.version = version
        self._jetstream = jetstream
        self._options = options
        self._program = ""

    def reload(self, **changes: Unpack[NatsOptions]) -> None:
        """Change options while it runs, as an operator does; returns when they are in force.

        Clients whose credentials are no longer among them are disconnected by the server. Connections stay otherwise.

        Raises:
            Closed: It does not run.
            ServerFailed: The server refuses the change; it goes on with the former options.
            ServerNotOurs: It ran already.
        """
        child, former = self._alive("reload"), self._options
        self._options = {**former, **changes}
        self._configure()
        seen, limit = len(child.log()), time.monotonic() + self.deadline
        child.signal(signal.SIGHUP)
        while not (outcome := _RELOADED.search(child.log(), seen)):
            if child.code is not None or time.monotonic() > limit:
                raise ServerFailed(f"nats: no answer to a reload; its log ends with:\n{self.log(20)}")
            time.sleep(0.01)
        if outcome[0].startswith("Failed"):
            self._options = former
            raise ServerFailed(f"nats: {outcome[0]}")

    def monitor(self, path: str, **query: str | int) -> dict[str, Any]:
        """What the monitoring port says, such as `monitor("connz", subs=1)` or `monitor("jsz")`.

        Raises:
            Closed: It was not started.
            OSError: It does not answer within a few seconds.
            ServerNotOurs: It ran already.
        """
        self._there("monitoring port")
        address = f"http://{LOOPBACK}:{self._ports[1]}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=5.0) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _command(self) -> Sequence[str | Path]:
        return [self._program, "-c", self.folder / "nats.conf"]

    def _find(self) -> None:
        if self.version == "newest":
            self._program = build_with_go(_MODULE, _NEWEST)
        else:
            self._program = find_program("nats-server", install="install the system's package nats-server")

    def _answers(self) -> bool:
        said = self._ask(size=4096)
        # The identity in the greeting is in this process's own log: nobody else answers on the port.
        found = re.search(rb'"server_id":"(\w+)"', said)
        return found is not None and found[1].decode() in self.log()

    def _address(self) -> str:
        credentials = ""
        if token := self._options.get("token"):
            credentials = urllib.parse.quote(token, safe="") + "@"
        for user, password in self._options.get("users", {}).items():
            credentials = f"{urllib.parse.quote(user, safe='')}:{urllib.parse.quote(password, safe='')}@"
            break
        return f"nats://{credentials}{LOOPBACK}:{self._ports[0]}"

    def _configure(self) -> None:
        # The server's configuration language contains JSON.
        self._write("nats.conf", json.dumps(self._settings(), indent=1))

    def _settings(self) -> dict[str, Any]:
        options = self._options
        settings: dict[str, Any] = {
            "server_name": f"test-{self._ports[0]}",
            "listen": f"{LOOPBACK}:{self._ports[0]}",
            "http": f"{LOOPBACK}:{self._ports[1]}",
            **self._access(),
        }
        if self._jetstream:
            settings["jetstream"] = {"store_dir": str(self.folder / "streams"), "max_file_store": 1 << 32}
        if "max_payload" in options:
            settings["max_payload"] = options["max_payload"]
        if certificate := options.get("tls"):
            settings["tls"] = {
                "cert_file": str(certificate.cert),
                "key_file": str(certificate.key),
                "ca_file": str(certificate.ca),
                "verify": options.get("verify_clients", False),
            }
        return {**settings, **options.get("extra", {})}

    def _access(self) -> dict[str, Any]:
        options = self._options
        users: list[dict[str, str]] = [
            *({"user": user, "password": password} for user, password in options.get("users", {}).items()),
            *({"nkey": key} for key in options.get("nkeys", ())),
        ]
        wanted = {"max_file": options.get("max_storage"), "max_streams": options.get("max_streams")}
        limits = {limit: value for limit, value in wanted.items() if value is not None}
        if limits:
            return _limited(users, limits)
        if users:
            return {"authorization": {"users": users}}
        return {"authorization": {"token": options["token"]}} if "token" in options else {}


def _limited(users: list[dict[str, str]], limits: Mapping[str, int]) -> dict[str, Any]:
    """Limits hang on an account, and an account on users: where the test names none, everybody is one of it."""
    anonymous = {} if users else {"no_auth_user": _ANONYMOUS}
    users = users or [{"user": _ANONYMOUS, "password": _ANONYMOUS}]
    return {"accounts": {_ACCOUNT: {"users": users, "jetstream": dict(limits)}}, **anonymous}
