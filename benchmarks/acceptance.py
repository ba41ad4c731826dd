"""How much of a draft each rule keeps: coupled, rejection and block, from cold to hot.

    python benchmarks/acceptance.py [--temps T,…] [--limit N] [-n N] [--draft N] [--docs]

Generates with the Qwen pair (from the cache, or the folder OUTRIDER_DEV_MODELS) on the built-in workloads,
from the whole vocabulary, once for each rule and temperature; all with the same prompts and seeds. The rules
write different texts, some easier than others, so the rules are also compared on the very same drafts, those
of the runs under `rejection`: what each can expect of them, from the two models' probabilities.

Writes benchmarks/results/acceptance.json and prints the tables; --docs also puts them into docs/exactness.md
between its markers. What is accepted does not depend on the machine's load, and comes out the same again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outrider.bench import machine, report, workloads
from outrider.bench.runner import prompt_of
from outrider.cli.demo import present_pair
from outrider.config.engine import EngineConfig
from outrider.config.speculative import VERIFICATIONS, DraftModelConfig
from outrider.decoding.context import TokenContext
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict
from outrider.decoding.verifiers.distributions import positive_excess, ratio
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.llm import LLM
from outrider.outputs import merge
from outrider.pipeline import build_all

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "acceptance.json"
DOCUMENT = HERE.parent / "docs" / "exactness.md"
BEGIN, END = report.markers("acceptance")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--temps", default="0.2,0.5,0.8,1.0,1.2,1.5", help="temperatures")
    parser.add_argument("--limit", type=int, default=2, help="prompts of each workload")
    parser.add_argument("-n", type=int, default=64, help="tokens of each generation")
    parser.add_argument("--draft", type=int, default=5, help="draft tokens of a step")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/exactness.md")
    args = parser.parse_args()
    pair = present_pair()
    if pair is None:
        print("needs the Qwen pair: outrider pull qwen-coder-1.5b qwen-coder-0.5b", file=sys.stderr)
        return 2
    temperatures = [float(t) for t in args.temps.split(",")]
    document = measure(pair, temperatures, args.limit, args.n, args.draft)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    tables = rendered(document)
    print(tables)
    if args.docs:
        DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), tables), "utf-8")
    return 0


def measure(
    pair: tuple[Path, Path], temperatures: Sequence[float], limit: int, tokens: int, length: int
) -> dict[str, Any]:
    """The document: settings; one cell for each rule and temperature; expectations for each temperature."""
    target, draft = map(str, pair)
    choices = [DraftModelConfig(draft, length, verification=rule) for rule in VERIFICATIONS]
    pipelines = build_all(EngineConfig(target, max_num_seqs=4, max_model_len=1024), choices)
    items = [item for name in workloads.BUILT_IN for item in workloads.load(name)[:limit]]
    prompts = [prompt_of(pipelines[0], item.prompt, raw=False) for item in items]
    cells, expected = [], []
    for temperature in temperatures:
        watching = Watching()
        for pipeline in pipelines:
            rule = pipeline.verifier.name
            print(f"temperature {temperature:g}, {rule}", file=sys.stderr)
            params = [
                SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True)
                for seed in range(len(prompts))
            ]
            run = pipeline
            if rule == "rejection":
                run = replace(pipeline, drafting=replace(pipeline.drafting, verifier=watching))
            outputs = LLM.from_pipeline(run, shared=False).generate(prompts, params)
            total = merge([output.outputs[0].metrics for output in outputs])
            cells.append({"verification": rule, "temperature": temperature, **summary(total)})
        expected.append({"temperature": temperature, **watching.summary()})
    return {
        "machine": machine.describe(),
        "models": pipelines[0].models,
        "settings": {
            "num_speculative_tokens": length,
            "max_tokens": tokens,
            "prompts": [item.id for item in items],
            "top_p": 1.0,
            "top_k": 0,
        },
        "cells": cells,
        "expected": expected,
    }


class Watching(RejectionVerifier):
    """Judges by `rejection`, and notes what each rule could expect of the drafts that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[dict[str, float]] = []

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        if len(draft):
            rows = [sampler.distribution(scores.logits[0], context)]
            at = context
            for row, token in zip(scores.logits[1:], draft.tokens.tolist(), strict=True):
                at = at.then(token)
                rows.append(sampler.distribution(row, at))
            self.notes.append(expectations(draft, rows))
        return super().verify(draft, scores, sampler, context)

    def summary(self) -> dict[str, Any]:
        """Means, and the standard error of the mean of what `block` gains over `rejection`."""
        gains = np.array([note["block"] - note["rejection"] for note in self.notes])
        means = {name: float(np.mean([note[name] for note in self.notes])) for name in self.notes[0]}
        return {"num_drafts": len(gains), **means, "gain_error": float(gains.std() / len(gains) ** 0.5)}


