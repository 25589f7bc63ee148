"""The contract of a transport: what to implement, and what the runtime promises in return. No logic.

The way of a message: `Subscription.receive` hands out deliveries, the runtime decodes, runs the handler, publishes
replies, and calls `Delivery.settle` once, last. A transport never sees a codec or a handler. `ruststream_core.kit`
holds the pieces that several transports need; `ruststream_core.conformance` checks every rule on this page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import msgspec

if TYPE_CHECKING:
    import asyncio

    from ruststream_core.errors import SettleError
    from ruststream_core.settlement import Verdict
    from ruststream_core.wire import Delivery, Outgoing

__all__ = [
    "Broker",
    "Clock",
    "Connection",
    "Demand",
    "Fault",
    "FaultInjection",
    "Features",
    "Marker",
    "Positioned",
    "PublishOptions",
    "RequestReply",
    "Seekable",
    "SendTransactions",
    "Sender",
    "ServerInfo",
    "Source",
    "State",
    "Subscription",
    "SubscriptionStatistics",
    "Transactions",
    "Unit",
    "Watch",
]


# ---------------------------------------------------------------------------------------------- what is declared


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What one route needs of its source. A source that cannot meet it raises ConfigError in `subscribe`."""

    workers: int = 1
    """Handlers that run side by side."""
    batch: int = 1
    """Deliveries that one call of the handler takes."""
    linger: float = 0.0
    """Seconds that `receive` may wait after the first delivery to fill a batch."""
    keyed: bool = False
    """The order of a lane must hold while lanes run side by side."""
    transactional: bool = False
    """The handler takes the delivery's own transaction."""
    prefetch: int | None = None
    """The window that the route asks for; None leaves it to the descriptor or the transport's default."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What one source can do. Each field selects conformance checks, and start-up refuses what it excludes."""

    settles: bool
    """Whether Ack means anything to the broker; where not, it only frees the window."""
    retry: Literal["broker", "in_place", "copy", "none"]
    """broker: `settle(Retry())` brings the message back, with the attempt counted. in_place: the runtime keeps the
    delivery and runs it again, the transport sees one final verdict. copy: the runtime publishes a counted copy,
    where the route opts in. none: no way back."""
    delay: bool = False
    """Whether `settle(Retry(after=…))` keeps the delay, durably."""
    drop: Literal["discard", "dead_letter", "none"] = "discard"
    """What `settle(Drop())` does: forget, move to the broker's own dead letter, or nothing to drop."""
    release: Literal["free", "counts", "lost"] = "free"
    """What `settle(RELEASE)` does: free: the message comes back, its attempt count unchanged. counts: it comes back,
    counted. lost: nobody gets it again; the runtime counts it as discarded."""
    attempts: Literal["broker", "header", "process"] = "process"
    """Who counts deliveries: the broker, a header of the copies, or this process."""
    survives_outage: bool = False
    """Whether what is in hand when the connection breaks can still be settled afterwards."""
    loses: bool = False
    """Whether a delivery in hand can be lost: lease, revocation, channel."""
    transactions: bool = False
    """Subscriptions are `Transactions`."""
    keys: bool = False
    """Messages have keys."""
    seek: bool = False
    """Subscriptions are `Seekable` and `Positioned`."""
    request: bool = False
    """Connections are `RequestReply`."""
    headers: Literal["bytes", "text", "none"] = "bytes"
    """What header values keep: any bytes, UTF-8 text, nothing."""
    repeated_headers: bool = True
    """Whether a header name may occur twice."""
    empty_payload: bool = True
    """Whether an empty payload can be told from none and arrives."""
    stored: bool = True
    """Whether a message published while nobody subscribes is kept for a later subscription."""
    fan_out: bool = False
    """Whether two subscriptions of one source both get each message; where not, they share."""
    max_payload: int | None = None
    """Most bytes of a payload, where the transport sets a limit that is known without a server."""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How documents name a broker. Holds no credential."""

    host: str
    protocol: str
    protocol_version: str = ""
    pathname: str = ""
    description: str = ""


State: TypeAlias = Literal["connecting", "receiving", "interrupted", "ended"]
"""What a subscription is doing; `interrupted` covers an outage with its reconnects."""


class SubscriptionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as it is now. Counters only grow."""

    state: State
    buffered: int = 0
    """Fetched, not yet handed out."""
    unsettled: int = 0
    """Handed out, neither settled nor lost: what the window bounds."""
    released: int = 0
    """Given back by the plugin itself without ever having been handed out."""
    discarded: int = 0
    """Dropped by the client or the plugin before they were handed out, a slow consumer's for example."""
    last_receive: float | None = None
    """`time.monotonic()` of the newest message from the broker."""
    lag: int | None = None
    """Messages that wait at the broker, where it is known without asking."""


