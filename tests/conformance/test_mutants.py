"""Every check is proven by transports that are broken on purpose: what it cannot catch, it does not check."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ruststream_core.conformance import CheckFailed, Target, checks
from tests.conformance import mutants_in, mutants_out  # noqa: F401  they fill the table
from tests.conformance.breaking import ALL_MUTANTS, Broken, broken

CHECKS = {check.id: check for check in checks()}
IDS = [f"{check}-{mixin.__name__}-{target.__name__}" for mixin, check, target in ALL_MUTANTS]


@pytest.mark.parametrize(("mixin", "check", "target"), ALL_MUTANTS, ids=IDS)
async def test_a_broken_transport_is_caught(mixin: type[Broken], check: str, target: Callable[..., Target]) -> None:
    """The named check fails, with its rule and what it saw."""
    chosen = broken(mixin, target)
    assert CHECKS[check].skip(chosen) is None, "the check does not even apply to that target"
    with pytest.raises(CheckFailed) as caught:
        await CHECKS[check].run(chosen)
    assert CHECKS[check].rule in str(caught.value)
    assert "Seen: " in str(caught.value)
    # A mutant with a slip of its own would be caught for that.
    assert not isinstance(caught.value.__cause__, TypeError | AttributeError | NameError | KeyError), caught.value


def test_every_check_is_proven() -> None:
    """A check without a mutant may be one that cannot fail."""
    proven = {check for _, check, _ in ALL_MUTANTS}
    assert set(CHECKS) - proven == set()
    assert proven - set(CHECKS) == set()
