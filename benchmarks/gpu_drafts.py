"""Times drafts of a draft model on a GPU: on the device (`DeviceDraft`), or drawn by the host.

    PYTHONPATH=src python benchmarks/gpu_drafts.py [--tiny] [--json FILE]

The model is Llama-3.2-1B in bfloat16 with random weights, after 512 tokens. It needs torch, triton and numpy,
and no compiled module of Outrider. Times are medians in milliseconds, of a draft of k tokens for each of some
sequences. Both ways must draw the same tokens, as they make passes of the same shapes; where they do not, the
number of tokens that differ is told. `--tiny` runs a tiny model anywhere, in the interpreter too
(TRITON_INTERPRET=1).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

import gpu  # isort: skip (beside this file; it makes the models)

from outrider.decoding.sampling.params import SamplingParams
from outrider.device_memory import PATH
from outrider.engines.chains import ChainStart
from outrider.engines.torch.choice import choose_ops
from outrider.engines.torch.device_draft import DeviceDraft
from outrider.engines.torch.model import TorchModel
from outrider.engines.torch.weights import random_weights

PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "T=0.7": SamplingParams(temperature=0.7),
    "T=0.7 top_k=20 top_p=0.8": SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
}


class Case:
    """Drafts of k tokens after what caches hold now."""

    def __init__(self, model: TorchModel, caches: Sequence[Any], k: int, context: int) -> None:
        self.model, self.caches, self.k, self.context = model, caches, k, context
        self.draft = DeviceDraft(model)

    def on_device(self, params: SamplingParams) -> list[list[int]]:
        starts = [
            ChainStart(cache, [5], params, seed, self.context + 1, self.k)
            for seed, cache in enumerate(self.caches)
        ]
        return [chain.tokens for chain in self.draft.draft(starts)]

    def on_host(self) -> list[list[int]]:
        """Greedily."""
        drawn = [[5] for _ in self.caches]
        for _ in range(self.k):
            items = [gpu.item(cache, text[-1:]) for cache, text in zip(self.caches, drawn, strict=True)]
            for text, rows in zip(drawn, self.model.forward(items), strict=True):
                text.append(int(rows[0].argmax()))
        return [text[1:] for text in drawn]

    def milliseconds(self, run: Callable[[], list[list[int]]], rounds: int) -> tuple[float, list[list[int]]]:
        """(median, the tokens)."""
        times, tokens = [], []
        for _ in range(rounds + 2):
            for cache in self.caches:
                cache.truncate(self.context)
            begin = time.perf_counter()
            tokens = run()
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times[2:]), tokens


def measure(device: torch.device, tiny: bool) -> dict[str, Any]:
    spec = gpu.TINY if tiny else gpu.DRAFT
    dtype, context = (torch.float32, 20) if tiny else (torch.bfloat16, 512)
    weights = random_weights(spec, device, dtype, tied=True, seed=2)
    operations = choose_ops(device, 2048 + PATH, strict=False)
    model = TorchModel(spec, weights, ops=operations, positions=2048, slots=lambda model: 16384)
    rounds, found = (0 if tiny else 20), {}
    read = weights.nbytes / 1e9
    print(f"{spec.name}, {read:.2f} GB of weights; ms of a draft of k tokens for each of b sequences")
    for batch in (2,) if tiny else (1, 4, 16):
        caches = [gpu.filled(model, context, context + 40, seed) for seed in range(batch)]
        for k in (2,) if tiny else (1, 4, 8):
            case, row = Case(model, caches, k, context), {}
            host, expected = case.milliseconds(case.on_host, max(1, rounds // 2))
            row["host, greedy"] = host
            for name, params in PARAMS.items():
                row[name], tokens = case.milliseconds(partial(case.on_device, params), max(1, rounds))
                if name == "greedy":
                    pairs = zip(chain.from_iterable(tokens), chain.from_iterable(expected), strict=True)
                    row["differing tokens"] = sum(a != b for a, b in pairs)
            found[f"{batch} x {k}"] = row
            print(f"  b={batch:2} k={k}: " + ", ".join(f"{name} {x:.2f}" for name, x in row.items()))
        for cache in caches:
            cache.close()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return gpu.tiny_or_cuda(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
