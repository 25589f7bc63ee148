"""A transaction: everything at once, on one turn of the loop, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ruststream_core.abc import Unit
from ruststream_core.errors import Closed, PublishError, Revoked, SettleError
from ruststream_core.memory._delivery import CrashingDelivery, MemoryDelivery
from ruststream_core.settlement import Verdict
from ruststream_core.wire import Delivery, Outgoing

if TYPE_CHECKING:
    from ruststream_core.memory._store import Store

__all__ = ["MemoryUnit"]


class MemoryUnit(Unit):
    """Collects messages until `commit` publishes them and settles the deliveries, in one step.

    `native` is the unit itself.
    """

    def __init__(self, store: Store) -> None:
        self.native = self
        self._store = store
        self._outs: list[Outgoing] = []
        self._ended = False

    def send(self, out: Outgoing) -> None:
        """See `Unit.send`.

        Raises:
            Closed: after commit or rollback.
            PublishError: the message can go nowhere, or there is no room for it.
        """
        self._check_open()
        self._store.check(out)
        self._outs.append(out)

    async def commit(self, verdicts: Sequence[tuple[Delivery, Verdict]]) -> None:
        """See `Unit.commit`.

        Raises:
            Closed: after commit or rollback.
            SettleError: one of the deliveries is not ours any more; all are lost.
            PublishError: there is no room and there are no deliveries to lose.
        """
        self._end()
        broken = [d for d, _ in verdicts if not _in_hand(d)]
        if broken:
            self._lose(verdicts, f"{len(broken)} of {len(verdicts)} deliveries are not ours any more")
        try:
            for out in self._outs:
                self._store.check(out)
        except PublishError as exc:
            if not verdicts:
                raise
            self._lose(verdicts, str(exc), exc)
        for out in self._outs:
            self._store.force(out)
        for delivery, verdict in verdicts:
            delivery.settle(verdict)

    def _lose(self, verdicts: Sequence[tuple[Delivery, Verdict]], why: str, cause: PublishError | None = None) -> None:
        for delivery, _ in verdicts:
            home = cast("MemoryDelivery", delivery).home
            if home is not None:
                home.lose(cast("MemoryDelivery", delivery), Revoked(f"the transaction was rolled back: {why}"))
        raise SettleError(f"the transaction was rolled back: {why}") from cause

    async def rollback(self) -> None:
        """See `Unit.rollback`.

        Raises:
            Closed: after commit or rollback.
        """
        self._end()
        self._outs.clear()

    def _check_open(self) -> None:
        if self._ended:
            raise Closed("the transaction has ended")

    def _end(self) -> None:
        self._check_open()
        self._ended = True


def _in_hand(delivery: Delivery) -> bool:
    return (
        isinstance(delivery, MemoryDelivery)
        and delivery.home is not None
        and not isinstance(delivery, CrashingDelivery)
    )
