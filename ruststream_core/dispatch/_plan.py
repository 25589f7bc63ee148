"""Everything about a route that can be decided before a message flows, and every error that can be found then."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import msgspec

from ruststream_core.abc import Broker, Demand, Features, Source
from ruststream_core.codecs import (
    Codec,
    HeaderCodec,
    ambiguities,
    bind_decoder,
    bind_header_decoder,
    describe_decode_error,
    needs_headers,
    resolve_codec,
)
from ruststream_core.dispatch._senders import Target, resolve_target
from ruststream_core.errors import ConfigError, RustStreamError
from ruststream_core.failure import FailurePolicy, resolve_policy
from ruststream_core.params import Destination, HandlerSpec, Reply, inspect_handler, message_info
from ruststream_core.routing import ByKey, Mount
from ruststream_core.wire import Delivery, Template

__all__ = ["RoutePlan", "Wiring", "plan_routes"]


class RoutePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One route, resolved."""

    name: str
    mount: Mount
    spec: HandlerSpec
    broker: str
    transport: str
    source: Source
    features: Features
    codec: Codec
    decode: Callable[[bytes], Any]
    decode_with_headers: Callable[[bytes, Mapping[str, str]], Any] | None
    template: Template
    demand: Demand
    policy: FailurePolicy
    reply: Target | None
    dead_letter: Target | None
    out: Mapping[str, Target]
    key_of: Callable[[Any], object] | None
    """`by_key(n, function)`: the lane of a decoded payload."""
    key_field: str | None
    """`by_key(n, "{field}")`."""
    notes: tuple[str, ...]
    """What is allowed but deserves a look."""

    brokers: tuple[str, ...]

    def target_of(self, to: Destination | None, value: object) -> Target | None:
        """Where a returned value goes: what its `Reply` says, else `reply=`, else its type's `@message` name."""
        if isinstance(value, Reply):
            value = value.value
        if to is None:
            if self.reply is not None and self.mount.options.get("reply") is not None:
                return self.reply
            if message_info(type(value)) is None:
                return self.reply
            to = type(value)
        return resolve_target(to, self.broker, self.brokers, f"route {self.name!r}: reply")

    def explain(self, cause: BaseException) -> str:
        """Where and why a payload does not decode, without its content."""
        return describe_decode_error(cause)

    def targets(self) -> Iterable[Target]:
        """Every destination that the route may write to by itself."""
        yield from (target for target in (self.reply, self.dead_letter, *self.out.values()) if target is not None)

    def lane_of(self) -> Callable[[Delivery], Hashable | None]:
        """How a delivery finds its lane, where the payload is not needed for it."""
        if (field := self.key_field) is not None:
            match = self.template.match

            def by_placeholder(delivery: Delivery) -> Hashable | None:
                found = match(delivery.name)
                return None if found is None else found[field]

            return by_placeholder
        return _lane


def _lane(delivery: Delivery) -> Hashable | None:
    return delivery.lane


class Wiring(msgspec.Struct):
    """What `check` shows: every route that stands, and one line for each problem."""

    routes: list[RoutePlan]
    problems: list[str]


def plan_routes(
    mounts: Iterable[Mount],
    brokers: Mapping[str, Broker[Any]],
    extra_codecs: Mapping[str, Any],
    *,
    has_state: bool,
) -> Wiring:
    """Resolve all routes; a problem of one does not hide those of the others."""
    wiring = Wiring([], [])
    names: set[str] = set()
    for mount in mounts:
        name = mount.options.get("name") or _default_name(mount, names)
        if name in names:
            wiring.problems.append(f"route {name!r}: the name is taken, give the second one another with name=")
            continue
        names.add(name)
        try:
            plan = _plan(name, mount, brokers, extra_codecs)
            if plan.spec.wants_state and not has_state:
                raise ConfigError("the handler takes FromState, and the app has no lifespan= that would yield it")
            wiring.routes.append(plan)
        except RustStreamError as exc:
            text = str(exc)
            wiring.problems.append(text if text.startswith("route ") else f"route {name!r}: {text}")
    return wiring


def _default_name(mount: Mount, taken: set[str]) -> str:
    fn = getattr(mount.handler, "func", mount.handler)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    name = name.rpartition("<locals>.")[2]
    if name in taken:
        name = f"{name}@{mount.source_name}"
    return name


def _plan(name: str, mount: Mount, brokers: Mapping[str, Broker[Any]], extra_codecs: Mapping[str, Any]) -> RoutePlan:
    options = mount.options
    where = f"route {name!r}"
    broker_name = mount.broker or _only(brokers, where)
    if broker_name not in brokers:
        raise ConfigError(f"{where}: no broker is called {broker_name!r}; the app has {_list(brokers)}")
    broker = brokers[broker_name]
    source = broker.source(_plain_source(mount))
    features = broker.features(source)
    transport = _transport_name(broker, source)
    batch = options.get("batch")
    spec = inspect_handler(mount.handler, batch=batch is not None, scope=mount.scope)
    template = _template(source, broker, where)
    _check_placeholders(spec, template, where)
    codec = resolve_codec(options.get("codec", "json"), extra_codecs)
    with_headers = isinstance(codec, HeaderCodec) and needs_headers(codec, spec.payload_type)
    dead_letter = _dead_letter(options.get("dead_letter"), broker_name, template, brokers, where)
    demand, key_of, key_field = _demand(mount, spec, features, template, where)
    return RoutePlan(
        name=name,
        mount=mount,
        spec=spec,
        broker=broker_name,
        transport=transport,
        source=source,
        features=features,
        codec=codec,
        decode=bind_decoder(codec, spec.payload_type),
        decode_with_headers=bind_header_decoder(codec, spec.payload_type) if with_headers else None,  # type: ignore[arg-type]
        template=template,
        demand=demand,
        policy=resolve_policy(
            name,
            transport,
            features,
            on_error=mount.on_error,
            on_decode_error=options.get("on_decode_error"),
            max_attempts=options.get("max_attempts"),
            dead_letter=dead_letter.name if dead_letter is not None else None,
            retry_copies=options.get("retry_copies", False),
        ),
        reply=_reply(mount, spec, features, broker_name, brokers, where),
        dead_letter=dead_letter,
        out=_outs(mount, spec, broker_name, brokers, where),
        key_of=key_of,
        key_field=key_field,
        notes=tuple(ambiguities(spec.payload_type)),
        brokers=tuple(brokers),
    )


