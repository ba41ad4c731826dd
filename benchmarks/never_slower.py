"""Checks that `auto` is never slower than plain decoding, and as fast as the best fixed setting of a sweep.

    python benchmarks/never_slower.py [--sets smollm2,qwen,pair] [--limit N] [--runs K] [-n N]
                                      [--fixed 'suffix 8,draft_model 3'] [--estimate]
    python benchmarks/never_slower.py --short [--help]

Measures the default model alone and, if they are in the cache (or in the folder OUTRIDER_DEV_MODELS), the
Qwen 1.5B with lookups only and with the 0.5B as draft model; each on all built-in workloads, at two
temperatures. In each cell (models, temperature, workload) every fixed setting is tried on a few prompts; then
plain decoding, `auto` and the best fixed settings are measured interleaved. The last cell is adversarial:
text at temperature 1.5, which no drafter can predict. Finished cells are kept in a journal, so an interrupted
measurement can be resumed. Writes benchmarks/results/never_slower.json and prints which targets hold.

`--short` measures short texts, capped drafts, long prompts and other load instead (never_slower_short.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import outrider
from outrider.bench import machine, stats, workloads
from outrider.bench.cost_curve import aligned
from outrider.bench.interleaved import TimedMethod
from outrider.bench.journal import Journal
from outrider.bench.report import BASELINE, UNSTEADY
from outrider.bench.runner import measure
from outrider.cli.demo import MODEL, present_pair
from outrider.config.engine import EngineConfig
from outrider.config.speculative import (
    AutoConfig,
    DraftModelConfig,
    NgramConfig,
    NoneConfig,
    SpeculativeConfig,
    SuffixConfig,
)
from outrider.decoding.sampling.params import SamplingParams
from outrider.pipeline import Pipeline, build_all

RESULTS = Path(__file__).resolve().parent / "results"
NEVER_SLOWER, ADVERSARY, AS_THE_BEST, GEOMEAN, COPY_HEAVY = 0.98, 0.97, 0.95, 1.8, 3.5
PLAIN = SamplingParams(top_k=40, top_p=0.95, min_p=0.05, seed=0)  # llama.cpp's defaults, as `outrider bench`
RANDOM = SamplingParams(temperature=1.5, ignore_eos=True, seed=0)  # from the whole vocabulary
RANDOM_NAME = "random text"


@dataclass(frozen=True, slots=True)
class Models:
    """The models of one part of the table: a target and perhaps a draft model."""

    name: str
    target: str
    draft: str | None

    @property
    def size(self) -> int:
        """Bytes that a pass of the target reads; a guess if it is not a file."""
        path = Path(self.target)
        return path.stat().st_size if path.is_file() else 100_000_000


def fixed_settings(draft: str | None, wanted: Sequence[str] = ()) -> dict[str, SpeculativeConfig]:
    """The settings of the sweep by name; only those in `wanted`, if any."""
    found: dict[str, SpeculativeConfig] = {f"suffix {n}": SuffixConfig(n) for n in (4, 8, 16)}
    found["ngram 5"] = NgramConfig(5, prompt_lookup_max=4, prompt_lookup_min=2)
    if draft is not None:
        found |= {f"draft_model {k}": DraftModelConfig(draft, k) for k in range(1, 6)}
    return {name: setting for name, setting in found.items() if not wanted or name in wanted}


def sets() -> list[Models]:
    """The sets of models that are available."""
    found = [Models("smollm2", MODEL, None)]
    if (pair := present_pair()) is not None:
        target, draft = map(str, pair)
        found += [Models("qwen", target, None), Models("pair", target, draft)]
    return found


def cells(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(set, temperature, workload) of every cell, the quick ones first."""
    return [
        *((s, f"{t:g}", w) for s in args.sets for t in args.temps for w in args.workloads),
        *((s, f"{RANDOM.temperature:g}", RANDOM_NAME) for s in args.sets if args.adversary),
    ]


def runs_of(cell: tuple[str, str, str], args: argparse.Namespace) -> int:
    """Generations that a cell takes, without warm-up and repetitions."""
    full = int(args.limit) * int(args.runs)
    if cell[2] == RANDOM_NAME:
        return 2 * full
    fixed = len(fixed_settings("draft" if cell[0] == "pair" else None, args.fixed))
    return int(args.sweep) * (1 + fixed) + (2 + min(fixed, int(args.finalists))) * full


