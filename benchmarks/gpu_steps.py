"""Times a step of the target on a GPU, with tokens drawn on the device or by the host's sampler.

    PYTHONPATH=src python benchmarks/gpu_steps.py [--tiny] [--json FILE]

A step is what the loop does after drafting: `StepEngine.score` over a draft of 5 tokens of each sequence, the
rule `coupled`, `commit`. The drafts are what the model itself writes, so that all are accepted and the host
draws as many tokens as it ever does. The model is Llama-3.1-8B in bfloat16 with random weights, after 512
tokens. Times are medians in milliseconds. Both ways must keep the same tokens; the number of sequences where
they do not is told. `--tiny` runs a tiny model anywhere, in the interpreter too (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

import gpu  # isort: skip (beside this file; it makes the models)

from outrider.decoding.context import TokenContext
from outrider.decoding.drawing import row_draws
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import RowSampler, Sampler
from outrider.decoding.types import Draft, Verdict
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.device_memory import PATH
from outrider.engines.base import SeqHandle
from outrider.engines.step import CachedStepEngine
from outrider.engines.torch.choice import choose_ops
from outrider.engines.torch.model import TorchModel
from outrider.engines.torch.weights import random_weights

PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "T=0.7": SamplingParams(temperature=0.7),
    "T=0.7 top_k=20 top_p=0.8": SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
}
K = 5


def native_rows() -> RowSampler | None:
    """The compiled sampler, if it is there."""
    try:
        from outrider.engines.native.sampling import row_sampler
    except ImportError:
        return None
    return row_sampler()


class Sequences:
    """Open sequences, and the draft of each that will be accepted."""

    def __init__(self, model: TorchModel, batch: int, context: int, params: SamplingParams) -> None:
        self.engine = CachedStepEngine(model)
        rows, size = native_rows(), model.vocab_size
        prompts = [gpu.ids(context, size, seed) for seed in range(batch)]
        self.contexts = [TokenContext(prompt) for prompt in prompts]
        self.samplers = [Sampler(params, size, seed=seed, rows=rows) for seed in range(batch)]
        self.seqs = [self.engine.open(prompt, context + K + 2) for prompt in prompts]
        for seq in self.seqs:
            self.engine.prefill(seq, context)
        self.drafts = [Draft.empty()] * batch
        for k in range(1, K + 1):  # greedy growth: the tokens of the last step are the draft of the next
            kept = self.step(drawn=False)
            self.drafts = [
                Draft.chain([*draft.tokens.tolist(), verdict.next_token], "own")
                for draft, verdict in zip(self.drafts, kept, strict=True)
            ]
            assert len(self.drafts[0]) == k

    def step(self, *, drawn: bool) -> list[Verdict]:
        """One step, which is taken back."""
        pairs: list[tuple[SeqHandle, Draft]] = list(zip(self.seqs, self.drafts, strict=True))
        each = zip(self.samplers, self.contexts, self.drafts, strict=True)
        draws = [row_draws(*one) for one in each] if drawn else []
        scores = self.engine.score(pairs, (), draws)
        rule, verdicts = CoupledVerifier(), []
        for score, sampler, context, draft in zip(
            scores, self.samplers, self.contexts, self.drafts, strict=True
        ):
            verdicts.append(rule.verify(draft, score, sampler, context))
        for seq in self.seqs:
            seq.cache.truncate(seq.committed)
        return verdicts

    def milliseconds(self, rounds: int, *, drawn: bool) -> tuple[float, list[Verdict]]:
        times, verdicts = [], []
        for _ in range(rounds + 2):
            began = time.perf_counter()
            verdicts = self.step(drawn=drawn)
            times.append(1e3 * (time.perf_counter() - began))
        return statistics.median(times[2:]), verdicts

    def close(self) -> None:
        for seq in self.seqs:
            self.engine.close(seq)


def measure(device: torch.device, tiny: bool) -> dict[str, Any]:
    spec = gpu.TINY if tiny else gpu.TARGET
    dtype, context = (torch.float32, 20) if tiny else (torch.bfloat16, 512)
    weights = random_weights(spec, device, dtype, tied=False, seed=1)
    operations = choose_ops(device, 2048 + PATH, strict=True)
    model = TorchModel(
        spec, weights, ops=operations, strict=True, positions=2048, slots=lambda _: 40960, draws=True
    )
    rounds, found = (1 if tiny else 20), {}
    print(f"{spec.name}; ms of a step over {K} draft tokens of each of b sequences: host, device")
    for batch in (2,) if tiny else (1, 4, 16, 32):
        for name, params in PARAMS.items():
            sequences = Sequences(model, batch, context, params)
            host, wanted = sequences.milliseconds(rounds, drawn=False)
            drawn, kept = sequences.milliseconds(rounds, drawn=True)
            sequences.close()
            differ = sum(a != b for a, b in zip(wanted, kept, strict=True))
            accepted = sum(len(verdict.path) for verdict in kept) / (batch * K)
            found[f"{batch} {name}"] = {
                "host": host, "device": drawn, "differing": differ, "accepted": accepted
            }  # fmt: skip
            print(f"  b={batch:2} {name}: {host:.2f}, {drawn:.2f}; {differ} differ, {accepted:.0%} accepted")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return gpu.tiny_or_cuda(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