def expectations(draft: Draft, rows: Sequence[Distribution]) -> dict[str, float]:
    """Of a drawn chain and the target's distributions before and after its tokens:

    first_rejection, first_coupled: chance that a first token, drawn anew, is accepted (`block` as
                                    `rejection`).
    rejection, block:               how many tokens of this chain are accepted on average.
    """
    sure = weight = 1.0
    rejection = 0.0
    shares = []  # `block`'s chance for each prefix
    for i, (token, target) in enumerate(zip(draft.tokens.tolist(), rows[:-1], strict=True)):
        drawn_from = draft.distribution(i)
        if i:
            surplus = float(positive_excess(target, drawn_from, weight).sum())
            shares.append(surplus / (surplus + (1.0 - weight)) if surplus > 0.0 else 0.0)
        sure *= min(1.0, ratio(target, drawn_from, token))
        rejection += sure
        weight = min(1.0, weight * ratio(target, drawn_from, token))
    refused = np.cumprod(1.0 - np.array([weight, *reversed(shares)]))  # all of the longest 1, 2, … prefixes
    overlap, coupled = first_token(rows[0], draft.distribution(0))
    return {
        "first_rejection": overlap,
        "first_coupled": coupled,
        "rejection": rejection,
        "block": float((1.0 - refused).sum()),
    }


def first_token(target: Distribution, draft: Distribution) -> tuple[float, float]:
    """(sum of min(p, q), sum over x of 1 / sum over y of max(p(y) / p(x), q(y) / q(x))): the chances that
    `rejection` and `coupled` accept a token."""
    ids = np.union1d(target.ids, draft.ids)
    p, q = np.zeros(len(ids)), np.zeros(len(ids))
    p[ids.searchsorted(target.ids)] = target.probs
    q[ids.searchsorted(draft.ids)] = draft.probs
    overlap = float(np.minimum(p, q).sum())
    # By descending p / q: in the sum for x, those before it give p(y) / p(x) and those after it q(y) / q(x).
    order = np.argsort(np.arctan2(q, p), kind="stable")
    p, q = p[order], q[order]
    both = (p > 0.0) & (q > 0.0)
    before, after = np.cumsum(p)[both], (q.sum() - np.cumsum(q))[both]
    coupled = float((1.0 / (before / p[both] + np.maximum(after, 0.0) / q[both])).sum())
    return overlap, coupled


def summary(metrics: RequestMetrics) -> dict[str, Any]:
    """Counts, rates, and the standard error of the mean acceptance length, drafts taken as independent."""
    counts, drafts = metrics.to_dict(), metrics.drafts.num_drafts
    mean = metrics.drafts.num_accepted_tokens / drafts
    square = sum((2 * depth - 1) * count for depth, count in metrics.accepted_at.items()) / drafts
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate")
    return {
        **{name: counts[name] for name in (*names, "mean_acceptance_length")},
        "standard_error": ((square - mean**2) / drafts) ** 0.5,
    }


def rendered(document: Mapping[str, Any]) -> str:
    """The tables in Markdown: a row for each temperature."""
    return "\n\n".join([_measured(document), _expected(document)])


def _measured(document: Mapping[str, Any]) -> str:
    cells = {(c["temperature"], c["verification"]): c for c in document["cells"]}
    temperatures = list(dict.fromkeys(t for t, _ in cells))
    rules = list(dict.fromkeys(rule for _, rule in cells))
    rows = [["temperature", *rules]]
    for t in temperatures:
        row = [
            f"{c['acceptance_rate']:.2f}, {c['mean_acceptance_length']:.2f} ± {c['standard_error']:.2f}"
            for c in (cells[t, rule] for rule in rules)
        ]
        rows.append([f"{t:g}", *row])
    s, models = document["settings"], document["models"]
    drafts = [c["num_drafts"] for c in document["cells"]]
    about = (
        f"Acceptance rate, and mean acceptance length with its standard error: {models['target']} with "
        f"{models['draft']}, up to {s['num_speculative_tokens']} draft tokens, {len(s['prompts'])} prompts "
        f"× {s['max_tokens']} tokens, the whole vocabulary (no top_p, no top_k), {min(drafts)} to "
        f"{max(drafts)} drafts a cell. Written by `benchmarks/acceptance.py`; the numbers lie in "
        "`benchmarks/results/`. The rules write different texts, some easier than others: what lies between "
        "two rules of a row is in part the texts'."
    )
    return f"{about}\n\n{report.markdown_table(rows)}"


def _expected(document: Mapping[str, Any]) -> str:
    about = (
        "On the same drafts, those of the runs under `rejection`: the chance that a first token is accepted, "
        "and the mean acceptance length to expect of the whole draft, with the standard error of the "
        "difference."
    )
    heads = ("first token: coupled", "rejection, block", "draft: rejection", "block", "difference")
    rows = [["temperature", *heads]]
    for e in document["expected"]:
        gain = e["block"] - e["rejection"]
        means = (e["first_coupled"], e["first_rejection"], 1 + e["rejection"], 1 + e["block"])
        rows.append(
            [f"{e['temperature']:g}", *(f"{m:.3f}" for m in means), f"{gain:.3f} ± {e['gain_error']:.3f}"]
        )
    return f"{about}\n\n{report.markdown_table(rows)}"


def replaced(text: str, table: str) -> str:
    """`text` with what is between the markers replaced. Raises SystemExit when it has no markers."""
    return report.put_between(text, BEGIN, END, table, DOCUMENT.name)


if __name__ == "__main__":
    sys.exit(main())
