"""`ruststream check`: the wiring as it would run, without a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ruststream_core.abc import Features
from ruststream_core.cli._load import load_app, overrides
from ruststream_core.dispatch import RoutePlan

__all__ = ["arguments", "execute", "limits", "table"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("app", help="module:app, or module:factory without arguments")
    parser.add_argument("--broker", action="append", default=[], metavar="NAME=URL", help="instead of the app's own")
    parser.epilog = "Exit codes: 0 all routes stand, 2 otherwise, with one line for each problem."


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    app = load_app(options.app)
    wiring = app.wiring(app.resolve_brokers(overrides(options.broker)))
    if wiring.routes:
        heads = ("route", "source", "transport", "payload", "codec", "workers", "reply", "on failure", "limits")
        print(table(heads, [_row(plan) for plan in wiring.routes]))
    for plan in wiring.routes:
        for note in plan.notes:
            print(f"note: route {plan.name!r}: {note}")
    for problem in wiring.problems:
        print(f"error: {problem}", file=sys.stderr)
    if not wiring.routes and not wiring.problems:
        print("the app has no route")
    return 2 if wiring.problems else 0


def _row(plan: RoutePlan) -> tuple[str, ...]:
    options = plan.mount.options
    batch = options.get("batch")
    return (
        plan.name,
        plan.source.name,
        f"{plan.broker}: {plan.transport}",
        _type_name(plan.spec.payload_type) + (f", {batch.size} at a time" if batch is not None else ""),
        plan.codec.name,
        str(options.get("workers", 1)),
        plan.reply.name if plan.reply is not None else "-",
        plan.policy.describe(),
        limits(plan.features),
    )


def limits(features: Features) -> str:
    """What the transport cannot keep, in words; empty where it keeps everything."""
    lacks = [
        (not features.settles, "settles nothing"),
        (features.retry == "copy", "retries only by copies"),
        (features.retry == "none", "no retry"),
        (not features.delay and features.retry != "in_place", "no delay"),
        (features.attempts == "process", "attempts counted in this process"),
        (features.release == "lost", "what is released is lost"),
        (features.release == "counts", "a release counts as an attempt"),
        (not features.survives_outage and features.settles, "an outage brings what is in hand again"),
        (not features.stored, "nothing is kept while nobody listens"),
    ]
    return ", ".join(text for lacking, text in lacks if lacking) or "-"


def _type_name(annotation: object) -> str:
    if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, as wide as they need to be."""
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head = "  ".join(cell.ljust(width) for cell, width in zip(heads, widths, strict=True)).rstrip()
    return "\n".join([head, "  ".join("-" * width for width in widths), *lines])
