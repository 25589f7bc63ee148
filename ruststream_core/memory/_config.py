"""What a service writes down: the sources of the in-process transport."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from ruststream_core.abc import Features, Source
from ruststream_core.errors import ConfigError
from ruststream_core.wire import Template

__all__ = ["MemoryLog", "MemoryQueue", "MemorySource", "checked", "features_of"]

Start = Literal["earliest", "latest"] | int


class MemoryQueue(msgspec.Struct, Source, frozen=True):
    """A queue: each message goes to one of its subscriptions, and is kept until it is settled.

    Two queues are the same where their names are, placeholders counting as `*`. A message goes to every queue whose
    name or pattern it fits. What fits none waits under its own name for the first source that takes it.

    Args:
        name: a name; `{placeholder}` and `*` stand for one token, a last `>` for all that follow.
        window: most deliveries out and unsettled, 1024 unless the route needs more.
        max_deliveries: the delivery that is the last: retried after it, a message is dropped.
        dead_letter: the name to which dropped messages go, unchanged. Without it they are forgotten.
    """

    name: str
    window: int | None = None
    max_deliveries: int | None = None
    dead_letter: str | None = None

    def prefixed(self, prefix: str) -> Self:
        """The same queue under `prefix + name`."""
        return msgspec.structs.replace(self, name=prefix + self.name)


class MemoryLog(msgspec.Struct, Source, frozen=True):
    """A log that keeps what it was given and can be read again, from any position.

    Subscriptions with one group share the work and the position; every group gets everything. Without a group a
    subscription reads for itself and nothing outlives it: what it acknowledges only frees its window.

    Args:
        name: as for `MemoryQueue`. The log begins with what waits under that name when it is first read.
        group: whose position it is.
        start: where a new group or a reader without one begins: the oldest message kept, the next one to come, or
            a position. A group that exists goes on where it was.
        window: most deliveries out and unsettled, 1024 unless the route needs more.
    """

    name: str
    group: str | None = None
    start: Start = "earliest"
    window: int | None = None

    def prefixed(self, prefix: str) -> Self:
        """The same log under `prefix + name`."""
        return msgspec.structs.replace(self, name=prefix + self.name)


MemorySource = MemoryQueue | MemoryLog


def checked(source: str | Source) -> MemorySource:
    """A name or a descriptor as a descriptor with sound settings.

    Raises:
        ConfigError: says what is wrong and what is accepted.
    """
    if isinstance(source, str):
        source = MemoryQueue(source)
    if not isinstance(source, MemoryQueue | MemoryLog):
        raise ConfigError(f"memory has no source {type(source).__name__}: a name, MemoryQueue or MemoryLog is accepted")
    _check_name(source.name)
    at_least_1 = {"window": source.window, "max_deliveries": getattr(source, "max_deliveries", None)}
    for setting, value in at_least_1.items():
        if value is not None and value < 1:
            raise ConfigError(f"{source.name!r}: {setting}={value}, at least 1 is needed")
    if isinstance(source, MemoryQueue):
        if source.dead_letter is not None:
            _check_dead_letter(source.name, source.dead_letter)
    elif source.group == "":
        raise ConfigError(f"{source.name!r}: a group needs a name; None reads without one")
    elif isinstance(source.start, bool) or not (source.start in ("earliest", "latest") or _natural(source.start)):
        raise ConfigError(f"{source.name!r}: start={source.start!r}, 'earliest', 'latest' or a position is accepted")
    return source


def _natural(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _check_name(name: str) -> None:
    if not name or name.isspace():
        raise ConfigError("memory: a source needs a name")
    try:
        Template(name)
    except ValueError as exc:
        raise ConfigError(f"memory: {exc}") from exc


def _check_dead_letter(queue: str, name: str) -> None:
    if not name or "{" in name or "*" in name:
        raise ConfigError(f"{queue!r}: dead_letter={name!r}, a plain name is needed")
    if Template(queue).match(name) is not None:
        raise ConfigError(f"{queue!r}: dead_letter={name!r} leads back into the same queue")


def features_of(source: MemorySource) -> Features:
    """What that source can do."""
    if isinstance(source, MemoryQueue):
        return Features(
            settles=True,
            retry="broker",
            delay=True,
            drop="discard" if source.dead_letter is None else "dead_letter",
            release="free",
            attempts="broker",
            survives_outage=True,
            transactions=True,
            keys=True,
            request=True,
        )
    grouped = source.group is not None
    return Features(
        settles=grouped,
        retry="in_place",
        drop="discard" if grouped else "none",
        release="free" if grouped else "lost",
        survives_outage=True,
        loses=True,
        transactions=grouped,
        keys=True,
        seek=True,
        request=True,
        stored=source.start != "latest",
        fan_out=not grouped,
    )
