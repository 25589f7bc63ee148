"""The open ways out of a running app: destinations looked up once, and a sender for each broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from ruststream_core.abc import Connection, PublishOptions, RequestReply, Sender, Unit
from ruststream_core.errors import Closed, ConfigError, EncodeError, PublishError, Unsupported
from ruststream_core.middleware import Middleware, Send, compose_publish
from ruststream_core.params import Destination, To, message_info
from ruststream_core.wire import Delivery, Outgoing, Template

__all__ = ["Literally", "Senders", "Target", "Transmit", "resolve_target"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A destination that was looked up once."""

    broker: str
    template: Template
    headers_type: type | None = None
    options: PublishOptions | None = None

    @property
    def name(self) -> str:
        """The name as written."""
        return self.template.text

    def fill(self, value: object) -> str:
        """The name with its placeholders taken from the value.

        Raises:
            ConfigError: the value lacks one.
            EncodeError: its text cannot stand in a name.
        """
        if not self.template.fields:
            return self.template.text
        try:
            if isinstance(value, Mapping):
                return self.template.fill(value)
            return self.template.fill({field: getattr(value, field) for field in self.template.fields})
        except (AttributeError, KeyError) as exc:
            raise ConfigError(f"destination {self.name!r} cannot be filled from {type(value).__name__}: {exc}") from exc
        except ValueError as exc:
            raise EncodeError(f"destination {self.name!r} cannot be filled from {type(value).__name__}: {exc}") from exc


def resolve_target(to: Destination, default_broker: str, known: Iterable[str], where: str) -> Target:
    """Look a destination up.

    Raises:
        ConfigError: it names a broker that the app does not have, or is no destination.
    """
    options = headers_type = None
    broker = default_broker
    if to == "":
        raise ConfigError(f"{where}: a destination needs a name")
    if isinstance(to, To):
        name, options = to.name, to.options
        broker = to.broker or default_broker
    elif isinstance(to, str):
        name = to
    else:
        info = message_info(to) if isinstance(to, type) else None
        if info is None:
            raise ConfigError(f"{where}: {to!r} is no destination: a name, To(...) or a @message class is expected")
        name, headers_type = info.name, info.headers
    if not broker:
        raise ConfigError(f"{where}: say which broker: To(name, broker=) with one of {', '.join(sorted(known))}")
    if broker not in known:
        raise ConfigError(f"{where}: no broker is called {broker!r}; the app has {', '.join(sorted(known)) or 'none'}")
    try:
        template = Template(name)
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    return Target(broker=broker, template=template, headers_type=headers_type, options=options)


class Transmit(Protocol):
    """How one message leaves for one broker: synchronously where no middleware stands in between."""

    def __call__(self, out: Outgoing) -> asyncio.Future[None] | None:
        """As `Sender.send`."""


class Senders:
    """The open ways out of a running app, by broker and options."""

    def __init__(self, middleware: Sequence[Middleware], on_publish: Callable[[str, Outgoing], None] | None) -> None:
        self._middleware = middleware
        self._on_publish = on_publish
        self.connections: dict[str, Connection[Any]] = {}
        self._open: dict[tuple[str, int], tuple[Sender, Transmit, PublishOptions | None]] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._forked = False

    def forked(self) -> None:
        """This is a forked child: the connections belong to the parent."""
        self._open.clear()
        self._forked = True

    async def open(self, broker: str, options: PublishOptions | None = None) -> None:
        """Open the way once; later calls with the same options find it."""
        if (broker, id(options)) in self._open:
            return
        sender = await self.connections[broker].sender(options)
        watch = self._on_publish
        seen = None if watch is None else partial(watch, broker)
        self._open[broker, id(options)] = (sender, self._composed(broker, sender.send, seen), options)

    def joined(self, broker: str, unit: Unit) -> tuple[Transmit, Callable[[], None]]:
        """The way out through a transaction, middleware included, and what to call when it has been committed."""
        if self.plain:
            return unit.send, _nothing
        left: list[Outgoing] = []
        watch = self._on_publish

        def committed() -> None:
            if watch is not None:
                for out in left:
                    watch(broker, out)

        return self._composed(broker, unit.send, left.append), committed

    def _composed(self, broker: str, send: Transmit, watch: Callable[[Outgoing], None] | None) -> Transmit:
        transmit = send
        if watch is not None:

            def observed(out: Outgoing) -> asyncio.Future[None] | None:
                pending = send(out)
                watch(out)
                return pending

            transmit = observed
        inner = transmit

        async def innermost(out: Outgoing) -> None:
            if (pending := inner(out)) is not None:
                await pending

        composed: Send = compose_publish(self._middleware, innermost, broker)
        if composed is innermost:
            return transmit

        def through(out: Outgoing) -> asyncio.Future[None]:
            task = asyncio.ensure_future(composed(out))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        return through

    def transmit(self, broker: str, options: PublishOptions | None = None) -> Transmit:
        """The way that `open` opened.

        Raises:
            Closed: the app does not run.
            ConfigError: no such broker.
        """
        try:
            return self._open[broker, id(options)][1]
        except KeyError:
            raise self._missing(broker) from None

    def sender(self, broker: str, options: PublishOptions | None = None) -> Sender:
        """The transport's own sender, for what middleware does not see."""
        try:
            return self._open[broker, id(options)][0]
        except KeyError:
            raise self._missing(broker) from None

    def _missing(self, broker: str) -> Exception:
        if self._forked:
            return Closed("the app was started before a fork: start it in the child")
        if not self._open:
            return Closed("the app is not running: publish inside `async with app.start()`, a handler or a hook")
        if not broker:
            names = ", ".join(sorted(self.connections))
            return ConfigError(f"say which broker: To(name, broker=) or publisher(name) with one of {names}")
        return ConfigError(f"no broker is called {broker!r}; the app has {', '.join(sorted(self.connections))}")

    async def request(self, broker: str, out: Outgoing, timeout: float) -> Delivery:
        """Ask and wait for the answer, through the middleware that publishes pass.

        Raises:
            Unsupported: the broker has no request/reply.
            PublishError: a middleware kept the request.
        """
        self.transmit(broker)  # Closed and an unknown broker come first
        connection = self.connections[broker]
        if not isinstance(connection, RequestReply):
            raise Unsupported(f"broker {broker!r} has no request/reply")
        if self.plain:
            return await connection.request(out, timeout)
        answers: list[Delivery] = []

        async def ask(out: Outgoing) -> None:
            if self._on_publish is not None:
                self._on_publish(broker, out)
            answers.append(await connection.request(out, timeout))

        await compose_publish(self._middleware, ask, broker)(out)
        if not answers:
            raise PublishError(f"a middleware kept the request to {out.name!r}")
        return answers[0]

    @property
    def plain(self) -> bool:
        """Nothing stands between a publisher and the transport's sender."""
        return self._on_publish is None and not any(
            type(layer).publish is not Middleware.publish for layer in self._middleware
        )

    async def flush(self) -> list[BaseException]:
        """Flush every sender; what failed."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        flushed = await asyncio.gather(*(entry[0].flush() for entry in self._open.values()), return_exceptions=True)
        return [error for error in flushed if error is not None]

    async def aclose(self, grace: float) -> list[BaseException]:
        """Close every sender; what failed."""
        opened = [entry[0] for entry in self._open.values()]
        self._open.clear()
        closed = await asyncio.gather(*(sender.aclose(grace) for sender in opened), return_exceptions=True)
        return [error for error in closed if error is not None]


def _nothing() -> None:
    """What a commit has to tell where nobody asks."""


class Literally(Template):
    """A name without placeholders, not looked at."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = ()
