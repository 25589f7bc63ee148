"""Programs that are built once and kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import ruststream_core.testing.servers as package
from ruststream_core.testing.servers import ServerFailed, ServerMissing, build_with_go, cache_folder, find_program

GO = """#!/bin/sh
echo built >> {log}
[ "$2" = example.test/bad@v1 ] && echo "no such module" && exit 1
[ "$1" = install ] && mkdir -p "$GOBIN" && printf '#!/bin/sh\\n' > "$GOBIN/tool" && chmod +x "$GOBIN/tool"
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolchain that notes each of its runs."""
    log = tmp_path / "runs"
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(GO.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("RUSTSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(package._programs, "_GO_FOLDERS", ())
    return log


def test_a_build_is_kept_for_each_version(go: Path) -> None:
    first = build_with_go("example.test/tool", "v1")
    assert build_with_go("example.test/tool", "v1") == first
    assert build_with_go("example.test/tool", "v2") != first
    assert go.read_text().count("built") == 2
    assert find_program(first, install="") == first


def test_builds_at_the_same_time_are_one(go: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(build_with_go("example.test/tool", "v1"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert go.read_text().count("built") == 1


def test_a_build_that_fails_says_why_and_is_tried_again(go: Path) -> None:
    for runs in (1, 2):
        with pytest.raises(ServerFailed, match=r"go install example.test/bad@v1 failed:\nno such module"):
            build_with_go("example.test/bad", "v1")
        assert go.read_text().count("built") == runs


def test_without_the_toolchain_the_error_says_where_to_get_it(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(go.parent))
    with pytest.raises(ServerMissing, match=r"the program go is not installed; .*go\.dev"):
        build_with_go("example.test/tool", "v1")


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUSTSTREAM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/ruststream-tests")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "ruststream-tests"


def test_every_exported_name_exists_and_hides_no_module() -> None:
    modules = {path.stem for path in Path(package.__path__[0]).glob("*.py")}
    assert sorted(package.__all__) == package.__all__
    assert all(hasattr(package, name) for name in package.__all__)
    assert not modules.intersection(package.__all__)
