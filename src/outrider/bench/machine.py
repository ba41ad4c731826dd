"""What the numbers were measured on, and a short probe of how fast it was just then."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

import numpy as np
import psutil

from outrider.machine import cpu_name
from outrider.version import __version__


def describe(threads: int | None = None) -> dict[str, object]:
    """The machine in a few words, for a result file. `threads` is None when the engine chose."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "outrider": __version__,
        "threads": threads,
    }


def probe(seconds: float = 0.15) -> dict[str, float]:
    """How fast this machine is now: `read_gb_per_s` sums a 64 MB array, `gflop_per_s` multiplies and
    adds in cache, both on one thread, the median of repetitions within `seconds` each. Other load shows
    as a change between two probes."""
    big = np.ones(64 * 1024 * 1024 // 8, np.float64)
    small = np.ones(4096, np.float32)
    work = np.empty_like(small)

    def read() -> None:
        big.sum()

    def multiply_add() -> None:
        for _ in range(64):
            np.multiply(small, 1.0001, out=work)
            np.add(work, small, out=work)

    return {
        "read_gb_per_s": big.nbytes / _median_seconds(read, seconds) / 1e9,
        "gflop_per_s": 64 * 2 * small.size / _median_seconds(multiply_add, seconds) / 1e9,
    }


def _median_seconds(work: Callable[[], None], seconds: float) -> float:
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def drift(before: dict[str, float], after: dict[str, float]) -> float:
    """The largest relative change between two probes; above 0.1 the measurement should be repeated."""
    return max(abs(after[key] / before[key] - 1) for key in before)
