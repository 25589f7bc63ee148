"""Streams and consumers at the server: found, compared with what the service wrote, created where it says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ruststream_core.errors import ConfigError, ConnectError
from ruststream_core_nats._convert import nanoseconds, status_of
from ruststream_core_nats._replies import Reply
from ruststream_core_nats.config import JetStream
from ruststream_core_nats.errors import JetStreamError

__all__ = ["Consumer", "Manager"]

NO_RESPONDERS: Final = 503


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as the server describes it."""

    stream: str
    name: str
    config: dict[str, Any]
    pending: int = 0

    @property
    def ack_wait(self) -> float:
        """Seconds."""
        return float(self.config.get("ack_wait", 30_000_000_000)) / 1e9

    @property
    def max_ack_pending(self) -> int | None:
        """None for no limit."""
        most = self.config.get("max_ack_pending", 0)
        return most if isinstance(most, int) and most > 0 else None


class Manager:
    """JetStream's interface of one connection.

    Args:
        ask: sends a request and waits for its answer; raises TimeoutError, ConnectError or Closed.
        prefix: `$JS.API`, or with a domain `$JS.<domain>.API`.
        where: the server and the user, for errors.
    """

    def __init__(self, ask: Callable[[bytes, bytes], Awaitable[Reply]], prefix: str, where: str) -> None:
        self.prefix = prefix
        self._ask = ask
        self._where = where

    async def call(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request.

        Raises:
            JetStreamError: the server refused it.
            ConfigError: the server has no JetStream, or this user may not use it.
            ConnectError: no answer in time.
        """
        payload = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await self._ask(f"{self.prefix}.{subject}".encode(), payload)
        except TimeoutError as exc:
            raise ConnectError(f"{self._where}: JetStream did not answer {subject.split('.')[0:2]} in time") from exc
        if status_of(answer.block)[0] == NO_RESPONDERS:
            raise ConfigError(
                f"{self._where}: nobody answers for JetStream; start the server with JetStream on, and look at the"
                " domain and at what this user may publish to"
            )
        found: dict[str, Any] = msgspec.json.decode(answer.payload)
        if (error := found.get("error")) is not None:
            raise JetStreamError.of(error)
        return found

    # ---------------------------------------------------------------------------------------------------- streams

    async def covering(self, subject: str) -> list[str]:
        """The streams that take this subject, or a part of it."""
        found = await self.call("STREAM.NAMES", {"subject": subject})
        return list(found.get("streams") or ())

    async def stream_of(self, source: JetStream) -> str:
        """The stream of a source, which covers all its subjects.

        Raises:
            ConfigError: there is none or more than one, it does not cover the subjects, or it cannot be created.
        """
        if source.stream is not None:
            return await self._named(source, source.stream)
        found = await self.covering(source.filters[0])
        if len(found) > 1:
            raise ConfigError(
                f"{source.name!r}: several streams have it: {', '.join(sorted(found))}; name one, stream="
            )
        if found:
            return await self._named(source, found[0])
        if source.create:
            raise ConfigError(f"{source.name!r}: no stream has it, and creating one needs its name: stream=")
        raise ConfigError(f"{source.name!r}: no stream covers it; create one, or let create=True do it")

    async def _named(self, source: JetStream, stream: str) -> str:
        try:
            info = await self.call(f"STREAM.INFO.{stream}")
        except JetStreamError as exc:
            if exc.code != 404:
                raise exc.as_config_error(repr(source.name)) from exc
            if not source.create:
                raise ConfigError(
                    f"{source.name!r}: there is no stream {stream!r}; create it, or let create=True do it"
                ) from exc
            return await self._create_stream(source, stream)
        _check_covered(source, stream, info["config"])
        return stream

    async def _create_stream(self, source: JetStream, stream: str) -> str:
        config = {"name": stream, "subjects": list(source.filters), "storage": "file", "num_replicas": 1}
        try:
            await self.call(f"STREAM.CREATE.{stream}", config)
        except JetStreamError as exc:
            raise exc.as_config_error(f"{source.name!r}: stream {stream!r} cannot be created") from exc
        return stream

    async def last_sequence(self, stream: str) -> int | None:
        """The newest sequence of a stream, 0 for none so far; None where there is no such stream."""
        try:
            info = await self.call(f"STREAM.INFO.{stream}")
        except JetStreamError as exc:
            if exc.code == 404:
                return None
            raise
        return int(info["state"]["last_seq"])

    # -------------------------------------------------------------------------------------------------- consumers

    async def find(self, stream: str, name: str) -> Consumer | None:
        """A consumer by its name; None where it, or its stream, is not there."""
        try:
            info = await self.call(f"CONSUMER.INFO.{stream}.{name}")
        except JetStreamError as exc:
            if exc.code == 404:
                return None
            raise
        return _consumer(info)

    async def consumer_of(self, source: JetStream, stream: str, deliver: str) -> Consumer:
        """The durable consumer of a source.

        Args:
            source: names it.
            stream: where it is.
            deliver: the subject that a push consumer is created with.

        Raises:
            ConfigError: it is missing and `create` is off, or it exists with other settings.
        """
        assert source.durable is not None
        found = await self.find(stream, source.durable)
        if found is None:
            if not source.create:
                raise ConfigError(
                    f"{source.name!r}: stream {stream!r} has no consumer {source.durable!r}; create it, or let"
                    " create=True do it"
                )
            wanted = {**wanted_config(source), "durable_name": source.durable}
            if source.push:
                wanted |= {"deliver_subject": deliver, "deliver_group": source.durable, "idle_heartbeat": _beat(source)}
            found = await self.create(source, stream, wanted)
        _compare(source, found)
        return found

    async def create(self, source: JetStream, stream: str, config: Mapping[str, Any]) -> Consumer:
        """Create a consumer, and see that the server has understood all of its settings.

        Raises:
            ConfigError: the server refuses it, or is too old for one of the settings.
        """
        durable = config.get("durable_name")
        subject = f"CONSUMER.CREATE.{stream}" if durable is None else f"CONSUMER.DURABLE.CREATE.{stream}.{durable}"
        try:
            info = await self.call(subject, {"stream_name": stream, "config": config, "action": "create"})
        except JetStreamError as exc:
            if exc.code in (500, 503):
                raise ConnectError(f"{source.name!r}: its consumer cannot be created now: {exc}") from exc
            raise exc.as_config_error(f"{source.name!r}: its consumer cannot be created") from exc
        made = _consumer(info)
        if ignored := _differences(config, made.config):
            await self.delete(stream, made.name)
            raise ConfigError(f"{source.name!r}: this server does not know {ignored}: a newer one is needed")
        return made

    async def delete(self, stream: str, name: str) -> None:
        """Delete a consumer; that it is gone already is fine."""
        try:
            await self.call(f"CONSUMER.DELETE.{stream}.{name}")
        except JetStreamError as exc:
            if exc.code != 404:
                raise


def _consumer(info: Mapping[str, Any]) -> Consumer:
    return Consumer(
        stream=info["stream_name"], name=info["name"], config=info["config"], pending=info.get("num_pending") or 0
    )


def _beat(source: JetStream) -> int:
    return nanoseconds(source.heartbeat)


def wanted_config(source: JetStream, *, start: int | None = None) -> dict[str, Any]:
    """What the service wrote, as the server's interface has it; from sequence `start` on, where that is given."""
    filters = source.filters
    wanted: dict[str, Any] = {
        "ack_policy": "none" if source.ordered else "explicit",
        "deliver_policy": source.deliver_policy or "all",
        "ack_wait": None if source.ack_wait is None else nanoseconds(source.ack_wait),
        "max_ack_pending": source.max_ack_pending,
        "max_deliver": source.max_deliver,
        "opt_start_seq": source.start_sequence,
        "opt_start_time": None if source.start_time is None else _iso(source.start_time),
        "filter_subject": filters[0] if len(filters) == 1 else None,
        "filter_subjects": list(filters) if len(filters) > 1 else None,
    }
    if source.durable is None:
        wanted["inactive_threshold"] = nanoseconds(source.inactive_threshold)
    if start is not None:
        wanted |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start, "opt_start_time": None}
    return {name: value for name, value in wanted.items() if value is not None}


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


