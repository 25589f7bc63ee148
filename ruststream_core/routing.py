"""Which handler reads which source, as the service wrote it. Nothing is resolved here: `dispatch` does that, once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast

import msgspec

from ruststream_core.abc import Source
from ruststream_core.errors import ConfigError, Unsupported
from ruststream_core.failure import OnError, Policy
from ruststream_core.middleware import Middleware
from ruststream_core.params import Destination, message_info

__all__ = [
    "Batch",
    "ByKey",
    "Declared",
    "Defaults",
    "Mount",
    "RouteOptions",
    "Router",
    "SourceLike",
    "by_key",
    "subscriber",
]

F = TypeVar("F", bound=Callable[..., Any])
SourceLike: TypeAlias = str | type | Source
_ROUTES = "__ruststream_routes__"


class Batch:
    """Hand the handler up to `size` messages at a time.

    Args:
        size: most messages of a batch, at least 1.
        max_wait: seconds to wait for more after the first one; None takes the transport's choice, 0 none.

    Raises:
        ValueError: a number is out of its range.
    """

    __slots__ = ("max_wait", "size")

    def __init__(self, size: int, *, max_wait: float | None = None) -> None:
        if size < 1 or (max_wait is not None and max_wait < 0):
            raise ValueError(f"Batch({size}, max_wait={max_wait}): size from 1, max_wait from 0")
        self.size, self.max_wait = size, max_wait

    def __repr__(self) -> str:
        return f"Batch({self.size})"


class ByKey:
    """What `by_key` makes."""

    __slots__ = ("key", "workers")

    def __init__(self, workers: int, key: str | Callable[[Any], object] | None) -> None:
        self.workers, self.key = workers, key

    def __repr__(self) -> str:
        if self.key is None:
            return f"by_key({self.workers})"
        return f"by_key({self.workers}, {self.key if isinstance(self.key, str) else 'function'})"


def by_key(workers: int, key: str | Callable[[Any], object] | None = None) -> ByKey:
    """Run keys side by side on `workers` lanes, and the messages of one key in order.

    Args:
        workers: lanes, at least 1.
        key: None: the message's own key. `"{region}"`: a placeholder of the source. A function: of the payload.

    Raises:
        ValueError: `workers` is under 1, or the text is no placeholder.
    """
    if workers < 1:
        raise ValueError(f"by_key({workers}): at least 1 is needed")
    if isinstance(key, str) and not (key.startswith("{") and key.endswith("}") and key[1:-1].isidentifier()):
        raise ValueError(f"by_key({workers}, {key!r}): a placeholder such as '{{region}}' or a function is expected")
    return ByKey(workers, key)


class Defaults(TypedDict, total=False):
    """Options that a route, an include, a router or the app may set; the narrowest wins."""

    workers: int | ByKey
    codec: str
    prefetch: int
    on_error: OnError
    on_decode_error: Policy
    max_attempts: int
    dead_letter: Destination
    retry_copies: bool
    out: Mapping[str, Destination]
    on_lost: Literal["cancel", "flag"]
    description: str


class RouteOptions(Defaults, total=False):
    """Options of one route."""

    name: str
    reply: Destination
    batch: Batch


_ROUTE_KEYS = frozenset(RouteOptions.__annotations__) | frozenset(Defaults.__annotations__)
_DEFAULT_KEYS = frozenset(Defaults.__annotations__)
_KINDS: Mapping[str, tuple[type, str]] = {
    "name": (str, "text"),
    "description": (str, "text"),
    "retry_copies": (bool, "True or False"),
    "out": (Mapping, "a mapping from slot to destination"),
}


class Declared(msgspec.Struct, frozen=True):
    """One use of `subscriber`."""

    source: SourceLike
    options: RouteOptions
    scope: Mapping[str, Any] | None


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One handler at one place, with everything that its routers say of it."""

    handler: Callable[..., Any]
    source: SourceLike
    broker: str | None
    options: RouteOptions
    on_error: tuple[OnError, ...]
    """Narrowest first."""
    middleware: tuple[Middleware, ...]
    scope: Mapping[str, Any] | None

    @property
    def source_name(self) -> str:
        """The source as text, for names and errors."""
        if isinstance(self.source, str):
            return self.source
        if isinstance(self.source, type):
            info = message_info(self.source)
            return info.name if info is not None else self.source.__name__
        return self.source.name


