"""Keys and values in 8 bits against binary16: what a token costs after long contexts, what the logits lose.

    python benchmarks/kv_quantization.py [--contexts 256,8192] [--tokens 2048] [MODEL …]

Each model is loaded with either cache, and their passes over one token are interleaved: medians of
milliseconds, with the ratio to the shortest context and to binary16. Quality is told on the text of this
repository's documents: the perplexity with each type (of the tokens after the first 64), and against keys and
values in float32 how often the likeliest token is the same, and the mean Kullback-Leibler divergence in nats.
Writes results/kv_quantization.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from outrider import memory
from outrider.bench.cost_curve import aligned
from outrider.bench.machine import describe, drift, probe
from outrider.decoding.types import FloatArray
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeCache, NativeModel
from outrider.models.open import open_model
from outrider.models.quantization import with_kv_type
from outrider.models.sources.references import resolve
from outrider.models.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
RESULT = HERE / "results" / "kv_quantization.json"
TYPES = ("f16", "q8_0")
CHUNK = 256  # tokens of a pass of prefill
BLOCK = 16  # positions of a block of a cache
SKIPPED = 64  # tokens whose predictions are not counted: they have hardly a context


def item(cache: NativeCache, tokens: list[int], rows: int) -> ForwardItem:
    n = len(tokens)
    wanted = np.arange(n - rows, n, dtype=np.int32)
    return ForwardItem(cache, np.array(tokens, np.int32), np.arange(-1, n - 1, dtype=np.int32), wanted)


def filled(model: NativeModel, length: int) -> NativeCache:
    """A cache with so many positions, and room for one. Behind the first positions are copies of one block,
    in memory of their own, as a token is computed in each: that is quicker than reading a long prompt."""
    cache = model.new_cache(length + 1)
    tokens = [int(i) for i in (7919 * np.arange(1, CHUNK + 1)) % model.vocab_size]
    model.forward([item(cache, tokens[: min(length, CHUNK)], 0)])
    while cache.length < length:
        cache.adopt(cache.share(CHUNK - BLOCK, CHUNK))
        cache.truncate(cache.length - 1)
        model.forward([item(cache, tokens[:1], 0)])
    return cache


def times(models: dict[str, NativeModel], contexts: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of a pass over one token, by type and context, interleaved."""
    caches = {(kind, n): filled(model, n) for kind, model in models.items() for n in contexts}
    found: dict[tuple[str, int], list[float]] = {key: [] for key in caches}
    for _ in range(rounds):
        for (kind, n), cache in caches.items():
            began = time.perf_counter()
            models[kind].forward([item(cache, [5], 1)])
            found[kind, n].append(time.perf_counter() - began)
            cache.truncate(n)
    return {kind: {str(n): statistics.median(found[kind, n]) * 1e3 for n in contexts} for kind in models}


def log_probs(model: NativeModel, cache: NativeCache, tokens: list[int]) -> FloatArray:
    """float32[tokens, vocab], of what follows each token."""
    (rows,) = model.forward([item(cache, tokens, len(tokens))])
    rows = rows - rows.max(1, keepdims=True)
    return np.asarray(rows - np.log(np.exp(rows).sum(1, keepdims=True)))


