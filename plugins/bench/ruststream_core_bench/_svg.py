"""The chart of a page: one static SVG, without script, for light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from ruststream_core_bench._results import Row
from ruststream_core_bench._stats import Spread, Verdict
from ruststream_core_bench._texts import Language, say

__all__ = ["chart"]

WIDTH: Final = 900
LEFT: Final = 300
RIGHT: Final = 30
LINE: Final = 18
GAP: Final = 14
TOP: Final = 74

STYLE: Final = """
svg{background:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}.grid{stroke:#d1d9e0}.zero{stroke:#59636e}.notch{stroke:#ffffff;stroke-width:2}
.raw{fill:#6e7781;stroke:#6e7781}.adapter{fill:#0969da;stroke:#0969da}.framework{fill:#bc4c00;stroke:#bc4c00}
.peer{fill:#8250df;stroke:#8250df}.bar{fill-opacity:.35;stroke:none}.hollow{fill:none;stroke-width:1.5}
text{font:13px system-ui,sans-serif}.small{font-size:11px}
@media (prefers-color-scheme:dark){svg{background:#0d1117}
.ink{fill:#e6edf3}.soft{fill:#9198a1}.grid{stroke:#3d444d}.zero{stroke:#9198a1}
.notch{stroke:#0d1117}.raw{fill:#9198a1;stroke:#9198a1}.adapter{fill:#4493f8;stroke:#4493f8}
.framework{fill:#f0883e;stroke:#f0883e}.peer{fill:#ab7df8;stroke:#ab7df8}.hollow{fill:none}.bar{stroke:none}}
"""


class _Bar(msgspec.Struct, frozen=True):
    kind: str
    label: str
    rates: Spread
    verdict: Verdict | None


class _Scale(msgspec.Struct, frozen=True):
    """Percent of the raw loop's best to pixels."""

    low: float
    high: float

    def x(self, percent: float) -> float:
        return LEFT + (percent - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> Iterator[float]:
        rough = (self.high - self.low) / 8
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        tick = math.ceil(self.low / step) * step
        while tick <= self.high:
            yield tick
            tick += step


def chart(rows: Sequence[Row], language: Language) -> str:
    """A bar from the best to the worst round of each loop, zero at the raw loop's best; higher is faster.

    Args:
        rows: at least one.
        language: of its words.
    """
    scale = _scale(rows)
    heights = [LINE * (1 + len(_bars(row))) + GAP for row in rows]
    bottom = TOP + sum(heights)
    parts = [*_head(bottom + 28, language), *_grid(scale, bottom)]
    top = TOP
    for row, height in zip(rows, heights, strict=True):
        parts.extend(_row(row, top, scale, language))
        top += height
    return "\n".join([*parts, "</svg>", ""])


def _bars(row: Row) -> list[_Bar]:
    bars = [_Bar("raw", "raw", row.raw, None)]
    if row.adapter is not None:
        bars.append(_Bar("adapter", "adapter", row.adapter, row.adapter_verdict))
    bars.append(_Bar("framework", "framework", row.framework, row.verdict))
    return bars + [_Bar("peer", f"{name} {peer.version}", peer.rates, None) for name, peer in row.peers.items()]


def _percent(rate: float, row: Row) -> float:
    return (rate / row.raw.best - 1) * 100


def _scale(rows: Sequence[Row]) -> _Scale:
    values = [_percent(rate, row) for row in rows for bar in _bars(row) for rate in (bar.rates.best, bar.rates.worst)]
    low, high = min(*values, -5.0), max(*values, 5.0)
    margin = (high - low) * 0.04
    return _Scale(low - margin, high + margin)


def _head(height: int, language: Language) -> Iterator[str]:
    title, legend = say("chart", language), say("legend", language)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="title legend" xml:lang="{language}">'
    )
    yield f'<title id="title">{escape(title)}</title><desc id="legend">{escape(legend)}</desc>'
    yield f"<style>{STYLE}</style>"
    yield f'<text class="ink" x="12" y="22">{escape(title)}</text>'
    yield f'<text class="soft small" x="12" y="42">{escape(legend)}</text>'


def _grid(scale: _Scale, bottom: int) -> Iterator[str]:
    for tick in scale.ticks():
        x = scale.x(tick)
        kind, label = ("zero", "0") if abs(tick) < 1e-9 else ("grid", f"{tick:+g}")
        yield f'<line class="{kind}" x1="{x:.1f}" y1="{TOP - 10}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="soft small" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label} %</text>'


def _row(row: Row, top: int, scale: _Scale, language: Language) -> Iterator[str]:
    title = getattr(row.title, language) + (f" ({row.loop})" if row.loop != "asyncio" else "")
    bound = "" if row.bound is None else f" · {say(row.bound, language)}"
    yield f'<text class="ink" x="12" y="{top + 12}">{escape(title + bound)}</text>'
    for number, bar in enumerate(_bars(row), 1):
        yield from _bar(bar, row, top + LINE * number, scale, language)


def _bar(bar: _Bar, row: Row, top: int, scale: _Scale, language: Language) -> Iterator[str]:
    rates = bar.rates
    worst, median, best = (scale.x(_percent(rate, row)) for rate in (rates.worst, rates.median, rates.best))
    hollow = bar.verdict == "indistinguishable"
    body, notch, dot = ("hollow", bar.kind, f"{bar.kind} hollow") if hollow else ("bar", "notch", bar.kind)
    label = escape(f"{say(bar.label, language)}  {rates.best:,.0f}")
    yield f'<text class="soft small" x="{LEFT - 10}" y="{top + 10}" text-anchor="end">{label}</text>'
    yield f'<rect class="{bar.kind} {body}" x="{worst:.1f}" y="{top}" width="{max(best - worst, 1):.1f}" height="12"/>'
    yield f'<line class="{notch}" x1="{median:.1f}" y1="{top}" x2="{median:.1f}" y2="{top + 12}"/>'
    yield f'<circle class="{dot}" cx="{best:.1f}" cy="{top + 6}" r="4"/>'
