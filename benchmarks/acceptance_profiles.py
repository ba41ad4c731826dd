"""Records how often the draft tokens of a real pair are accepted, by position, for `outrider plan`.

    python benchmarks/acceptance_profiles.py [--temps 0,0.7] [--limit N] [-n N] [--draft N]

Generates with the Qwen pair (from the cache, or the folder OUTRIDER_DEV_MODELS) on the built-in workloads
with a fixed draft in every step, and writes src/outrider/plan/acceptance_profiles.json, which comes with the
package: the counts of each text, nothing of the texts. The results do not depend on the machine's load and
are the same in every run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from outrider import acceptance_record
from outrider.bench import workloads
from outrider.bench.runner import prompt_of
from outrider.bench.workloads import Item
from outrider.cli.demo import PAIR, present_pair
from outrider.config.engine import EngineConfig
from outrider.config.speculative import DraftModelConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.pipeline import Pipeline, build

RESULT = Path(__file__).resolve().parents[1] / "src" / "outrider" / "plan" / "acceptance_profiles.json"
NAME = "qwen-coder"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--temps", default="0,0.7", help="temperatures")
    parser.add_argument("--limit", type=int, default=3, help="prompts of each workload")
    parser.add_argument("-n", type=int, default=128, help="most tokens of each text")
    parser.add_argument("--draft", type=int, default=8, help="draft tokens of a step")
    args = parser.parse_args()
    pair = present_pair()
    if pair is None:
        print("needs the Qwen pair: outrider pull qwen-coder-1.5b qwen-coder-0.5b", file=sys.stderr)
        return 2
    target, draft = map(str, pair)
    choice = DraftModelConfig(draft, args.draft)
    pipeline = build(EngineConfig(target, choice, max_num_seqs=1, max_model_len=2048))
    profiles = []
    for temperature in [float(text) for text in args.temps.split(",")]:
        for workload in workloads.BUILT_IN:
            items = workloads.load(workload)[: args.limit]
            profiles.append(profile(pipeline, workload, items, temperature, args.n))
            print(profiles[-1]["name"], file=sys.stderr)
    document = {"written_by": "benchmarks/acceptance_profiles.py", "profiles": profiles}
    RESULT.write_text(dumped(document), "utf-8")
    return 0


def profile(
    pipeline: Pipeline, workload: str, items: list[Item], temperature: float, tokens: int
) -> dict[str, Any]:
    """The counts of a workload's texts; prompt i has the seed i."""
    llm = LLM.from_pipeline(pipeline, shared=False)
    texts = []
    for seed, item in enumerate(items):
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens)
        (output,) = llm.generate(prompt_of(pipeline, item.prompt, raw=False), params)
        texts.append(acceptance_record.counts_of(output.outputs[0].metrics))
    suffix = f"-{temperature:g}" if temperature else ""
    return {
        "name": f"{NAME}-{workload}{suffix}",
        "target": PAIR[0],
        "draft": PAIR[1],
        "models": pipeline.models,
        "workload": workload,
        "temperature": temperature,
        "rule": pipeline.verifier.name,
        "num_speculative_tokens": pipeline.speculative.num_speculative_tokens,  # type: ignore[union-attr]
        "texts": [acceptance_record.text_row(text) for text in texts],
    }


def dumped(document: dict[str, Any]) -> str:
    """The document as JSON, a line for each text."""
    lines = []
    for found in document["profiles"]:
        head = {name: value for name, value in found.items() if name != "texts"}
        rows = ",\n".join(f"   {json.dumps(row)}" for row in found["texts"])
        lines.append(f'  {{"texts": [\n{rows}],\n   {json.dumps(head)[1:]}')
    written_by = json.dumps({"written_by": document["written_by"]})[:-1]
    return f'{written_by},\n "profiles": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    sys.exit(main())
