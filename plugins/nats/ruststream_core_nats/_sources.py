"""Whether what a service writes down is sound, and what it can do. Offline."""

from __future__ import annotations

import re
from typing import get_args

from ruststream_core.abc import Features, Source
from ruststream_core.errors import ConfigError
from ruststream_core.wire import Template
from ruststream_core_nats._convert import subject_fault
from ruststream_core_nats.config import CoreSubject, DeliverPolicy, JetStream, KeyValueWatch, NATSSource

__all__ = ["checked", "features_of"]

_ENTITY = re.compile(r"[^\s.*>/\\\x00-\x1f]{1,255}")
"""Names of streams and consumers, as the server accepts them."""


# ------------------------------------------------------------------------------------------------------ checking


def checked(source: str | Source) -> NATSSource:
    """A name or a descriptor as a descriptor with sound settings.

    Raises:
        ConfigError: says what is wrong and what is accepted.
    """
    if isinstance(source, str):
        source = CoreSubject(source)
    if isinstance(source, KeyValueWatch):
        _check_entity(source.name, "bucket", source.bucket)
        source = source.stream()
    if not isinstance(source, CoreSubject | JetStream):
        raise ConfigError(
            f"NATS has no source {type(source).__name__}:"
            " a subject, CoreSubject, JetStream or KeyValueWatch is accepted"
        )
    if source.window is not None and source.window < 1:
        raise ConfigError(f"{source.name!r}: window={source.window}, at least 1 is needed")
    if isinstance(source, JetStream):
        _check_jetstream(source)
    else:
        _check_subject(source.name, source.subject)
        if source.pending < 1:
            raise ConfigError(f"{source.name!r}: pending={source.pending}, at least 1 is needed")
        if source.queue_group is not None and re.fullmatch(r"[^\s\x00-\x20]+", source.queue_group) is None:
            raise ConfigError(f"{source.name!r}: queue_group={source.queue_group!r}, a name without blanks is needed")
    return source


def _check_subject(owner: str, subject: str) -> None:
    try:
        pattern = Template(subject).wildcard("*")
    except ValueError as exc:
        raise ConfigError(f"NATS: {exc}") from exc
    if (fault := subject_fault(pattern, wildcards=True)) is not None:
        raise ConfigError(f"{owner!r}: subject {subject!r} {fault}")


def _check_entity(owner: str, setting: str, value: str | None) -> None:
    if value is not None and _ENTITY.fullmatch(value) is None:
        raise ConfigError(
            f"{owner!r}: {setting}={value!r}, a name without blanks, dots, slashes and wildcards is needed"
        )


def _check_jetstream(source: JetStream) -> None:
    for subject in (source.subject, *source.filter_subjects):
        _check_subject(source.name, subject)
    _check_entity(source.name, "stream", source.stream)
    _check_entity(source.name, "durable", source.durable)
    _check_numbers(source)
    _check_start(source)
    if source.ordered:
        _check_ordered(source)


def _check_numbers(source: JetStream) -> None:
    for setting in ("ack_wait", "expires", "heartbeat", "inactive_threshold"):
        value = getattr(source, setting)
        if value is not None and not 0.001 <= value < 1e9:
            raise ConfigError(f"{source.name!r}: {setting}={value!r}, a number of seconds is needed")
    if source.heartbeat * 2 > source.expires:
        raise ConfigError(
            f"{source.name!r}: heartbeat={source.heartbeat} has to be at most half of expires={source.expires}"
        )
    for setting in ("max_ack_pending", "max_deliver"):
        value = getattr(source, setting)
        if value is not None and (value == 0 or value < -1):
            raise ConfigError(f"{source.name!r}: {setting}={value}, at least 1 is needed, or -1 for no limit")


def _check_start(source: JetStream) -> None:
    policy, name = source.deliver_policy, source.name
    if (policy == "by_start_sequence") != (source.start_sequence is not None):
        raise ConfigError(f"{name!r}: start_sequence and deliver_policy='by_start_sequence' go together")
    if (policy == "by_start_time") != (source.start_time is not None):
        raise ConfigError(f"{name!r}: start_time and deliver_policy='by_start_time' go together")
    if source.start_sequence is not None and source.start_sequence < 1:
        raise ConfigError(f"{name!r}: start_sequence={source.start_sequence}, the first message of a stream is 1")
    if source.start_time is not None and source.start_time.utcoffset() is None:
        raise ConfigError(f"{name!r}: start_time needs a time zone, datetime.now(UTC) for example")
    known = get_args(DeliverPolicy)
    if policy is not None and policy not in known:
        raise ConfigError(f"{name!r}: deliver_policy={policy!r}, one of {', '.join(known)} is accepted")


def _check_ordered(source: JetStream) -> None:
    excluded = {
        "durable": source.durable is not None,
        "push": source.push,
        "double_ack": source.double_ack,
        "ack_wait": source.ack_wait is not None,
        "max_ack_pending": source.max_ack_pending is not None,
        "max_deliver": source.max_deliver is not None,
    }
    if given := [setting for setting, is_given in excluded.items() if is_given]:
        raise ConfigError(f"{source.name!r}: ordered reads without acknowledgements, {', '.join(given)} does not fit")


# ------------------------------------------------------------------------------------------------------ features


def features_of(source: NATSSource, *, exact: bool = True) -> Features:
    """What that source can do.

    `exact` says whether the client's internals are used: its public interface has one value for a header name.
    `request` is declared for Core subjects only: a stream answers the sender itself, by its acknowledgement, so the
    handler of a stored message has nobody to answer.
    """
    if isinstance(source, CoreSubject):
        return Features(
            settles=False,
            retry="copy",
            drop="none",
            release="lost",
            attempts="header",
            survives_outage=True,
            request=True,
            headers="text",
            repeated_headers=exact,
            stored=False,
            fan_out=source.queue_group is None,
        )
    stored = source.deliver_policy not in ("new", "last")
    if source.ordered:
        return Features(
            settles=False,
            retry="in_place",
            drop="none",
            release="lost",
            survives_outage=True,
            loses=True,
            seek=True,
            headers="text",
            repeated_headers=exact,
            stored=stored,
            fan_out=True,
        )
    return Features(
        settles=True,
        retry="broker",
        delay=True,
        # A nak is the only way back that does not wait for ack_wait, and the server counts its delivery.
        release="counts",
        attempts="broker",
        survives_outage=True,
        loses=True,
        headers="text",
        repeated_headers=exact,
        stored=stored,
        fan_out=source.durable is None,
    )
