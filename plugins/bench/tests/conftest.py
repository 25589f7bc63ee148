"""A sample of results, and the shortest of real runs."""

from __future__ import annotations

import pytest

from ruststream_core_bench._results import CodeRow, PackageResult, PeerResult, Row, Text
from ruststream_core_bench._stats import Spread


def _row(name: str, **changes: object) -> Row:
    fields: dict[str, object] = {
        "name": name,
        "title": Text("<b> & |", "черта |", "标题"),
        "unit": "msg/s",
        "loop": "asyncio",
        "messages": 500_000,
        "rounds": 5,
        "raw": Spread(100_000.0, 99_000.0, 98_000.0),
        "adapter": Spread(95_000.0, 94_000.0, 93_000.0),
        "framework": Spread(90_000.0, 89_000.0, 88_000.0),
        "adapter_overhead_percent": 5.3,
        "adapter_verdict": "slower",
        "overhead_percent": 11.1,
        "verdict": "slower",
        "bound": None,
        "waiting": 0.1,
    }
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def sample() -> list[PackageResult]:
    """Two packages with every kind of row: bound, indistinguishable, without plugin loop, with a peer."""
    peer = PeerResult("1.2", 50_000, Spread(9_000.0, 8_900.0, 8_000.0), 10.0)
    quiet = _row(
        "core",
        framework=Spread(99_500.0, 99_000.0, 97_000.0),
        overhead_percent=None,
        verdict="indistinguishable",
        bound="broker-bound",
        peers={"faststream": peer},
    )
    plain = _row("batch-64", adapter=None, adapter_overhead_percent=None, adapter_verdict=None, loop="uvloop")
    code = CodeRow(
        name="consume",
        title=Text("each", "каждое", "逐条"),
        metric="instructions",
        unit="instructions",
        raw=10_000.0,
        framework=10_900.0,
    )

    def package(name: str, rows: list[Row], rows_of_code: list[CodeRow]) -> PackageResult:
        return PackageResult(
            name=name,
            package=f"ruststream-core-{name}",
            package_version="0.1.0",
            core_version="0.1.0",
            python="CPython 3.11.7",
            measured_at="2026-01-01",
            environment={"cpu": "a CPU | with a bar", "round_trip": "60 us"},
            scenarios=rows,
            code=rows_of_code,
        )

    return [package("memory", [_row("consume"), plain], [code]), package("nats", [quiet], [])]
