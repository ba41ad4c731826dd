"""Measures how much other busy processes slow down a forward pass over one token.

    python benchmarks/contention.py -m MODEL.gguf [--busy 2] [--threads 2]

Prints the median and the 95th percentile of a pass with 0, 1, … busy processes on the machine. With as
many threads as processors, one other busy process can at best cost a factor of two.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeModel
from outrider.models.open import open_model


def passes(model: NativeModel, count: int) -> list[float]:
    """Milliseconds of `count` passes over one token, at an empty context."""
    cache = model.new_cache(16)
    item = ForwardItem(cache, *(np.array([i], np.int32) for i in (100, -1, 0)))
    times = []
    for _ in range(count):
        start = time.perf_counter()
        model.forward([item])
        times.append((time.perf_counter() - start) * 1e3)
        cache.truncate(0)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--busy", type=int, default=2, help="measure with up to this many busy processes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=60)
    args = parser.parse_args()
    model = NativeModel.load(open_model(args.model), threads=args.threads)
    passes(model, 5)
    alone = 0.0
    for busy in range(args.busy + 1):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            time.sleep(0.3)
            times = passes(model, args.passes)
        finally:
            for other in others:
                other.kill()
                other.wait()
        median, late = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        alone = alone or median
        print(
            f"{busy} busy: median {median:.1f} ms ({median / alone:.2f} x alone), 95th centile {late:.1f} ms"
        )


if __name__ == "__main__":
    main()
