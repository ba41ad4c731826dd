"""Measures the speed-up of each method over plain decoding, and checks that the tokens stay the same.

The methods run interleaved (interleaved.py), and a method's speed-up is its ratio to the plain run of the
same round, so that other load on the machine slows both. The order of the methods is reversed in every second
round. Seconds count decoding only: from the end of the prompt's prefill, which is the same for every method,
to the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider.bench import machine, stats
from outrider.bench.interleaved import TimedMethod, run_interleaved
from outrider.bench.report import BASELINE, UNSTEADY
from outrider.bench.summary import Pairs, summary
from outrider.bench.workloads import Item, texts_of, texts_per_prompt
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.pipeline import Pipeline

WARM_UP_TOKENS = 24


def prompt_of(pipeline: Pipeline, text: str, raw: bool) -> Any:
    """The prompt for `LLM.generate`: rendered with the model's chat template if it has one, unless `raw`."""
    if raw or pipeline.source.chat_template is None:
        return text
    return LLM.from_pipeline(pipeline).render_chat([{"role": "user", "content": text}])


def measure(
    pipelines: Mapping[str, Pipeline | TimedMethod],
    items: Sequence[Item],
    params: SamplingParams,
    *,
    temperatures: Sequence[float] | None = None,
    runs: int = 3,
    seeds: int = 1,
    raw: bool = False,
    warm_up: Item | None = None,
    on_text: Callable[[Item], object] = lambda item: None,
    before_step: Callable[[int], object] = lambda tokens: None,
    turn: int = 1,
) -> dict[str, Any]:
    """The document of `outrider bench --json` without its `settings`; see docs/bench.md.

    A "text" is one prompt generated with one seed.

    pipelines:    by method name. "none" is the baseline. All share the target, whose engine must hold one
                  sequence for each of them at the same time. A method can also be given as it is timed.
    params:       with a seed; prompt i of the whole list uses seed + i.
    temperatures: measured one after the other on each workload; None means that of `params`.
    seeds:        texts of each prompt above temperature 0 (`workloads.texts_of`). In the statistics each
                  counts like a prompt.
    warm_up:      the prompt of the first runs, which are not counted; None for the first of `items`.
    on_text:      called when all methods have run on a text, once in each of the `runs` rounds.
    before_step:  see `interleave`; `turn` too.
    Raises ConfigError when two texts would have the same name.
    """
    methods = {m: p if isinstance(p, TimedMethod) else TimedMethod(p) for m, p in pipelines.items()}
    base = methods[BASELINE].pipeline
    temperatures = [params.temperature] if temperatures is None else temperatures
    texts = {t: texts_of(items, params.seed or 0, texts_per_prompt(seeds, t)) for t in temperatures}
    prompts = {item.id: prompt_of(base, item.prompt, raw) for item in items}
    first = prompt_of(base, (warm_up or items[0]).prompt, raw)
    brief = replace(params, max_tokens=min(WARM_UP_TOKENS, params.max_tokens or WARM_UP_TOKENS))
    for method in methods.values():  # pages in the weights and fills the tokenizer's caches
        method.run(first, brief)
        method.take_account()

    def entry(workload: str, temperature: float) -> dict[str, Any]:
        """The results of one workload at one temperature."""
        chosen = {name: text for name, text in texts[temperature].items() if text[0].workload == workload}
        pairs: dict[str, dict[str, Pairs]] = {m: {name: [] for name in chosen} for m in methods}
        for round_number in range(runs):
            for name, (item, seed) in chosen.items():
                seeded = replace(params, temperature=temperature, seed=seed)
                order = list(methods)[:: -1 if round_number % 2 else 1]
                results = run_interleaved(
                    {m: methods[m] for m in order}, prompts[item.id], seeded, before_step, turn
                )
                for name_of_method, run in results.items():
                    pairs[name_of_method][name].append((results[BASELINE], run))
                on_text(item)
        return {
            "workload": workload,
            "temperature": temperature,
            "prompts": len({item.id for item, _ in chosen.values()}),
            "methods": {
                m: summary(pairs[m], pairs[BASELINE], method.take_account()) for m, method in methods.items()
            },
        }

    probes = [machine.probe()]
    found = []
    for workload in dict.fromkeys(item.workload for item in items):
        for temperature in temperatures:
            found.append(entry(workload, temperature))
            probes.append(machine.probe())
            found[-1]["drift"] = machine.drift(probes[-2], probes[-1])
    return {
        "machine": {**machine.describe(base.config.threads), "probe": _steadiness(probes)},
        "models": {k: v for m in methods.values() for k, v in m.pipeline.models.items() if v is not None},
        "workloads": found,
        "geomean": _means(found),
        "geomean_by_temperature": {
            f"{t:g}": _means([w for w in found if w["temperature"] == t])
            for t in dict.fromkeys(w["temperature"] for w in found)
        },
    }  # fmt: skip


def _steadiness(probes: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The first and the last probe, and the largest change of any against the first."""
    drift = max(machine.drift(probes[0], probe) for probe in probes[1:])
    return {"before": probes[0], "after": probes[-1], "drift": drift, "steady": drift <= UNSTEADY}


def _means(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {m: stats.geomean(w["methods"][m]["speedup"] for w in entries) for m in entries[0]["methods"]}
