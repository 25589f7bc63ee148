"""Calls written out once: a function, the payload's place, and what reads every other argument.

A general call would build a list and a mapping of arguments for each message, which costs several times what the
arguments themselves do. So the call is written as source for the parameters at hand, as dataclasses and attrs write
their `__init__`. Nothing but parameter names, which Python has accepted as such, gets into that source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ruststream_core.params._live import Undecodable

__all__ = ["CONTEXT", "PAYLOAD", "Argument", "Arguments", "Constant", "Made", "written"]


class Constant(msgspec.Struct, frozen=True):
    """An argument that is the same for every message."""

    value: Any


class Made(msgspec.Struct, frozen=True):
    """An argument that a factory has made: its index among them."""

    index: int


PAYLOAD: Final = Constant("the payload")
CONTEXT: Final = Constant("the context")


class Argument(msgspec.Struct, frozen=True):
    """One parameter and what fills it: `PAYLOAD`, `CONTEXT`, a Constant, a Made, or a reader of the delivery."""

    name: str
    keyword_only: bool
    source: Any


class Arguments:
    """Arguments as source: `call` between the parentheses, `reads` before it, and the names that both use."""

    __slots__ = ("call", "names", "reads")

    def __init__(self, arguments: Iterable[Argument]) -> None:
        self.names: dict[str, Any] = {}
        self.reads: list[str] = []
        self.call = ", ".join(self._written(index, argument) for index, argument in enumerate(arguments))

    def _written(self, index: int, argument: Argument) -> str:
        value = self._value(index, argument.source)
        return f"{argument.name}={value}" if argument.keyword_only else value

    def _value(self, index: int, source: Any) -> str:
        if source is PAYLOAD:
            return "payload"
        if source is CONTEXT:
            return "frame"
        if isinstance(source, Made):
            return f"values[{source.index}]"
        if isinstance(source, Constant):
            self.names[f"constant{index}"] = source.value
            return f"constant{index}"
        self.names[f"read{index}"] = source
        self.reads.append(f"value{index} = read{index}(delivery)")
        return f"value{index}"


def written(
    takes: str, *, opening: Sequence[str] = (), reads: Sequence[str] = (), then: Sequence[str], names: Mapping[str, Any]
) -> Callable[..., Any]:
    """A function of these lines.

    Args:
        takes: its parameters.
        opening: lines before everything.
        reads: lines whose exceptions become `Undecodable`.
        then: lines after that, the last of which returns.
        names: what the lines use.
    """
    lines = [f"def call({takes}):", *_indented(opening)]
    if reads:
        lines += ["    try:", *_indented(reads, 8)]
        lines += ["    except Exception as error:", "        raise Undecodable(error) from error"]
    namespace = {"Undecodable": Undecodable, **names}
    source = "\n".join([*lines, *_indented(then)])
    exec(compile(source, "<a route's composed call>", "exec"), namespace)  # noqa: S102  see the module's docstring
    function: Callable[..., Any] = namespace["call"]
    return function


def _indented(lines: Iterable[str], by: int = 4) -> list[str]:
    return [" " * by + line for line in lines]
