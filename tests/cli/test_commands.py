"""The command line, in this process: what it loads, what it prints, and its exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ruststream_core.cli import main

SERVICE = """
from ruststream_core import App, Backoff, Batch, Drop, by_key, Router
from ruststream_core.memory import MemoryLog

app = App("service", broker="memory:")

@app.subscriber("orders.{region}", reply="done", workers=by_key(4), dead_letter="dead")
async def confirm(order: dict[str, int]) -> dict[str, int]:
    return order

@app.subscriber(MemoryLog("log", group="g"), batch=Batch(64), on_error={KeyError: Drop})
async def load(rows: list[bytes]) -> None: ...

class Nested:
    inner = app

def factory() -> App:
    return app

def wrong_factory() -> int:
    return 5

not_an_app = 5

broken = App("broken", broker="memory:")

@broken.subscriber("a", reply="x")
async def one(body: bytes) -> None: ...

@broken.subscriber("b")
async def two() -> None: ...

@broken.subscriber("c")
async def fine(body: bytes) -> None: ...

empty = App("empty", broker="memory:")
unknown = App("unknown", broker="kafka://host")
unknown.subscriber("c")(fine)
several = App("several", brokers={"in": "kafka://host", "lake": "memory:"})
several.include(Router())
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ruststream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "cli_service.py").write_text(SERVICE)
    (tmp_path / "cli_broken_import.py").write_text("import not_there_at_all\n")
    (tmp_path / "cli_config_error.py").write_text("from ruststream_core import App\nApp('a', broker='m:', drain=-1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("cli_")]:
        del sys.modules[name]

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_check_shows_every_route_as_it_will_run(ruststream: Run) -> None:
    code, out, err = ruststream("check", "cli_service:app")
    assert (code, err) == (0, "")
    head, rule, confirm, load = out.splitlines()
    assert head.split()[:4] == ["route", "source", "transport", "payload"]
    assert set(rule) == {"-", " "}
    assert confirm.startswith("confirm  orders.{region}  default: Memory MemoryQueue('orders.{region}')")
    for part in ("dict[str, int]", "json", "by_key(4)", "done", "then dead letter dead"):
        assert part in confirm
    for part in ("bytes, 64 at a time", "KeyError: Drop", "in place, 5 attempts; then log and drop"):
        assert part in load
    assert "attempts counted in this process" in load


@pytest.mark.parametrize("spec", ["cli_service:factory", "cli_service:Nested.inner"])
def test_an_app_may_come_from_a_factory_or_an_attribute(spec: str, ruststream: Run) -> None:
    assert ruststream("check", spec)[0] == 0


def test_check_tells_one_line_for_each_problem_and_the_routes_that_stand(ruststream: Run) -> None:
    code, out, err = ruststream("check", "cli_service:broken")
    assert code == 2
    assert "fine" in out
    assert len(err.splitlines()) == 2
    assert err.splitlines()[0] == "error: route 'one': reply='x' on a handler that returns nothing"
    assert err.splitlines()[1].startswith("error: route 'two': ")


def test_check_of_an_app_without_routes_says_so(ruststream: Run) -> None:
    assert ruststream("check", "cli_service:empty") == (0, "the app has no route\n", "")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("cli_service", "module:app is expected"),
        (":app", "module:app is expected"),
        ("cli_service:", "module:app is expected"),
        ("cli_nowhere:app", "no module 'cli_nowhere' from here"),
        ("cli_service.inner:app", "no module 'cli_service.inner'"),
        ("cli_service:application", "has no 'application'; its apps are app, broken, empty, unknown, several"),
        ("cli_service:not_an_app", "is a int, an App or a function that returns one is expected"),
        ("cli_service:wrong_factory", "is a int"),
        ("cli_broken_import:app", "cli_broken_import cannot be imported: No module named 'not_there_at_all'"),
        ("cli_config_error:app", "App(drain=-1)"),
        ("cli_service:unknown", 'pip install "ruststream-core[kafka]"'),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_what_cannot_be_loaded_is_told_with_exit_code_2(command: str, spec: str, says: str, ruststream: Run) -> None:
    code, _, err = ruststream(command, spec)
    assert code == 2
    assert says in err
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert "Traceback" not in err


def test_brokers_are_overridden_by_name(ruststream: Run) -> None:
    assert ruststream("check", "cli_service:unknown", "--broker", "default=memory:")[0] == 0
    assert ruststream("check", "cli_service:several", "--broker", "in=memory:")[0] == 0
    for pair, says in (
        ("lake2=memory:", "no broker is called 'lake2'; the app has in, lake"),
        ("memory:", "NAME=URL is expected"),
        ("=memory:", "NAME=URL is expected"),
        ("in=memory", "NAME=URL is expected"),
        ("in=nothing:", "no plugin for 'nothing' URLs is installed"),
    ):
        code, _, err = ruststream("check", "cli_service:several", "--broker", pair)
        assert code == 2
        assert says in err


def test_plugins_are_listed_from_metadata(ruststream: Run) -> None:
    code, out, _ = ruststream("plugins")
    assert code == 0
    (memory,) = [line for line in out.splitlines() if line.startswith("memory")]
    assert "ruststream-core" in memory
    assert "not loaded" in memory


@pytest.mark.parametrize(
    "arguments", [[], ["run"], ["check"], ["run", "a:b", "--workers", "many"], ["run", "a:b", "--loop", "trio"]]
)
def test_usage_errors_are_exit_code_2(
    arguments: list[str], ruststream: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        ruststream(*arguments)
    assert caught.value.code == 2
    assert "usage: ruststream" in capsys.readouterr().err


def test_unknown_commands_and_senseless_numbers_are_exit_code_2(ruststream: Run) -> None:
    code, _, err = ruststream("frobnicate")
    assert code == 2
    assert "there is no command 'frobnicate'" in err
    code, _, err = ruststream("run", "cli_service:app", "--workers", "0")
    assert code == 2
    assert "--workers 0: at least 1 is needed" in err


def test_help_names_every_command_and_the_exit_codes(ruststream: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--help"], ["run", "check", "plugins", "publish", "tail", "record", "replay"]),
        (["run", "--help"], ["--workers", "--reload", "--loop", "--broker", "Exit codes: 0 drained", "128+n"]),
    ):
        with pytest.raises(SystemExit) as caught:
            ruststream(*arguments)
        assert caught.value.code == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert [word for word in words if word not in shown] == []


def test_the_version_is_that_of_the_distribution(ruststream: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    with pytest.raises(SystemExit):
        ruststream("--version")
    assert capsys.readouterr().out == f"ruststream-core {version('ruststream-core')}\n"
