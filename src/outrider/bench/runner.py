"""Measure what drafters gain over plain decoding, and check that the tokens stay the same meanwhile.

The methods run side by side (race.py), and a method's speed-up is its ratio to the plain run beside it, so
that other load on the machine falls on both; every second turn goes backwards. Seconds are those of decoding:
from the end of the prompt's prefill, which is the same for every method, to the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider.bench import machine, stats
from outrider.bench.race import Contestant, race
from outrider.bench.report import BASELINE, UNSTEADY
from outrider.bench.summary import Pairs, summary
from outrider.bench.workloads import Item, drawn, texts_of
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.pipeline import Pipeline

WARM_UP_TOKENS = 24


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
    seeds: int = 1,
    raw: bool = False,
    on_race: Callable[[Item], object] = lambda item: None,
) -> dict[str, Any]:
    """The document of `outrider bench --json` but for `settings`, see docs/bench.md.

    pipelines:    by a name; one is "none", the baseline, and all share the target, which must have room for a
                  sequence of each.
    params:       with a seed; prompt i of the whole list uses seed + i.
    temperatures: measured one after the other on each workload; None means that of `params`.
    seeds:        texts of a prompt where they are drawn (`workloads.texts_of`); each counts as a prompt does.
    on_race:      called when all methods have run on a text, once for each of the `runs`.
    Raises ConfigError when two texts would have one name.
    """
    base = pipelines[BASELINE]
    warmths = [params.temperature] if temperatures is None else temperatures
    texts = {t: texts_of(items, params.seed or 0, drawn(seeds, t)) for t in warmths}
    contestants = {name: Contestant(p) for name, p in pipelines.items()}
    prompts = {item.id: prompt_of(base, item.prompt, raw) for item in items}
    brief = replace(params, max_tokens=min(WARM_UP_TOKENS, params.max_tokens or WARM_UP_TOKENS))
    for contestant in contestants.values():  # pages in the weights, fills the tokenizer's caches
        contestant.run(prompts[items[0].id], brief)
        contestant.account()

    def entry(workload: str, temperature: float) -> dict[str, Any]:
        """One workload at one temperature."""
        chosen = {name: text for name, text in texts[temperature].items() if text[0].workload == workload}
        pairs: dict[str, dict[str, Pairs]] = {m: {name: [] for name in chosen} for m in contestants}
        for turn in range(runs):
            for name, (item, seed) in chosen.items():
                seeded = replace(params, temperature=temperature, seed=seed)
                turned = list(contestants)[:: -1 if turn % 2 else 1]
                taken = race({m: contestants[m] for m in turned}, prompts[item.id], seeded)
                for method, run in taken.items():
                    pairs[method][name].append((taken[BASELINE], run))
                on_race(item)
        methods = {m: summary(pairs[m], pairs[BASELINE], contestants[m].account()) for m in contestants}
        return {
            "workload": workload,
            "temperature": temperature,
            "prompts": len({item.id for item, _ in chosen.values()}),
            "methods": methods,
        }

    probes = [machine.probe()]
    found = []
    for workload in dict.fromkeys(item.workload for item in items):
        for temperature in warmths:
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


def _means(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {m: stats.geomean(w["methods"][m]["speedup"] for w in entries) for m in entries[0]["methods"]}
