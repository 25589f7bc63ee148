"""From `module:name` to an app, and from `NAME=URL` to a broker."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ruststream_core.app import App
from ruststream_core.errors import ConfigError

__all__ = ["load_app", "overrides"]


def load_app(spec: str) -> App:
    """Import `module:app`, or call `module:factory` without arguments.

    Raises:
        ConfigError: it is not there, is no app, or the module cannot be imported (the cause is attached).
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{spec!r}: module:app is expected, for example orders.service:app")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            raise ConfigError(f"no module {module_name!r} from here ({exc})") from exc
        raise ConfigError(f"{module_name} cannot be imported: {exc}") from exc
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name, value in vars(module).items() if isinstance(value, App)]
            hint = f"; its apps are {', '.join(names)}" if names else ""
            raise ConfigError(f"{module_name} has no {attribute!r}{hint}")
        found = getattr(found, part)
    if inspect.isfunction(found):
        found = found()
    if not isinstance(found, App):
        raise ConfigError(f"{spec!r} is a {type(found).__name__}, an App or a function that returns one is expected")
    return found


def overrides(pairs: Sequence[str]) -> dict[str, str]:
    """`NAME=URL` as given on the command line.

    Raises:
        ConfigError: one is not of that form.
    """
    found = {}
    for pair in pairs:
        name, equals, url = pair.partition("=")
        if not equals or not name or ":" not in url:
            raise ConfigError(f"--broker {pair!r}: NAME=URL is expected")
        found[name] = url
    return found
