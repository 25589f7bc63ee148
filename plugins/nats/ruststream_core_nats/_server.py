"""A NATS server inside the process, as much of it as this plugin uses: subjects, queue groups, JetStream.

It speaks the same messages as a real one, so that everything above the wire is the code that runs in production.
Synchronous; its timers run on a clock that a test may move.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from ruststream_core.abc import Clock, Fault
from ruststream_core.errors import ConfigError
from ruststream_core_nats._parser import Sink
from ruststream_core_nats._streams import Consumer, Message, Request, Stream, matches

__all__ = ["Interest", "Server"]

UNCLAIMED: Final = 10_000
"""Messages kept that no stream has taken yet, for a stream that comes later."""


class Interest:
    """One subscription of one client."""

    def __init__(self, subject: str, queue: str, sink: Sink) -> None:
        self.subject = subject
        self.queue = queue
        self.sink = sink


class Server:
    """What all connections of one stand-in share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.streams: dict[str, Stream] = {}
        self.faults: dict[Fault, int] = {}
        self.blink: list[Callable[[], None]] = []
        """What every connection does when the line is cut for a moment."""
        self._interests: list[Interest] = []
        self._turns: dict[str, int] = {}
        self._queue: deque[Message] = deque()
        self._working = False
        self._held: Message | None = None
        self._unclaimed: deque[Message] = deque(maxlen=UNCLAIMED)
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------------------------------------------- messages

    def publish(self, subject: str, payload: bytes, reply: str, block: bytes) -> None:
        """Take a message. It is worked off before this returns, unless a message is being worked off already."""
        self._queue.append(Message(subject, payload, reply, block))
        if self._working:
            return
        self._working = True
        try:
            while self._queue:
                self._handle(self._queue.popleft())
        finally:
            self._working = False

    def _handle(self, message: Message) -> None:
        if message.subject.startswith("$JS."):
            self._jetstream(message)
        elif message.subject.startswith("_INBOX."):
            self._spread(message)
        else:
            for one in self._disturbed(message):
                self._deliver(one)

    def _disturbed(self, message: Message) -> Iterator[Message]:
        """The message as the faults that are injected leave it."""
        if self.use("disconnect"):
            for blink in self.blink:
                blink()
        held, self._held = self._held, None
        if held is None and self.use("reorder"):
            self._held = message
            return
        yield message
        if self.use("duplicate"):
            yield message
        if held is not None:
            yield held

    def _deliver(self, message: Message) -> None:
        listened = self._spread(message)
        covering = [stream for stream in self.streams.values() if stream.covers(message.subject)]
        for stream in covering:
            sequence = stream.store(message, self.clock.time())
            if message.reply:
                self._answer(message.reply, {"stream": stream.name, "seq": sequence})
        if not covering:
            self._unclaimed.append(message)
            if message.reply and not listened:
                self.publish(message.reply, b"", "", b"NATS/1.0 503\r\n\r\n")

    def _spread(self, message: Message) -> bool:
        """Give it to everybody who listens, to one of each queue group."""
        groups: dict[str, list[Interest]] = {}
        singles: list[Interest] = []
        for interest in self._interests:
            if matches(interest.subject, message.subject):
                (groups.setdefault(interest.queue, []) if interest.queue else singles).append(interest)
        for group, members in groups.items():
            turn = self._turns[group] = self._turns.get(group, 0) + 1
            singles.append(members[turn % len(members)])
        for interest in singles:
            interest.sink(message.subject.encode(), message.reply.encode(), message.payload, message.block)
        return bool(singles)

    def send(self, to: str, message: Message) -> bool:
        """Give a stored message, with its own subject, to one who listens on `to`; False where nobody does."""
        for interest in self._interests:
            if matches(interest.subject, to):
                interest.sink(message.subject.encode(), message.reply.encode(), message.payload, message.block)
                return True
        return False

    def listen(self, interest: Interest) -> None:
        """Somebody listens from now on."""
        self._interests.append(interest)
        for consumer in self._consumers():
            consumer.work()

    def forget(self, interest: Interest) -> None:
        """Nobody listens there any more."""
        if interest in self._interests:
            self._interests.remove(interest)

    def listened(self, subject: str) -> bool:
        """Whether anybody would get a message on that subject."""
        return any(matches(interest.subject, subject) for interest in self._interests)

    # --------------------------------------------------------------------------------------------------- faults

    def inject(self, fault: Fault, times: int) -> None:
        """See `FaultInjection.inject`."""
        if fault not in get_args(Fault):
            raise ConfigError(f"no fault {fault!r}: {', '.join(get_args(Fault))} are known")
        self.faults.pop(fault, None)
        if times > 0:
            self.faults[fault] = times

    def use(self, fault: Fault) -> bool:
        """Whether it happens now."""
        times = self.faults.get(fault, 0)
        if times:
            self.inject(fault, times - 1)
        return times > 0

    def cut(self) -> None:
        """What connections had asked for is forgotten, as a server does when they go."""
        for consumer in self._consumers():
            consumer.forget_requests()

    # ------------------------------------------------------------------------------------------------ JetStream

    def _consumers(self) -> list[Consumer]:
        return [consumer for stream in self.streams.values() for consumer in stream.consumers.values()]

    def _jetstream(self, message: Message) -> None:
        words = message.subject.split(".")
        if words[1] == "ACK":
            self._acknowledged(words, message)
            return
        call = ".".join(words[2:4])
        if call == "CONSUMER.MSG":
            self._asked(message, words[5], words[6])
        elif message.reply:
            body = msgspec.json.decode(message.payload) if message.payload else {}
            try:
                found = self._call(call, words[4:], body)
            except KeyError as exc:
                found = {"error": {"code": 404, "err_code": 10059, "description": f"{exc.args[0]} not found"}}
            self._answer(message.reply, found)

    def _answer(self, reply: str, body: Mapping[str, Any]) -> None:
        self.publish(reply, msgspec.json.encode(body), "", b"")

    def _call(self, call: str, words: Sequence[str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        if call == "STREAM.NAMES":
            return {"streams": [stream.name for stream in self.streams.values() if stream.touches(body["subject"])]}
        if call == "STREAM.CREATE":
            return self.ensure(body["name"], body["subjects"]).info()
        stream = self._stream(words[0] if call != "CONSUMER.DURABLE" else words[1])
        if call == "STREAM.INFO":
            return stream.info()
        if call == "CONSUMER.INFO":
            return self._consumer(stream, words[1]).info()
        if call == "CONSUMER.DELETE":
            self._consumer(stream, words[1]).close()
            del stream.consumers[words[1]]
            return {"success": True}
        name = body["config"].get("durable_name") or f"c{next(self._numbers)}"
        if name not in stream.consumers:
            stream.consumers[name] = Consumer(self, stream, name, body["config"])
        return stream.consumers[name].info()

    def _stream(self, name: str) -> Stream:
        if name not in self.streams:
            raise KeyError(f"stream {name}")
        return self.streams[name]

    def _consumer(self, stream: Stream, name: str) -> Consumer:
        if name not in stream.consumers:
            raise KeyError(f"consumer {name}")
        return stream.consumers[name]

    def ensure(self, name: str, subjects: Sequence[str]) -> Stream:
        """A stream of that name that covers these subjects; what was published before it came is in it."""
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = Stream(name)
        new = [subject for subject in subjects if not any(_within(subject, known) for known in stream.subjects)]
        stream.subjects += new
        waiting = [message for message in self._unclaimed if any(matches(one, message.subject) for one in new)]
        for message in waiting:
            self._unclaimed.remove(message)
            stream.store(message, self.clock.time())
        return stream

    def _asked(self, message: Message, stream: str, consumer: str) -> None:
        found = self.streams[stream].consumers.get(consumer) if stream in self.streams else None
        if found is None:
            self.publish(message.reply, b"", "", b"NATS/1.0 503\r\n\r\n")
        else:
            found.ask(msgspec.json.decode(message.payload, type=Request), message.reply)

    def _acknowledged(self, words: Sequence[str], message: Message) -> None:
        stream = self.streams.get(words[2])
        consumer = stream.consumers.get(words[3]) if stream is not None else None
        if consumer is None:
            return
        consumer.settle(int(words[5]), message.payload)
        if message.reply:
            self.publish(message.reply, b"", "", b"")


def _within(subject: str, pattern: str) -> bool:
    """Whether all that fits `subject` fits `pattern`; wildcards of `subject` count as words."""
    return subject == pattern or matches(pattern, subject)