def _checked(options: Mapping[str, Any], allowed: frozenset[str], where: str) -> None:
    for key in options:
        if key not in allowed:
            from difflib import get_close_matches  # noqa: PLC0415  only for this error

            near = get_close_matches(key, allowed, 1)
            hint = f", did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(allowed))}"
            raise ConfigError(f"{where}: no option {key!r}{hint}")
    _checked_figures(options, where)
    if (batch := options.get("batch")) is not None and not isinstance(batch, Batch):
        raise ConfigError(f"{where}: batch={batch!r}, Batch(size) is expected")
    for key, (kind, wanted) in _KINDS.items():
        if key in options and not isinstance(options[key], kind):
            raise ConfigError(f"{where}: {key}={options[key]!r}, {wanted} is expected")
    if (on_lost := options.get("on_lost", "cancel")) not in ("cancel", "flag"):
        raise ConfigError(f"{where}: on_lost={on_lost!r}, 'cancel' or 'flag' is expected")
    if (errors := options.get("on_error")) is not None:
        _checked_errors(errors, where)


def _checked_figures(options: Mapping[str, Any], where: str) -> None:
    workers = options.get("workers", 1)
    if not (_is_count(workers) or isinstance(workers, ByKey)):
        raise ConfigError(f"{where}: workers={workers!r}, a number from 1 or by_key(n) is expected")
    for key in ("prefetch", "max_attempts"):
        if key in options and not _is_count(options[key]):
            raise ConfigError(f"{where}: {key}={options[key]!r}, a number from 1 is expected")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _checked_errors(errors: object, where: str) -> None:
    if not isinstance(errors, Mapping):
        raise ConfigError(f"{where}: on_error={errors!r}, a mapping from exception type to policy is expected")
    for kind in errors:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigError(f"{where}: on_error has {kind!r} as a key, an exception type is expected")


def _checked_source(source: object, where: str) -> None:
    if isinstance(source, type) and message_info(source) is None:
        raise ConfigError(f'{where}: {source.__name__} is no source; decorate it with @message("name")')
    if not isinstance(source, str | type | Source):
        raise ConfigError(f"{where}: {source!r} is no source: a name, a @message class or a descriptor is expected")


def _handler_name(fn: object) -> str:
    inner = getattr(fn, "func", fn)
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__


def _scope(depth: int) -> Mapping[str, Any] | None:
    # Only the names of a function or class body: those of a module are found through the handler itself.
    frame = sys._getframe(depth + 1)  # noqa: SLF001
    return None if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _declare(fn: Any, declared: Declared) -> None:
    _checked_source(declared.source, f"handler {_handler_name(fn)!r}")
    _checked(declared.options, _ROUTE_KEYS, f"handler {_handler_name(fn)!r}")
    if not callable(fn) and not isinstance(fn, staticmethod | classmethod):
        raise ConfigError(f"{fn!r} is no handler: a function or a callable object is expected")


