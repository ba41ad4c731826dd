"""What sampling and verification cost beside a forward pass: NumPy, the specification, against C++.

    python benchmarks/sampling.py -m MODEL.gguf [--width 8] [--rounds 24] [--pass-ms MS] [--json FILE]

Each round runs one pass over `width` tokens of text and then verifies a draft that is accepted to its end, so
that every row of logits counts, once in C++ and once in NumPy: under `coupled` with several settings, and at
temperature 0.7 under the other rules too, for drafts that were looked up and for drawn ones, which state
their distributions. A draft that is refused at every length is the most work for `block`.
Microseconds are for one row: the median over the rounds, the mean and the least, of the thread's own time,
which other processes do not add to. The share is verification's of pass and verification together, by its
median and the least time of a pass; a draft model's passes would make it less. Where other processes keep a
pass from its speed, so that the share would look small, --pass-ms says what it takes on the idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from outrider.bench import workloads
from outrider.bench.machine import describe, drift, probe
from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import RowSampler, Sampler
from outrider.decoding.types import Draft, FloatArray, TargetScores
from outrider.decoding.verifiers.base import Verifier
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeCache, NativeModel
from outrider.engines.native.sampling import NativeRows
from outrider.models.open import open_model
from outrider.models.text.tokenizer import Tokenizer

SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0),
    "T=0.7": SamplingParams(temperature=0.7),
    "T=0.7 top_p=0.95": SamplingParams(temperature=0.7, top_p=0.95),
    "T=0.8 top_k=40 top_p=0.95 min_p=0.05": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "T=1 top_p=0.95": SamplingParams(temperature=1.0, top_p=0.95),
    "T=1.5": SamplingParams(temperature=1.5),
    "T=0.7 penalties": SamplingParams(temperature=0.7, repetition_penalty=1.1, presence_penalty=0.5),
}


class Agrees(StepRandomness):
    """Accepts whatever it is asked about."""

    def accepts(self, probability: float, node: int) -> bool:
        return True


class Refuses(StepRandomness):
    """Accepts nothing."""

    def accepts(self, probability: float, node: int) -> bool:
        return False


AT = "T=0.7"  # the setting for all rules
RULES: dict[str, tuple[Verifier, bool]] = {  # verifier, whether the draft states its distributions
    "coupled": (CoupledVerifier(), False),
    "rejection, looked up": (RejectionVerifier(Agrees), False),
    "rejection, drawn": (RejectionVerifier(Agrees), True),
    "block, looked up": (BlockVerifier(Agrees), False),
    "block, drawn": (BlockVerifier(Agrees), True),
    "block, looked up, refused": (BlockVerifier(Refuses), False),
    "block, drawn, refused": (BlockVerifier(Refuses), True),
}
KINDS = [(setting, "coupled") for setting in SETTINGS] + [(AT, rule) for rule in RULES if rule != "coupled"]
SAMPLERS: dict[str, RowSampler | None] = {"c++": NativeRows(), "numpy": None}


def text_ids(tokenizer: Tokenizer, size: int) -> list[int]:
    """The built-in prompts as one text: rows that no model has made easy for itself."""
    ids: list[int] = []
    for name in workloads.BUILT_IN:
        for item in workloads.load(name):
            ids += tokenizer.encode(item.prompt + "\n")
    if len(ids) < size:
        raise SystemExit(f"the built-in prompts have {len(ids)} tokens; {size} are needed")
    return ids[:size]


def forward(model: NativeModel, cache: NativeCache, ids: list[int], rows: bool) -> tuple[FloatArray, float]:
    """(logits, seconds) of one pass."""
    tokens = np.array(ids, np.int32)
    nodes = np.arange(len(ids), dtype=np.int32)
    start = time.perf_counter()
    logits = model.forward([ForwardItem(cache, tokens, nodes - 1, nodes if rows else nodes[:0])])[0]
    return logits, time.perf_counter() - start


def verified(logits: FloatArray, sampler: Sampler, context: TokenContext, rule: str) -> float:
    """Seconds to verify a draft of the tokens that the target draws."""
    verifier, stated = RULES[rule]
    draft, probs, at = [], [], context
    for row in logits[:-1]:
        draft.append(sampler.token(row, at))
        probs.append(sampler.distribution(row, at) if stated else None)
        at = at.then(draft[-1])
    chain, scores = Draft.chain(draft, "benchmark", tuple(probs)), TargetScores(logits)
    start = time.thread_time()
    verdict = verifier.verify(chain, scores, sampler, context)
    seconds = time.thread_time() - start
    assert len(verdict.path) == (0 if rule.endswith("refused") else len(draft))
    return seconds


def measure(model: NativeModel, tokenizer: Tokenizer, args: argparse.Namespace) -> dict[str, Any]:
    width, vocab = args.width, min(tokenizer.vocab_size, model.vocab_size)
    ids = text_ids(tokenizer, args.context + width * args.rounds)
    cache = model.new_cache(len(ids))
    forward(model, cache, ids[: args.context], rows=False)
    passes: list[float] = []
    taken: dict[tuple[str, str], dict[str, list[float]]] = {k: {name: [] for name in SAMPLERS} for k in KINDS}
    for start in range(args.context, len(ids), width):
        logits, seconds = forward(model, cache, ids[start : start + width], rows=True)
        passes.append(seconds)
        context = TokenContext(ids[: args.context])
        for token in ids[args.context : start + 1]:
            context.append(token)
        for setting, rule in KINDS:
            for name, rows in SAMPLERS.items():
                sampler = Sampler(SETTINGS[setting], vocab, seed=start, rows=rows)
                taken[setting, rule][name].append(verified(logits, sampler, context, rule))
    idle = min(passes) if args.pass_ms is None else args.pass_ms / 1e3
    return {
        "vocab_size": vocab,
        "share_of_pass_ms": idle * 1e3,
        "pass_ms": statistics.median(passes) * 1e3,
        "pass_least_ms": min(passes) * 1e3,
        "settings": {setting: summary(taken[setting, "coupled"], idle, width) for setting in SETTINGS},
        "rules": {f"{AT} {rule}": summary(taken[AT, rule], idle, width) for rule in RULES},
    }


def summary(taken: dict[str, list[float]], idle: float, width: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, seconds in taken.items():
        row[f"{name}_us"] = statistics.median(seconds) / width * 1e6
        row[f"{name}_mean_us"] = statistics.mean(seconds) / width * 1e6
        row[f"{name}_least_us"] = min(seconds) / width * 1e6
        median = statistics.median(seconds)
        row[f"{name}_share"] = median / (median + idle)
    return row


def table(result: dict[str, Any]) -> str:
    head = (
        "microseconds a row".ljust(38) + " c++ median (mean, least)        numpy   ratio    share c++   numpy"
    )
    lines = [head]
    for setting, row in (result["settings"] | result["rules"]).items():
        native = f"{row['c++_us']:.0f} ({row['c++_mean_us']:.0f}, {row['c++_least_us']:.0f})"
        lines.append(
            f"{setting:<38}{native:>25}{row['numpy_us']:>13.0f}{row['numpy_us'] / row['c++_us']:>8.1f}"
            f"{row['c++_share']:>13.2%}{row['numpy_share']:>8.1%}"
        )
    times = f"{result['pass_ms']:.1f} ms (least {result['pass_least_ms']:.1f})"
    times += f", shares of {result['share_of_pass_ms']:.1f}"
    lines.append(f"one pass over {result['width']} tokens: {times}; vocabulary {result['vocab_size']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--pass-ms", type=float)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    source = open_model(args.model)
    model = NativeModel.load(source, threads=args.threads)
    before = probe()
    result = measure(model, Tokenizer.from_data(source.tokenizer), args)
    after = probe()
    result |= {
        "model": args.model.name,
        "width": args.width,
        "rounds": args.rounds,
        "context": args.context,
        "isa": model.isa,
        "machine": describe(model.threads),
        "probe": [before, after],
        "load": os.getloadavg(),
    }
    print(table(result))
    print(f"machine drift during the run: {drift(before, after):.0%}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
