"""Runs the `verify` of the Rust crate over every golden file and every bad one: `check.py VERIFY`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Two files need other options: the crate itself does not reopen a file the way it writes one, and headers are
# compared in full.
REOPENED = "09-reopened"
HEADERS = "10-ruststream-headers"


def verify(program: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the crate's program."""
    return subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=False)


def good(program: str) -> Iterator[tuple[str, str]]:
    """What is wrong with each golden file: it must verify and decode to its `.jsonl`."""
    for path in sorted(HERE.glob("*.ss")):
        strict = [] if path.stem == REOPENED else ["--strict"]
        shown = "4096" if path.stem == HEADERS else "64"
        run = verify(program, *strict, "--consumer", "--hex", shown, path)
        if run.returncode != 0:
            yield path.name, f"exit code {run.returncode}: {run.stderr.strip()}"
        elif run.stdout != path.with_suffix(".jsonl").read_text():
            yield path.name, "decodes to something else than its .jsonl"
        else:
            yield path.name, ""


def bad(program: str) -> Iterator[tuple[str, str]]:
    """What is wrong with each bad file: it must end the program as `expected.jsonl` says."""
    for line in (HERE / "bad" / "expected.jsonl").read_text().splitlines():
        case = json.loads(line)
        path = HERE / "bad" / case["file"]
        expected = (case["exit"], case["exit_strict"])
        codes = tuple(verify(program, "--quiet", *strict, path).returncode for strict in ([], ["--strict"]))
        yield f"bad/{path.name}", "" if codes == expected else f"exit codes {codes}, expected {expected}"


def main(program: str) -> int:
    """Reports every file; returns the number that are wrong."""
    results = [*good(program), *bad(program)]
    for name, problem in results:
        sys.stdout.write(f"{'BAD' if problem else 'ok '} {name} {problem}".rstrip() + "\n")
    return sum(bool(problem) for _, problem in results)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1]), 1))
