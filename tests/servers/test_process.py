"""What every server does, shown on a small one of our own that needs no program but Python."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from ruststream_core.errors import Closed
from ruststream_core.testing.servers import (
    Server,
    ServerFailed,
    ServerMissing,
    ServerNotOurs,
    _family,
    _process,
    find_program,
)
from ruststream_core.testing.servers._family import family, orphans
from ruststream_core.testing.servers._ports import free_ports

# Its clients are answered by a child, as PostgreSQL does it; a file keeps how often it was started.
PROGRAM = """
import os, pathlib, signal, socket, sys
port, data = int(sys.argv[1]), pathlib.Path(sys.argv[2])
starts = len(data.read_text()) + 1 if data.exists() else 1
data.write_text("x" * starts)
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    sock.bind(("127.0.0.1", port))
except OSError:
    sys.exit("port in use")
sock.listen()
if child := os.fork():
    sock.close()
    signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), os.kill(child, signal.SIGKILL), sys.exit()))
    print("serving", flush=True)
    os.wait()
while True:
    client, _ = sock.accept()
    client.sendall(b"%d" % starts)
    client.close()
"""


class Counter(Server):
    """Tells each client how often it was started on its data."""

    name = "counter"
    ready_line = re.compile("serving")
    port_taken = re.compile("port in use")

    def __init__(self, program: str = PROGRAM, deadline: float = 30.0) -> None:
        super().__init__(deadline=deadline)
        self.program = program

    def _find(self) -> None:
        find_program(sys.executable, install="")

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, "-S", "-c", self.program, str(self._ports[0]), self.folder / "data"]

    def _answers(self) -> bool:
        return self._ask().isdigit()

    def _address(self) -> str:
        return f"counter://127.0.0.1:{self._ports[0]}"


class Missing(Counter):
    """A server whose program nobody has."""

    def _find(self) -> None:
        find_program("no-such-program", install="install the package no-such-package")


Start = Callable[[Counter], Counter]


def ask(server: Server, seconds: float = 20.0) -> bytes:
    """One client's question."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as sock:
        return sock.recv(10)


def lives(pid: int) -> bool:
    """Whether a process runs (an ended one that nobody waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so; the test's own timeout ends a wait in vain."""
    while not condition():
        time.sleep(0.01)


def test_a_start_returns_only_when_clients_are_served(started: Start) -> None:
    server = started(Counter())
    assert server.running
    assert ask(server) == b"1"
    assert server.url == f"counter://127.0.0.1:{server.port}"


def test_a_second_start_leaves_a_running_server_alone(started: Start) -> None:
    server = started(Counter())
    pid = server.pid
    assert server.start().pid == pid


def test_a_stop_is_in_good_order_and_keeps_the_data(started: Start) -> None:
    server = started(Counter())
    url = server.url
    server.stop()
    assert not server.running
    assert "bye" in server.log()
    assert server.url == url
    server.stop()
    server.start()
    assert (ask(server), server.url) == (b"2", url)


def test_a_kill_ends_every_process_and_keeps_port_and_data(started: Start) -> None:
    server = started(Counter())
    members, port = family(server.pid), server.port
    assert len(members) == 2
    server.kill()
    assert not any(map(lives, members))
    assert "bye" not in server.log()
    with pytest.raises(ConnectionRefusedError):
        ask(server)
    server.start()
    assert (ask(server), server.port) == (b"2", port)


def test_a_restart_works_on_a_running_and_on_a_stopped_server(started: Start) -> None:
    server = started(Counter())
    server.restart()
    assert ask(server) == b"2"
    server.stop()
    server.restart()
    assert ask(server) == b"3"


def test_a_paused_server_takes_connections_and_answers_none(started: Start) -> None:
    server = started(Counter())
    server.pause()
    assert server.running
    with socket.create_connection(("127.0.0.1", server.port), timeout=20.0) as waiting:
        with pytest.raises(TimeoutError):
            ask(server, seconds=0.2)
        server.resume()
        assert waiting.recv(10) == b"1"


def test_a_paused_server_can_be_stopped_and_killed(started: Start) -> None:
    server = started(Counter())
    server.pause()
    server.stop()
    assert "bye" in server.log()
    server.start().pause()
    server.kill()
    assert ask(server.start()) == b"3"


def test_a_server_that_ignores_the_polite_signal_is_killed(started: Start) -> None:
    deaf = PROGRAM.replace(
        '    print("serving"', '    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    print("serving"'
    )
    server = started(Counter(deaf))
    members = family(server.pid)
    server.stop(grace=0.1)
    assert not any(map(lives, members))


def test_a_crash_of_its_own_is_seen_and_what_it_left_is_ended(started: Start) -> None:
    """The child of a server that died holds the port, and answers clients from the past."""
    server = started(Counter())
    main, child = family(server.pid)
    os.kill(main, signal.SIGKILL)
    wait_for(lambda: not server.running)
    assert lives(child)
    with pytest.raises(Closed, match="kill needs a server that runs"):
        server.kill()
    server.start()
    assert not lives(child)
    assert ask(server) == b"2"


def test_closing_a_server_that_crashed_leaves_no_process(started: Start) -> None:
    server = started(Counter())
    main, child = family(server.pid)
    os.kill(main, signal.SIGKILL)
    wait_for(lambda: not server.running)
    server.close()
    assert not lives(child)


