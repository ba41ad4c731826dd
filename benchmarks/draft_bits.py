"""What a draft held in fewer bits costs and gives: its pass, what it gets right, the speed-up that follows.

    python benchmarks/draft_bits.py [--limit N] [--temps 0,0.7]

The texts are those of replay.py, which the Qwen target wrote. The 0.5B is held as in its file and in each of
the quantizations for drafts, all in turns. "Right" is the share of a text's tokens that the draft draws, with
the target's noise, behind the text so far. The speed-up is of drafts of the best fixed length for each text,
from these tokens, the pass measured here and what replay.py says of the target's. Writes
results/draft_bits.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from outrider.bench import stats, workloads
from outrider.bench.cost_curve import aligned
from outrider.cli.demo import present_pair
from outrider.config.quantization import LIGHT_QUANTIZATIONS
from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import IntArray
from outrider.drafters.vocab_subset import VocabSubset, frequent_blocks
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeModel
from outrider.models.open import open_model
from outrider.models.quantization import quantized
from outrider.policy.cost_model import CostCurve
from replay import COSTS, RESULTS, Text, add_text_options, curve, text_settings, texts_of

CHUNK = 64  # tokens of a pass over a text
LONGEST = 8  # tokens of a draft
ROUNDS = 60
SHOWN = ("right", "speed-up")


@dataclass(frozen=True, slots=True)
class Cell:
    """Of a workload and temperature: the share of tokens that are right, and the speed-up, over its texts."""

    workload: str
    temperature: float
    right: float
    speedup: float


def blocks_of(model: NativeModel, ids: Sequence[int]) -> IntArray | None:
    """The part of the vocabulary that a draft of these tokens' text computes; None for all."""
    always = frequent_blocks(model)
    if always is None:
        return None
    return np.flatnonzero(VocabSubset(model, always, ids).blocks).astype(np.int32)


def forward(model: NativeModel, item: ForwardItem, blocks: IntArray | None) -> np.ndarray:
    (rows,) = model.forward([item]) if blocks is None else model.forward_subset([item], blocks)
    return rows


def right(model: NativeModel, text: Text) -> list[bool]:
    """For each token of the output, whether the draft draws it behind those before."""
    ids = [*text.prompt, *text.output]
    first = len(text.prompt)
    blocks = blocks_of(model, ids)
    params = SamplingParams(temperature=text.temperature)
    sampler = Sampler(params, model.vocab_size, seed=text.seed)
    cache = model.new_cache(len(ids))
    found: list[bool] = []
    for at in range(0, len(ids) - 1, CHUNK):
        fed = np.array(ids[at : min(at + CHUNK, len(ids) - 1)], np.int32)
        wanted = np.arange(max(0, first - 1 - at), len(fed), dtype=np.int32)
        rows = forward(
            model, ForwardItem(cache, fed, np.arange(-1, len(fed) - 1, dtype=np.int32), wanted), blocks
        )
        for row, place in zip(rows, wanted.tolist(), strict=True):
            after = at + place + 1
            found.append(sampler.token(row, TokenContext(ids[:after])) == ids[after])
    cache.close()
    return found


def speedup(hits: Sequence[bool], target: CostCurve, draft_seconds: float) -> float:
    """Over plain decoding, of drafts of the best fixed length; 1 where none pays."""
    best = 1.0
    for length in range(1, LONGEST + 1):
        at, seconds = 0, 0.0
        while at < len(hits):
            drafted = min(length, len(hits) - at)
            seconds += target.seconds(drafted + 1) + drafted * draft_seconds
            wrong = (i for i, hit in enumerate(hits[at : at + drafted]) if not hit)
            at += next(wrong, drafted) + 1
        best = max(best, len(hits) * target.seconds(1) / seconds)
    return best


def judged(model: NativeModel, texts: Sequence[Text], target: CostCurve, draft_seconds: float) -> Cell:
    """What the draft makes of one workload's texts of one temperature."""
    hits = [right(model, text) for text in texts]
    return Cell(
        texts[0].workload,
        texts[0].temperature,
        float(np.mean([np.mean(h) for h in hits])),
        stats.geomean(speedup(h, target, draft_seconds) for h in hits),
    )


def pass_seconds(models: Mapping[str, NativeModel], text: Text) -> dict[str, float]:
    """Of a pass over one token behind the prompt: medians of rounds over all models."""
    times: dict[str, list[float]] = {name: [] for name in models}
    caches = {name: model.new_cache(len(text.prompt) + 1) for name, model in models.items()}
    ids = np.array(text.prompt, np.int32)
    one, top, row = (np.array([i], np.int32) for i in (ids[0], -1, 0))
    blocks = {name: blocks_of(model, text.prompt) for name, model in models.items()}
    for name, model in models.items():
        above = np.arange(-1, len(ids) - 1, dtype=np.int32)
        model.forward([ForwardItem(caches[name], ids, above, row[:0])])
    for _ in range(ROUNDS):
        for name, model in models.items():
            start = time.perf_counter()
            forward(model, ForwardItem(caches[name], one, top, row), blocks[name])
            times[name].append(time.perf_counter() - start)
            caches[name].truncate(len(ids))
    return {name: stats.median(t) for name, t in times.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_text_options(parser)
    parser.add_argument("--json", type=Path, default=RESULTS / "draft_bits.json")
    args = parser.parse_args()
    args.workloads = list(workloads.BUILT_IN)
    return args


def main() -> int:
    args = arguments()
    if (pair := present_pair()) is None:
        print("needs the Qwen pair: outrider pull qwen-coder-1.5b qwen-coder-0.5b", file=sys.stderr)
        return 1
    target, draft = map(str, pair)
    texts = texts_of(args.texts, target, args)
    source = open_model(Path(draft))
    held = {"stored": source, **{name: quantized(source, name) for name in LIGHT_QUANTIZATIONS}}
    models = {name: NativeModel.load(model) for name, model in held.items()}
    seconds = pass_seconds(models, texts[0])
    passes = curve(COSTS["target"])
    cells = {
        name: [
            judged(model, [t for t in texts if (t.workload, t.temperature) == place], passes, seconds[name])
            for place in product(args.workloads, args.temps)
        ]
        for name, model in models.items()
    }
    lines = [["weights", "MB", "pass, ms", *(f"T {t:g}: {what}" for t in args.temps for what in SHOWN)]]
    for name, model in models.items():
        line = [name, f"{model.weights_bytes / 1e6:.0f}", f"{seconds[name] * 1e3:.1f}"]
        for temperature in args.temps:
            mine = [cell for cell in cells[name] if cell.temperature == temperature]
            line += [
                f"{np.mean([cell.right for cell in mine]):.3f}",
                f"{stats.geomean(cell.speedup for cell in mine):.2f}",
            ]
        lines.append(line)
    found = {
        name: {
            "weights_bytes": model.weights_bytes,
            "pass_ms": seconds[name] * 1e3,
            "cells": [asdict(cell) for cell in cells[name]],
        }
        for name, model in models.items()
    }
    args.json.write_text(json.dumps({**text_settings(args), "held": found}, indent=1) + "\n", "utf-8")
    print(aligned(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
