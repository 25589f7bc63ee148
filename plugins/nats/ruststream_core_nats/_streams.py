"""Streams and consumers of the server inside the process."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from ruststream_core_nats._server import Server

__all__ = ["Consumer", "Message", "Request", "Stream", "matches"]

BEGIN: Final = 1_700_000_000_000_000_000
"""When the clock of a stand-in began, in nanoseconds since 1970."""


class Message(msgspec.Struct):
    """A message on its way, or in a stream."""

    subject: str
    payload: bytes
    reply: str
    block: bytes


class Request(msgspec.Struct):
    """What a pull request asks for. Durations in nanoseconds."""

    batch: int = 1
    expires: int = 0
    idle_heartbeat: int = 0


@functools.lru_cache(maxsize=4096)
def matches(pattern: str, subject: str) -> bool:
    """Whether a subject fits a pattern."""
    wanted, words = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":  # noqa: S105  a wildcard
            return len(words) > index
        if index >= len(words) or token not in ("*", words[index]):
            return False
    return len(wanted) == len(words)


def _overlap(one: str, other: str) -> bool:
    return matches(one, other) or matches(other, one)


class Stream:
    """Messages by their sequence, from 1."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.subjects: list[str] = []
        self.messages: list[tuple[Message, int]] = []
        """Each with the time at which it came, in nanoseconds since 1970."""
        self.consumers: dict[str, Consumer] = {}

    def covers(self, subject: str) -> bool:
        """Whether it takes messages of that subject."""
        return any(matches(pattern, subject) for pattern in self.subjects)

    def touches(self, subject: str) -> bool:
        """Whether it takes some of what fits `subject`."""
        return any(_overlap(pattern, subject) for pattern in self.subjects)

    def store(self, message: Message, now: float) -> int:
        """Append; returns the sequence."""
        self.messages.append((message, BEGIN + round(now * 1e9)))
        sequence = len(self.messages)
        for consumer in list(self.consumers.values()):
            consumer.offer(sequence, message.subject)
        return sequence

    def info(self) -> dict[str, Any]:
        """As the server's interface describes it."""
        return {"config": {"name": self.name, "subjects": self.subjects}, "state": {"last_seq": len(self.messages)}}


class _Open(msgspec.Struct):
    """One pull request that is being served."""

    reply: str
    left: int
    timers: list[Callable[[], None]]

    def end(self) -> None:
        for cancel in self.timers:
            cancel()


