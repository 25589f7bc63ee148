"""A handler's return annotation, less what is an outcome: the type of its reply."""

from __future__ import annotations

import collections.abc
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Never, NoReturn, Union, get_args, get_origin

from ruststream_core.errors import ConfigError
from ruststream_core.params._annotations import unalias
from ruststream_core.params._parameters import EMPTY
from ruststream_core.params._types import Reply
from ruststream_core.settlement import Outcome

__all__ = ["reply_type"]

_AWAITABLES: Final = (collections.abc.Awaitable, collections.abc.Coroutine)
_SEQUENCES: Final = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


def reply_type(hint: Any, where: str, *, batch: bool) -> Any | None:
    """The type of the values that the handler replies with; None where it never does, Any where nothing is said.

    Raises:
        ConfigError: a batch handler that is said to return a single value.
    """
    if hint is EMPTY:
        return Any
    members = list(_members(hint))
    if batch and Any not in members:
        members = [item for member in members for item in _items(member, where)]
    kept = tuple(dict.fromkeys(_value(member) for member in members if not _is_outcome(member)))
    return Union[kept] if kept else None  # noqa: UP007  built from a tuple


def _members(hint: Any) -> Iterator[Any]:
    """The members of a union, without None, aliases and what a plain def says about the coroutine it returns."""
    hint = unalias(hint)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for part in get_args(hint):
            yield from _members(part)
    elif origin in _AWAITABLES:
        yield from _members(get_args(hint)[-1])
    elif origin is Annotated and get_origin(get_args(hint)[0]) is Reply:
        yield get_args(hint)[0]
    elif hint not in (None, NoneType, Never, NoReturn):
        yield hint


def _items(member: Any, where: str) -> Iterator[Any]:
    if _is_outcome(member):
        return
    if (get_origin(member) or member) not in _SEQUENCES:
        raise ConfigError(
            f"{where} takes a batch and is said to return {member!r}; a batch returns None, one outcome for all, "
            "or a list with a value, Reply, outcome or None for each message"
        )
    for argument in get_args(member) or (Any,):
        if argument is not Ellipsis:
            yield from _members(argument)


def _is_outcome(member: Any) -> bool:
    if get_origin(member) is type:
        return all(map(_is_outcome, _members(get_args(member)[0])))
    return isinstance(member, type) and issubclass(member, Outcome)


def _value(member: Any) -> Any:
    if member is Reply:
        return Any
    return get_args(member)[0] if get_origin(member) is Reply else member
