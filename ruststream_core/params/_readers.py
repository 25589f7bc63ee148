"""Where each argument comes from at run time, decided when a route is bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ruststream_core.abc import Marker
from ruststream_core.errors import ConfigError, DecodeError
from ruststream_core.params._compose import Constant
from ruststream_core.params._convert import admits_none, converter
from ruststream_core.params._markers import FromPath, FromState, Out, Transaction
from ruststream_core.params._parameters import EMPTY, Parameter
from ruststream_core.params._types import Publisher, Seeker
from ruststream_core.wire import Delivery

if TYPE_CHECKING:
    from ruststream_core.params._bind import Services

__all__ = ["source_of"]

_NAMES = 1024
"""Names of one route whose placeholders are remembered: subjects repeat, and a match costs ten look-ups."""


def source_of(parameter: Parameter, services: Services, where: str) -> Any:
    """A `Constant`, or a reader of a delivery, for everything but the payload, `Context` and `Depends`.

    Raises:
        ConfigError: the runtime does not provide it; names the parameter and the remedy.
    """
    claim, what = parameter.claim, f"parameter {parameter.name!r} of {where}"
    if claim is None or claim in (Publisher, Seeker) or isinstance(claim, FromState | Out):
        return Constant(_constant(parameter, services, what))
    if isinstance(claim, Transaction):
        return _transaction(services, what)
    if isinstance(claim, FromPath):
        return _placeholder(claim.name or parameter.name, parameter, services, what)
    assert isinstance(claim, Marker)
    return _bound(claim, parameter, what)


def _constant(parameter: Parameter, services: Services, what: str) -> object:
    claim = parameter.claim
    if isinstance(claim, FromState):
        return _state(parameter, services.state, what)
    if isinstance(claim, Out):
        return _slot(claim, services, what)
    if claim is Seeker:
        return _present(services.seeker, f"{what}: this source cannot seek; leave the Seeker out")
    return services.publisher if claim is Publisher else parameter.default


def _present(thing: Any, message: str) -> Any:
    if thing is None:
        raise ConfigError(message)
    return thing


def _slot(claim: Out, services: Services, what: str) -> Publisher:
    if claim.slot in services.out:
        return services.out[claim.slot]
    known = ", ".join(map(repr, services.out)) or "none"
    raise ConfigError(
        f"{what}: no destination for {claim!r}; add out={{{claim.slot!r}: ...}} to the route (has {known})"
    )


def _state(parameter: Parameter, state: object, what: str) -> object:
    kind = parameter.hint
    checkable = inspect.isclass(kind) and not getattr(kind, "_is_protocol", False) and kind is not EMPTY
    if state is None and not admits_none(kind):
        raise ConfigError(f"{what}: the app has no state; give App(lifespan=...) that yields it")
    if checkable and not hasattr(kind, "__total__") and state is not None and not isinstance(state, kind):
        raise ConfigError(f"{what}: lifespan= yields {type(state).__qualname__}, not {kind.__qualname__}")
    return state


def _transaction(services: Services, what: str) -> Callable[[Any], Any]:
    unit = _present(services.unit, f"{what}: this source has no transactions; take a Publisher or a session instead")

    def read(subject: Any) -> Any:
        return unit(subject if isinstance(subject, Delivery) else subject[0]).native

    return read


def _placeholder(field: str, parameter: Parameter, services: Services, what: str) -> Callable[[Delivery], Any]:
    template = services.template
    if template is None or field not in template.fields:
        name = "" if template is None else f" {template.text!r}"
        raise ConfigError(
            f"{what}: the source's name{name} has no placeholder {{{field}}}; "
            'write it into the name, or name another with FromPath("...")'
        )
    convert, match = converter(parameter.hint, what), template.match

    @lru_cache(_NAMES)
    def of(name: str) -> Any:
        found = match(name)
        if found is None:
            raise DecodeError(f"{name!r} does not fit {template.text!r}")
        return found[field] if convert is None else convert(found[field])

    return lambda delivery: of(delivery.name)


def _bound(claim: Marker, parameter: Parameter, what: str) -> Callable[[Delivery], Any]:
    try:
        read = claim.bind(parameter.name, parameter.hint)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    default = parameter.default if not parameter.required else None
    if parameter.required and not admits_none(parameter.hint):
        return read

    def read_or_default(delivery: Delivery) -> Any:
        try:
            return read(delivery)
        except KeyError:  # absent, as a marker's reader says it
            return default

    return read_or_default