def _only(brokers: Mapping[str, Broker[Any]], where: str) -> str:
    if "default" in brokers:
        return "default"
    if len(brokers) == 1:
        return next(iter(brokers))
    if not brokers:
        raise ConfigError(f"{where}: the app has no broker: App(broker=URL)")
    raise ConfigError(f"{where}: say which broker: include(..., broker=) with one of {_list(brokers)}")


def _list(brokers: Mapping[str, Broker[Any]]) -> str:
    return ", ".join(sorted(brokers)) or "none"


def _transport_name(broker: Broker[Any], source: Source) -> str:
    kind = type(broker).__name__.removesuffix("Broker")
    return f"{kind} {type(source).__name__}({source.name!r})"


def _plain_source(mount: Mount) -> str | Source:
    return mount.source_name if isinstance(mount.source, type) else mount.source


def _template(source: Source, broker: Broker[Any], where: str) -> Template:
    try:
        return Template(source.name, broker.separator)
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def _check_placeholders(spec: HandlerSpec, template: Template, where: str) -> None:
    for field in spec.path_fields:
        if field not in template.fields:
            raise ConfigError(
                f"{where}: FromPath wants {{{field}}}, the source {template.text!r} has "
                f"{', '.join(f'{{{f}}}' for f in template.fields) or 'no placeholder'}"
            )


def _demand(
    mount: Mount, spec: HandlerSpec, features: Features, template: Template, where: str
) -> tuple[Demand, Callable[[Any], object] | None, str | None]:
    workers = mount.options.get("workers", 1)
    batch = mount.options.get("batch")
    key_of = key_field = None
    if isinstance(workers, ByKey):
        if workers.key is None and not features.keys:
            raise ConfigError(
                f"{where}: workers={workers!r}, but messages of {template.text!r} have no key; "
                'take by_key(n, function of the payload) or by_key(n, "{placeholder}")'
            )
        if isinstance(workers.key, str):
            key_field = workers.key[1:-1]
            if key_field not in template.fields:
                raise ConfigError(f"{where}: workers={workers!r}, but {template.text!r} has no {workers.key}")
        elif workers.key is not None:
            key_of = workers.key
    if spec.transactional and not features.transactions:
        raise ConfigError(f"{where}: the handler takes a Transaction, and {template.text!r} has none")
    if spec.transactional and batch is not None:
        raise ConfigError(f"{where}: a Transaction goes with single messages, not with batch=")
    if spec.wants_seeker and not features.seek:
        raise ConfigError(f"{where}: the handler takes a Seeker, and {template.text!r} cannot seek")
    linger = 0.0 if batch is None or batch.size == 1 else batch.max_wait if batch.max_wait is not None else 0.01
    demand = Demand(
        workers=workers.workers if isinstance(workers, ByKey) else workers,
        batch=batch.size if batch is not None else 1,
        linger=linger,
        keyed=isinstance(workers, ByKey),
        transactional=spec.transactional,
        prefetch=mount.options.get("prefetch"),
    )
    return demand, key_of, key_field


def _dead_letter(
    to: Destination | None, broker: str, source: Template, brokers: Mapping[str, Broker[Any]], where: str
) -> Target | None:
    if to is None:
        return None
    target = resolve_target(to, broker, brokers, f"{where}: dead_letter")
    if target.template.fields:
        raise ConfigError(
            f"{where}: dead_letter={target.name!r}: a payload that does not decode fills no placeholder; "
            "give a name without one"
        )
    if target.broker == broker and source.match(target.name) is not None:
        raise ConfigError(
            f"{where}: dead_letter={target.name!r} leads back into the source {source.text!r}; give another name"
        )
    return target


def _reply(
    mount: Mount, spec: HandlerSpec, features: Features, broker: str, brokers: Mapping[str, Broker[Any]], where: str
) -> Target | None:
    wanted = mount.options.get("reply")
    if wanted is not None:
        if spec.returns_nothing:
            raise ConfigError(f"{where}: reply={wanted!r} on a handler that returns nothing")
        return resolve_target(wanted, broker, brokers, f"{where}: reply")
    kind = spec.reply_type
    if spec.returns_nothing or kind is None:
        return None
    if isinstance(kind, type) and message_info(kind) is not None:
        return resolve_target(kind, broker, brokers, f"{where}: reply")
    if not features.request and kind is not Any:
        raise ConfigError(
            f"{where}: the handler returns {kind!r} and nothing says where to: give reply=, "
            "decorate the type with @message(...), or return None"
        )
    return None


def _outs(
    mount: Mount, spec: HandlerSpec, broker: str, brokers: Mapping[str, Broker[Any]], where: str
) -> dict[str, Target]:
    given = mount.options.get("out", {})
    for slot in spec.out_slots:
        if slot not in given:
            raise ConfigError(f"{where}: Out({slot!r}) has no destination: give out={{{slot!r}: ...}}")
    return {slot: resolve_target(to, broker, brokers, f"{where}: out[{slot!r}]") for slot, to in given.items()}
