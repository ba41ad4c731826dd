"""Measures the cost curve T(n), the time of a forward pass over n tokens, of Outrider and of peers.

    python benchmarks/cost_curve.py -m MODEL.gguf [--peer llama.cpp=PYTHON] [--peer ik_llama.cpp=PYTHON]
    python benchmarks/cost_curve.py --synthetic llama-3.1-8b:q4_k_m --peer …

Each engine runs in its own process, and their passes are interleaved, so that other load slows all of them
alike. A peer is given as a Python interpreter that has its package: llama-cpp-py-sync for llama.cpp,
ik-llama-cpp-python for ik_llama.cpp. --synthetic writes a GGUF file of random weights in the shapes and
types of a model for all engines, and deletes it at the end. The columns GB/s and GMAC/s are Outrider's:
weights read, and multiplications done, over time. The floor is the time to read the weights once at the
bandwidth measured in this run. `outrider bench --cost-curve` measures Outrider alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_process import EngineProcess
from outrider.bench.cost_curve import WIDTHS, aligned, floor_line, floor_ms, gb_per_s, gmac_per_s
from outrider.bench.machine import describe, drift, probe
from outrider.plan.shapes import shape_source
from start_up import write_model

HERE = Path(__file__).parent


def started(name: str, python: str, args: argparse.Namespace) -> EngineProcess:
    """Start an engine, which answers a width with the milliseconds of one pass."""
    command = [python, str(HERE / "cost_curve_worker.py"), name, str(args.model)]
    return EngineProcess(name, [*command, str(args.context), str(args.threads)])


def measure(
    workers: list[EngineProcess], widths: list[int], rounds: int, rest: float
) -> dict[str, dict[int, float]]:
    """Median milliseconds by engine and width, measured with the engines interleaved."""
    times: dict[str, dict[int, list[float]]] = {w.name: {n: [] for n in widths} for w in workers}
    for _ in range(rounds):
        for n in widths:
            for worker in workers:
                times[worker.name][n].append(float(worker.ask(n)))
                time.sleep(rest)
    return {name: {n: statistics.median(t) for n, t in by_n.items()} for name, by_n in times.items()}


def table(result: dict[str, Any]) -> str:
    """One line for each width: ms of each engine, Outrider's ratios to the best peer and to its own T(1), and
    its GB/s and GMAC/s. Then, for each engine, the ratios T(n)/T(1)."""
    curves, weights, macs = result["cost_curve_ms"], result["weights_bytes"], result["macs_per_token"]
    peers = [curve for name, curve in curves.items() if name != "outrider"]
    header = ["tokens", *curves, *(["/ best peer"] if peers else []), "T(n)/T(1)", "GB/s", "GMAC/s"]
    lines = []
    for width in map(str, result["widths"]):
        own = curves["outrider"][width]
        lines.append(
            [
                width,
                *(f"{curve[width]:.1f}" for curve in curves.values()),
                *([f"{own / min(peer[width] for peer in peers):.2f}"] if peers else []),
                f"{own / curves['outrider']['1']:.2f}" if "1" in curves["outrider"] else "",
                f"{gb_per_s(weights, own):.1f}",
                f"{gmac_per_s(macs, int(width), own):.0f}",
            ]
        )
    ratios = [
        f"{name}: "
        + ", ".join(f"T({n})/T(1) {curve[n] / curve['1']:.2f}" for n in ("4", "8", "16") if n in curve)
        for name, curve in curves.items()
        if "1" in curve
    ]
    return "\n".join(
        [aligned([header, *lines]), "", *ratios, floor_line(result, curves["outrider"].get("1"))]
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Plot milliseconds by tokens for each engine, and the floor. Needs matplotlib (the extra `plots`)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in result["cost_curve_ms"].items():
        own = name == "outrider"
        widths = [int(n) for n in curve]
        axes.plot(
            widths, list(curve.values()), marker="o", markersize=4, linewidth=2.5 if own else 1.5, label=name
        )
    axes.axhline(result["floor_ms"], linestyle="--", color="gray", label="memory floor")
    axes.set(xlabel="tokens in a pass", ylabel="ms", title=f"{result['model']}, context {result['context']}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-m", "--model", type=Path)
    what.add_argument("--synthetic", metavar="NAME", help="shapes, as of outrider bench --synthetic")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--prefill", type=int, metavar="N", help="also time the prefill of a prompt of N tokens, up to 1024"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--widths", type=lambda s: [int(n) for n in s.split(",")], default=list(WIDTHS))
    parser.add_argument(
        "--rest", type=float, default=0.02, help="seconds between passes, as threads of peers keep spinning"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="a picture, .png or .svg (needs matplotlib)"
    )
    args = parser.parse_args()
    if args.synthetic is None:
        run(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.model = Path(folder) / f"{args.synthetic.replace(':', '-')}.gguf"
        write_model(args.model, shape_source(args.synthetic))
        run(args)


def run(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    peers = dict(peer.split("=", 1) for peer in args.peer)
    workers = [started(name, python, args) for name, python in {"outrider": sys.executable, **peers}.items()]
    before = probe()
    curves = measure(workers, args.widths, args.rounds, args.rest)
    prefill = measure(workers, [-args.prefill], 3, args.rest) if args.prefill else {}
    after = probe()
    for worker in workers:
        worker.close()
    info = workers[0].info
    bandwidth = info["read_gb_per_s"]
    floor = floor_ms(info["weights_bytes"], bandwidth)
    result = {
        "model": args.model.name if args.synthetic is None else f"{args.synthetic}, random weights",
        "context": args.context,
        "threads": args.threads,
        "isa": info["isa"],
        "packages": {worker.name: worker.info["package"] for worker in workers[1:]},
        "widths": args.widths,
        "cost_curve_ms": {name: {str(n): t for n, t in curve.items()} for name, curve in curves.items()},
        "prefill_tokens": args.prefill,
        "prefill_ms": {name: times[-args.prefill] for name, times in prefill.items()},
        "weights_bytes": info["weights_bytes"],
        "macs_per_token": info["macs_per_token"],
        "read_gb_per_s": bandwidth,
        "floor_ms": floor,
        "share_of_floor": floor / curves["outrider"][args.widths[0]],
        "machine": describe(args.threads),
        "probe": [before, after],
    }
    print(table(result))
    if prefill:
        each = ", ".join(f"{name} {ms:.0f}" for name, ms in result["prefill_ms"].items())
        print(f"prefill of {args.prefill} tokens, ms: {each}")
    print(f"machine drift during the run: {drift(before, after):.0%}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
