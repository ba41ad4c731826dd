"""The first table: plain decoding against speculation, on the built-in workloads.

    python benchmarks/first_table.py [--runs K] [-n N] [--limit N]

Measures plain decoding, suffix lookup and `auto` on the default model and, where they are in the cache (or in
the folder OUTRIDER_DEV_MODELS), on the Qwen pair, there with the draft model too. Writes
benchmarks/results/first_table-MODEL.json, and the tables into benchmarks/results/first_table.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from outrider.bench import report, workloads
from outrider.bench.runner import measure
from outrider.cli.bench import settings
from outrider.cli.demo import MODEL, present_pair
from outrider.config.engine import EngineConfig
from outrider.config.speculative import (
    AutoConfig,
    DraftModelConfig,
    NoneConfig,
    SpeculativeConfig,
    SuffixConfig,
)
from outrider.decoding.sampling.params import SamplingParams
from outrider.pipeline import build_all

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCUMENT = RESULTS / "first_table.md"
BEGIN, END = report.markers("first_table")


def main() -> int:
    """Measure, write, print; 1 when a method changed a token."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("-n", type=int, default=128, help="most tokens of each generation")
    parser.add_argument("--limit", type=int, default=3, help="prompts of each workload")
    args = parser.parse_args()
    documents = {"smollm2": table(MODEL, None, args)}
    if (pair := present_pair()) is not None:
        documents["qwen-coder"] = table(str(pair[0]), str(pair[1]), args)
    RESULTS.mkdir(exist_ok=True)
    for name, document in documents.items():
        (RESULTS / f"first_table-{name}.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    text = rendered(documents)
    print(text)
    DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), text), "utf-8")
    same = all(
        m["identical"] for d in documents.values() for w in d["workloads"] for m in w["methods"].values()
    )
    return 0 if same else 1


def table(target: str, draft: str | None, args: argparse.Namespace) -> dict[str, Any]:
    """The bench document of one target, under its default settings."""
    choices: list[SpeculativeConfig] = [NoneConfig(), SuffixConfig()]
    if draft is not None:
        choices.append(DraftModelConfig(draft))
    choices.append(AutoConfig(draft))
    items = [item for name in workloads.BUILT_IN for item in workloads.load(name)[: args.limit]]
    params = SamplingParams(temperature=0.0, max_tokens=args.n, seed=0)
    config = EngineConfig(target, max_num_seqs=len(choices))
    pipelines = {p.speculative.method: p for p in build_all(config, choices)}

    def show(item: workloads.Item) -> None:
        print(item.id, file=sys.stderr)

    document = measure(pipelines, items, params, runs=args.runs, on_race=show)
    return document | {"settings": settings(params, choices, runs=args.runs, raw=False)}


def rendered(documents: dict[str, dict[str, Any]]) -> str:
    """The tables, in Markdown."""
    return "\n\n".join(report.markdown(document) for document in documents.values())


def replaced(text: str, tables: str) -> str:
    """`text` with what is between the markers replaced. Raises SystemExit when it has no markers."""
    return report.put_between(text, BEGIN, END, tables, DOCUMENT.name)


if __name__ == "__main__":
    sys.exit(main())
