"""What a draft model or a head adds to `auto` with lookups alone, by kind of text and temperature.

    python benchmarks/draft_gain.py -md smollm2-head                 a head of `outrider train -m smollm2`
    python benchmarks/draft_gain.py -m TARGET -md DRAFT              another pair
    python benchmarks/draft_gain.py -m TARGET -md DISTILLED --without DRAFT     against another draft

Plain decoding, `auto` without the draft and `auto` with it take turns of 16 tokens (--turn): with turns of
one, each step would find the caches full of what the others read, which no use has. A text's gain is the time
without over the time with it. Prints a table, writes benchmarks/results/draft_gain.{json,md}. Returns 2
where the mean is under --least or a kind under --floor, 1 where a text differs from plain decoding.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from never_slower import names
from outrider.bench import machine, stats, workloads
from outrider.bench.report import BASELINE, markdown_table
from outrider.bench.runner import measure
from outrider.cli.demo import MODEL
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NoneConfig, SpeculativeConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.pipeline import build_all

RESULTS = Path(__file__).parent / "results" / "draft_gain.json"
WITHOUT, WITH = "auto", "auto with the draft"
HEADER = ["T", "texts", "auto", "auto with the draft", "gain", "95%", "tokens a pass", "same"]


def gains(cell: Mapping[str, Any]) -> list[list[float]]:
    """By text, and in it by run: the time without the draft over the time with it."""
    before, after = (cell["methods"][name]["ratios"] for name in (WITHOUT, WITH))
    return [[b / a for a, b in zip(before[text], after[text], strict=True)] for text in before]


def rows(cells: list[Mapping[str, Any]]) -> list[list[str]]:
    """The table, with the geometric mean of each temperature at the end."""
    table = [HEADER]
    for cell in cells:
        methods = cell["methods"]
        gain, (low, high) = stats.speedup(gains(cell))
        passes = [f"{methods[name]['block_efficiency']:.2f}" for name in (WITHOUT, WITH)]
        same = all(method["identical"] for method in methods.values())
        table.append(
            [
                f"{cell['temperature']:g}",
                cell["workload"],
                *(f"×{methods[name]['speedup']:.2f}" for name in (WITHOUT, WITH)),
                f"{gain:.3f}",
                f"{low:.2f}–{high:.2f}",
                " → ".join(passes),
                "yes" if same else "NO",
            ]
        )
    for temperature in dict.fromkeys(cell["temperature"] for cell in cells):
        mine = [cell for cell in cells if cell["temperature"] == temperature]
        speeds = [
            stats.geomean(cell["methods"][name]["speedup"] for cell in mine) for name in (WITHOUT, WITH)
        ]
        mean = stats.geomean(stats.speedup(gains(cell))[0] for cell in mine)
        table.append([f"{temperature:g}", "mean", *(f"×{s:.2f}" for s in speeds), f"{mean:.3f}", "", "", ""])
    return table


def page(document: Mapping[str, Any]) -> str:
    """The results in Markdown."""
    about, settings, models = document["machine"], document["settings"], document["models"]
    against = "" if settings["without"] is None else f" against `{settings['without']}`"
    lines = [
        "# What a draft adds to lookups",
        "",
        f"`{models['draft']}` for `{models['target']}`{against}: {about['cpu']}, {about['cores']} cores; "
        f"{settings['limit']} prompts of a kind, answers of up to {settings['max_tokens']} tokens, "
        f"{settings['runs']} runs, turns of {settings['turn']} tokens. Speed-ups are over plain decoding. "
        "Written by `benchmarks/draft_gain.py`.",
        "",
        markdown_table(rows(document["workloads"])),
    ]
    return "\n".join(lines) + "\n"


def status(cells: list[Mapping[str, Any]], least: float, floor: float) -> int:
    """See the top of the file."""
    if not all(method["identical"] for cell in cells for method in cell["methods"].values()):
        return 1
    found = {(cell["temperature"], cell["workload"]): stats.speedup(gains(cell))[0] for cell in cells}
    means = [
        stats.geomean(gain for (t, _), gain in found.items() if t == temperature)
        for temperature in {t for t, _ in found}
    ]
    return 0 if min(means) >= least and min(found.values()) >= floor else 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", "--model", default=MODEL)
    add("-md", "--draft", required=True)
    add("--without", help="the draft to compare with, instead of none")
    add("--workloads", type=names, default=list(workloads.BUILT_IN))
    add("--limit", type=int, default=8, help="prompts of a kind")
    add("--temps", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.7])
    add("--runs", type=int, default=3)
    add("--turn", type=int, default=16, help="tokens of a turn")
    add("-n", type=int, default=256, help="most tokens of an answer")
    add("-t", "--threads", type=int)
    add("--least", type=float, default=1.1, help="of the mean of each temperature")
    add("--floor", type=float, default=0.98, help="of each kind")
    add("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    config = EngineConfig(args.model, threads=args.threads, max_num_seqs=3)
    choices: list[SpeculativeConfig] = [NoneConfig(), AutoConfig(args.without), AutoConfig(args.draft)]
    pipelines = dict(zip((BASELINE, WITHOUT, WITH), build_all(config, choices), strict=True))
    params = SamplingParams(max_tokens=args.n, seed=0)
    cells: list[Any] = []
    for kind in args.workloads:
        items = workloads.load(kind)[: args.limit]
        found = measure(pipelines, items, params, temperatures=args.temps, runs=args.runs, turn=args.turn)[
            "workloads"
        ]
        for cell in found:
            cells.append(cell)
            print(" ".join(rows([cell])[1]), file=sys.stderr, flush=True)
    cells.sort(key=lambda cell: cell["temperature"])
    models = pipelines[WITH].models
    document = {
        "machine": machine.describe(args.threads),
        "models": {"target": models["target"], "draft": models["draft"]},
        "settings": {
            "limit": args.limit,
            "runs": args.runs,
            "turn": args.turn,
            "max_tokens": args.n,
            "without": args.without,
        },
        "workloads": cells,
    }
    args.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    args.json.with_suffix(".md").write_text(page(document), "utf-8")
    print("\n".join(" ".join(row) for row in rows(cells)))
    return status(cells, args.least, args.floor)


if __name__ == "__main__":
    sys.exit(main())
