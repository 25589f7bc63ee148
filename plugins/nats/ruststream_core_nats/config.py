"""What a service writes down: subjects, consumers, and how messages are published."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

import msgspec

from ruststream_core.abc import PublishOptions, Source
from ruststream_core.errors import Unsupported
from ruststream_core.wire import Template

__all__ = [
    "CoreSubject",
    "DeliverPolicy",
    "JetStream",
    "JetStreamPublish",
    "KeyValueWatch",
    "NATSSource",
]

DeliverPolicy = Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
"""Where a consumer begins."""


class CoreSubject(msgspec.Struct, Source, frozen=True):
    """A subject, without any stream: whoever listens at that moment gets the message, at most once.

    Args:
        subject: `*` and `{placeholder}` stand for one token, a last `>` for all that follow.
        queue_group: subscriptions of one group share the messages; without it each gets all.
        window: most deliveries out and unsettled, 1024 unless the route needs more.
        pending: most messages that wait in this process behind the window. What comes while it is full is dropped
            and counted as discarded.
    """

    subject: str
    queue_group: str | None = None
    window: int | None = None
    pending: int = 65_536

    @property
    def name(self) -> str:
        """The subject as the service wrote it."""
        return self.subject

    def prefixed(self, prefix: str) -> Self:
        """The same with `prefix + subject`."""
        return msgspec.structs.replace(self, subject=prefix + self.subject)


class JetStream(msgspec.Struct, Source, frozen=True):
    """Messages of a stream, through a consumer.

    With `durable` the consumer belongs to the server: subscriptions of one name share its messages, and it goes on
    where it was. Without, the consumer belongs to this subscription and goes with it; after an outage that outlived
    it, it is made again where the first unsettled message was.

    Nothing of a server is created unless `create` says so, and what exists with other settings is a ConfigError
    that shows the difference. Settings that are None are the server's, or those of the consumer that exists.

    Args:
        subject: what is consumed of the stream; `*`, `{placeholder}` and a last `>` as in `CoreSubject`.
        stream: the stream; None asks the server which one has the subject.
        durable: the consumer's name.
        filter_subjects: narrower subjects instead of `subject`, several from server 2.10 on.
        ack_wait: seconds after which an unsettled message is delivered again. Marks of progress are sent well
            before, unless `in_progress` is off.
        max_ack_pending: most messages that are out and unsettled, over all subscriptions of the consumer.
        max_deliver: deliveries of one message after which the server gives it up.
        deliver_policy: where a new consumer begins.
        start_sequence: with `by_start_sequence`.
        start_time: with `by_start_time`; aware of its zone.
        ordered: read for oneself, in order and without acknowledgements: a replay. It can seek.
        push: the server sends without being asked, to a subject of the consumer.
        double_ack: a settlement is only done when the server has confirmed it.
        in_progress: keep a message alive for as long as its handler runs. Without it a handler that is slower than
            `ack_wait` loses its delivery, and that is logged.
        create: create the stream, in files and on `subject`, and the consumer, where they are missing.
        window: most deliveries out and unsettled, also what is fetched ahead; 256 unless the route needs more.
        expires: seconds that one pull request waits at the server.
        heartbeat: seconds between signs of life of an idle consumer; two missed ones make the plugin look after it.
        inactive_threshold: seconds after which the server removes a consumer without `durable` that nobody asks.
    """

    subject: str
    stream: str | None = None
    durable: str | None = None
    filter_subjects: tuple[str, ...] = ()
    ack_wait: float | None = None
    max_ack_pending: int | None = None
    max_deliver: int | None = None
    deliver_policy: DeliverPolicy | None = None
    start_sequence: int | None = None
    start_time: datetime | None = None
    ordered: bool = False
    push: bool = False
    double_ack: bool = False
    in_progress: bool = True
    create: bool = False
    window: int | None = None
    expires: float = 30.0
    heartbeat: float = 5.0
    inactive_threshold: float = 300.0

    @property
    def name(self) -> str:
        """The subject as the service wrote it."""
        return self.subject

    def prefixed(self, prefix: str) -> Self:
        """The same with `prefix + subject`.

        Raises:
            Unsupported: there are filter subjects, which would have to be prefixed one by one.
        """
        if self.filter_subjects:
            raise Unsupported(f"{self.subject!r} with filter_subjects takes no prefix: write the subjects in full")
        return msgspec.structs.replace(self, subject=prefix + self.subject)

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects that the consumer filters by, placeholders written as `*`."""
        return tuple(Template(subject).wildcard("*") for subject in self.filter_subjects or (self.subject,))


class KeyValueWatch(msgspec.Struct, Source, frozen=True):
    """The changes of a key/value bucket, oldest value of each key first: a replay of the bucket's stream.

    A delivery's name is `$KV.<bucket>.<key>`. A deleted key has an empty payload and the header `KV-Operation`,
    `DEL` or `PURGE`.

    Args:
        bucket: the bucket; it has to exist.
        keys: the keys, with wildcards and placeholders.
        updates_only: leave out the values that are there already.
        window: most deliveries out and unsettled.
    """

    bucket: str
    keys: str = ">"
    updates_only: bool = False
    window: int | None = None

    @property
    def name(self) -> str:
        """The subject that the keys are stored under."""
        return f"$KV.{self.bucket}.{self.keys}"

    def stream(self) -> JetStream:
        """The same as a replay of a stream."""
        policy: DeliverPolicy = "new" if self.updates_only else "last_per_subject"
        stream = f"KV_{self.bucket}"
        return JetStream(self.name, stream=stream, ordered=True, deliver_policy=policy, window=self.window)


NATSSource = CoreSubject | JetStream
"""What a NATS broker receives from, normalised."""


class JetStreamPublish(msgspec.Struct, PublishOptions, frozen=True, kw_only=True):
    """Publish into a stream and wait for its acknowledgement. Several may be on their way.

    Args:
        expect_stream: the stream that has to take it.
        msg_id: what the stream recognises repetitions by, within its window for duplicates.
        msg_id_header: take `msg_id` from this header of each message, for settings of a whole destination.
        expect_last_sequence: the stream's newest sequence has to be this one.
        expect_last_subject_sequence: the subject's newest sequence has to be this one, 0 for none.
        expect_last_msg_id: the stream's newest message has to have this id.
        ttl: seconds for which the stream keeps it, from server 2.11 on and where the stream allows it.
        timeout: seconds to wait for the acknowledgement.
    """

    expect_stream: str | None = None
    msg_id: str | None = None
    msg_id_header: str | None = None
    expect_last_sequence: int | None = None
    expect_last_subject_sequence: int | None = None
    expect_last_msg_id: str | None = None
    ttl: float | None = None
    timeout: float = 5.0

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The header fields that ask for all that."""
        fields: tuple[tuple[str, Any], ...] = (
            ("Nats-Expected-Stream", self.expect_stream),
            ("Nats-Msg-Id", self.msg_id),
            ("Nats-Expected-Last-Sequence", self.expect_last_sequence),
            ("Nats-Expected-Last-Subject-Sequence", self.expect_last_subject_sequence),
            ("Nats-Expected-Last-Msg-Id", self.expect_last_msg_id),
            ("Nats-TTL", None if self.ttl is None else f"{self.ttl:g}s"),
        )
        return tuple((name, str(value)) for name, value in fields if value is not None)
