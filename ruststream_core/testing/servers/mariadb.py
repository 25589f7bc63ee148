"""A MariaDB server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruststream_core.testing.servers._ports import LOOPBACK
from ruststream_core.testing.servers._process import Server
from ruststream_core.testing.servers._programs import find_program

__all__ = ["MariaDBServer"]

_NAME = "test"
_INSTALL = "install the system's package mariadb-server"
_QUICK = {"innodb-flush-log-at-trx-commit": "0", "innodb-doublewrite": "0", "sync-binlog": "0"}
_SMALL = {"innodb-buffer-pool-size": "32M", "innodb-log-file-size": "16M", "performance-schema": "OFF"}


class MariaDBServer(Server):
    """MariaDB with a database `test` and a user `test` with every privilege."""

    name = "mariadb"
    ready_line = re.compile(r"ready for connections")
    port_taken = re.compile(r"Bind on TCP/IP port.*Address already in use")
    still_held = re.compile(r"Unable to lock \./ibdata1")
    account = "mysql"

    def __init__(
        self,
        *,
        durable: bool = True,
        password: str = _NAME,
        settings: Mapping[str, str] | None = None,
        deadline: float = 60.0,
    ) -> None:
        """Describe a server.

        Args:
            durable: False trades what a commit promises over a crash for speed.
            password: The user's: letters and digits.
            settings: Further settings by the server's own names.
            deadline: Seconds within which a start has to succeed.
        """
        super().__init__(configured=not durable or password != _NAME or settings is not None, deadline=deadline)
        self._server_program = self._install_program = ""
        self._password = password
        self._settings = {**_SMALL, **({} if durable else _QUICK), **(settings or {})}

    def _find(self) -> None:
        self._server_program = find_program("mariadbd", install=_INSTALL)
        self._install_program = find_program("mariadb-install-db", install=_INSTALL)

    def _configure(self) -> None:
        self._write(
            "first.sql",
            f"CREATE DATABASE IF NOT EXISTS {_NAME};\n"
            f"CREATE OR REPLACE USER {_NAME}@'%' IDENTIFIED BY '{self._password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {_NAME}@'%' WITH GRANT OPTION;\n",
        )

    def _prepare(self) -> None:
        self._run(self._install_program, "--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db",
                  "--auth-root-authentication-method=normal")  # fmt: skip

    def _command(self) -> Sequence[str | Path]:
        settings = {
            "datadir": self.folder / "data",
            "init-file": self.folder / "first.sql",
            "socket": self.folder / "socket",
            "pid-file": self.folder / "pid",
            "port": self._ports[0],
            "bind-address": LOOPBACK,
            "skip-networking": "0",
            "skip-name-resolve": "1",
            **self._settings,
        }
        return [self._server_program, "--no-defaults", *(f"--{key}={value}" for key, value in settings.items())]

    def _answers(self) -> bool:
        # The greeting: a header of four bytes, then the version of the protocol.
        return self._ask(size=5)[4:] == b"\x0a"

    def _address(self) -> str:
        return f"mysql://{_NAME}:{self._password}@{LOOPBACK}:{self._ports[0]}/{_NAME}"