def subscriber(source: SourceLike, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
    """Mark a handler for a source, to be mounted by `include`. The function itself is returned, unchanged.

    Args:
        source: a name, a `@message` class, or a transport's descriptor.
        options: see `RouteOptions`.

    Raises:
        ConfigError: an option is unknown or out of its range.
    """
    scope = _scope(1)

    def mark(fn: F) -> F:
        declared = Declared(source, options, scope)
        _declare(fn, declared)
        try:
            setattr(fn, _ROUTES, [*getattr(fn, "__dict__", {}).get(_ROUTES, ()), declared])
        except AttributeError:
            raise ConfigError(f"{fn!r} takes no attribute: use router.subscriber(...)(it) instead") from None
        return fn

    return mark


class Router:
    """A group of routes with a prefix and defaults, to be included by another router or the app.

    Args:
        prefix: stands before every name of the group; never before a reply or a dead letter.
        defaults: options for routes that do not set them.
    """

    def __init__(self, *, prefix: str = "", **defaults: Unpack[Defaults]) -> None:
        _checked(defaults, _DEFAULT_KEYS, type(self).__name__)
        self._prefix = prefix
        self._defaults = defaults
        self._middleware: list[Middleware] = []
        self._items: list[tuple[Any, Declared | Router, str | None, str, Defaults]] = []

    @classmethod
    def of(cls, handlers: object) -> Router:
        """Collect the methods of an object that `subscriber` marked.

        Raises:
            ConfigError: there is none.
        """
        router = cls()
        for name in dir(type(handlers)):
            # The attribute as it was written: a static or class method keeps its mark to itself.
            raw = next((vars(owner)[name] for owner in type(handlers).__mro__ if name in vars(owner)), None)
            inner = getattr(raw, "__func__", None)
            marked: list[Declared] = getattr(raw, _ROUTES, None) or getattr(inner, _ROUTES, [])
            router._items += [(getattr(handlers, name), declared, None, "", {}) for declared in marked]
        if not router._items:
            raise ConfigError(f"{type(handlers).__name__} has no method marked with @subscriber(...)")
        return router

    def subscriber(self, source: SourceLike, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        """Mount a handler here. The function itself is returned, unchanged; decorators stack.

        Raises:
            ConfigError: an option is unknown or out of its range.
        """
        scope = _scope(1)

        def mount(fn: F) -> F:
            declared = Declared(source, options, scope)
            _declare(fn, declared)
            self._items.append((fn, declared, None, "", {}))
            return fn

        return mount

    def include(
        self,
        item: Router | Callable[..., Any],
        *,
        broker: str | None = None,
        prefix: str = "",
        **defaults: Unpack[Defaults],
    ) -> None:
        """Mount a router, or a handler that `subscriber` marked; more than once if wanted.

        Args:
            item: what to mount.
            broker: the name of the broker it reads from and, by default, writes to.
            prefix: stands before the names, in front of the item's own.
            defaults: options for routes that do not set them, over this router's own.

        Raises:
            ConfigError: the item is neither, or an option is unknown or out of its range.
        """
        _checked(defaults, _DEFAULT_KEYS, "include")
        if isinstance(item, Router):
            if item is self or self in item.nested():
                raise ConfigError("a router cannot include itself")
            self._items.append((None, item, broker, prefix, defaults))
            return
        marked = getattr(item, _ROUTES, None)
        if not marked:
            raise ConfigError(f"{item!r} is neither a Router nor marked with @subscriber(...)")
        for declared in marked:
            self._items.append((item, declared, broker, prefix, defaults))

    def use(self, *middleware: Middleware) -> None:
        """Put middleware around every handler of this router; on the app, around every publish as well.

        Raises:
            ConfigError: not a Middleware.
        """
        for layer in middleware:
            if not isinstance(layer, Middleware):
                raise ConfigError(f"{layer!r} is no Middleware: derive from ruststream_core.Middleware")
        self._middleware.extend(middleware)

    def nested(self) -> Iterator[Router]:
        """Every router below here."""
        for _, item, _, _, _ in self._items:
            if isinstance(item, Router):
                yield item
                yield from item.nested()

    def mounts(self) -> Iterator[Mount]:
        """Every route below here, in the order of mounting, with options merged and prefixes applied.

        Raises:
            ConfigError: a prefix meets a source that takes none.
        """
        for fn, item, broker, prefix, over in self._items:
            layers: list[Mapping[str, Any]] = [over, cast("Mapping[str, Any]", self._defaults)]
            inner = item.mounts() if isinstance(item, Router) else iter((_leaf(fn, item),))
            for mount in inner:
                yield _around(mount, layers, self._prefix + prefix, broker, tuple(self._middleware))


def _leaf(fn: Callable[..., Any], declared: Declared) -> Mount:
    own = declared.options.get("on_error")
    return Mount(
        handler=fn,
        source=declared.source,
        broker=None,
        options=declared.options,
        on_error=(own,) if own else (),
        middleware=(),
        scope=declared.scope,
    )


def _around(
    mount: Mount, layers: list[Mapping[str, Any]], prefix: str, broker: str | None, middleware: tuple[Middleware, ...]
) -> Mount:
    options: dict[str, Any] = dict(mount.options)
    on_error = mount.on_error
    for layer in layers:
        for key, value in layer.items():
            if key == "out":
                options["out"] = {**value, **options.get("out", {})}
            else:
                options.setdefault(key, value)
        if layer.get("on_error"):
            on_error = (*on_error, layer["on_error"])
    return msgspec.structs.replace(
        mount,
        source=_prefixed(mount.source, prefix) if prefix else mount.source,
        broker=mount.broker or broker,
        options=cast("RouteOptions", options),
        on_error=on_error,
        middleware=(*middleware, *mount.middleware),
    )


def _prefixed(source: SourceLike, prefix: str) -> SourceLike:
    if isinstance(source, str):
        return prefix + source
    if isinstance(source, type):
        info = message_info(source)
        return prefix + info.name if info is not None else source
    try:
        return source.prefixed(prefix)
    except Unsupported as exc:
        raise ConfigError(f"prefix {prefix!r}: {exc}") from exc
