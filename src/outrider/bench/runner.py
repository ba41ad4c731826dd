"""Measure what drafters gain over plain decoding, and check that the tokens stay the same meanwhile.

Each run of a method has a plain run directly before or after it, and its speed-up is the ratio of the two, so
that other load on the machine falls on both; every second turn goes backwards, so that a steady drift cancels
out. Seconds are those of decoding: from the end of the prompt's prefill, which is the same for every method,
to the last token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider.bench import machine, stats
from outrider.bench.report import BASELINE, UNSTEADY
from outrider.bench.summary import Pairs, Run, summary
from outrider.bench.workloads import Item
from outrider.decoding.auto import AutoController
from outrider.decoding.params import SamplingParams
from outrider.decoding.report import Account, Report
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.engines.base import EngineCaps, SeqHandle, StepEngine
from outrider.llm import LLM
from outrider.pipeline import Pipeline

WARM_UP_TOKENS = 24


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
        self._controller = pipeline.drafting.controller
        self.llm = LLM.from_pipeline(replace(pipeline, engine=self._clock))

    def run(self, prompt: Any, params: SamplingParams) -> Run:
        self._clock.seconds = 0.0
        start = time.perf_counter()
        (output,) = self.llm.generate(prompt, params)
        return Run(output, time.perf_counter() - start - self._clock.seconds)

    def account(self) -> Account | None:
        """What the controller did since the last call, by its own account; None if it keeps none."""
        if not isinstance(self._controller, AutoController):
            return None
        report, self._controller.report = self._controller.report, Report()
        return report.total()


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
    temperatures: Sequence[float] | None = None,
    runs: int = 3,
    raw: bool = False,
    on_run: Callable[[str, Item], object] = lambda method, item: None,
) -> dict[str, Any]:
    """The document of `outrider bench --json` but for `settings`, see docs/bench.md.

    pipelines:    by a name; one is "none", the baseline, and all share the target.
    params:       with a seed; prompt i of the whole list uses seed + i.
    temperatures: measured one after the other on each workload; None means that of `params`.
    on_run:       called before each run, `total_runs` times.
    """
    base = pipelines[BASELINE]
    contestants = {name: Contestant(p) for name, p in pipelines.items()}
    prompts = {item.id: prompt_of(base, item.prompt, raw) for item in items}
    brief = replace(params, max_tokens=min(WARM_UP_TOKENS, params.max_tokens or WARM_UP_TOKENS))
    for contestant in contestants.values():  # pages in the weights, fills the tokenizer's caches
        contestant.run(prompts[items[0].id], brief)
        contestant.account()

    def entry(workload: str, temperature: float) -> dict[str, Any]:
        """One workload at one temperature."""
        chosen = [(n, item) for n, item in enumerate(items) if item.workload == workload]
        pairs: dict[str, dict[str, Pairs]] = {m: {item.id: [] for _, item in chosen} for m in contestants}
        for turn in range(runs):
            for n, item in chosen:
                seeded = replace(params, temperature=temperature, seed=(params.seed or 0) + n)
                for group in groups(list(contestants), turn):
                    taken: dict[str, Run] = {}
                    for method in group:
                        on_run(method, item)
                        taken[method] = contestants[method].run(prompts[item.id], seeded)
                    for method, run in taken.items():
                        pairs[method][item.id].append((taken[BASELINE], run))
        methods = {m: summary(pairs[m], pairs[BASELINE], contestants[m].account()) for m in contestants}
        return {
            "workload": workload, "temperature": temperature, "prompts": len(chosen), "methods": methods,
        }  # fmt: skip

    probes = [machine.probe()]
    found = []
    for workload in dict.fromkeys(item.workload for item in items):
        for temperature in [params.temperature] if temperatures is None else temperatures:
            found.append(entry(workload, temperature))
            probes.append(machine.probe())
            found[-1]["drift"] = machine.drift(probes[-2], probes[-1])
    drift = max(machine.drift(probes[0], probe) for probe in probes[1:])
    return {
        "machine": {
            **machine.describe(base.config.threads),
            "probe": {
                "before": probes[0], "after": probes[-1], "drift": drift, "steady": drift <= UNSTEADY,
            },
        },
        "models": {k: v for p in pipelines.values() for k, v in p.models.items() if v is not None},
        "workloads": found,
        "geomean": _means(found),
        "geomean_by_temperature": {
            f"{t:g}": _means([w for w in found if w["temperature"] == t])
            for t in dict.fromkeys(w["temperature"] for w in found)
        },
    }  # fmt: skip


def groups(methods: Sequence[str], turn: int) -> list[list[str]]:
    """The runs of one turn: each method directly beside a plain run, which two methods may share."""
    others = [m for m in methods if m != BASELINE]
    found = [[others[i], BASELINE, *others[i + 1 : i + 2]] for i in range(0, len(others), 2)]
    found = found or [[BASELINE]]
    return [group[::-1] for group in reversed(found)] if turn % 2 else found


def total_runs(prompts: int, methods: Sequence[str], runs: int, temperatures: int = 1) -> int:
    """How many runs `measure` takes, without those that warm up."""
    return prompts * runs * temperatures * sum(len(group) for group in groups(methods, 0))


def _means(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {m: stats.geomean(w["methods"][m]["speedup"] for w in entries) for m in entries[0]["methods"]}
