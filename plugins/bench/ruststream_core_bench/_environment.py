"""What is published with the figures: the machine, the interpreter, the versions."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path

__all__ = ["machine", "python_version", "round_trip", "version_of"]


def python_version() -> str:
    """The interpreter."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def machine() -> dict[str, str]:
    """CPU, cores, memory, kernel, and what they were busy with besides."""
    facts = {
        "cpu": _cpu(),
        "architecture": platform.machine(),
        "cores": f"{os.cpu_count()} logical",
        "memory": _memory(),
        "os": f"{platform.system()} {platform.release()}",
        "python": f"{python_version()} ({platform.python_compiler()})",
        "msgspec": version_of("msgspec"),
        "load_before": "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg()),
    }
    return {name: value for name, value in facts.items() if value}


def version_of(distribution: str) -> str:
    """The installed version; `not installed` where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _memory() -> str:
    if sys.platform == "win32":
        return ""
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"


async def round_trip(call: Callable[[], Awaitable[object]], times: int = 2000) -> str:
    """How long one round trip takes, as text: the median of `times` in sequence, after a tenth for warming up."""
    taken = []
    for _ in range(times + times // 10):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return f"{statistics.median(taken[times // 10 :]) * 1e6:.1f} us, median of {times}"
