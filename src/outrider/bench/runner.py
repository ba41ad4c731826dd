"""Measure what drafters gain over plain decoding, and check that the tokens stay the same meanwhile.

The methods take turns on each prompt (A B C, then B C A, …), so that other load on the machine falls on
all of them. Seconds are those of decoding: from the end of the prompt's prefill, which is the same for
every method, to the last token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.bench import machine, stats
from outrider.bench.workloads import Item
from outrider.decoding.params import SamplingParams
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.engines.base import EngineCaps, SeqHandle, StepEngine
from outrider.llm import LLM
from outrider.outputs import RequestOutput, merge
from outrider.pipeline import Pipeline

BASELINE = "none"
UNSTEADY = 0.1  # a probe that moved by more than this casts doubt on what lies between
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One generation: its output and the seconds that decoding took."""

    output: RequestOutput
    seconds: float

    @property
    def token_ids(self) -> list[int]:
        return self.output.outputs[0].token_ids


class PrefillClock:
    """A StepEngine that passes everything on and adds up the seconds spent on prefill."""

    def __init__(self, inner: StepEngine) -> None:
        self._inner = inner
        self.seconds = 0.0

    @property
    def caps(self) -> EngineCaps:
        return self._inner.caps

    @property
    def vocab_size(self) -> int:
        return self._inner.vocab_size

    @property
    def max_positions(self) -> int:
        return self._inner.max_positions

    def open(self, prompt: Sequence[int], capacity: int, namespace: str | None = None) -> SeqHandle:
        return self._inner.open(prompt, capacity, namespace)

    def prefill(self, seq: SeqHandle, max_tokens: int) -> int:
        start = time.perf_counter()
        left = self._inner.prefill(seq, max_tokens)
        self.seconds += time.perf_counter() - start
        return left

    def prefill_scores(self, seq: SeqHandle, max_tokens: int) -> FloatArray:
        start = time.perf_counter()
        rows = self._inner.prefill_scores(seq, max_tokens)
        self.seconds += time.perf_counter() - start
        return rows

    def score(
        self, batch: Sequence[tuple[SeqHandle, Draft]], prefill: Sequence[tuple[SeqHandle, int]] = ()
    ) -> list[TargetScores]:
        return self._inner.score(batch, prefill)

    def commit(self, seq: SeqHandle, verdict: Verdict) -> None:
        self._inner.commit(seq, verdict)

    def close(self, seq: SeqHandle) -> None:
        self._inner.close(seq)


class Contestant:
    """One method's pipeline, timed."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._clock = PrefillClock(pipeline.engine)
        self.llm = LLM.from_pipeline(replace(pipeline, engine=self._clock))

    def run(self, prompt: Any, params: SamplingParams) -> Run:
        self._clock.seconds = 0.0
        start = time.perf_counter()
        (output,) = self.llm.generate(prompt, params)
        return Run(output, time.perf_counter() - start - self._clock.seconds)


def prompt_of(pipeline: Pipeline, text: str, raw: bool) -> Any:
    """The prompt as generated from: under the model's chat template when it has one, unless `raw`."""
    if raw or pipeline.source.chat_template is None:
        return text
    return LLM.from_pipeline(pipeline).render_chat([{"role": "user", "content": text}])


def measure(
    pipelines: Mapping[str, Pipeline],
    items: Sequence[Item],
    params: SamplingParams,
    *,
    runs: int = 3,
    raw: bool = False,
    on_run: Callable[[str, Item], object] = lambda method, item: None,
) -> dict[str, Any]:
    """The document of `outrider bench --json` but for `settings`, see the README of the results.

    pipelines: by method; one is "none", the baseline, and all share the target.
    params:    with a seed; prompt i of the whole list uses seed + i.
    """
    base = pipelines[BASELINE]
    contestants = {name: Contestant(p) for name, p in pipelines.items()}
    seeded = {item.id: replace(params, seed=(params.seed or 0) + i) for i, item in enumerate(items)}
    prompts = {item.id: prompt_of(base, item.prompt, raw) for item in items}
    for contestant in contestants.values():  # pages in the weights, fills the tokenizer's caches
        contestant.run(prompts[items[0].id], replace(params, max_tokens=WARM_UP_TOKENS))

    before = machine.probe()
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(item.workload for item in items):
        mine = [item for item in items if item.workload == name]
        results: dict[str, dict[str, list[Run]]] = {i.id: {m: [] for m in contestants} for i in mine}
        for turn in range(runs):
            for item in mine:
                for method in rotated(list(contestants), turn):
                    on_run(method, item)
                    results[item.id][method].append(
                        contestants[method].run(prompts[item.id], seeded[item.id])
                    )
        found.append({"workload": name, "prompts": len(mine), "methods": _methods(list(results.values()))})
    after = machine.probe()
    drift = machine.drift(before, after)
    return {
        "machine": {
            **machine.describe(base.config.threads),
            "probe": {"before": before, "after": after, "drift": drift, "steady": drift <= UNSTEADY},
        },
        "models": {k: v for p in pipelines.values() for k, v in p.models.items() if v is not None},
        "workloads": found,
        "geomean": {
            method: stats.geomean(w["methods"][method]["speedup"] for w in found) for method in contestants
        },
    }


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """`names` beginning with another one each turn."""
    at = turn % len(names)
    return [*names[at:], *names[:at]]


def _methods(by_prompt: Sequence[Mapping[str, Sequence[Run]]]) -> dict[str, dict[str, Any]]:
    return {method: _summary(by_prompt, method) for method in by_prompt[0]}


def _summary(by_prompt: Sequence[Mapping[str, Sequence[Run]]], method: str) -> dict[str, Any]:
    """One method on one workload; every prompt has as many runs of it as of the baseline."""
    pairs = [list(zip(p[BASELINE], p[method], strict=True)) for p in by_prompt]
    runs = [run for p in pairs for _, run in p]
    speedup, interval = stats.speedup([[plain.seconds / run.seconds for plain, run in p] for p in pairs])
    total = merge([run.output.outputs[0].metrics for run in runs]).to_dict()
    each = [run.output.outputs[0].metrics.to_dict() for run in runs]
    return {
        "speedup": speedup,
        "speedup_ci": list(interval),
        "tokens_per_s": stats.median(len(run.token_ids) / run.seconds for run in runs),
        "ttft_ms": stats.median(m["ttft_ms"] for m in each),
        "tpot_ms": stats.median(1e3 * run.seconds / len(run.token_ids) for run in runs),
        "acceptance_rate": total["acceptance_rate"],
        "mean_acceptance_length": total["mean_acceptance_length"],
        "block_efficiency": total["block_efficiency"],
        "identical": all(run.token_ids == p[0][0].token_ids for p in pairs for _, run in p),
    }
