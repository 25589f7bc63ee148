"""The file as a broker: configuration, connections."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ruststream_core.abc import (
    Broker,
    Clock,
    Connection,
    Demand,
    Features,
    PublishOptions,
    ServerInfo,
    Source,
    Watch,
)
from ruststream_core.errors import Closed, ConfigError, ConnectError
from ruststream_core.kit import LoopClock
from ruststream_core_file._format import Fsync, Rotation
from ruststream_core_file._format._layout import DEFAULT_INTERVAL, HEADER_SIZE, SIZE_LIMIT, check_header
from ruststream_core_file._publisher import FileSender, checked_options
from ruststream_core_file._subscription import FileSubscription, GroupSubscription
from ruststream_core_file.config import FileSettings, FileStream, checked, features_of

__all__ = ["FileBroker", "FileConnection"]

NO_ROTATION: Final = Rotation()


class FileBroker(Broker[FileStream]):
    """A stream file: `file:orders.ss`, `file:/var/log/orders.ss`, `file:orders.ss?replay=true&fsync=each`.

    Any number of processes read it, one writes it. A file that is not there is created by the first message; readers
    wait for it.

    Args:
        path: the file. Its base name has at most 111 bytes.
        existing_only: refuse to start where it is not there, and never create it.
        end_with_eos: write the end-of-stream message when the last sender closes: readers then end too.
        beacon_interval: of a new file, a positive multiple of 1024.
        fsync: "never": what was published survives a crash of the process, not of the machine. "each": each publish
            is confirmed when it is on the device. "interval": fsync every `fsync_interval` seconds.
        fsync_interval: seconds.
        size_limit: most bytes of the file; what would take it over is refused.
        rotation: when to begin a new file; readers follow.
        replay: sources that are given by name are read from the start and end at the end of the file.

    Raises:
        ConfigError: a setting makes no sense.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        existing_only: bool = False,
        end_with_eos: bool = False,
        beacon_interval: int = DEFAULT_INTERVAL,
        fsync: Fsync = "never",
        fsync_interval: float = 1.0,
        size_limit: int = SIZE_LIMIT,
        rotation: Rotation = NO_ROTATION,
        replay: bool = False,
    ) -> None:
        self.path = Path(path)
        if not self.path.name:
            raise ConfigError(f"file: {os.fspath(path)!r} names no file")
        self.replay = replay
        self.settings = FileSettings(
            existing_only=existing_only,
            end_with_eos=end_with_eos,
            beacon_interval=beacon_interval,
            fsync=fsync,
            fsync_interval=fsync_interval,
            size_limit=size_limit,
            rotation=rotation,
        )
        self.settings.check()
        self._clock: Clock = LoopClock()
        self._for_tests = False

    def __repr__(self) -> str:
        return f"FileBroker({str(self.path)!r})"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """See `Broker.from_url`. Settings are the constructor's, `rotate_size`, `rotate_age` and `rotate_keep`."""
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigError("a file URL is file:orders.ss, file:/folder/orders.ss or file:///folder/orders.ss")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        rotation = {name: given.pop(f"rotate_{name}") for name in ("size", "age", "keep") if f"rotate_{name}" in given}
        try:
            settings = msgspec.convert({**given, "rotation": rotation}, _UrlSettings, strict=False)
        except msgspec.ValidationError as exc:
            raise ConfigError(f"file: {exc}") from exc
        options = {name: getattr(settings, name) for name in settings.__struct_fields__}
        return cls(unquote(parts.path), **options)

    def source(self, source: str | Source) -> FileStream:
        """See `Broker.source`."""
        return checked(source, replay=self.replay)

    def features(self, source: FileStream) -> Features:
        """See `Broker.features`."""
        return features_of(source)

    def describe(self) -> ServerInfo:
        """See `Broker.describe`."""
        return ServerInfo(host=self.path.name, protocol="file", description="a stream file of sea-streamer's format")

    def stand_in(self, clock: Clock) -> FileBroker:
        """The same on an empty file of its own in a temporary folder. A replay does not end by itself there."""
        import shutil  # noqa: PLC0415  only tests need these
        import tempfile  # noqa: PLC0415
        import weakref  # noqa: PLC0415

        folder = tempfile.mkdtemp(prefix="ruststream-file-")
        names = set(self.settings.__struct_fields__) - {"existing_only"}
        options = {name: getattr(self.settings, name) for name in names}
        stand_in = FileBroker(Path(folder) / self.path.name, replay=self.replay, **options)
        stand_in._clock = clock
        stand_in._for_tests = True
        weakref.finalize(stand_in, shutil.rmtree, folder, ignore_errors=True)
        return stand_in

    def look(self) -> Path:
        """The real path, after a look whether it can be used. Does I/O.

        Raises:
            ConfigError: the folder is not there, the file is something else, or is not there and has to be.
            ConnectError: it cannot be read now.
        """
        path = Path(os.path.realpath(self.path))
        if not path.parent.is_dir():
            raise ConfigError(f"file: the folder {path.parent} is not there: create it")
        if path.exists() and not path.is_file():
            raise ConfigError(f"file: {path} is no regular file")
        try:
            with path.open("rb") as file:
                raw = file.read(HEADER_SIZE)
        except FileNotFoundError as exc:
            if self.settings.existing_only:
                raise ConfigError(f"file: {path} is not there, and existing_only is set") from exc
        except OSError as exc:
            raise ConnectError(f"file: {path} cannot be read: {exc}") from exc
        else:
            check_header(raw, path)
        return path

    async def connect(self) -> FileConnection:
        """See `Broker.connect`. Opens nothing yet: the first message opens the file for writing, and locks it.

        Raises:
            ConfigError: the folder is not there, the file is something else, or is not there and has to be.
            ConnectError: it cannot be read now.
        """
        path = await asyncio.get_running_loop().run_in_executor(None, self.look)
        return FileConnection(self, path, self._clock, ends=not self._for_tests)


