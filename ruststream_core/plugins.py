"""Finding transports, codecs and commands that other distributions bring.

Each plugin registers one module per scheme in the entry-point group `ruststream.plugins`; the entry point's name is
the scheme. The module implements hooks, marked with `hookimpl`, that return classes:

    ruststream_brokers() -> Mapping[str, type[Broker]]                   by scheme
    ruststream_codecs() -> Mapping[str, Callable[[], Codec]]             by name
    ruststream_commands() -> Mapping[str, Callable[[list[str]], int]]    by name; what the command line calls

Only what is named is imported, and no message ever passes through here. pluggy and importlib.metadata are imported
on first use: a service that hands over broker objects needs neither.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ruststream_core.abc import Broker
from ruststream_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pluggy import PluginManager

__all__ = [
    "GROUP",
    "PluginInfo",
    "broker_from_url",
    "hookimpl",
    "list_plugins",
    "load_codecs",
    "load_command",
    "load_scheme",
]

log = logging.getLogger("ruststream")

GROUP: Final = "ruststream.plugins"
"""The entry-point group."""

EXTRAS: Final[Mapping[str, str]] = {
    "nats": "nats",
    "tls": "nats",
    "postgresql": "sql",
    "mysql": "sql",
    "sqlite": "sql",
    "file": "file",
    "stdio": "file",
    "amqp": "amqp",
    "amqps": "amqp",
    "rabbitmq": "rabbit",
    "redis": "redis",
    "kafka": "kafka",
    "bench": "bench",
}
"""Which extra of ruststream-core brings a scheme."""

F = TypeVar("F", bound=Callable[..., object])


def hookimpl(function: F) -> F:
    """Mark a function of a plugin's module as the implementation of the hook that it is named after."""
    from pluggy import HookimplMarker  # noqa: PLC0415  see the module's docstring

    return HookimplMarker("ruststream")(function)


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point, as `ruststream plugins` shows it."""

    scheme: str
    distribution: str
    version: str
    module: str
    error: str | None = None
    """Why it cannot be used, where that is known."""
    loaded: bool = False

    @property
    def state(self) -> str:
        """One phrase: `ok`, `not loaded`, or what is wrong."""
        return self.error or ("ok" if self.loaded else "not loaded")


# ------------------------------------------------------------------------------------------------------- brokers


def broker_from_url(url: str) -> Broker[Any]:
    """The broker that a URL names.

    Raises:
        ConfigError: no scheme, no plugin for it, two plugins for it, or the plugin does not understand the URL.
        PluginError: the plugin is broken.
    """
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme:
        raise ConfigError("a broker URL begins with a scheme, such as nats://localhost:4222 or memory://")
    return load_scheme(scheme).from_url(url)


def load_scheme(scheme: str) -> type[Broker[Any]]:
    """The broker class for a scheme; imports the one plugin that has it.

    Raises:
        ConfigError: no plugin has the scheme (names the command that installs it), or several have (names them).
        PluginError: the plugin is broken, or does not bring the scheme that it registers; names it and the cause.
    """
    scheme = scheme.lower()
    entry = _one_owner(scheme, _entries(scheme))
    module = _load(entry)
    brokers: Mapping[str, Any] = _call(module, "ruststream_brokers", _owner(entry))
    found = brokers.get(scheme)
    if found is None:
        brings = ", ".join(sorted(brokers)) or "none"
        raise PluginError(f"{_owner(entry)} registers the scheme {scheme!r} and brings no broker for it: {brings}")
    if not _is_broker_class(found):
        raise PluginError(f"{_owner(entry)}: what it brings for {scheme!r} is no Broker class: {found!r}")
    broker: type[Broker[Any]] = found
    return broker


def _is_broker_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Broker)


def _one_owner(scheme: str, entries: list[EntryPoint]) -> EntryPoint:
    if not entries:
        known = ", ".join(sorted({entry.name for entry in _entries()})) or "none"
        raise ConfigError(f"no plugin for {scheme!r} URLs is installed: {_remedy(scheme)}. Installed schemes: {known}")
    # One distribution may be seen twice, through an editable install and its metadata in the working directory.
    if len({entry.value for entry in entries}) > 1:
        owners = " and ".join(sorted(_owner(entry) for entry in entries))
        raise ConfigError(f"the scheme {scheme!r} has more than one plugin: {owners}. Uninstall all but one")
    return entries[0]


def _remedy(scheme: str) -> str:
    if scheme == "memory":
        return "the metadata of ruststream-core itself is missing, install it again: pip install ruststream-core"
    if (extra := EXTRAS.get(scheme)) is not None:
        return f'pip install "ruststream-core[{extra}]"'
    return "install the distribution that brings it, or check the spelling"


# --------------------------------------------------------------------------------------------- codecs and commands


def load_codecs() -> Mapping[str, Callable[[], Any]]:
    """What makes each codec that plugins bring, by name. Imports every plugin; a broken one is logged and left out.

    Raises:
        ConfigError: two plugins bring a codec of the same name.
    """
    return _collect("ruststream_codecs", "codec")


def load_command(name: str) -> Callable[[list[str]], int]:
    """A command that a plugin adds to the command line: takes the arguments, returns the exit code.

    Raises:
        ConfigError: no plugin brings it, or two do.
        PluginError: the plugin that has the command's name is broken.
    """
    for entry in _entries(name):
        commands: Mapping[str, Callable[[list[str]], int]] = _call(_load(entry), "ruststream_commands", _owner(entry))
        if name in commands:
            return commands[name]
    known: dict[str, Callable[[list[str]], int]] = _collect("ruststream_commands", "command")
    if name not in known:
        remedy = f": {_remedy(name)}" if name in EXTRAS else ""
        raise ConfigError(f"there is no command {name!r}{remedy}")
    return known[name]


def _collect(hook: str, what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for entry in _one_each(_entries()):
        owner = _owner(entry)
        try:
            brought = _call(_load(entry), hook, owner)
        except PluginError as exc:
            log.warning("%s is left out: %s", owner, exc)
            continue
        for name, value in brought.items():
            if name in found:
                raise ConfigError(f"the {what} {name!r} has more than one plugin: {owners[name]} and {owner}")
            found[name], owners[name] = value, owner
    return found


def _one_each(entries: list[EntryPoint]) -> Iterator[EntryPoint]:
    yield from {entry.value: entry for entry in entries}.values()


# ------------------------------------------------------------------------------------------------------- listing


def list_plugins(*, load: bool = False) -> list[PluginInfo]:
    """Every registered scheme, by name. From metadata alone, unless `load` asks to import each and say what happens.

    Never raises for what is wrong with a plugin: `PluginInfo.error` says it.
    """
    entries = sorted(_entries(), key=lambda entry: (entry.name, entry.value))
    return [_info(entry, entries, load=load) for entry in entries]


def _info(entry: EntryPoint, entries: list[EntryPoint], *, load: bool) -> PluginInfo:
    dist = entry.dist
    others = [_owner(other) for other in entries if other.name == entry.name and other.value != entry.value]
    error = f"also registered by {', '.join(others)}" if others else None
    if load and error is None:
        error = _trouble(entry)
    return PluginInfo(
        scheme=entry.name,
        distribution="unknown" if dist is None else dist.name,
        version="" if dist is None else dist.version,
        module=entry.value,
        error=error,
        loaded=load and error is None,
    )


def _trouble(entry: EntryPoint) -> str | None:
    try:
        module = _load(entry)
        hooks = ("ruststream_brokers", "ruststream_codecs", "ruststream_commands")
        brought = {hook: _call(module, hook, _owner(entry)) for hook in hooks}
    except PluginError as exc:
        return str(exc)
    return None if any(entry.name in names for names in brought.values()) else f"brings nothing named {entry.name!r}"


# ------------------------------------------------------------------------------------------------------ machinery


class _Specs:
    """The hooks, for pluggy to check signatures against."""

    def ruststream_brokers(self) -> Mapping[str, type[Broker[Any]]]:
        """Broker classes by scheme."""
        raise NotImplementedError

    def ruststream_codecs(self) -> Mapping[str, Callable[[], Any]]:
        """What makes a codec, by name."""
        raise NotImplementedError

    def ruststream_commands(self) -> Mapping[str, Callable[[list[str]], int]]:
        """Commands by name."""
        raise NotImplementedError


@functools.cache
def _manager() -> PluginManager:
    from pluggy import HookspecMarker, PluginManager  # noqa: PLC0415  see the module's docstring

    hookspec = HookspecMarker("ruststream")
    for name in ("ruststream_brokers", "ruststream_codecs", "ruststream_commands"):
        hookspec(getattr(_Specs, name))
    manager = PluginManager("ruststream")
    manager.add_hookspecs(_Specs)
    return manager


def _entries(name: str | None = None) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415  see the module's docstring

    found = entry_points(group=GROUP) if name is None else entry_points(group=GROUP, name=name)
    return list({(entry.name, entry.value): entry for entry in found}.values())


def _owner(entry: EntryPoint) -> str:
    dist = entry.dist
    return entry.value if dist is None else f"{dist.name} {dist.version} ({entry.value})"


def _load(entry: EntryPoint) -> Any:
    """The plugin's module, imported and registered once."""
    try:
        module = entry.load()
        _register(module, entry.value)
    except Exception as exc:
        raise PluginError(f"{_owner(entry)} cannot be loaded: {type(exc).__name__}: {exc}") from exc
    return module


def _register(module: Any, name: str) -> None:
    manager = _manager()
    if manager.is_registered(module):
        return
    try:
        manager.register(module, name=name)
        manager.check_pending()
    except Exception:
        if manager.is_registered(module):  # half a plugin would pass for a whole one the next time
            manager.unregister(module)
        raise


def _call(module: Any, hook: str, owner: str) -> Mapping[str, Any]:
    """What one module answers to one hook; empty where it does not implement it."""
    manager = _manager()
    others = [plugin for plugin in manager.get_plugins() if plugin is not module]
    try:
        answers = manager.subset_hook_caller(hook, remove_plugins=others)()
    except Exception as exc:
        raise PluginError(f"{owner}: {hook} failed: {type(exc).__name__}: {exc}") from exc
    answer = answers[0] if answers else {}
    if not isinstance(answer, Mapping):
        raise PluginError(f"{owner}: {hook} returns {type(answer).__name__}, a mapping by name is expected")
    return answer
