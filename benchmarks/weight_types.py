"""Measures passes over models of one weight type each: T(1) against the bytes that it reads, and T(8)/T(1).

    python benchmarks/weight_types.py [--types Q4_K,IQ4_XS,…] [--rounds 15] [--threads 2] [--mb 200] [--best]

The models are random: every matrix is of the type, and a few wide layers make about --mb MB as Q4_K, more
than the caches hold. The passes are interleaved, so that other load slows all types alike; --best takes the
fastest of the rounds, which load beside it touches least. The column
"T(1) by bytes" is T(1) over Q4_K's T(1), divided by the bytes read over those of Q4_K: 1 where only the bytes
count, more where unpacking takes longer than reading. The bytes are those of the packed weights, which for
IQ2, IQ3_XXS, IQ3_S and TQ1_0 are more than the file's (docs/kernels.md).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from tests.support.models import Dims, tiny_gguf

from outrider.bench.cost_curve import Passes, aligned
from outrider.bench.machine import drift, probe
from outrider.engines.native import NativeModel
from outrider.models.open import open_model
from outrider.models.weight_types import SUPPORTED_TYPES

BASE = "Q4_K"
WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 64


def dims(megabytes: int) -> Dims:
    """Layers of 12.6 million weights, 7 MB as Q4_K, so many as make `megabytes`."""
    return Dims(layers=max(1, megabytes // 7), hidden=1024, heads=16, kv_heads=8, ffn=3072, context=256)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    quantized = [name for name in SUPPORTED_TYPES if name not in ("F32", "F16", "BF16")]
    parser.add_argument("--types", type=lambda s: s.split(","), default=quantized)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--best", action="store_true", help="the fastest round, not the median")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    types = [BASE, *(name for name in args.types if name != BASE)]
    models: dict[str, NativeModel] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in types:  # mapped files may go once the weights are packed, but for the embedding's rows
            path = tiny_gguf(Path(folder) / f"{name}.gguf", types=name, dims=dims(args.mb))
            models[name] = NativeModel.load(open_model(path), threads=args.threads, isa=args.isa)
        passes = {name: Passes(model, CONTEXT, max(WIDTHS)) for name, model in models.items()}
        times: dict[str, dict[int, list[float]]] = {name: {n: [] for n in WIDTHS} for name in types}
        before = probe()
        for _ in range(args.rounds):
            for n in WIDTHS:
                for name in types:
                    times[name][n].append(passes[name].milliseconds(n))
        after = probe()
    middle = min if args.best else statistics.median
    ms = {name: {n: middle(t) for n, t in by_n.items()} for name, by_n in times.items()}
    lines = [["type", "MB", "T(1), ms", "T(1) by bytes", *(f"T({n})/T(1)" for n in WIDTHS[1:])]]
    for name in types:
        size = models[name].weights_bytes
        by_bytes = ms[name][1] / ms[BASE][1] * models[BASE].weights_bytes / size
        ratios = [f"{ms[name][n] / ms[name][1]:.2f}" for n in WIDTHS[1:]]
        lines.append([name, f"{size / 1e6:.0f}", f"{ms[name][1]:.2f}", f"{by_bytes:.2f}", *ratios])
    print(aligned(lines))
    print(f"{models[BASE].isa}, {args.threads} threads; machine drift: {drift(before, after):.0%}")
    if args.json:
        sizes = {name: model.weights_bytes for name, model in models.items()}
        result = {"isa": models[BASE].isa, "threads": args.threads, "weights_bytes": sizes, "ms": ms}
        args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