class _UrlSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    existing_only: bool = False
    end_with_eos: bool = False
    beacon_interval: int = DEFAULT_INTERVAL
    fsync: Fsync = "never"
    fsync_interval: float = 1.0
    size_limit: int = SIZE_LIMIT
    rotation: Rotation = Rotation()
    replay: bool = False


class FileConnection(Connection[FileStream]):
    """See `Connection`."""

    def __init__(self, broker: FileBroker, path: Path, clock: Clock, *, ends: bool) -> None:
        self._broker = broker
        self._path = path
        self._clock = clock
        self._ends = ends
        self._subscriptions: list[FileSubscription] = []
        self._senders: list[FileSender] = []
        self._closed = False

    async def subscribe(self, source: FileStream, demand: Demand, watch: Watch) -> FileSubscription:
        """See `Connection.subscribe`.

        Raises:
            Closed: after `aclose`.
            ConfigError: the window does not hold the demand, the position is not there, or another subscription of
                the group is open.
        """
        self._check_open()
        source = self._broker.source(source)
        arguments = (self._path, source, demand, watch, self._clock)
        if source.group is None:
            subscription = FileSubscription(*arguments)
        else:
            subscription = GroupSubscription(*arguments, sync=self._broker.settings.fsync != "never")
        subscription.follow = not source.replay or not self._ends
        await subscription.open()
        self._subscriptions.append(subscription)
        return subscription

    async def sender(self, options: PublishOptions | None = None) -> FileSender:
        """See `Connection.sender`.

        Raises:
            Closed: after `aclose`.
            ConfigError: the options are another transport's.
        """
        self._check_open()
        sender = FileSender(self._path, self._broker.settings, checked_options(options))
        self._senders.append(sender)
        return sender

    async def ping(self) -> None:
        """See `Connection.ping`: the folder is there.

        Raises:
            Closed: after `aclose`.
            ConnectError: it is not, or the file is gone that has to be there.
        """
        self._check_open()
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._broker.look)
        except ConfigError as exc:
            raise ConnectError(str(exc)) from exc

    async def aclose(self, grace: float) -> None:
        """See `Connection.aclose`."""
        self._closed = True
        for subscription in self._subscriptions:
            await subscription.aclose(grace)
        for sender in self._senders:
            await sender.aclose(grace)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the connection to {self._path} is closed")
