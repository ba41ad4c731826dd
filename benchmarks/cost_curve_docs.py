"""Writes the cost curves measured by benchmarks/cost_curve.py into benchmarks/results/cost_curve.md.

    python benchmarks/cost_curve.py -m MODEL.gguf … --json benchmarks/results/cost_curve-NAME.json
    python benchmarks/cost_curve_docs.py

The tables are sorted by the models' sizes, the largest first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outrider.bench.cost_curve import gb_per_s, gmac_per_s
from outrider.bench.report import markdown_table, markers, put_into

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCUMENT = RESULTS / "cost_curve.md"
BEGIN, END = markers("cost_curve")


def main() -> None:
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("cost_curve-*.json"))]
    found.sort(key=lambda result: (-result["weights_bytes"], result["context"]))
    body = "\n\n".join([INTRODUCTION, *(section(result) for result in found)])
    put_into(DOCUMENT, BEGIN, END, body)


INTRODUCTION = (
    "Written by `benchmarks/cost_curve_docs.py` from `benchmarks/results/cost_curve-*.json`: milliseconds of "
    "a pass over n tokens with all their logits, medians, the engines pass by pass in turns. llama.cpp is "
    "the package llama-cpp-py-sync where no other is named, ik_llama.cpp is ik-llama-cpp-python with "
    "run-time repacking."
)


def section(result: dict[str, Any]) -> str:
    """One file as a paragraph and a table."""
    curves: dict[str, dict[str, float]] = result["cost_curve_ms"]
    own = curves["outrider"]
    peers = [curve for name, curve in curves.items() if name != "outrider"]
    before, after = result["probe"]
    lines = [
        f"**{result['model']}**, context {result['context']}, {result['threads']} threads, {result['isa']}, "
        f"{result['machine']['cpu']}. Weights {result['weights_bytes'] / 1e6:.0f} MB at "
        f"{result['read_gb_per_s']:.1f} GB/s: floor {result['floor_ms']:.1f} ms, of which T(1) reaches "
        f"{result['share_of_floor']:.0%}. Probe: {before['read_gb_per_s']:.1f} → "
        f"{after['read_gb_per_s']:.1f} GB/s." + _package(result),
        "",
    ]
    rows = [["n", *curves, *(["/ better peer"] if peers else []), "T(n)/T(1)", "GB/s", "GMAC/s"]]
    for width in map(str, result["widths"]):
        cells = [width, *(f"{curve[width]:.1f}" for curve in curves.values())]
        if peers:
            cells.append(f"{own[width] / min(peer[width] for peer in peers):.2f}")
        cells += [
            f"{own[width] / own['1']:.2f}",
            f"{gb_per_s(result['weights_bytes'], own[width]):.1f}",
            f"{gmac_per_s(result['macs_per_token'], int(width), own[width]):.0f}",
        ]
        rows.append(cells)
    lines.append(markdown_table(rows))
    if result.get("prefill_ms"):
        each = ", ".join(f"{name} {ms:.0f} ms" for name, ms in result["prefill_ms"].items())
        lines += ["", f"Prefill of {result['prefill_tokens']} tokens: {each}."]
    return "\n".join(lines)


def _package(result: dict[str, Any]) -> str:
    package = result.get("packages", {}).get("llama.cpp")
    return "" if package is None else f" llama.cpp is {package}."


if __name__ == "__main__":
    main()
