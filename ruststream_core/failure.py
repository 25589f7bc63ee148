"""What happens to a message that cannot be decoded or whose handler fails, resolved once per route.

Defaults bend, wishes do not: a policy that nobody wrote is the strongest that the transport can keep; one that the
service wrote and the transport cannot keep is a ConfigError when the route is mounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ruststream_core.abc import Features
from ruststream_core.errors import ConfigError
from ruststream_core.settlement import Drop, Outcome, Retry

__all__ = ["Backoff", "FailurePolicy", "OnError", "Policy", "RetryMode", "resolve_policy"]

MAX_ATTEMPTS: Final = 5


class Backoff:
    """Retry later and later: `first` seconds after the first attempt, times `factor` after each more.

    Args:
        first: seconds after the first failed attempt.
        factor: growth from one attempt to the next, at least 1.
        most: longest wait in seconds.
        jitter: part of the wait, 0 to 1, by which it is spread in both directions.

    Raises:
        ValueError: a number is out of its range.
    """

    __slots__ = ("factor", "first", "jitter", "most")

    def __init__(self, first: float = 1.0, *, factor: float = 2.0, most: float = 300.0, jitter: float = 0.1) -> None:
        if first < 0 or factor < 1 or most < first or not 0 <= jitter <= 1:
            raise ValueError(f"Backoff({first}, factor={factor}, most={most}, jitter={jitter}): out of range")
        self.first, self.factor, self.most, self.jitter = first, factor, most, jitter

    def __repr__(self) -> str:
        return f"Backoff({self.first:g}, factor={self.factor:g}, most={self.most:g})"

    def delay(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt`, counted from 1."""
        try:
            delay = min(self.most, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            delay = self.most
        from random import uniform  # noqa: PLC0415  half a millisecond of start-up, for failures only

        return delay * uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311  jitter, not a secret


Policy: TypeAlias = "Outcome | type[Outcome] | Backoff | Callable[[Exception], Outcome]"
OnError: TypeAlias = Mapping[type[Exception], Policy]
RetryMode: TypeAlias = Literal["broker", "in_place", "copy", "none"]
"""How a route's retries come about: by the broker, in its lane, by a published copy, or not at all."""

_DEFAULT_BACKOFF: Final = Backoff()


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of one route as it will be carried out."""

    retry: RetryMode
    delay: Literal["native", "in_process", "none"]
    """Who keeps the delay of a `Retry(after=…)`."""
    max_attempts: int
    on_error: tuple[OnError, ...]
    """Narrowest first: route, include, router, app."""
    on_decode_error: Policy | None
    """None: the dead letter where one is declared, else Drop."""
    dead_letter: str | None
    drop: Literal["discard", "dead_letter", "none"]

    def for_error(self, error: BaseException) -> Outcome:
        """What `on_error` says of an exception. Its `Retry` still has to pass the attempt cap."""
        for mapping in self.on_error:
            for kind in type(error).__mro__:
                if (policy := mapping.get(kind)) is not None:
                    return _apply(policy, error)
        return Retry() if self.retry != "none" else Drop(f"{type(error).__name__}, and no retry is possible here")

    def backoff(self, error: BaseException | None, attempt: int) -> float | None:
        """Seconds to wait before the next attempt, where a Backoff and not a fixed outcome decides."""
        if self.delay == "none":
            return None
        for mapping in self.on_error if error is not None else ():
            for kind in type(error).__mro__:
                policy = mapping.get(kind)
                if policy is not None:
                    return policy.delay(attempt) if isinstance(policy, Backoff) else None
        return _DEFAULT_BACKOFF.delay(attempt)

    def for_undecodable(self, error: BaseException, attempt: int) -> Outcome | None:
        """What `on_decode_error` says; None means the dead letter where there is one, else Drop."""
        policy = self.on_decode_error
        if policy is None:
            return None
        if isinstance(policy, Backoff):
            return Retry(after=policy.delay(attempt))
        outcome = _apply(policy, error)
        # At once where it names no wait: the backoff of `on_error` is not meant for what does not decode.
        return Retry(after=0, reason=outcome.reason) if isinstance(outcome, Retry) and not outcome.after else outcome

    def describe(self) -> str:
        """One line for `check`."""
        parts = []
        for mapping in self.on_error:
            parts += [f"{kind.__name__}: {_show(policy)}" for kind, policy in mapping.items()]
        if self.retry == "none":
            parts.append("no retry possible")
        else:
            how = {"broker": "", "in_place": " in place", "copy": " by copy"}[self.retry]
            wait = repr(_DEFAULT_BACKOFF) if self.delay != "none" else "retry at once"
            parts.append(f"{wait}{how}, {self.max_attempts} attempts")
        parts.append(f"then {self.last_resort()}")
        return "; ".join(parts)

    def last_resort(self) -> str:
        """Where a message goes that is given up."""
        if self.dead_letter is not None:
            return f"dead letter {self.dead_letter}"
        return "the broker's dead letter" if self.drop == "dead_letter" else "log and drop"


def _apply(policy: Policy, error: BaseException) -> Outcome:
    if isinstance(policy, Backoff):
        return Retry()
    if isinstance(policy, Outcome):
        return policy
    if isinstance(policy, type):
        chosen: Outcome = policy()
        return chosen
    try:
        result: object = policy(error)  # type: ignore[arg-type]
    except Outcome as raised:
        return raised
    if isinstance(result, type) and issubclass(result, Outcome):
        return result()
    if not isinstance(result, Outcome):
        raise TypeError(f"a policy function returned {result!r}, an Outcome was expected")
    return result


def _show(policy: Policy) -> str:
    if isinstance(policy, type):
        return policy.__name__
    return repr(policy) if isinstance(policy, Outcome | Backoff) else getattr(policy, "__name__", repr(policy))


def resolve_policy(
    route: str,
    transport: str,
    features: Features,
    *,
    on_error: Sequence[OnError],
    on_decode_error: Policy | None,
    max_attempts: int | None,
    dead_letter: str | None,
    retry_copies: bool,
) -> FailurePolicy:
    """The strongest policy that the transport can keep, or an error where a written one cannot be kept.

    Raises:
        ConfigError: names route, transport and remedy.
    """
    if max_attempts is not None and max_attempts < 1:
        raise ConfigError(f"route {route!r}: max_attempts={max_attempts}, at least 1 is needed")
    retry, delay = _abilities(features, retry_copies=retry_copies)
    for where, policy in _written(on_error, on_decode_error):
        _check_type(route, where, policy)
        _check(route, transport, where, policy, retry, delay)
    if max_attempts is not None and max_attempts > 1 and retry == "none":
        raise ConfigError(_refusal(route, transport, f"max_attempts={max_attempts}", "brings no message back"))
    return FailurePolicy(
        retry=retry,
        delay=delay,
        max_attempts=max_attempts or MAX_ATTEMPTS,
        on_error=tuple(mapping for mapping in on_error if mapping),
        on_decode_error=on_decode_error,
        dead_letter=dead_letter,
        drop=features.drop,
    )


def _abilities(features: Features, *, retry_copies: bool) -> tuple[RetryMode, Literal["native", "in_process", "none"]]:
    if features.retry == "in_place":
        return "in_place", "in_process"
    if features.retry == "broker":
        return "broker", "native" if features.delay else "in_process" if retry_copies else "none"
    return ("copy", "in_process") if retry_copies else ("none", "none")


def _written(on_error: Sequence[OnError], on_decode_error: Policy | None) -> Iterator[tuple[str, Any]]:
    for mapping in on_error:
        for kind, policy in mapping.items():
            yield f"on_error={{{getattr(kind, '__name__', kind)}: {_show(policy)}}}", policy
    if on_decode_error is not None:
        yield f"on_decode_error={_show(on_decode_error)}", on_decode_error


def _check_type(route: str, where: str, policy: object) -> None:
    if isinstance(policy, Outcome | Backoff) or (isinstance(policy, type) and issubclass(policy, Outcome)):
        return
    if isinstance(policy, type) or not callable(policy):
        raise ConfigError(f"route {route!r}: {where}: an Outcome, a Backoff or a function is expected")


def _check(route: str, transport: str, where: str, policy: object, retry: RetryMode, delay: str) -> None:
    wants_retry = isinstance(policy, Retry | Backoff) or (isinstance(policy, type) and issubclass(policy, Retry))
    if not wants_retry:
        return
    if retry == "none":
        raise ConfigError(_refusal(route, transport, where, "brings no message back"))
    wants_delay = isinstance(policy, Backoff) or (isinstance(policy, Retry) and bool(policy.after))
    if wants_delay and delay == "none":
        raise ConfigError(_refusal(route, transport, where, "keeps no delay"))


def _refusal(route: str, transport: str, where: str, lack: str) -> str:
    return (
        f"route {route!r}: {where} cannot be kept: {transport} {lack}. Set retry_copies=True to publish a copy "
        "instead (at most once over the delay), use a source that settles, or choose Drop or a dead_letter"
    )
