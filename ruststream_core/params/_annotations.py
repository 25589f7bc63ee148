"""Annotations to types, each by itself, with the names of the place where the function was written."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
import typing
from collections import ChainMap
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from ruststream_core.errors import ConfigError
from ruststream_core.params._callables import Callee

__all__ = ["Names", "unalias"]


class Names:
    """Resolves the annotations of one callable.

    Args:
        callee: whose annotations.
        scope: the names of the frame that decorated it. They come first where the callee was written in that frame (a
            local function, a method in its class body), else they only fill in what its module does not know.
    """

    __slots__ = ("_callee", "_orders")

    def __init__(self, callee: Callee, scope: Mapping[str, Any] | None) -> None:
        self._callee = callee
        own, outer = _own_names(callee.innermost), dict(scope or {})
        if _written_in(callee.innermost, outer):
            self._orders: tuple[Mapping[str, Any], ...] = (ChainMap(outer, own),)
        else:
            self._orders = (own, ChainMap(own, outer))

    def resolve(self, annotation: Any, what: str) -> Any:
        """The type behind an annotation.

        Args:
            annotation: as `inspect` shows it, a string or a type.
            what: how an error names it: "parameter 'order'", "the return value".

        Raises:
            ConfigError: a name is unknown, or the annotation is no type.
        """
        text = getattr(annotation, "__forward_arg__", annotation)
        holder = types.SimpleNamespace(__annotations__={"it": text})
        unknown = NameError()
        for names in self._orders:
            try:
                hint = typing.get_type_hints(holder, self._callee.globals, _as_dict(names), include_extras=True)["it"]
            except NameError as error:
                unknown = error
            except Exception as error:
                raise ConfigError(f"{what} of {self._callee.where}: {text!r} is no annotation: {error}") from error
            else:
                return unalias(hint)
        raise ConfigError(
            f"{what} of {self._callee.where}: the annotation {text!r} cannot be evaluated, {unknown}; "
            f"{_remedy(self._callee.globals.get('__name__', ''), unknown.name or '')}"
        ) from unknown


def unalias(hint: Any) -> Any:
    """What a `type X = ...` statement stands for, and `Annotated` around one that is `Annotated` itself made flat."""
    while type(hint).__name__ == "TypeAliasType":
        hint = hint.__value__
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        if type(inner).__name__ == "TypeAliasType":
            return Annotated[(unalias(inner), *extras)]
    return hint


def _as_dict(names: Mapping[str, Any]) -> dict[str, Any]:
    return names if isinstance(names, dict) else dict(names)


def _own_names(fn: Any) -> dict[str, Any]:
    names = {parameter.__name__: parameter for parameter in getattr(fn, "__type_params__", ())}
    cells = getattr(fn, "__closure__", None) or ()
    for name, cell in zip(fn.__code__.co_freevars if cells else (), cells, strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _written_in(fn: Any, scope: Mapping[str, Any]) -> bool:
    qualname: str = getattr(fn, "__qualname__", "")
    body = scope.get("__qualname__")
    return "<locals>" in qualname or (isinstance(body, str) and qualname.startswith(f"{body}."))


def _remedy(module: str, name: str) -> str:
    root = name.partition(".")[0]
    found = _hidden_import(module, root)
    if found:
        return f"move `{found}` out of `if TYPE_CHECKING:`, because the annotation is needed at run time"
    return f"import {root or 'it'} at run time (`if TYPE_CHECKING:` is not enough), or define it above the function"


def _hidden_import(module: str, name: str) -> str:
    """The import statement that binds the name, wherever it stands in the module's source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(sys.modules[module])))
    except (KeyError, OSError, TypeError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if name and (alias.asname or alias.name.partition(".")[0]) == name:
                    return ast.unparse(node)
    return ""
