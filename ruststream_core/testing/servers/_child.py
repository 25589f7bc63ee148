"""One run of a program: a process apart from the terminal, its log, and the signals that a test sends it."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruststream_core.testing.servers._errors import ServerFailed
from ruststream_core.testing.servers._family import GONE, STOPPED, family, orphans, send, wait_until
from ruststream_core.testing.servers._reaper import Reaper

__all__ = ["Child", "Place", "reaper"]

_SIGNAL_SECONDS = 10.0

reaper = Reaper()


@dataclass(frozen=True)
class Place:
    """Where and as whom the programs of one server run."""

    folder: Path
    account: pwd.struct_passwd | None
    environment: Mapping[str, str]

    @property
    def log(self) -> Path:
        """The file that takes what the programs write."""
        return self.folder / "server.log"

    def write(self, name: str, text: str) -> Path:
        """Write a file that the account can read and others cannot."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return path

    def run(self, command: Sequence[str | Path], seconds: float) -> None:
        """Run a program to its end.

        Raises:
            ServerFailed: It cannot be run, failed, or took longer; its output is in the log.
        """
        process = self.spawn(command)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired as exc:
            raise ServerFailed(f"{command[0]} took longer than {seconds:g} s") from exc
        finally:
            process.kill()
            process.wait()
        if code != 0:
            raise ServerFailed(f"{command[0]} ended with code {code}")

    def spawn(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        """Start a program whose output goes to the log. Raises ServerFailed if it cannot be run."""
        who = self.account
        here = str(self.folder)
        # English messages, because they are searched. Temporary files apart from those of other servers: a MariaDB
        # that starts removes what it takes for leftovers, and they may be another's tables.
        ours = {"LC_ALL": "C", "TMPDIR": here, **({"HOME": here} if who else {})}
        environment = {**os.environ, **ours, **self.environment}
        with self.log.open("ab") as log:
            try:
                return subprocess.Popen(
                    [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    cwd=self.folder, env=environment, start_new_session=True, user=who and who.pw_uid,
                    group=who and who.pw_gid, extra_groups=[] if who else None,
                )  # fmt: skip
            except OSError as exc:
                raise ServerFailed(f"{command[0]} cannot be run: {exc}") from exc


class Child:
    """A server's process. It ends when the test process ends, however that ends."""

    def __init__(self, place: Place, command: Sequence[str | Path]) -> None:
        self._log = place.log
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        reaper.open()
        self._process = place.spawn(command)
        self._paused: list[int] = []
        self.pid = self._process.pid
        reaper.watch(self.pid, str(place.folder))

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """What this process wrote, without its predecessors."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def signal(self, signum: int) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(signum)

    def pause(self) -> None:
        """Stop the process and its descendants. Some servers answer from descendants alone."""
        # The parent first, and again until nobody is new: one that is stopped starts no more.
        while fresh := [pid for pid in family(self.pid) if pid not in self._paused]:
            send(fresh, signal.SIGSTOP)
            self._paused += fresh
        wait_until(self._paused, STOPPED, _SIGNAL_SECONDS)

    def resume(self) -> None:
        """Undo `pause`."""
        paused, self._paused = self._paused, []
        send(paused[::-1], signal.SIGCONT)

    def end(self, signum: int, grace: float) -> None:
        """Ask the process to end, and kill what is left of it after `grace` seconds."""
        self.resume()
        self.signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its descendants, and wait until they are gone. Harmless when they are already."""
        members = family(self.pid) if self.code is None else orphans(self.pid)
        send(members, signal.SIGKILL)
        self._process.wait()
        wait_until(members, GONE, _SIGNAL_SECONDS)
        reaper.forget(self.pid)
