"""Markers and types of other frameworks, recognised by their module so that an error can name their library."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["foreign"]

_LIBRARIES: Final = frozenset(
    {
        "aiogram",
        "dependency_injector",
        "dishka",
        "fast_depends",
        "fastapi",
        "faststream",
        "litestar",
        "starlette",
        "taskiq",
        "taskiq_dependencies",
    }
)

_OURS: Final = {
    "Body": "the payload needs no marker",
    "Context": "annotate the parameter with Context, or use FromState or FromHeader(...)",
    "Cookie": 'use FromHeader("cookie")',
    "Dependant": "use Depends(...) of ruststream_core",
    "Depends": "use Depends(...) of ruststream_core",
    "Header": 'use FromHeader("x-name")',
    "Path": "use FromPath",
    "Provide": "use Depends(...) of ruststream_core",
    "Request": "annotate the parameter with Context",
    "Security": "use Depends(...) of ruststream_core",
    "State": "use FromState",
    "TaskiqDepends": "use Depends(...) of ruststream_core",
}


def foreign(thing: Any) -> str | None:
    """Whose it is and what to use instead, where it belongs to a library that handlers are often moved from."""
    kind = thing if isinstance(thing, type) else type(thing)
    library = kind.__module__.partition(".")[0]
    if library not in _LIBRARIES:
        return None
    name = kind.__name__
    remedy = _OURS.get(name) or ("use Message[bytes]" if "Message" in name else "use a marker of ruststream_core")
    return f"{library}'s {name} is not ours: {remedy}"