class Source:
    """Base of every descriptor of a transport: `JetStream(...)`, `FileStream(...)`. Configuration, no I/O."""

    @property
    def name(self) -> str:
        """The name with its placeholders, as the service wrote it; what routes, logs and documents show."""
        raise NotImplementedError

    def prefixed(self, prefix: str) -> Self:
        """The same source with its name prefixed, for `Router(prefix=)`.

        Raises:
            Unsupported: such a source takes no prefix.
        """
        from ruststream_core.errors import Unsupported  # noqa: PLC0415

        raise Unsupported(f"{type(self).__name__} takes no prefix: mount it on a router without one")


class PublishOptions:
    """Base of a transport's own settings of one publish or of one destination."""


class Marker:
    """Base of every parameter marker: `Annotated[T, SomeMarker]` or `Annotated[T, SomeMarker(...)]`.

    A plugin may subclass it; the core then calls `bind` once per route.
    """

    def bind(self, name: str, annotation: Any) -> Callable[[Delivery], Any]:
        """What reads the parameter `name` from a delivery.

        Raises:
            ConfigError: the annotation does not fit.
        """
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------ what is called


class Watch(Protocol):
    """The runtime as a subscription sees it. Synchronous, on the loop's thread, never raises."""

    def lost(self, delivery: Delivery, error: SettleError, verdict: Verdict | None) -> None:
        """A delivery is not ours any more: called once for it, after `delivery.lost` was set.

        `verdict` is what it had been settled with while that was pending, else None. Queued: it will be skipped.
        Running: its handler is cancelled. Settled: its count moves to lost.
        """

    def state(self, state: State, cause: BaseException | None) -> None:
        """The subscription's state changed; `cause` is the passing error behind an interruption."""


class Clock(Protocol):
    """Time as a stand-in sees it: the loop's own, or one that a test moves."""

    def time(self) -> float:
        """Seconds, monotonic."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Run `callback` in `delay` seconds; call the result to cancel it."""


S = TypeVar("S", bound=Source)


class Broker(ABC, Generic[S]):
    """Configuration of one broker. No I/O, nothing bound to a loop, credentials hidden in its repr."""

    separator: ClassVar[str] = "."
    """What separates the tokens of a name; a placeholder stands for one token."""

    @classmethod
    @abstractmethod
    def from_url(cls, url: str) -> Self:
        """Build it from a URL.

        Raises:
            ConfigError: the URL is not understood; the message shows no credential.
        """

    @abstractmethod
    def source(self, source: str | Source) -> S:
        """Normalise a name or a descriptor, offline.

        Raises:
            ConfigError: this broker has no such source; says what it accepts.
        """

    @abstractmethod
    def features(self, source: S) -> Features:
        """What that source can do, from configuration alone, so that `check` needs no server."""

    @abstractmethod
    def describe(self) -> ServerInfo:
        """For documents and logs; never a credential."""

    @abstractmethod
    def stand_in(self, clock: Clock) -> Broker[S]:
        """An in-process broker with the same sources and features, for tests; its timers run on `clock`."""

    @abstractmethod
    async def connect(self) -> Connection[S]:
        """Reach the broker.

        Raises:
            ConnectError: not now; trying again may help. Names the server and the user, never the password.
            ConfigError: never with these settings.
        """


class Connection(ABC, Generic[S]):
    """What `connect` gives: a unit of configuration and lifetime, not necessarily one socket."""

    @abstractmethod
    async def subscribe(self, source: S, demand: Demand, watch: Watch) -> Subscription:
        """Begin to receive. When it returns, messages published from then on will arrive.

        Raises:
            ConfigError: the source does not exist, exists with other settings (the difference is shown), or
                cannot meet the demand.
            ConnectError: not now.
        """

    @abstractmethod
    async def sender(self, options: PublishOptions | None = None) -> Sender:
        """A way out. `options` hold for every message that brings none of its own; they are checked here.

        Raises:
            ConfigError: the options do not fit this broker.
        """

    @abstractmethod
    async def ping(self) -> None:
        """One round trip.

        Raises:
            ConnectError: no answer.
        """

    @abstractmethod
    async def aclose(self, grace: float) -> None:
        """Flush and close within about `grace` seconds. Idempotent; closes even when the grace fails."""


