"""Push consumers: the server sends to a subject, as much as `max_ack_pending` allows."""

from __future__ import annotations

from typing import Final

from ruststream_core_nats._convert import parse_headers, status_of
from ruststream_core_nats._jetstream import JetStreamSubscription

__all__ = ["PushSubscription"]

_CONTROL: Final = 100
QUIET: Final = 30.0
"""Seconds between looks at a consumer that sends no heartbeats and has nothing else to send."""


class PushSubscription(JetStreamSubscription):
    """Listens where the consumer sends to."""

    async def _attach(self) -> None:
        config = self.consumer.config
        subject, group = str(config["deliver_subject"]), str(config.get("deliver_group") or "")
        self.subjects = frozenset({subject.lower()})
        self._listener = await self._wire.listen(subject, group, self._take)

    def _silence(self) -> float:
        beat = self.consumer.config.get("idle_heartbeat") or 0
        return float(beat) / 1e9 or QUIET

    def _take(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        if block and not payload and status_of(block)[0] == _CONTROL:
            self._control(reply, block)
        else:
            self._arrived(subject, reply, payload, block)

    def _control(self, reply: bytes, block: bytes) -> None:
        """A heartbeat, or the server waits for a word before it goes on sending."""
        self._seen += 1
        stalled = parse_headers(block).get("Nats-Consumer-Stalled", "")
        if reply or stalled:
            self._wire.tell(reply or stalled.encode())

    def _config(self, start: int | None) -> dict[str, object]:
        kept = ("deliver_subject", "deliver_group", "idle_heartbeat", "max_ack_pending")
        config = self.consumer.config
        return {**super()._config(start), **{name: config[name] for name in kept if name in config}}

    def _resume(self) -> None:
        self._look_after()
