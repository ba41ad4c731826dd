"""What a forward pass over n tokens costs, T(n): Outrider, and peers beside it in the same run.

    python benchmarks/cost_curve.py -m MODEL.gguf [--peer llama.cpp=PYTHON] [--peer ik_llama.cpp=PYTHON]

Each engine runs in a process of its own and they take turns, pass by pass, so that a noisy neighbour slows
all of them alike. A peer is an interpreter that has its package: llama-cpp-py-sync for llama.cpp,
ik-llama-cpp-python for ik_llama.cpp. GB/s is weights read a pass over time; the floor is the time to read
them once at the bandwidth measured in this run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from outrider.bench.machine import describe, drift, probe

HERE = Path(__file__).parent
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


class Worker:
    """One engine in its own process: reads a width a line, answers the milliseconds of one pass."""

    def __init__(self, name: str, python: str, model: Path, context: int, threads: int) -> None:
        self.name = name
        script = HERE / "cost_curve_worker.py"
        self.process = subprocess.Popen(
            [python, str(script), name, str(model), str(context), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.info: dict[str, Any] = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} stopped with status {self.process.wait()}")
        return line

    def milliseconds(self, width: int) -> float:
        assert self.process.stdin is not None
        print(width, file=self.process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def measure(
    workers: list[Worker], widths: list[int], rounds: int, rest: float
) -> dict[str, dict[int, float]]:
    """Medians in ms by engine and width, the engines interleaved."""
    times: dict[str, dict[int, list[float]]] = {w.name: {n: [] for n in widths} for w in workers}
    for _ in range(rounds):
        for n in widths:
            for worker in workers:
                times[worker.name][n].append(worker.milliseconds(n))
                time.sleep(rest)
    return {name: {n: statistics.median(t) for n, t in by_n.items()} for name, by_n in times.items()}


def table(result: dict[str, Any]) -> str:
    widths = result["widths"]
    lines = ["engine".ljust(16) + "".join(f"{n:>8}" for n in widths) + "   T(4)/T(1)  T(8)/T(1)  T(16)/T(1)"]
    for name, curve in result["cost_curve_ms"].items():
        ratios = "".join(f"{curve[str(n)] / curve['1']:>11.2f}" for n in (4, 8, 16) if str(n) in curve)
        lines.append(name.ljust(16) + "".join(f"{curve[str(n)]:>8.1f}" for n in widths) + ratios)
    if "floor_ms" in result:
        lines.append(
            f"floor {result['floor_ms']:.1f} ms: {result['weights_bytes'] / 1e6:.0f} MB at "
            f"{result['read_gb_per_s']:.1f} GB/s; T(1) reaches {result['share_of_floor']:.0%} of it"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--widths", type=lambda s: [int(n) for n in s.split(",")], default=list(WIDTHS))
    parser.add_argument(
        "--rest", type=float, default=0.02, help="seconds between passes: peers' threads spin on"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in args.peer)
    workers = [
        Worker(name, python, args.model, args.context, args.threads)
        for name, python in {"outrider": sys.executable, **peers}.items()
    ]
    before = probe()
    curves = measure(workers, args.widths, args.rounds, args.rest)
    after = probe()
    for worker in workers:
        worker.close()
    info = workers[0].info
    bandwidth = info["read_gb_per_s"]
    floor = info["weights_bytes"] / bandwidth / 1e6
    result = {
        "model": args.model.name,
        "context": args.context,
        "threads": args.threads,
        "isa": info["isa"],
        "widths": args.widths,
        "cost_curve_ms": {name: {str(n): t for n, t in curve.items()} for name, curve in curves.items()},
        "weights_bytes": info["weights_bytes"],
        "read_gb_per_s": bandwidth,
        "floor_ms": floor,
        "share_of_floor": floor / curves["outrider"][args.widths[0]],
        "machine": describe(args.threads),
        "probe": [before, after],
    }
    print(table(result))
    print(f"machine drift during the run: {drift(before, after):.0%}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
