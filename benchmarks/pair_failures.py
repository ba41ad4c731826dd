"""Measures pairs made worse on purpose: a draft too large, one too unlike the target, another vocabulary.

    python benchmarks/pair_failures.py [--workloads chat,code] [--limit 3] [--tokens 96] [--json FILE]

Needs the Qwen pair and the default model. The pairs: Qwen2.5-Coder 1.5B with 0.5B, as they are; with itself
as its draft model; with the 0.5B's layers in another order; with SmolLM2, whose vocabulary is another. The
table has for each the share of draft tokens that were accepted, and the speed-up of five draft tokens in each
step and of `auto`, at temperature 0, against plain decoding in the same run, step by step in turns. The JSON
has also what `outrider plan` says of the pair before anything is loaded. All processes begin with an empty
record of acceptance and of cost curves.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from outrider.bench.cost_curve import aligned
from outrider.bench.machine import describe
from outrider.cli.demo import present_model

RESULTS = Path(__file__).resolve().parent / "results"
TARGET, DRAFT, OTHER = "qwen-coder-1.5b", "qwen-coder-0.5b", "smollm2"
LAYER = re.compile(rb"blk\.(\d+)\.")
HEADERS = 64 << 20  # bytes of a file that hold the names of its tensors


def shuffle_layers(path: Path, place: Path) -> None:
    """A copy of a GGUF file with its layers in another order: those whose numbers have equally many digits
    change places, the first with the last, so that only names change."""
    place.write_bytes(path.read_bytes())
    with place.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        names = list(LAYER.finditer(data[:HEADERS]))
        numbers = sorted({int(name[1]) for name in names})
        by_digits = [[n for n in numbers if len(str(n)) == digits] for digits in (1, 2)]
        other = {n: m for group in by_digits for n, m in zip(group, reversed(group), strict=True)}
        for name in names:
            data[name.start(1) : name.end(1)] = str(other[int(name[1])]).encode()


def outrider(home: str, *line: str) -> tuple[int, str, str]:
    env = {**os.environ, "OUTRIDER_CACHE": home}
    command = [sys.executable, "-m", "outrider", *line]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return done.returncode, done.stdout, done.stderr


def planned(home: str, *pair: str) -> dict[str, Any]:
    """What `plan` says of a pair: its advice, a draft token's time, and the acceptance that five need."""
    document = json.loads(outrider(home, "plan", *pair, "--json")[1])
    draft = document["speed"]["draft"] or {}
    return {
        "advice": [f"{each['failure']}: {each['text']}" for each in document["advice"]],
        "seconds_ratio": draft.get("seconds_ratio"),
        "break_even_of_5": draft.get("break_even", {}).get("5"),
    }


def measured(target: Path, draft: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What `bench` measures of a pair, and what `plan` says of it; or the line that refuses it."""
    with tempfile.TemporaryDirectory() as home:
        pair = ["-m", str(target), "-md", str(draft)]
        said = planned(home, *pair)
        workloads = [part for name in args.workloads.split(",") for part in ("--workload", name)]
        settings = ["--methods", "none,draft_model,auto", "--draft", "5", "--temps", "0", "--runs", "1"]
        status, out, errors = outrider(
            home,
            *("bench", *pair, *workloads, *settings),
            *("--limit", str(args.limit), "-n", str(args.tokens), "--json"),
        )
    if status == 2:
        return {"plan": said, "refused": errors.strip().splitlines()[-1]}
    if status != 0:
        raise SystemExit(errors)
    found: dict[str, Any] = {"plan": said, "workloads": {}}
    for entry in json.loads(out)["workloads"]:
        methods = {
            name: {
                "speedup": entry["methods"][name]["speedup"],
                "acceptance": entry["methods"][name]["acceptance_rate"],
                "identical": entry["methods"][name]["identical"],
            }
            for name in ("draft_model", "auto")
        }
        found["workloads"][entry["workload"]] = methods
    return found


def rows(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    table = [["pair", "workload", "accepted", "5 draft tokens", "auto"]]
    for name, pair in found.items():
        if "refused" in pair:
            table.append([name, "", "", "refused", ""])
        for workload, methods in pair.get("workloads", {}).items():
            fixed, auto = methods["draft_model"], methods["auto"]
            share = "-" if fixed["acceptance"] is None else f"{fixed['acceptance']:.0%}"
            speed = [f"{m['speedup']:.2f}" for m in (fixed, auto)]
            table.append([name, workload, share, *speed])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="chat,code")
    parser.add_argument("--limit", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", type=Path, default=RESULTS / "pair_failures.json")
    args = parser.parse_args()
    paths = {name: present_model(name) for name in (TARGET, DRAFT, OTHER)}
    if missing := [name for name, path in paths.items() if path is None]:
        raise SystemExit(f"not here: {', '.join(missing)}; outrider pull {' '.join(missing)}")
    target, draft, other = (Path(str(paths[name])) for name in (TARGET, DRAFT, OTHER))
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shuffled = Path(folder) / "shuffled.gguf"
        shuffle_layers(draft, shuffled)
        for name, path in (
            ("as they are", draft),
            ("itself as the draft", target),
            ("layers shuffled", shuffled),
            ("another vocabulary", other),
        ):
            found[name] = measured(target, path, args)
            print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    print(aligned(rows(found)))
    args.json.write_text(json.dumps({"machine": describe(), "pairs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
