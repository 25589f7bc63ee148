"""`ruststream publish`, `tail`, `record` and `replay`, on stream files."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ruststream_core.cli import main
from ruststream_core.cli._progress import Progress
from ruststream_core.cli._traffic import show
from ruststream_core.wire import Delivery, Headers, Outgoing
from ruststream_core_file import Record, StreamWriter, read_stream

Run = Callable[..., tuple[int, str, str]]


class Input(io.TextIOWrapper):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


@pytest.fixture
def ruststream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder: exit code, output, errors. `stdin=` is what it reads."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", Input(stdin))
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def content(name: str) -> list[tuple[str, bytes]]:
    return [(record.key, record.payload) for record in read_stream(name)]


def recording(name: str, *messages: tuple[str, bytes, int]) -> None:
    writer = StreamWriter(name)
    for key, payload, timestamp in messages:
        writer.append(key, payload, timestamp=timestamp)
    writer.close()


# -------------------------------------------------------------------------------------------------------- publish


def test_publish_takes_its_payload_from_the_command_line(ruststream: Run) -> None:
    assert ruststream("publish", "file:a.ss", "orders", '{"id": 1}') == (0, "", "")
    assert ruststream("publish", "file:a.ss", "orders", "") == (0, "", "")
    assert content("a.ss") == [("orders", b'{"id": 1}'), ("orders", b"")]


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_publish_reads_standard_input_whole(dash: list[str], ruststream: Run) -> None:
    assert ruststream("publish", "file:a.ss", "orders", *dash, stdin=b"two\nlines\n\xff")[0] == 0
    assert content("a.ss") == [("orders", b"two\nlines\n\xff")]


def test_publish_makes_a_message_of_each_line(ruststream: Run) -> None:
    code, out, err = ruststream("publish", "file:a.ss", "orders", "--lines", stdin=b"a\r\n\nb\xff\nno end")
    assert (code, out) == (0, "")
    assert err.startswith("4 messages, ")
    assert content("a.ss") == [("orders", payload) for payload in (b"a", b"", b"b\xff", b"no end")]


def test_publish_of_many_lines_keeps_their_order(ruststream: Run) -> None:
    lines = [b"%d" % number for number in range(1234)]
    assert ruststream("publish", "file:a.ss", "orders", "--lines", stdin=b"\n".join(lines))[0] == 0
    assert [payload for _, payload in content("a.ss")] == lines


def test_publish_sends_headers_and_key(ruststream: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Outgoing] = []

    async def send_many(_: object, outs: list[Outgoing]) -> None:
        sent.extend(outs)

    monkeypatch.setattr("ruststream_core_file._publisher.FileSender.send_many", send_many)
    given = ["--header", "x-tenant=acme", "--header", "q=a=b", "--header", "empty=", "--key", "k\u00e9"]
    assert ruststream("publish", "file:a.ss", "orders", "x", *given)[0] == 0
    (out,) = sent
    assert list(out.headers.raw()) == [("x-tenant", "acme"), ("q", "a=b"), ("empty", "")]
    assert out.key == "k\u00e9".encode()


@pytest.mark.parametrize("pair", ["nothing", "=value"])
def test_a_header_that_is_none_is_exit_code_2(pair: str, ruststream: Run) -> None:
    code, _, err = ruststream("publish", "file:a.ss", "orders", "x", "--header", pair)
    assert (code, err) == (2, f"error: --header {pair!r}: name=value is expected\n")
    assert not Path("a.ss").exists()


def test_a_payload_and_lines_exclude_each_other(ruststream: Run) -> None:
    code, _, err = ruststream("publish", "file:a.ss", "orders", "x", "--lines", stdin=b"a\n")
    assert code == 2
    assert "one of them is expected" in err
    assert not Path("a.ss").exists()


def test_a_message_that_is_refused_is_exit_code_1_and_says_why(ruststream: Run) -> None:
    code, _, err = ruststream("publish", "file:a.ss", "no key", "x")
    assert code == 1
    first, why = err.splitlines()
    assert first == "error: 1 of 1 messages were refused"
    assert "'no key' holds characters outside" in why


# ----------------------------------------------------------------------------------------------------------- tail


def test_tail_shows_name_headers_and_payload(ruststream: Run) -> None:
    ruststream("publish", "file:a.ss", "orders", "first", "--header", "x-tenant=acme")
    ruststream("publish", "file:a.ss", "orders", stdin=b"two\nlines")
    ruststream("publish", "file:a.ss", "others", stdin=b"\xff")
    code, out, err = ruststream("tail", "file:a.ss?replay=true", "*")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "[orders x-tenant=acme stream-sequence=1] first",
        r"[orders stream-sequence=2] two\nlines",
        r"[others stream-sequence=1] b'\xff'",
    ]
    assert ruststream("tail", "file:a.ss?replay=true", "others")[1].count("\n") == 1


def test_a_key_is_shown_where_it_is_not_the_name() -> None:
    class Message(Delivery):
        name = "orders"
        payload = b"x"
        headers = Headers([("raw", b"\xfe")])

        def __init__(self, key: bytes | None) -> None:
            self._key = key

        @property
        def key(self) -> bytes | None:
            return self._key

    assert show(Message(b"k")) == r"[orders key=k raw=b'\xfe'] x"
    assert show(Message(b"orders")) == show(Message(None)) == r"[orders raw=b'\xfe'] x"


@pytest.mark.parametrize(("count", "shown"), [("0", 0), ("1", 1), ("3", 3), ("100", 5)])
def test_tail_ends_after_so_many(count: str, shown: int, ruststream: Run) -> None:
    ruststream("publish", "file:a.ss", "orders", "--lines", stdin=b"a\nb\nc\nd\ne\n")
    for option in ("-n", "--count"):
        code, out, err = ruststream("tail", "file:a.ss?replay=true", "orders", option, count)
        assert (code, err) == (0, "")
        assert [line[-1] for line in out.splitlines()] == list("abcde"[:shown])


def test_a_source_that_others_share_is_only_read_with_take(ruststream: Run) -> None:
    for command in (["tail", "memory:", "jobs"], ["record", "memory:", "jobs", "a.ss"]):
        code, out, err = ruststream(*command)
        assert (code, out) == (2, "")
        assert err == "error: 'jobs' is shared: reading takes messages away from its consumers; --take does so\n"
        assert ruststream(*command, "--take", "-n", "0")[0] == 0


def program(*arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ruststream_core", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_tail_follows_until_it_is_interrupted(ruststream: Run, tmp_path: Path) -> None:
    ruststream("publish", "file:a.ss", "orders", "before")
    with program("tail", "-v", "file:a.ss", "orders", cwd=tmp_path) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        while b"receiving" not in tail.stderr.readline():
            pass
        ruststream("publish", "file:a.ss", "orders", "after")
        assert tail.stdout.readline() == b"[orders stream-sequence=2] after\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 130
        assert b"Traceback" not in tail.stderr.read()


def test_tail_ends_quietly_when_its_reader_leaves(ruststream: Run, tmp_path: Path) -> None:
    """`ruststream tail ... | head -1`"""
    ruststream("publish", "file:a.ss", "orders", "--lines", stdin=b"x\n" * 5000)
    with program("tail", "file:a.ss?replay=true", "orders", cwd=tmp_path) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"[orders stream-sequence=1] x\n"
        tail.stdout.close()
        assert tail.stderr.read() == b""
        assert tail.wait(30) == 0


# --------------------------------------------------------------------------------------------------------- record


def test_record_copies_payloads_headers_and_keys(ruststream: Run) -> None:
    ruststream("publish", "file:a.ss", "orders", "one", "--header", "x-tenant=acme")
    ruststream("publish", "file:a.ss", "others", "two")
    code, out, err = ruststream("record", "file:a.ss?replay=true", "*", "copy.ss")
    assert (code, out) == (0, "")
    assert err.startswith("2 messages, ")
    assert content("copy.ss") == content("a.ss")


def test_record_continues_a_file_ends_after_so_many_and_puts_all_under_one_key(ruststream: Run) -> None:
    ruststream("publish", "file:a.ss", "orders", "--lines", stdin=b"a\nb\nc\n")
    for _ in range(2):
        code, _, err = ruststream("record", "file:a.ss?replay=true", "*", "copy.ss", "-n", "2", "--key", "all")
        assert code == 0
        assert err.startswith("100% 2 messages, ")
    assert content("copy.ss") == [("all", b"a"), ("all", b"b")] * 2


def test_a_file_name_may_have_any_characters(ruststream: Run) -> None:
    """In a URL `?` would begin its settings, `#` its fragment and `%41` would be an A."""
    ruststream("publish", "file:a.ss", "orders", "x")
    name = "what? 100%41#1.ss"
    assert ruststream("record", "file:a.ss?replay=true", "*", name)[0] == 0
    assert content(name) == [("orders", b"x")]
    assert ruststream("replay", name, "file:b.ss", "--pace", "fast")[0] == 0
    assert content("b.ss") == [("orders", b"x")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record_ends_on_a_signal_with_all_that_it_took(number: signal.Signals, ruststream: Run, tmp_path: Path) -> None:
    ruststream("publish", "file:a.ss", "orders", "before")
    with program("record", "-v", "file:a.ss", "orders", "copy.ss", cwd=tmp_path) as record:
        assert record.stderr is not None
        while b"receiving" not in record.stderr.readline():
            pass
        ruststream("publish", "file:a.ss", "orders", "after")
        while not Path("copy.ss").exists() or content("copy.ss") == []:
            time.sleep(0.01)
        record.send_signal(number)
        err = record.stderr.read()
        assert record.wait(30) == 0
    assert b"1 messages, " in err
    assert content("copy.ss") == [("orders", b"after")]


def test_a_record_that_cannot_be_written_says_why(ruststream: Run) -> None:
    ruststream("publish", "file:a.ss", "orders", "--lines", stdin=b"a\nb\nc\n")
    code, _, err = ruststream("record", "file:a.ss?replay=true", "*", "copy.ss", "--key", "no key")
    assert code == 1
    assert "error: 3 of 3 messages were refused\n" in err
    assert err.count("'no key' holds characters outside") == 1
    assert "lost" not in err, "what was not taken is still in the file"


# --------------------------------------------------------------------------------------------------------- replay


def arrived(name: str) -> list[Record]:
    return list(read_stream(name))


def test_replay_keeps_the_distances_of_the_recording(ruststream: Run) -> None:
    recording("a.ss", ("k", b"1", 1_000), ("k", b"2", 1_000), ("j", b"3", 1_300), ("k", b"4", 1_400))
    code, out, err = ruststream("replay", "a.ss", "file:b.ss")
    assert (code, out) == (0, "")
    assert err.startswith("4 messages, ")
    assert content("b.ss") == content("a.ss")
    times = [record.timestamp for record in arrived("b.ss")]
    assert times[2] - times[0] >= 295
    assert times[3] - times[0] >= 395


def test_replay_by_a_factor_divides_them(ruststream: Run) -> None:
    recording("a.ss", ("k", b"1", 0), ("k", b"2", 3_600_000))
    assert ruststream("replay", "a.ss", "file:b.ss", "--pace", "18000")[0] == 0
    first, second = arrived("b.ss")
    assert second.timestamp - first.timestamp >= 195


def test_replay_as_fast_as_it_goes_does_not_wait_for_an_hour_that_passed(ruststream: Run) -> None:
    recording("a.ss", *(("k", b"%d" % number, number * 3_600_000) for number in range(1000)))
    assert ruststream("replay", "a.ss", "file:b.ss", "--pace", "fast")[0] == 0
    assert content("b.ss") == content("a.ss")


def test_a_recording_whose_clock_was_put_back_is_replayed_in_its_order(ruststream: Run) -> None:
    recording("a.ss", ("k", b"1", 5_000_000), ("k", b"2", 1_000), ("k", b"3", 5_000_001))
    assert ruststream("replay", "a.ss", "file:b.ss")[0] == 0
    assert content("b.ss") == content("a.ss")


def test_replay_of_one_key_to_one_name_and_with_headers(ruststream: Run) -> None:
    ruststream("publish", "file:a.ss", "orders", "one", "--header", "x-tenant=acme")
    ruststream("publish", "file:a.ss", "others", "two")
    assert ruststream("replay", "a.ss", "file:b.ss", "--key", "orders", "--to", "again", "--pace", "fast")[0] == 0
    assert [key for key, _ in content("b.ss")] == ["again"]
    assert ruststream("tail", "file:b.ss?replay=true", "*")[1] == "[again x-tenant=acme stream-sequence=1] one\n"


# ---------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize("pace", ["0", "-1", "nan", "inf", "slow", ""])
def test_a_pace_that_is_none_is_exit_code_2(pace: str, ruststream: Run) -> None:
    recording("a.ss", ("k", b"1", 1))
    code, _, err = ruststream("replay", "a.ss", "file:b.ss", f"--pace={pace}")
    assert (code, err) == (2, f"error: --pace {pace!r}: own, fast or a number above 0 is expected\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["publish"], "usage: ruststream publish"),
        (["publish", "file:a.ss"], "usage: ruststream publish"),
        (["tail", "file:a.ss"], "usage: ruststream tail"),
        (["tail", "file:a.ss", "orders", "-n", "-1"], "-1: 0 or more is expected"),
        (["tail", "file:a.ss", "orders", "-n", "many"], "usage: ruststream tail"),
        (["record", "file:a.ss", "orders"], "usage: ruststream record"),
        (["record", "file:a.ss", "orders", "b.ss", "-n", "-1"], "-1: 0 or more is expected"),
        (["replay", "a.ss"], "usage: ruststream replay"),
        (["replay", "nowhere.ss", "file:b.ss"], "error: nowhere.ss is not there"),
        (["publish", "nothing:a", "orders", "x"], "no plugin for 'nothing' URLs is installed"),
        (["publish", "a.ss", "orders", "x"], "a broker URL begins with a scheme"),
        (["publish", "file:nowhere/a.ss", "orders", "x"], "nowhere is not there: create it"),
        (["publish", "file:a.ss?fsync=often", "orders", "x"], "fsync"),
        (["tail", "file:a.ss", "no key"], "'no key' holds characters outside"),
        (["tail", "file:other.txt", "orders"], "is no stream file"),
        (["replay", "other.txt", "file:b.ss"], "is no stream file"),
    ],
)
def test_what_cannot_be_done_is_exit_code_2_and_one_line(arguments: list[str], says: str, ruststream: Run) -> None:
    Path("other.txt").write_text("something else")
    code, out, err = ruststream(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert err.startswith("usage: ") or len(err.splitlines()) == 1
    assert list(Path().iterdir()) == [Path("other.txt")]


# ------------------------------------------------------------------------------------------------------- progress


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out = io.StringIO()
    progress = Progress("messages", 40, out)
    for _ in range(20):
        now[0] += 1
        progress.add()
    progress.finish()
    shown = out.getvalue().splitlines()
    assert shown == [
        " 12% 5 messages, 1/s",
        " 25% 10 messages, 1/s",
        " 38% 15 messages, 1/s",
        *[" 50% 20 messages, 1/s"] * 2,
    ]


def test_progress_is_one_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out = Terminal()
    progress = Progress("messages", 4, out)
    for _ in range(4):
        now[0] += 0.5
        progress.add()
    progress.finish()
    first, *_, last = out.getvalue().removesuffix("\n").removeprefix("\r").split("\r")
    assert first == "[####............]  25% 1 messages, 2/s"
    assert last == "[################] 100% 4 messages, 2/s"
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("command", ["replay", "record"])
def test_a_file_is_not_copied_into_itself(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would grow until the disk is full."""
    path = tmp_path / "x.ss"
    main(["publish", f"file:{path}", "orders", "one"])
    arguments = [str(path), f"file:{path}"] if command == "replay" else [f"file:{path}", "orders", str(path)]
    assert main([command, *arguments]) == 2
    assert "into itself" in capsys.readouterr().err