class Subscription(ABC):
    """One open source.

    Passing errors, their backoff with jitter and reconnecting stay inside, told by `watch.state` and `statistics`.
    After an outage it resumes by itself or ends terminally: never alive and silent.
    """

    features: Features
    """Narrower than what the broker declared, never wider."""
    window: int
    """Most deliveries handed out and unsettled; at least workers times batch. Settling is the only credit."""
    receivers: int = 1
    """How many `receive` calls may be open at once; where that covers the workers, each receives for itself."""

    @abstractmethod
    async def receive(self, limit: int, linger: float = 0.0) -> Sequence[Delivery]:
        """Wait for room in the window and for messages.

        Never cancelled by the runtime. Yields to the loop at least once per call, so that handlers which never
        suspend cannot starve heartbeats. Each delivery is kept alive (lease, in-progress mark) from here until it
        is settled or lost.

        Args:
            limit: most deliveries.
            linger: seconds to go on collecting after the first.

        Returns:
            1 to `limit` deliveries; empty exactly when it has ended.

        Raises:
            RustStreamError: what is terminal, and nothing else.
        """

    @abstractmethod
    def stop(self) -> None:
        """End fetching: a waiting `receive` returns what it has, then empty. Settling and keeping go on."""

    @abstractmethod
    async def aclose(self, grace: float) -> None:
        """Return when what was settled is flushed or reported lost; release what was never handed out; detach."""

    @abstractmethod
    def statistics(self) -> SubscriptionStatistics:
        """A snapshot, free of I/O."""


class Sender(ABC):
    """The transport's side of a publisher. Reconnects by itself. Messages leave in the order of the calls."""

    @abstractmethod
    def send(self, out: Outgoing) -> asyncio.Future[None] | None:
        """Hand one message over.

        Returns:
            None where it was handed to a broker that confirms nothing, or a future that ends when the broker has
            confirmed, or with PublishError. Cancelling the future does not take the message back.

        Raises:
            PublishError: it cannot be sent (too large, a bad name or header); no byte of it left.
            Closed: after `aclose`.
        """

    @abstractmethod
    async def send_many(self, outs: Sequence[Outgoing]) -> None:
        """Send all, in order, and wait for all confirmations.

        Raises:
            PublishError: `failed` maps the index of each message that was not accepted to its cause.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything sent so far has left and, where the broker confirms, is confirmed.

        Raises:
            ConnectError: not within the connection's own time limits.
        """

    @abstractmethod
    async def aclose(self, grace: float) -> None:
        """Flush, then refuse with `Closed`. Idempotent."""


class Unit(ABC):
    """One server transaction. Ended by `commit` or `rollback`, exactly once."""

    native: Any
    """What `Annotated[T, Transaction]` receives: the client's own connection or transaction."""

    @abstractmethod
    def send(self, out: Outgoing) -> asyncio.Future[None] | None:
        """As `Sender.send`, visible to others only after the commit."""

    @abstractmethod
    async def commit(self, verdicts: Sequence[tuple[Delivery, Verdict]]) -> None:
        """Settle these deliveries and make everything visible, together.

        Raises:
            SettleError: it did not happen; the deliveries are lost.
        """

    @abstractmethod
    async def rollback(self) -> None:
        """Undo everything; the deliveries stay in hand, unsettled."""


# ------------------------------------------------------------ capabilities: asked for once, at start-up, none emulated


@runtime_checkable
class Transactions(Protocol):
    """A subscription whose deliveries can be settled in one transaction with other work."""

    async def begin(self, deliveries: Sequence[Delivery]) -> Unit:
        """Open a transaction over these deliveries."""


@runtime_checkable
class SendTransactions(Protocol):
    """A sender that can publish several messages all or none."""

    async def begin(self) -> Unit:
        """Open a transaction without deliveries."""


@runtime_checkable
class Seekable(Protocol):
    """A subscription that can move. What was handed out or queued before is lost with `Superseded`."""

    async def seek(self, position: Any) -> None:
        """Go on from that position: what `Positioned.position` gave, or what the transport documents.

        Raises:
            ConfigError: not a position of this transport.
        """


@runtime_checkable
class Positioned(Protocol):
    """A subscription that knows where each delivery stands."""

    def position(self, delivery: Delivery) -> Any:
        """A value that `seek` takes: seeking there delivers this message again."""


@runtime_checkable
class RequestReply(Protocol):
    """A connection on which one message can be answered by another."""

    async def request(self, out: Outgoing, timeout: float) -> Delivery:
        """Send, and wait for the first answer, at most `timeout` seconds. The answer needs no settling.

        Raises:
            TimeoutError: no answer in time.
            PublishError: nobody listens there, where the broker says so.
        """


Fault: TypeAlias = Literal["duplicate", "reorder", "crash_before_settle", "disconnect"]


@runtime_checkable
class FaultInjection(Protocol):
    """A stand-in that can misbehave on request."""

    def inject(self, fault: Fault, times: int) -> None:
        """Do that to the next `times` messages. 0 clears what is left.

        duplicate: the message is delivered twice. reorder: it is delivered after the one that follows.
        crash_before_settle: its settlement is lost and it comes back. disconnect: an outage before its delivery.
        """
