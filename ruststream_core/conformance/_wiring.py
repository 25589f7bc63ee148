"""What is decided before a message flows: sources, features, demands, secrets."""

from __future__ import annotations

import asyncio
import logging

from ruststream_core.abc import Demand, RequestReply, Seekable, ServerInfo, Source, Transactions
from ruststream_core.conformance._check import Condition, check, hook
from ruststream_core.conformance._lab import Lab
from ruststream_core.errors import ConfigError, ConnectError
from ruststream_core.kit import VirtualClock


class _Foreign(Source):
    """A source of no transport."""

    @property
    def name(self) -> str:
        return "foreign"


_secrets: Condition = hook("secrets")


@check("Sources and features are known offline, a normalised source stays as it is, a foreign one is a ConfigError.")
async def sources_are_offline(lab: Lab) -> None:
    written = lab.target.source(lab.name)
    source = lab.broker.source(written)
    lab.equal(lab.broker.source(source), source, "source() of its own result")
    lab.expect(isinstance(source, Source), f"source() gave {source!r}, which is no Source")
    shown = written if isinstance(written, str) else written.name
    lab.equal(source.name, shown, "the name of the source")
    await lab.raises(ConfigError, lambda: lab.broker.source(_Foreign()), "a foreign source")
    lab.expect(isinstance(lab.broker.describe(), ServerInfo), "describe() gave no ServerInfo")


@check("A subscription's features are those that its broker declares, or narrower; never wider.")
async def features_are_honest(lab: Lab) -> None:
    tap = await lab.open()
    declared, actual = lab.features, tap.subscription.features
    if lab.target.features is not None:
        lab.equal(declared, lab.target.features, "the declared features")
    for name in ("settles", "delay", "survives_outage", "transactions", "keys", "seek", "request", "stored"):
        wider = getattr(actual, name) and not getattr(declared, name)
        lab.expect(not wider, f"{name} is true for the subscription and was not declared")
    for name, none in (("retry", "none"), ("drop", "none"), ("release", "lost")):
        was, is_ = getattr(declared, name), getattr(actual, name)
        lab.expect(is_ in (was, none), f"{name} is {is_!r} for the subscription, {was!r} was declared")
    lab.expect(not (actual.loses and not declared.loses), "the subscription can lose deliveries, this was not declared")


@check("What is declared as a capability is there: Transactions, Seekable and Positioned, RequestReply.")
async def capabilities_exist(lab: Lab) -> None:
    tap = await lab.open()
    features, subscription = tap.subscription.features, tap.subscription
    if features.transactions:
        lab.expect(isinstance(subscription, Transactions), "transactions are declared, the subscription has no begin")
    if features.seek:
        able = isinstance(subscription, Seekable) and hasattr(subscription, "position")
        lab.expect(able, "seek is declared, the subscription has no seek or no position")
    if features.request:
        lab.expect(isinstance(await lab.connection(), RequestReply), "request is declared, the connection has none")


@check("The window holds at least workers times batch, or subscribe raises ConfigError.")
async def window_meets_demand(lab: Lab) -> None:
    for number, demand in enumerate((Demand(workers=3, batch=7), Demand(workers=4, batch=2, prefetch=3))):
        least = demand.workers * demand.batch
        try:
            tap = await lab.open(await lab.other_name() if number else None, demand=demand)
        except ConfigError:
            continue
        lab.expect(tap.subscription.window >= least, f"a window of {tap.subscription.window} for {demand}")
        await tap.close()


@check("A window that the route asks for is kept.")
async def window_is_what_was_asked(lab: Lab) -> None:
    tap = await lab.open(demand=Demand(prefetch=5))
    lab.equal(tap.subscription.window, 5, "the window after Demand(prefetch=5)")


@check("ping is one round trip, and raises nothing while the broker is there.")
async def ping_answers(lab: Lab) -> None:
    await (await lab.connection()).ping()


@check(
    "A broker that cannot be reached is a ConnectError, and shows no secret.",
    hook("unreachable"),
)
async def unreachable_is_a_connect_error(lab: Lab) -> None:
    assert lab.target.unreachable is not None
    broker = lab.target.unreachable()
    error = await lab.raises(ConnectError, broker.connect, "connecting to a broker that is not there")
    for secret in lab.target.secrets:
        lab.expect(secret not in f"{error} {error!r} {error.__cause__!r}", "the ConnectError shows a secret")


@check("No secret is shown: in no repr, no document, no log.", _secrets)
async def secrets_stay_hidden(lab: Lab) -> None:
    records: list[str] = []
    handler = _Collector(records)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        tap = await lab.open()
        await lab.publish(b"one")
        await tap.settle(*await tap.take(1))
        sender = await lab.sender()
        shown = {
            "the broker": lab.broker,
            "describe()": lab.broker.describe(),
            "the connection": await lab.connection(),
            "the subscription": tap.subscription,
            "the source": lab.broker.source(lab.target.source(lab.name)),
            "the sender": sender,
            "statistics()": tap.subscription.statistics(),
        }
        await tap.close()
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
    for secret in lab.target.secrets:
        for what, value in shown.items():
            lab.expect(secret not in f"{value!r} {value}", f"{what} shows a secret")
        lab.expect(not any(secret in record for record in records), "a log record shows a secret")


class _Collector(logging.Handler):
    def __init__(self, records: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record.getMessage())


@check("One broker object serves several connections, one after the other and side by side.")
async def broker_is_only_configuration(lab: Lab) -> None:
    first, second = await lab.connect(), await lab.connect()
    await first.aclose(1.0)
    await asyncio.sleep(0)
    await second.ping()
    await (await lab.connect()).ping()


@check("The stand-in has the same sources and features, and a broker of its own: nothing crosses to it.")
async def stand_in_is_alike(lab: Lab) -> None:
    stand_in = lab.broker.stand_in(VirtualClock())
    written = lab.target.source(lab.name)
    source = stand_in.source(written)
    lab.equal(source, lab.broker.source(written), "the stand-in's source")
    ours, theirs = lab.broker.features(source), stand_in.features(source)
    differing = [name for name in ours.__struct_fields__ if getattr(ours, name) != getattr(theirs, name)]
    lab.expect(not differing, f"the stand-in declares other features: {', '.join(differing)}")