def estimate(
    todo: Sequence[tuple[str, str, str]], models: Sequence[Models], args: argparse.Namespace
) -> float:
    """Rough estimate of the seconds that the cells take, from the bandwidth of one thread. It assumes that
    most texts end before the limit and that most runs speculate."""
    bandwidth = max(machine.probe()["read_gb_per_s"] for _ in range(3)) * 1e9
    size = {m.name: m.size for m in models}
    passes = args.n / 2 + 35  # plain passes, and the prefill of the prompt in such passes
    return sum([runs_of(cell, args) * passes * size[cell[0]] / bandwidth for cell in todo], 0.0)


def run_cell(
    pipelines: Mapping[str, Pipeline], temperature: float, workload: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Measure a cell: the sweep, then the finals, which are repeated while the machine's speed was
    unsteady."""
    random = workload == RANDOM_NAME
    params = replace(RANDOM if random else PLAIN, temperature=temperature, max_tokens=args.n)
    items = workloads.load("chat" if random else workload)
    swept: dict[str, float] = {}
    finalists: list[str] = []
    if not random:
        fixed = {name: p for name, p in pipelines.items() if name != "auto"}
        first = measure(fixed, items[: args.sweep], params, runs=1)["workloads"][0]["methods"]
        swept = {name: m["speedup"] for name, m in first.items() if name != BASELINE}
        finalists = sorted(swept, key=lambda name: -swept[name])[: args.finalists]
    finals = {name: pipelines[name] for name in (BASELINE, "auto", *finalists)}
    entry = steadiest(finals, items[: args.limit], params, args)
    return {"sweep": swept, **entry}


def steadiest(
    methods: Mapping[str, Pipeline | TimedMethod],
    items: Sequence[workloads.Item],
    params: SamplingParams,
    args: argparse.Namespace,
    **options: Any,
) -> dict[str, Any]:
    """Measure the methods, again while the machine's speed was unsteady; of these the steadiest. The items
    are of one workload; `options` are those of `measure`."""
    best: dict[str, Any] = {}
    for _ in range(1 + args.again):
        document = measure(methods, items, params, runs=args.runs, **options)
        if not best or document["workloads"][0]["drift"] < best["workloads"][0]["drift"]:
            best = document
        if best["workloads"][0]["drift"] <= UNSTEADY:
            break
    entry = best["workloads"][0]
    return {"methods": entry["methods"], "drift": entry["drift"], "machine": best["machine"]}


def against_best(
    cell: Mapping[str, Any], method: str = "auto", fixed: Collection[str] | None = None
) -> tuple[str, float, tuple[float, float]] | None:
    """(best fixed setting of the finals, speed of `method` / its speed, interval); None without fixed
    settings. `fixed` are those that count; None for all but plain decoding and `method`.

    Both are measured against the plain run of the same round, so the ratio of their speed-ups is the ratio of
    their speeds.
    """
    methods = cell["methods"]
    if fixed is None:
        fixed = [name for name in methods if name not in (BASELINE, method)]
    if not fixed:
        return None
    best = max(fixed, key=lambda name: float(methods[name]["speedup"]))
    auto, other = methods[method]["ratios"], methods[best]["ratios"]
    ratios = [[a / b for a, b in zip(auto[i], other[i], strict=True)] for i in auto]
    value, interval = stats.speedup(ratios)
    return best, value, interval


def verdict(value: float, interval: Sequence[float], bound: float) -> str:
    """Whether a target holds; "unsure" when the value misses it, but the interval reaches it."""
    return "holds" if value >= bound else "unsure" if interval[1] >= bound else "MISSED"


def judged(target: str, where: str, bound: float, value: float, interval: Sequence[float]) -> dict[str, Any]:
    """A target with its measured value, interval and verdict."""
    return {
        **{"target": target, "where": where, "bound": bound, "value": value},
        **{"interval": list(interval), "verdict": verdict(value, interval, bound)},
    }


def targets(found: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every target with its measured value, interval and verdict."""
    checked: list[dict[str, Any]] = []

    def check(*what: Any) -> None:
        checked.append(judged(*what))

    for cell, values in found.items():
        auto = values["methods"]["auto"]
        where = f"{cell[0]}, T {cell[1]}, {cell[2]}"
        adversary = cell[2] == RANDOM_NAME
        check(
            "adversary" if adversary else "never slower", where, ADVERSARY if adversary else NEVER_SLOWER,
            auto["speedup"], auto["speedup_ci"],
        )  # fmt: skip
        if (best := against_best(values)) is not None:
            check("as fast as the best", where, AS_THE_BEST, best[1], best[2])
        if cell[0] == "pair" and cell[2] == "edit":
            check("copy-heavy", where, COPY_HEAVY, auto["speedup"], auto["speedup_ci"])
    for temperature in dict.fromkeys(t for s, t, w in found if s == "pair" and w != RANDOM_NAME):
        mine = [
            values["methods"]["auto"]
            for (s, t, w), values in found.items()
            if (s, t) == ("pair", temperature) and w != RANDOM_NAME
        ]
        _, interval = stats.speedup([[r for rs in m["ratios"].values() for r in rs] for m in mine])
        value = stats.geomean(m["speedup"] for m in mine)
        check("geometric mean", f"pair, T {temperature}, {len(mine)} workloads", GEOMEAN, value, interval)
    return checked


HEADER = [
    *("models", "T", "workload", "auto / plain", "95%"),
    *("best fixed", "auto / best", "95%", "same", "drift"),
]


def rows(found: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> list[list[str]]:
    """The header, and a row for each cell."""
    lines = [HEADER]
    for cell, values in found.items():
        auto = values["methods"]["auto"]
        name, value, interval = against_best(values) or ("–", None, None)
        low, high = auto["speedup_ci"]
        lines.append(
            [
                *cell,
                f"{auto['speedup']:.3f}",
                f"{low:.2f}–{high:.2f}",
                name,
                "–" if value is None else f"{value:.3f}",
                "–" if interval is None else f"{interval[0]:.2f}–{interval[1]:.2f}",
                "yes" if all(m["identical"] for m in values["methods"].values()) else "NO",
                f"{values['drift']:.0%}",
            ]
        )
    return lines


def summary(checked: Sequence[Mapping[str, Any]]) -> str:
    """How many cells hold each target, and the cells that do not."""
    lines = []
    for target in dict.fromkeys(c["target"] for c in checked):
        mine = [c for c in checked if c["target"] == target]
        held = sum(c["verdict"] == "holds" for c in mine)
        lines.append(f"{target} (≥ {mine[0]['bound']:g}): holds in {held} of {len(mine)}")
        lines += [
            "  {verdict}: {where}: {value:.3f} ({interval[0]:.2f}–{interval[1]:.2f})".format(**c)
            for c in mine
            if c["verdict"] != "holds"
        ]
    return "\n".join(lines)


def publish(
    args: argparse.Namespace,
    settings: Mapping[str, Any],
    found: Mapping[tuple[str, ...], Mapping[str, Any]],
    checked: Sequence[Mapping[str, Any]],
    table: Sequence[Sequence[str]],
) -> int:
    """Write the cells and targets to --json and print them. Returns 1 when a target is missed or a token was
    changed."""
    about = machine.describe(args.threads)
    keys = ("models", "temperature", "workload")
    document = {
        "machine": about,
        "settings": settings,
        "cells": [{**dict(zip(keys, cell, strict=True)), **values} for cell, values in found.items()],
        "targets": checked,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"{about['cpu']}, {about['cores']} cores\n\n{aligned(table)}\n\n{summary(checked)}")
    same = all(m["identical"] for values in found.values() for m in values["methods"].values())
    return 0 if same and not any(c["verdict"] == "MISSED" for c in checked) else 1


def names(text: str) -> list[str]:
    """Parse an option of several names, separated by commas."""
    return [name.strip() for name in text.split(",")]


def at_least_one(text: str) -> int:
    """Parse an option that is a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def check_names(parser: argparse.ArgumentParser, args: argparse.Namespace, **known: Sequence[str]) -> None:
    """Exit with an error of one line when an option has an unknown name."""
    for option, usable in known.items():
        if unknown := [name for name in getattr(args, option) if name not in usable]:
            parser.error(f"--{option}: {unknown[0]!r} is not one of {', '.join(usable)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    there = [m.name for m in sets()]
    parser.add_argument("--sets", type=names, default=there, help=f"of {', '.join(there)}")
    parser.add_argument("--temps", type=lambda s: [float(t) for t in s.split(",")], default=[0.0, 0.7])
    parser.add_argument("--workloads", type=names, default=list(workloads.BUILT_IN))
    parser.add_argument("--limit", type=at_least_one, default=6, help="prompts of a workload")
    parser.add_argument("--runs", type=at_least_one, default=2)
    parser.add_argument("-n", type=at_least_one, default=256, help="most tokens of a run")
    parser.add_argument(
        "--sweep", type=at_least_one, default=1, help="prompts on which the fixed settings are tried"
    )
    parser.add_argument("--fixed", type=names, default=[], help="the sweep's settings (default: all)")
    parser.add_argument(
        "--finalists", type=int, default=1, help="how many of the best fixed settings are measured in full"
    )
    parser.add_argument(
        "--again", type=int, default=1, help="repetitions of a cell while the machine is unsteady"
    )
    parser.add_argument("--no-adversary", dest="adversary", action="store_false")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--journal", type=Path, default=RESULTS / "never_slower.jsonl")
    parser.add_argument("--json", type=Path, default=RESULTS / "never_slower.json")
    parser.add_argument("--estimate", action="store_true", help="only print how long it would take")
    args = parser.parse_args()
    check_names(parser, args, sets=there, workloads=workloads.EVERY, fixed=list(fixed_settings("draft")))
    return args


def main() -> int:
    """Measure what the journal lacks, write the results and print them. Returns 1 when a target is missed or
    a token was changed."""
    if "--short" in sys.argv[1:]:
        from never_slower_short import main as short  # which imports from here

        return short()
    args = arguments()
    models = [m for m in sets() if m.name in args.sets]
    settings = {
        "outrider": outrider.__version__,
        "models": {m.name: [Path(m.target).name, m.draft and Path(m.draft).name] for m in sets()},
        **{
            name: getattr(args, name)
            for name in ("limit", "runs", "n", "sweep", "fixed", "finalists", "threads")
        },
    }
    journal = Journal(args.journal, settings)
    wanted = cells(args)
    todo = [cell for cell in wanted if cell not in journal]
    print(
        f"{len(wanted)} cells, {len(wanted) - len(todo)} of them in {args.journal.name}; "
        f"the others take roughly {estimate(todo, models, args) / 60:.0f} minutes",
        file=sys.stderr,
    )
    if args.estimate:
        return 0
    for one in models:
        mine = [cell for cell in todo if cell[0] == one.name]
        if not mine:
            continue
        choices = {
            BASELINE: NoneConfig(),
            "auto": AutoConfig(one.draft),
            **fixed_settings(one.draft, args.fixed),
        }
        config = EngineConfig(one.target, max_num_seqs=len(choices), threads=args.threads)
        pipelines = dict(zip(choices, build_all(config, list(choices.values())), strict=True))
        seconds_a_run: list[float] = []
        for i, cell in enumerate(mine):
            start = time.perf_counter()
            journal.add(cell, run_cell(pipelines, float(cell[1]), cell[2], args))
            seconds_a_run.append((time.perf_counter() - start) / runs_of(cell, args))
            left = stats.median(seconds_a_run) * sum(runs_of(c, args) for c in mine[i + 1 :])
            print(f"{', '.join(cell)}: {one.name} has about {left / 60:.0f} minutes left", file=sys.stderr)
    found = {cell: journal[cell] for cell in wanted}
    checked = targets(found)
    brief: dict[tuple[str, ...], Any] = {
        cell: {
            **{key: value for key, value in values.items() if key != "machine"},
            "probe": values["machine"]["probe"],
        }
        for cell, values in found.items()
    }
    return publish(args, settings, brief, checked, rows(found))


if __name__ == "__main__":
    sys.exit(main())
