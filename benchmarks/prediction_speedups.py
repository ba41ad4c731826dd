"""Holds the speed-ups that `outrider plan` expects of a pair against those that are measured.

For each workload and temperature, what `plan` would say from three sources, and then what the same method
gives on other prompts of the same kind, step by step in turns with plain decoding:

    package  drafts of a fixed length, by the counts that come with the package, with times that are predicted
             from parts of the models: what a machine says that never ran the pair.
    record   the same by the counts of texts that were generated here, with the measured cost curves.
    auto     by the times of texts that `auto` wrote here.

`plan` tells the speed-up of decoding, and what the draft model's reading of a prompt takes apart from that.
The measured seconds have it, so it is added to what is predicted for the measured texts: `of_decoding` is
without. The texts on record are those of a workload's first prompts (which the package's counts are from,
too), the measured ones those of the next. `predictions.py --only speedup` runs it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from outrider.acceptance_record import Group, Groups, TextCounts, counts_of
from outrider.bench import stats, workloads
from outrider.bench.interleaved import TimedMethod
from outrider.bench.report import BASELINE
from outrider.bench.runner import measure, prompt_of
from outrider.bench.workloads import Item
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NoneConfig, SpeculativeConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, quantized
from outrider.pipeline import Pipeline, build_all
from outrider.plan import expected, profiles
from outrider.plan.curves import Curve, curve_of
from outrider.plan.expected import Expected
from outrider.plan.speed import reading

KNOWN = ("qwen-coder-1.5b", "qwen-coder-0.5b")  # the pair whose counts come with the package
ON_RECORD = 8  # draft tokens in every step of the texts on record
MOST_SEQUENCES = 5  # plain decoding, two fixed lengths, `auto`, and one to spare


@dataclass(frozen=True, slots=True)
class Case:
    """Texts of a kind: those on record, and those that are measured."""

    workload: str
    temperature: float
    known: Sequence[Item]
    others: Sequence[Item]


Curves: TypeAlias = tuple[Curve, Curve]  # of the target, and of the draft model


class Pair:
    """A target and a draft model, with the cost curves that `plan` has of them: `predicted` before a first
    use on this machine, `measured` after it."""

    def __init__(self, target: Path, draft: Path) -> None:
        source, opened = open_model(target), open_model(draft)
        small = quantized(opened, for_draft("auto", opened, source))

        def curves() -> Curves:
            return curve_of(source), curve_of(small, drafts=True)

        self.predicted = curves()
        config = EngineConfig(str(target), AutoConfig(str(draft)), max_num_seqs=MOST_SEQUENCES)
        choices: list[SpeculativeConfig] = [AutoConfig(str(draft)), NoneConfig()]
        self.auto, self.plain = build_all(replace(config, max_model_len=4096), choices)
        self.measured = curves()

    def fixed(self, length: int) -> Pipeline:
        """Drafts of `length` tokens of the draft model in every step, by a drafter of its own."""
        (found,) = (
            fixed
            for fixed in self.auto.fresh().fixed(length)
            if fixed.drafting.drafter is not None and fixed.drafting.drafter.name == "draft_model"
        )
        return found


def rows(
    paths: tuple[Path, Path],
    kinds: Sequence[str],
    temperatures: Sequence[float],
    limit: int,
    tokens: int,
    *,
    on_row: Callable[[Any], None],
) -> list[Any]:
    """One row for each source, workload and temperature.

    paths: of the target and the draft model; kinds: workloads by name; limit: prompts on record, and as many
    measured.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OUTRIDER_CACHE"] = folder
        try:
            pair = Pair(*paths)
            for workload in kinds:
                items = workloads.load(workload)
                for temperature in temperatures:
                    case = Case(workload, temperature, items[:limit], items[limit : 2 * limit])
                    for row in rows_of(pair, case, tokens):
                        found.append(row)
                        on_row(row)
        finally:
            del os.environ["OUTRIDER_CACHE"]
    return found


def rows_of(pair: Pair, case: Case, tokens: int) -> list[dict[str, Any]]:
    """What each source expects of a case, and what was measured."""
    params = SamplingParams(temperature=case.temperature, seed=0, max_tokens=tokens)
    suffix = f"-{case.temperature:g}" if case.temperature else ""
    profile = profiles.profiles()[f"qwen-coder-{case.workload}{suffix}"]
    fixed, auto = TimedMethod(pair.fixed(ON_RECORD)), TimedMethod(pair.auto)
    expectations = {
        "package": of_groups(pair.predicted, profile.groups),
        "record": of_groups(pair.measured, on_record(fixed, case, params, "draft_model")),
        "auto": of_groups(pair.measured, on_record(auto, case, params, "auto")),
    }
    methods: dict[str, Pipeline | TimedMethod] = {BASELINE: pair.plain}
    for name, row in expectations.items():
        if name == "auto":
            methods["auto"] = auto  # it goes on with what it has learned, as in a process
        elif row.length:
            methods[f"draft_model {row.length}"] = pair.fixed(row.length)
    document = measure(methods, list(case.others), params, runs=1)
    (entry,) = document["workloads"]
    found = []
    for name, row in expectations.items():
        method = "auto" if name == "auto" else f"draft_model {row.length}" if row.length else BASELINE
        gained = entry["methods"][method]
        curves = pair.predicted if name == "package" else pair.measured
        predicted = (
            row.speedup if name == "auto" else with_reading(pair, case, curves, row, gained["lengths"])
        )
        found.append(
            {
                "from": name,
                "workload": case.workload,
                "temperature": case.temperature,
                "method": method,
                "of_decoding": row.speedup,
                "predicted": predicted,
                "interval": list(row.interval),
                "measured": gained["speedup"],
                "measured_interval": gained["speedup_ci"],
                "error": predicted / gained["speedup"] - 1.0,
                "identical": gained["identical"],
                "drift": entry["drift"],
            }
        )
    return found


def with_reading(pair: Pair, case: Case, curves: Curves, row: Expected, lengths: Mapping[str, int]) -> float:
    """The geometric mean over texts of these lengths, when the draft model has read their prompts first."""
    if not row.length:
        return row.speedup
    (target, draft), gains = curves, []
    for item in case.others:
        plain = lengths[item.id] * target.at(1)
        prompt = prompt_of(pair.plain, item.prompt, raw=False)["prompt_token_ids"]
        gains.append(plain / (plain / row.speedup + len(prompt) * reading(draft)))
    return stats.geomean(gains)


def of_groups(curves: Curves, groups: Groups) -> Expected:
    """What `plan` expects of these counts with these curves."""
    target, draft = curves
    (row,) = expected.expected(target, draft.at(1), groups)
    return Expected(**row)


def on_record(method: TimedMethod, case: Case, params: SamplingParams, name: str) -> Groups:
    """The counts that the case's first texts leave in a record."""
    texts: list[TextCounts] = []
    for seed, item in enumerate(case.known):
        method.take_account()
        prompt = prompt_of(method.pipeline, item.prompt, raw=False)
        run = method.run(prompt, replace(params, seed=seed))
        account = method.take_account() if name == "auto" else None
        texts.append(counts_of(run.output.outputs[0].metrics, account))
    kind = "sampled" if case.temperature else "greedy"
    return {Group(name, method.pipeline.verifier.name, kind): tuple(texts)}