def test_a_process_table_read_through_ps_says_the_same(started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems without /proc."""
    server = started(Counter())
    expected = family(server.pid)
    monkeypatch.setattr(_family, "_PROC", Path("/nowhere"))
    assert family(server.pid) == expected
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: not server.running)
    assert orphans(expected[0]) == expected[1:]


def test_closing_removes_the_data_and_a_new_start_begins_empty(started: Start) -> None:
    server = started(Counter())
    folder = server.folder
    server.restart()
    server.close()
    server.close()
    assert not folder.exists()
    with pytest.raises(Closed, match=r"start\(\) to close\(\)"):
        server.port  # noqa: B018
    assert ask(server.start()) == b"1"


def test_a_port_that_somebody_took_meanwhile_is_replaced(started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other server answers on the port just as ours would: only our own process's log tells."""
    other = started(Counter())
    offered = [(other.port,), free_ports()]
    expected = offered[1][0]
    monkeypatch.setattr(_process, "free_ports", lambda count: offered.pop(0))
    server = started(Counter())
    assert server.port == expected
    assert not offered


def test_a_restart_never_moves_to_another_port(started: Start) -> None:
    server = started(Counter(deadline=0.5))
    port = server.port
    server.kill()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        with pytest.raises(ServerFailed, match="(?s)counter: .*port in use"):
            server.start()
        assert not server.running
    server.deadline = 30.0
    assert server.start().port == port


def test_an_early_end_is_told_with_the_last_lines_of_the_log() -> None:
    server = Counter("import sys; print('line one', flush=True); sys.exit('the disk is full')")
    with pytest.raises(ServerFailed, match=r"(?s)counter: ended with code 1 .*line one.*the disk is full"):
        server.start()
    assert not server.running


def test_silence_is_told_after_the_deadline_and_leaves_no_process() -> None:
    """The port is open but the line is missing: it may be anybody's."""
    server = Counter(PROGRAM.replace('"serving"', '"thinking", os.getpid()'), deadline=1.0)
    with pytest.raises(ServerFailed, match=r"did not serve within 1 s.*\nthinking (\d+)") as told:
        server.start()
    found = re.search(r"thinking (\d+)", str(told.value))
    assert found is not None
    assert not lives(int(found[1]))


def test_a_failed_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ServerFailed):
        Counter("raise SystemExit(3)").start()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_program_says_what_to_install_and_the_way_around() -> None:
    with pytest.raises(ServerMissing) as told:
        Missing().start()
    assert str(told.value) == (
        "counter: the program no-such-program is not installed; install the package no-such-package, "
        "or set RUSTSTREAM_TEST_COUNTER_URL to the URL of one that runs"
    )


def test_what_a_server_has_only_while_it_exists_is_refused_before() -> None:
    server = Counter()
    assert not server.running
    for read in (lambda: server.url, lambda: server.port, lambda: server.folder, server.log, lambda: server.pid):
        with pytest.raises(Closed, match="counter: "):
            read()


def test_a_server_that_runs_already_is_used_and_never_harmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUSTSTREAM_TEST_COUNTER_URL", "counter://elsewhere:1")
    with Missing() as server:
        assert (server.url, server.external, server.running) == ("counter://elsewhere:1", True, True)
        for harm in (server.stop, server.kill, server.pause, server.resume, server.restart, server.log):
            with pytest.raises(ServerNotOurs, match="RUSTSTREAM_TEST_COUNTER_URL names: it ran already"):
                harm()
        with pytest.raises(ServerNotOurs):
            server.port  # noqa: B018
    assert server.running


async def test_entering_does_not_block_the_loop() -> None:
    """A blocked loop could not run the task that lets the start succeed."""
    reached = asyncio.Event()
    gate = "import os, sys, time, pathlib\nwhile not pathlib.Path('gate').exists(): time.sleep(0.01)\n"
    server = Counter(gate + PROGRAM)

    async def open_gate() -> None:
        while server._place is None:
            await asyncio.sleep(0)
        server.folder.joinpath("gate").touch()
        reached.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(open_gate())
        async with server:
            assert reached.is_set()
            assert await asyncio.to_thread(ask, server) == b"1"
    assert not server.running


def test_a_server_outlives_the_thread_that_started_it(started: Start) -> None:
    """The kernel's signal at a parent's death is sent when the parent's thread ends."""
    server = Counter()
    thread = threading.Thread(target=started, args=(server,))
    thread.start()
    thread.join()
    assert ask(server) == b"1"


def test_several_threads_may_start_servers_at_the_same_time() -> None:
    servers = [Counter() for _ in range(4)]
    with ExitStack() as stack:
        threads = [threading.Thread(target=server.start) for server in servers]
        for server, thread in zip(servers, threads, strict=True):
            stack.callback(server.close)
            thread.start()
        for thread in threads:
            thread.join()
        assert [ask(server) for server in servers] == [b"1"] * 4


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "sys.exit()", "raise RuntimeError"]
)
def test_no_server_outlives_the_test_process(end: str, tmp_path: Path) -> None:
    """However it ends: neither processes nor folders are left behind."""
    script = tmp_path / "suite.py"
    script.write_text(
        textwrap.dedent("""
        import importlib.util, os, signal, sys
        spec = importlib.util.spec_from_file_location("counter", sys.argv[1])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        server = module.Counter().start()
        print(*module.family(server.pid), server.folder, flush=True)
        """)
        + end
    )
    command = [sys.executable, str(script), __file__]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    *pids, folder = done.stdout.split()
    assert len(pids) == 2
    wait_for(lambda: not any(lives(int(pid)) for pid in pids))
    wait_for(lambda: not Path(folder).exists())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_ends_leaves_its_parents_servers_alone(started: Start) -> None:
    server = started(Counter())
    child = os.fork()
    if child == 0:
        try:
            _process._close_all()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert ask(server) == b"1"


def test_free_ports_are_distinct_and_not_those_of_outgoing_connections() -> None:
    ports = free_ports(50)
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 50
    assert all(1024 < port < first for port in ports)
