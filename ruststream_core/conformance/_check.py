"""Checks, their conditions, and the report."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from ruststream_core.abc import Broker, Features
from ruststream_core.conformance._lab import CheckFailed, Lab
from ruststream_core.conformance._target import Target

__all__ = [
    "Check",
    "Condition",
    "Report",
    "Result",
    "check",
    "check_transport",
    "feature",
    "hook",
    "lacks",
    "registered",
]

Condition = Callable[[Target, Features], str | None]
"""Why a check does not apply, or None."""

DEADLINE: Final = 30.0
"""Seconds that a check may take. Generous: it only ends what would hang."""

_REGISTRY: Final[dict[str, Check]] = {}


class Check:
    """One rule of the contract, and how to find out whether a transport keeps it.

    `str(check)` is its id, so that `pytest.mark.parametrize("check", checks(target), ids=str)` names the tests.
    """

    def __init__(self, rule: str, when: tuple[Condition, ...], body: Callable[[Lab], Awaitable[None]]) -> None:
        self.id = body.__name__.replace("_", "-")
        self.rule = rule
        self._when = when
        self._body = body

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<Check {self.id}>"

    def skip(self, target: Target, features: Features | None = None) -> str | None:
        """Why this check does not apply to that target, or None where it does."""
        declared = features or target.declared()
        reasons = (condition(target, declared) for condition in self._when)
        return next((reason for reason in reasons if reason is not None), None)

    async def run(self, target: Target) -> None:
        """Run it, on a broker of its own, within a deadline.

        Raises:
            CheckFailed: says the rule and what was seen instead. The transport's own exception is its cause.
        """
        lab = Lab(target)
        limit = DEADLINE * target.scale
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                await self._body(lab)
        except CheckFailed as exc:
            raise self._failed(target, str(exc)) from exc.__cause__
        except Exception as exc:
            hung = isinstance(exc, TimeoutError) and scope.expired()
            seen = f"nothing more within {limit:g} s" if hung else f"{type(exc).__name__}: {exc}"
            raise self._failed(target, f"{seen}, while {lab.step}") from exc
        finally:
            trouble = await lab.close()
        if trouble:
            raise self._failed(target, f"closing everything afterwards: {'; '.join(trouble)}")

    def _failed(self, target: Target, seen: str) -> CheckFailed:
        return CheckFailed(f"{target.label}: {self.id}: {self.rule} Seen: {seen}")


def check(rule: str, *when: Condition) -> Callable[[Callable[[Lab], Awaitable[None]]], Check]:
    """Make a check of a function, and part of the suite; its id is the function's name."""

    def register(body: Callable[[Lab], Awaitable[None]]) -> Check:
        made = Check(rule, when, body)
        if made.id in _REGISTRY:
            raise ValueError(f"two checks are called {made.id}")
        _REGISTRY[made.id] = made
        return made

    return register


def registered() -> Iterable[Check]:
    """All checks, in the order of the suite."""
    return _REGISTRY.values()


def feature(name: str, *values: object) -> Condition:
    """Applies where the feature has one of these values; without values, where it is true."""

    def condition(_: Target, features: Features) -> str | None:
        value = getattr(features, name)
        return None if (value in values if values else value) else f"the source declares {name}={value!r}"

    return condition


def lacks(name: str) -> Condition:
    """Applies where the feature is false."""
    return feature(name, False)  # noqa: FBT003  the value that is compared


def hook(name: str) -> Condition:
    """Applies where the target has that hook."""

    def condition(target: Target, _: Features) -> str | None:
        return None if getattr(target, name) else f"the target gives no {name}"

    return condition


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one check went."""

    id: str
    rule: str
    outcome: Literal["passed", "failed", "not applicable", "declared"]
    """declared: it failed, and the target's `differences` say why it may."""
    detail: str = ""
    seconds: float = 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a transport keeps the contract. `str` shows it as a table."""

    label: str
    results: tuple[Result, ...]

    def __str__(self) -> str:
        width = max((len(result.id) for result in self.results), default=0)
        rows = [f"{r.id:{width}}  {r.outcome:14}  {r.detail}".rstrip() for r in self.results]
        return "\n".join([f"{self.label}: {self.summary}", *rows])

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    @property
    def summary(self) -> str:
        """The count of each outcome."""
        counts = {kind: sum(r.outcome == kind for r in self.results) for kind in ("passed", "failed", "declared")}
        rest = len(self.results) - sum(counts.values())
        return ", ".join(f"{count} {kind}" for kind, count in [*counts.items(), ("not applicable", rest)])

    @property
    def failures(self) -> tuple[Result, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.outcome == "failed")

    def verify(self) -> None:
        """Do nothing where all is well.

        Raises:
            CheckFailed: lists every failure.
        """
        if self.failures:
            lines = "\n".join(re.sub(r"\s+", " ", result.detail) for result in self.failures)
            raise CheckFailed(f"{self.label}: {self.summary}\n{lines}")


async def check_transport(
    target: Target | Callable[[], Broker[Any]],
    features: Features | None = None,
    *,
    only: Iterable[Check] | None = None,
) -> Report:
    """Run every check that applies, one after the other.

    Args:
        target: the transport; what makes a broker is enough where names need no descriptor and no hook.
        features: what the source is expected to declare, instead of the target's own `features`.
        only: these checks instead of all.

    Raises:
        CheckFailed: a check passes that `differences` declares as failing, or there is no such check.
    """
    target = target if isinstance(target, Target) else Target(make_broker=target)
    if features is not None:
        target = dataclasses.replace(target, features=features)
    chosen = list(registered() if only is None else only)
    if unknown := set(target.differences) - {one.id for one in registered()}:
        raise CheckFailed(f"{target.label}: differences names checks that do not exist: {', '.join(sorted(unknown))}")
    declared = target.declared()
    return Report(label=target.label, results=tuple([await _result(one, target, declared) for one in chosen]))


async def _result(one: Check, target: Target, features: Features) -> Result:
    if (reason := one.skip(target, features)) is not None:
        return Result(id=one.id, rule=one.rule, outcome="not applicable", detail=reason)
    declared = target.differences.get(one.id)
    began = time.monotonic()
    try:
        await one.run(target)
    except CheckFailed as exc:
        kind: Literal["declared", "failed"] = "failed" if declared is None else "declared"
        detail = str(exc) if declared is None else declared
        return Result(id=one.id, rule=one.rule, outcome=kind, detail=detail, seconds=time.monotonic() - began)
    if declared is not None:
        raise CheckFailed(f"{target.label}: {one.id} passes, take it out of the differences ({declared})")
    return Result(id=one.id, rule=one.rule, outcome="passed", seconds=time.monotonic() - began)
