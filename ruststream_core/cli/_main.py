"""Arguments to commands. Each command is a module of its own, imported when it is chosen."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from typing import Final

from ruststream_core.errors import ConfigError, PublishError, RustStreamError

__all__ = ["main"]

USAGE_ERROR: Final = 2
_COMMANDS: Final = {
    "run": "run an app until a signal, an error or the end of its sources",
    "check": "show every route as resolved, and every problem of the wiring",
    "plugins": "list the installed transports and codecs",
    "publish": "send messages to a broker",
    "tail": "show messages as they come",
    "record": "write a broker's traffic into a stream file",
    "replay": "publish a stream file again",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        Its exit code: 0 done, 1 failed, 2 usage or wiring; `run` has more, see there.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    if name and not name.startswith("-") and name not in _COMMANDS:
        return _plugin_command(name, arguments[1:])
    parser = argparse.ArgumentParser(prog="ruststream", description="RustStream for Python", epilog=_epilog())
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command, summary in _COMMANDS.items():
        sub = commands.add_parser(command, help=summary, description=summary)
        sub.add_argument("-v", "--verbose", action="store_true", help="log what goes on, not only what goes wrong")
        if command == name:
            import_module(f"ruststream_core.cli._{command}").arguments(sub)
    options = parser.parse_args(arguments)
    _log(verbose=options.verbose or options.command == "run")
    return _guarded(options.command, options)


def _guarded(command: str, options: argparse.Namespace) -> int:
    try:
        code: int = import_module(f"ruststream_core.cli._{command}").execute(options)
    except ConfigError as exc:
        return _complain(exc, USAGE_ERROR)
    except RustStreamError as exc:
        return _complain(exc, 1)
    except BrokenPipeError:
        # The reader of our output went away. What is still buffered must not fail when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def _complain(error: Exception, code: int) -> int:
    for line in str(error).splitlines() or [repr(error)]:
        print(f"error: {line}", file=sys.stderr)
    causes = error.failed.values() if isinstance(error, PublishError) else ()
    for cause in islice(dict.fromkeys(map(str, causes)), 3):
        print(f"  {cause}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(f"  note: {note}", file=sys.stderr)
    return code


def _log(*, verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
    )


def _plugin_command(name: str, arguments: list[str]) -> int:
    from ruststream_core.plugins import load_command  # noqa: PLC0415  only for commands of plugins

    try:
        return load_command(name)(arguments)
    except ConfigError as exc:
        return _complain(exc, USAGE_ERROR)
    except RustStreamError as exc:
        return _complain(exc, 1)
    except KeyboardInterrupt:
        return 130


def _epilog() -> str:
    return "Plugins may add commands of their own: see `ruststream plugins`."


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415  slow to import, seldom wanted

    return f"ruststream-core {version('ruststream-core')}"
