"""What this distribution adds to the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ruststream_core.plugins import hookimpl

__all__ = ["ruststream_commands"]


@hookimpl
def ruststream_commands() -> Mapping[str, Callable[[list[str]], int]]:
    """`ruststream bench`; what it needs is imported when it is called."""
    return {"bench": _bench}


def _bench(arguments: list[str]) -> int:
    from ruststream_core_bench._cli import main  # noqa: PLC0415  a service that lists its plugins pays nothing

    return main(arguments)