class Consumer:
    """Who gets what of a stream, and what of it is unsettled."""

    def __init__(self, server: Server, stream: Stream, name: str, config: Mapping[str, Any]) -> None:
        defaults = {"ack_wait": 30_000_000_000, "max_ack_pending": 1000, "max_deliver": -1, "ack_policy": "explicit"}
        self.config: dict[str, Any] = {**defaults, **config}
        self.name = name
        self._server = server
        self._stream = stream
        filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
        self._filters: list[str] = list(filters)
        self._ready: deque[int] = deque(self._first())
        self._back: deque[int] = deque()
        """Sequences that come again."""
        self._count: dict[int, int] = {}
        self._pending: dict[int, Callable[[], None]] = {}
        """What ends the lease of each sequence that is out."""
        self._requests: deque[_Open] = deque()
        self._sent = 0
        self._delays: set[Callable[[], None]] = set()

    @property
    def waiting(self) -> int:
        """Messages that could be sent now."""
        return len(self._ready) + len(self._back)

    def info(self) -> dict[str, Any]:
        """As the server's interface describes it."""
        return {"stream_name": self._stream.name, "name": self.name, "config": self.config}

    def _first(self) -> Iterable[int]:
        fitting = [
            sequence for sequence, (message, _) in enumerate(self._stream.messages, 1) if self._fits(message.subject)
        ]
        policy = self.config.get("deliver_policy", "all")
        if policy == "by_start_sequence":
            return [sequence for sequence in fitting if sequence >= self.config["opt_start_seq"]]
        if policy == "last_per_subject":
            last = {self._stream.messages[sequence - 1][0].subject: sequence for sequence in fitting}
            return sorted(last.values())
        # Times of a stand-in say nothing about those of a service: everything is later.
        return [] if policy == "new" else fitting[-1:] if policy == "last" else fitting

    def _fits(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self._filters)

    def offer(self, sequence: int, subject: str) -> None:
        """A message has come into the stream."""
        if self._fits(subject):
            self._ready.append(sequence)
            self.work()

    # ---------------------------------------------------------------------------------------------------- asking

    def ask(self, request: Request, reply: str) -> None:
        """Serve a pull request."""
        made = _Open(reply, request.batch, [])
        if request.expires:
            made.timers.append(self._server.clock.call_later(request.expires / 1e9, lambda: self._expire(made)))
        self._requests.append(made)
        if request.idle_heartbeat:
            self._beat(made, request.idle_heartbeat / 1e9)
        self.work()

    def _beat(self, request: _Open, seconds: float) -> None:
        def beat() -> None:
            if request in self._requests:
                head = f"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {self._sent}\r\n\r\n"
                self._server.publish(request.reply, b"", "", head.encode())
                self._beat(request, seconds)

        request.timers[1:] = [self._server.clock.call_later(seconds, beat)]

    def _expire(self, request: _Open) -> None:
        if request in self._requests:
            self._requests.remove(request)
            request.end()
            head = f"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: {request.left}\r\n\r\n"
            self._server.publish(request.reply, b"", "", head.encode())

    def forget_requests(self) -> None:
        """Nobody asks any more."""
        for request in self._requests:
            request.end()
        self._requests.clear()

    # ------------------------------------------------------------------------------------------------ delivering

    def work(self) -> None:
        """Send what can be sent."""
        most = self.config["max_ack_pending"]
        while (self._back or self._ready) and (most < 1 or len(self._pending) < most):
            if (to := self._receiver()) is None:
                return
            self._send(self._back.popleft() if self._back else self._ready.popleft(), to)

    def _receiver(self) -> str | None:
        if (subject := self.config.get("deliver_subject")) is not None:
            return subject if self._server.listened(subject) else None
        while self._requests:
            request = self._requests[0]
            if self._server.listened(request.reply) and request.left > 0:
                request.left -= 1
                if request.left == 0:
                    self._requests.popleft().end()
                return request.reply
            self._requests.popleft().end()
        return None

    def _send(self, sequence: int, to: str) -> None:
        message, at = self._stream.messages[sequence - 1]
        count = self._count.get(sequence, 0) + 1
        self._count[sequence] = count
        self._sent += 1
        if self.config["ack_policy"] != "none":
            self._lend(sequence)
        behind = len(self._ready) + len(self._back)
        address = f"$JS.ACK.{self._stream.name}.{self.name}.{count}.{sequence}.{self._sent}.{at}.{behind}"
        self._server.send(to, Message(message.subject, message.payload, address, message.block))

    def _lend(self, sequence: int) -> None:
        wait = self.config["ack_wait"] / 1e9
        self._pending[sequence] = self._server.clock.call_later(wait, lambda: self._again(sequence))

    def _again(self, sequence: int) -> None:
        """Deliver once more, unless that was the last time."""
        if (cancel := self._pending.pop(sequence, None)) is not None:
            cancel()
        most = self.config["max_deliver"]
        if most < 1 or self._count.get(sequence, 0) < most:
            self._back.append(sequence)
        self.work()

    # -------------------------------------------------------------------------------------------------- settling

    def settle(self, sequence: int, verdict: bytes) -> None:
        """What a client says about a message that it has."""
        if sequence not in self._pending:
            return
        self._pending.pop(sequence)()
        if verdict == b"+WPI":
            self._lend(sequence)
        elif verdict.startswith(b"-NAK"):
            self._refused(sequence, verdict[4:].strip())
        else:
            self._count.pop(sequence, None)
            self.work()

    def _refused(self, sequence: int, terms: bytes) -> None:
        delay = msgspec.json.decode(terms)["delay"] / 1e9 if terms else 0.0
        if delay:
            self._pending[sequence] = self._server.clock.call_later(delay, lambda: self._again(sequence))
            self.work()
        else:
            self._again(sequence)

    def bring_back(self, sequence: int) -> None:
        """The process that had it has crashed."""
        self._again(sequence)

    def close(self) -> None:
        """It is deleted: its timers go."""
        self.forget_requests()
        for cancel in self._pending.values():
            cancel()
        self._pending.clear()
