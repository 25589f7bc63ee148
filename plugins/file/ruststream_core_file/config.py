"""What a service writes down: the source, the options of a publish, and what both are checked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final, Self

import msgspec

from ruststream_core import kit
from ruststream_core.abc import Demand, Features, PublishOptions, Source
from ruststream_core.errors import ConfigError
from ruststream_core.wire import Template
from ruststream_core_file._format import AfterTime, FromSequence, Fsync, Position, Rotation, Start
from ruststream_core_file._format._layout import DEFAULT_INTERVAL, SIZE_LIMIT, key_error

__all__ = ["FileOptions", "FileSettings", "FileStream", "check_start", "checked", "features_of", "keys_of", "window_of"]

WINDOW: Final = 1024
"""Most deliveries out where nobody says otherwise."""
_GROUP: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FileStream(msgspec.Struct, Source, frozen=True):
    """One stream of a file, by its key.

    Args:
        key: the stream key; `{placeholder}` and `*` stand for one token between dots, a last `>` for all that follow,
            `*` alone for every key.
        replay: read from the start and end at the end of the file, instead of following its tail.
        group: whose position it is. It is kept beside the file; acknowledging moves it. A new group begins at the
            start of the stream. Without a group nothing outlives the subscription, and settling means nothing.
        start_at: where a reader without a group begins, or a group that is new: "beginning", "end",
            `FromSequence(n)`, `AfterTime(ms)` or a position.
        window: most deliveries out and unsettled, 1024 unless the route needs more.
    """

    key: str
    replay: bool = False
    group: str | None = None
    start_at: Start | None = None
    window: int | None = None

    @property
    def name(self) -> str:
        """The stream key."""
        return self.key

    def prefixed(self, prefix: str) -> Self:
        """The same source under `prefix + key`."""
        return msgspec.structs.replace(self, key=prefix + self.key)

    @property
    def begins(self) -> Start:
        """Where to begin."""
        if self.start_at is not None:
            return self.start_at
        return "beginning" if self.replay or self.group is not None else "end"


class FileOptions(msgspec.Struct, PublishOptions, frozen=True, kw_only=True):
    """Settings of one publish, or of one destination.

    Args:
        shard: the shard of the stream.
        timestamp: milliseconds since the Unix epoch, else now.
    """

    shard: int = 0
    timestamp: int | None = None


class FileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is opened for writing; see `FileBroker`."""

    existing_only: bool = False
    end_with_eos: bool = False
    beacon_interval: int = DEFAULT_INTERVAL
    fsync: Fsync = "never"
    fsync_interval: float = 1.0
    size_limit: int = SIZE_LIMIT
    rotation: Rotation = Rotation()

    def check(self) -> None:
        """Raise ConfigError where a setting makes no sense."""
        if self.beacon_interval < 1024 or self.beacon_interval % 1024:
            raise ConfigError(f"file: beacon_interval={self.beacon_interval}, a positive multiple of 1024 is needed")
        if self.fsync not in ("never", "each", "interval"):
            raise ConfigError(f"file: fsync={self.fsync!r}, 'never', 'each' or 'interval' is accepted")
        positive = {
            "fsync_interval": self.fsync_interval,
            "size_limit": self.size_limit,
            "rotation.size": self.rotation.size,
            "rotation.age": self.rotation.age,
        }
        for setting, value in positive.items():
            if value is not None and not value > 0:
                raise ConfigError(f"file: {setting}={value}, more than 0 is needed")
        if self.rotation.keep is not None and self.rotation.keep < 0:
            raise ConfigError(f"file: rotation.keep={self.rotation.keep}, 0 or more is needed")


def checked(source: str | Source, *, replay: bool) -> FileStream:
    """A key or a descriptor as a descriptor with sound settings.

    Raises:
        ConfigError: says what is wrong and what is accepted.
    """
    if isinstance(source, str):
        source = FileStream(source, replay=replay)
    if not isinstance(source, FileStream):
        raise ConfigError(f"file has no source {type(source).__name__}: a stream key or FileStream is accepted")
    _check_key(source.key)
    if source.group is not None and not _GROUP.fullmatch(source.group):
        raise ConfigError(f"{source.key!r}: group={source.group!r}, 1 to 64 of A-Z a-z 0-9 _ - are accepted")
    if source.window is not None and source.window < 1:
        raise ConfigError(f"{source.key!r}: window={source.window}, at least 1 is needed")
    if source.start_at is not None:
        check_start(source.key, source.start_at)
    return source


def check_start(key: str, start: object) -> None:
    """Raise ConfigError where `start` is no place in a stream."""
    known = start in ("beginning", "end") if isinstance(start, str) else False
    if not known and not isinstance(start, FromSequence | AfterTime | Position):
        raise ConfigError(
            f"{key!r}: {start!r} is no position; 'beginning', 'end', FromSequence(n), AfterTime(milliseconds) or the "
            "position of a delivery is accepted"
        )


def _check_key(key: str) -> None:
    if not key:
        raise ConfigError("file: a stream needs a key; '*' reads every one")
    try:
        template = Template(key)
    except ValueError as exc:
        raise ConfigError(f"file: {exc}") from exc
    literal = template.wildcard("x").replace("*", "x").removesuffix(".>") if key != ">" else "x"
    if (wrong := key_error(literal.encode())) is not None:
        raise ConfigError(f"file: the stream key {wrong}")


def keys_of(source: FileStream) -> Callable[[str], bool] | Collection[str] | None:
    """The keys that the source wants, as a reader takes them."""
    key = source.key
    if key in ("*", ">", "SEA_STREAMER_WILDCARD"):
        return None
    if "{" in key or "*" in key or key.endswith(".>"):
        match = Template(key).match
        return lambda name: match(name) is not None
    return (key,)


def window_of(source: FileStream, demand: Demand) -> int:
    """The window of a subscription.

    Raises:
        ConfigError: what was asked for does not hold workers times batch.
    """
    asked = demand.prefetch if demand.prefetch is not None else source.window
    return kit.window_of(source.key, asked, workers=demand.workers, batch=demand.batch, default=WINDOW)


def features_of(source: FileStream) -> Features:
    """What that source can do."""
    grouped = source.group is not None
    return Features(
        settles=grouped,
        retry="in_place" if grouped else "copy",
        drop="discard" if grouped else "none",
        release="free" if grouped else "lost",
        attempts="process" if grouped else "header",
        survives_outage=True,
        loses=True,
        seek=True,
        stored=source.begins != "end",
        fan_out=not grouped,
    )
