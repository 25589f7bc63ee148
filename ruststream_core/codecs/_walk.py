"""Finding one value inside another. Only used when something is already known or suspected to be wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

__all__ = ["culprit", "find", "has_non_finite_mark", "has_null", "non_finite"]

# A float64 whose exponent has all bits set begins with these two bytes. Others may, too: they only cause a walk.
# A compiled pattern: `in` and `find` take two to three times as long on half a kilobyte.
has_non_finite_mark: Callable[[bytes], object] = re.compile(rb"\xcb[\x7f\xff]").search
"""Whether a MessagePack document may hold a NaN or an infinity: truthy or None."""

has_null: Callable[[bytes], object] = re.compile(b"ull").search
"""Whether a JSON document may hold a null: truthy or None. Without the `n`, a letter that stops the search often."""


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, float) else dict(_children(value))


_probe = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def non_finite(value: Any, *, keys: bool = True) -> str | None:
    """The path of the first NaN or infinity inside a value that can be encoded, or None.

    msgspec writes them to JSON as null. MessagePack keeps them, so a second encoding, at the speed of C, tells
    nearly always that there is none; only what is left is walked.
    """
    try:
        packed = _probe(value)
    except Exception:  # what MessagePack cannot hold, a large integer above all
        return find(value, _is_non_finite, keys=keys)
    return find(value, _is_non_finite, keys=keys) if has_non_finite_mark(packed) else None


def _is_non_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def find(value: Any, wanted: Callable[[Any], bool], *, keys: bool = True) -> str | None:
    """The path of the first wanted value, depth first, or None. The value must have no cycles.

    Args:
        value: where to look.
        wanted: whether a value is one.
        keys: show keys of dictionaries where they are identifiers; else `[...]` stands for all.
    """
    pending = [("$", value)]
    while pending:
        path, current = pending.pop()
        if wanted(current):
            return path
        steps = [(path + _step(name, keys=keys), child) for name, child in _items(current)]
        pending.extend(reversed(steps))
    return None


def culprit(value: Any, encode: Callable[[Any], object]) -> str:
    """The path of the innermost value that does not encode, for a value that does not and has no cycles."""
    path = "$"
    while True:
        for name, child in _items(value):
            if _fails(encode, child):
                path += _step(name, keys=True)
                value = child
                break
        else:
            return path


def _fails(encode: Callable[[Any], object], value: Any) -> bool:
    try:
        encode(value)
    except Exception:  # the question is only whether
        return True
    return False


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Steps and children. A dictionary's keys are children, too: they may be what does not encode."""
    if isinstance(value, Mapping):
        yield from ((None, key) for key in value if not isinstance(key, str))
    yield from _children(value)


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return ((key if isinstance(key, str) else None, child) for key, child in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return enumerate(value)
    names = _field_names(type(value))
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def _field_names(cls: Any) -> Iterable[str]:
    for mark in ("__struct_fields__", "__pydantic_fields__", "__dataclass_fields__"):
        if (names := getattr(cls, mark, None)) is not None:
            return list(names)
    return [attribute.name for attribute in getattr(cls, "__attrs_attrs__", ())]


def _step(name: Any, *, keys: bool) -> str:
    if type(name) is int:
        return f"[{name}]"
    return f".{name}" if keys and isinstance(name, str) and name.isidentifier() else "[...]"
