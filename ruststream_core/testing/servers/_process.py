"""A real server as a test sees it: started on a free port, broken on purpose, gone when the test process is gone."""

from __future__ import annotations

import asyncio
import atexit
import os
import pwd
import re
import shutil
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from ruststream_core.errors import Closed
from ruststream_core.testing.servers._child import Child, Place, reaper
from ruststream_core.testing.servers._errors import ServerFailed, ServerMissing, ServerNotOurs
from ruststream_core.testing.servers._ports import LOOPBACK, free_ports

__all__ = ["Server"]

_POLL_SECONDS = 0.02
_ERROR_LINES = 40
_open: set[Server] = set()
_owner = os.getpid()


class Server(ABC):
    """One server process with its data in a temporary folder.

    As a context manager, plain or asynchronous, it starts on entering, and ends and removes its data on leaving.
    Every method blocks the thread that calls it: under asyncio use `async with` and
    `await asyncio.to_thread(server.restart)`, so that clients in the same loop live on meanwhile. The server ends
    with the test process, even if that is killed. One object is not for several threads at the same time.

    Where the environment variable `RUSTSTREAM_TEST_<NAME>_URL` is set, an object without settings of its own stands
    for the server at that address: starting and closing do nothing then, and what would harm it raises ServerNotOurs.

    A kind of server is a subclass that says how its program is called and how one sees that it serves.
    """

    name: ClassVar[str]
    """What the environment variable and the errors call it."""
    ready_line: ClassVar[re.Pattern[str]]
    """In the log of a process that serves. The port alone proves nothing: somebody else may answer on it."""
    port_taken: ClassVar[re.Pattern[str]]
    """In the log of a process that found its port in use."""
    still_held: ClassVar[re.Pattern[str] | None] = None
    """In the log of a process that found its data in use by a predecessor whose end is not complete."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Asks the process to end in good order."""
    port_count: ClassVar[int] = 1
    """How many ports it needs; the first is the one for clients."""
    account: ClassVar[str | None] = None
    """Who runs it when the tests run as root, for programs that refuse to; `nobody` where that account is missing."""

    def __init__(self, *, configured: bool = False, deadline: float = 60.0) -> None:
        """Describe a server; nothing is started yet.

        Args:
            configured: It has settings that a server which runs already cannot be given: it is always started.
            deadline: Seconds within which a start has to succeed.
        """
        self.deadline = deadline
        self._external = None if configured else os.environ.get(self.variable())
        self._place: Place | None = None
        self._child: Child | None = None
        self._ports: tuple[int, ...] = ()
        self._prepared = self._served = False

    @abstractmethod
    def _find(self) -> None:
        """Find the programs, or build them; called before every start, outside its deadline. Raises ServerMissing."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """The command line of the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server speaks its protocol on its port. An OSError counts as no."""

    @abstractmethod
    def _address(self) -> str:
        """The URL for clients."""

    def _configure(self) -> None:  # noqa: B027 - not every server has a file of its own
        """Write the configuration; called before every start, since the ports may be others. By default none."""

    def _prepare(self) -> None:  # noqa: B027 - many servers make their data as they start
        """Create the data; called once, after the first `_configure`. By default nothing."""

    def _environment(self) -> Mapping[str, str]:
        """Variables on top of those of the test process."""
        return {}

    @classmethod
    def variable(cls) -> str:
        """The environment variable with the URL of a server that runs already."""
        return f"RUSTSTREAM_TEST_{cls.name.upper()}_URL"

    @property
    def external(self) -> bool:
        """Whether this stands for a server that ran already and is not to be harmed."""
        return self._external is not None

    @property
    def running(self) -> bool:
        """Whether the process lives (a paused one does)."""
        return self.external or (self._child is not None and self._child.code is None)

    @property
    def url(self) -> str:
        """The URL for clients, the same over `kill`, `stop` and `restart`. Raises Closed before the first start."""
        if self._external is not None:
            return self._external
        self._there("url")
        return self._address()

    @property
    def port(self) -> int:
        """The port for clients, on 127.0.0.1. Raises Closed before the first start, ServerNotOurs if it ran already."""
        self._there("port")
        return self._ports[0]

    @property
    def pid(self) -> int:
        """The main process. Raises Closed if it does not run, ServerNotOurs if it ran already."""
        return self._alive("pid").pid

    @property
    def folder(self) -> Path:
        """Its data and log. Raises Closed before the first start, ServerNotOurs if it ran already."""
        return self._there("folder").folder

    def log(self, lines: int | None = None) -> str:
        """What it wrote since its first start, or the last lines of that. Raises as `folder` does."""
        text = self._there("log").log.read_text(errors="replace")
        return text if lines is None else "\n".join(text.splitlines()[-lines:])

    def start(self) -> Self:
        """Start and wait until it serves; on the same port and data if it served before. One that runs is left alone.

        Raises:
            ServerMissing: The program is not installed.
            ServerFailed: It ended, or did not serve within the deadline; it does not run then.
        """
        if self.running:
            return self
        self._drop()
        try:
            self._find()
        except ServerMissing as exc:
            raise ServerMissing(f"{self.name}: {exc}, or set {self.variable()} to the URL of one that runs") from exc
        try:
            self._begin(time.monotonic() + self.deadline)
        except BaseException:
            self._drop()
            if not self._served:
                self.close()
            raise
        self._served = True
        return self

    def stop(self, grace: float = 20.0) -> None:
        """End it in good order, or kill it after `grace` seconds; its data stays. No error if it does not run.

        Raises:
            ServerNotOurs: It ran already.
        """
        self._ours("stop")
        child, self._child = self._child, None
        if child is not None:
            child.end(self.stop_signal, grace)

    def kill(self) -> None:
        """End it and all its processes by SIGKILL, as a crash does; its data stays. Returns when they are gone.

        Raises:
            Closed: It does not run.
            ServerNotOurs: It ran already.
        """
        self._alive("kill")
        self._drop()

    def pause(self) -> None:
        """Stop it and all its processes by SIGSTOP: connections stay and nothing is answered, until `resume`.

        Raises:
            Closed: It does not run.
            ServerNotOurs: It ran already.
        """
        self._alive("pause").pause()

    def resume(self) -> None:
        """Let a paused server go on; no error if it is not paused. Raises as `pause` does."""
        self._alive("resume").resume()

    def restart(self) -> None:
        """End it in good order, if it runs, and start it on the same port and data. Raises as `stop` and `start` do."""
        self.stop()
        self.start()

    def send_signal(self, signum: int) -> None:
        """Send a signal to the main process. Raises as `pause` does."""
        self._alive("send_signal").signal(signum)

    def close(self) -> None:
        """End it and remove its data. Idempotent; a server that ran already is left alone."""
        if self.external:
            return
        self.stop()  # in good order: a killed PostgreSQL leaves shared memory behind that nobody else removes
        place, self._place = self._place, None
        self._ports, self._prepared, self._served = (), False, False
        _open.discard(self)
        if place is not None:
            shutil.rmtree(place.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _run(self, *command: str | Path) -> None:
        """Run a program of the server to its end, such as the one that creates its data. Raises ServerFailed."""
        self._there("its tool").run(command, self.deadline)

    def _ask(self, request: bytes = b"", size: int = 1) -> bytes:
        """Send bytes to the port on a fresh connection, and return at most `size` bytes of what comes back."""
        with socket.create_connection((LOOPBACK, self._ports[0]), timeout=1.0) as sock:
            sock.sendall(request)
            return sock.recv(size)

    def _write(self, name: str, text: str) -> Path:
        """Write a file into the folder, readable for the server's account alone."""
        return self._there("its folder").write(name, text)

    def _begin(self, limit: float) -> None:
        try:
            while not self._attempt(limit):
                time.sleep(_POLL_SECONDS)
        except ServerFailed as exc:
            raise ServerFailed(f"{self.name}: {exc}; its log ends with:\n{self._last_lines()}") from exc

    def _attempt(self, limit: float) -> bool:
        if self._place is None:
            self._place = self._new_place()
        if not self._served:
            self._ports = free_ports(self.port_count)
        self._configure()
        if not self._prepared:
            self._prepare()
            self._prepared = True
        child = self._child = Child(self._place, self._command())
        return self._wait(child, limit)

    def _wait(self, child: Child, limit: float) -> bool:
        """True when it serves, False when another attempt may succeed."""
        while True:
            # The exit code before the log: what a process wrote is complete once it has ended.
            code, text, late = child.code, child.log(), time.monotonic() > limit
            if code is None and self.ready_line.search(text) and self._serves():
                return True
            if not late and self._collided(text):
                child.kill()
                return False
            if code is not None:
                raise ServerFailed(f"ended with code {code} instead of serving")
            if late:
                raise ServerFailed(f"did not serve within {self.deadline:g} s")
            time.sleep(_POLL_SECONDS)

    def _serves(self) -> bool:
        try:
            return self._answers()
        except OSError:
            return False

    def _collided(self, text: str) -> bool:
        return any(pattern is not None and pattern.search(text) for pattern in (self.port_taken, self.still_held))

    def _new_place(self) -> Place:
        folder = Path(tempfile.mkdtemp(prefix=f"ruststream-{self.name}-"))
        _open.add(self)
        account = _entry(self.account)
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        return Place(folder, account, self._environment())

    def _last_lines(self) -> str:
        place = self._place
        return self.log(_ERROR_LINES) if place is not None and place.log.exists() else ""

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _ours(self, what: str) -> None:
        if self.external:
            raise ServerNotOurs(f"{self.name}: no {what} of the server that {self.variable()} names: it ran already")

    def _there(self, what: str) -> Place:
        self._ours(what)
        if self._place is None:
            raise Closed(f"{self.name}: {what} is there from start() to close() only")
        return self._place

    def _alive(self, what: str) -> Child:
        self._ours(what)
        if self._child is None or self._child.code is not None:
            raise Closed(f"{self.name}: {what} needs a server that runs; this one does not")
        return self._child


def _entry(account: str | None) -> pwd.struct_passwd | None:
    if account is None or os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(account)
    except KeyError:
        return pwd.getpwnam("nobody")


def _close_all() -> None:
    # A forked child inherits this list, not the servers.
    if os.getpid() != _owner:
        return
    for server in list(_open):
        server.close()
    reaper.close()


atexit.register(_close_all)