# ------------------------------------------------------------------------------------------------------ comparing


def _compare(source: JetStream, found: Consumer) -> None:
    wanted = wanted_config(source)
    if source.deliver_policy is None:
        del wanted["deliver_policy"]  # nobody wrote it, and it mattered only when the consumer was new
    differences = [text for text in (_differences(wanted, found.config),) if text]
    pushes = bool(found.config.get("deliver_subject"))
    if pushes != source.push:
        differences.append(f"push is {source.push} here and {pushes} at the server")
    if differences:
        raise ConfigError(
            f"{source.name!r}: consumer {found.name!r} of stream {found.stream!r} exists with other settings:"
            f" {'; '.join(differences)}. Change one of the two, or use another durable name"
        )


def _differences(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> str:
    """What differs, as a phrase; only what was wanted is compared, and the filters always."""
    rows = []
    for name, value in wanted.items():
        if name.startswith("filter_subject"):
            continue
        if not _equal(name, value, actual.get(name)):
            rows.append(f"{name} is {_shown(name, value)} here and {_shown(name, actual.get(name))} at the server")
    here, there = _filters(wanted), _filters(actual)
    # A consumer without filter takes all of its stream.
    if here != there:
        rows.append(f"filter_subjects are {here} here and {there} at the server")
    return "; ".join(rows)


def _filters(config: Mapping[str, Any]) -> list[str]:
    several = config.get("filter_subjects") or ()
    return sorted(several) or [config.get("filter_subject") or ">"]


def _equal(name: str, wanted: object, actual: object) -> bool:
    if name == "opt_start_time":
        return isinstance(wanted, str) and isinstance(actual, str) and _time(wanted) == _time(actual)
    return wanted == actual


def _time(text: str) -> datetime:
    # The server writes as many digits of the second as there are.
    head, dot, rest = text.replace("Z", "+00:00").partition(".")
    if dot:
        digits = rest[: rest.index("+")]
        text = f"{head}.{digits[:6].ljust(6, '0')}+00:00"
        return datetime.fromisoformat(text)
    return datetime.fromisoformat(head)


def _shown(name: str, value: object) -> object:
    if name in ("ack_wait", "inactive_threshold", "idle_heartbeat") and isinstance(value, int):
        return f"{value / 1e9:g} s"
    return "not set" if value is None else value


def _check_covered(source: JetStream, stream: str, config: Mapping[str, Any]) -> None:
    subjects = config.get("subjects") or ()
    if not subjects or config.get("mirror") or config.get("sources"):
        return  # it takes its messages from other streams
    for wanted in source.filters:
        if not any(_overlap(taken, wanted) for taken in subjects):
            raise ConfigError(
                f"{source.name!r}: stream {stream!r} does not cover {wanted!r}, it has {', '.join(sorted(subjects))}"
            )


def _overlap(one: str, other: str) -> bool:
    """Whether a subject exists that fits both."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in (mine, theirs):
            return True
        if "*" not in (mine, theirs) and mine != theirs:
            return False
    return len(left) == len(right)