def quality(models: dict[str, NativeModel], tokens: list[int]) -> dict[str, Any]:
    """Of each type, the first of which is what the others are compared with."""
    caches = {kind: model.new_cache(len(tokens)) for kind, model in models.items()}
    surprise: dict[str, list[float]] = {kind: [] for kind in models}
    same: dict[str, list[bool]] = {kind: [] for kind in models}
    divergence: dict[str, list[float]] = {kind: [] for kind in models}
    for first in range(0, len(tokens) - 1, CHUNK):
        part, following = tokens[first : first + CHUNK], tokens[first + 1 : first + CHUNK + 1]
        wanted: FloatArray | None = None
        for kind, model in models.items():
            given = log_probs(model, caches[kind], part)[: len(following)]
            wanted = given if wanted is None else wanted
            surprise[kind] += (-given[np.arange(len(following)), following]).tolist()
            same[kind] += (given.argmax(1) == wanted.argmax(1)).tolist()
            divergence[kind] += (np.exp(wanted) * (wanted - given)).sum(1).tolist()
    return {
        kind: {
            "tokens": len(surprise[kind]) - SKIPPED,
            "perplexity": float(np.exp(np.mean(surprise[kind][SKIPPED:]))),
            "same_likeliest": float(np.mean(same[kind][SKIPPED:])),
            "divergence": float(np.mean(divergence[kind][SKIPPED:])),
        }
        for kind in models
    }


def measured(reference: str, contexts: list[int], args: argparse.Namespace) -> dict[str, Any]:
    source = open_model(resolve(reference))
    held = {kind: with_kv_type(source, None if kind == "f16" else kind) for kind in TYPES}
    models = {kind: NativeModel.load(s, threads=args.threads) for kind, s in held.items()}
    found: dict[str, Any] = {
        "model": source.display_name,
        "isa": models["f16"].isa,
        "threads": models["f16"].threads,
        "weights_bytes": models["f16"].weights_bytes,
        "bytes_a_position": {kind: memory.kv_bytes(s.architecture, 16) // 16 for kind, s in held.items()},
    }
    before = probe()
    if args.rounds:
        found["ms"] = times(models, contexts, args.rounds)
    found["probe_drift"] = drift(before, probe())
    if args.tokens:
        text = "".join(path.read_text("utf-8") for path in sorted((HERE.parent / "docs").glob("*.md")))
        tokens = Tokenizer.from_data(source.tokenizer).encode(text)[: args.tokens]
        exact = NativeModel.load(source, threads=args.threads, kv_dtype="f32")
        found["quality"] = quality({"f32": exact, **models}, [int(token) for token in tokens])
    return found


def table(found: dict[str, Any]) -> str:
    lines = [f"{found['model']}, {found['isa']}, {found['threads']} threads; bytes a position: "
             f"{found['bytes_a_position']}; probe {found['probe_drift']:.0%}"]  # fmt: skip
    if "ms" in found:
        contexts = list(found["ms"]["f16"])
        rows = [
            [
                "context",
                *(f"{kind} ms" for kind in TYPES),
                *(f"{kind} / first" for kind in TYPES),
                "q8_0 / f16",
            ]
        ]
        for n in contexts:
            ms = {kind: found["ms"][kind][n] for kind in TYPES}
            first = {kind: found["ms"][kind][contexts[0]] for kind in TYPES}
            rows.append([n, *(f"{ms[kind]:.2f}" for kind in TYPES),
                         *(f"{ms[kind] / first[kind]:.3f}" for kind in TYPES),
                         f"{ms['q8_0'] / ms['f16']:.3f}"])  # fmt: skip
        lines.append(aligned(rows))
    if "quality" in found:
        rows = [["type", "perplexity", "same likeliest", "divergence"]]
        for kind in ("f32", *TYPES):
            q = found["quality"][kind]
            rows.append(
                [kind, f"{q['perplexity']:.4f}", f"{q['same_likeliest']:.2%}", f"{q['divergence']:.2e}"]
            )
        lines.append(aligned(rows))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["smollm2"], metavar="MODEL")
    parser.add_argument("--contexts", default="256,8192")
    parser.add_argument("--rounds", type=int, default=40, help="of the times; 0 leaves them out")
    parser.add_argument("--tokens", type=int, default=2048, help="of the text; 0 leaves the quality out")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    contexts = sorted(int(n) for n in args.contexts.split(","))
    result: dict[str, Any] = {"machine": describe(), "models": []}
    for reference in args.models:
        result["models"].append(measured(reference, contexts, args))
        print(table(result["models"][-1]), flush=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
