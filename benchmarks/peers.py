"""Compares Outrider with its peers on the same GGUF files and prompts: tokens per second of greedy decoding.

    python benchmarks/peers.py -m TARGET.gguf -md DRAFT.gguf --peer llama.cpp=PYTHON --peer ik_llama.cpp=…

Each engine runs in its own process, and they are interleaved prompt by prompt. First, every setting of every
engine is tried on a few prompts of each workload. Then the plain decoding of each engine and its best setting
with speculation are measured on all prompts. A peer is given as a Python interpreter that has its package:
xllamacpp (llama.cpp with its server and its own speculation), ik-llama-cpp-python, llama-cpp-py-sync
(llama.cpp-api) or transformers with torch. The bindings of ik_llama.cpp and llama.cpp-api offer forward
passes only, so there speculation is the minimal greedy loop of peers_loop.py, and the table says "loop".
Prefill is never counted. The best peer of a workload is the fastest setting of any peer, plain decoding
included. Finished runs are kept in a journal, so an interrupted measurement can be resumed. Writes
benchmarks/results/peers.json, from which peers_docs.py writes the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import outrider
from engine_process import EngineProcess
from outrider.bench import machine, stats, workloads
from outrider.bench.cost_curve import aligned
from outrider.bench.journal import Journal

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "peers.json"
OWN, TARGET = "outrider", 2.0
LOOPED = ("ik_llama.cpp", "llama.cpp-api")
Method = tuple[str, str]  # engine, setting
Speeds = Mapping[Method, Mapping[str, Sequence[float]]]  # tokens per second by prompt, a value for each run


def started(name: str, python: str, args: argparse.Namespace) -> EngineProcess:
    """Start the process of an engine."""
    draft = "" if args.model_draft is None else str(args.model_draft)
    command = [python, str(HERE / "peers_worker.py"), name, str(args.model), draft]
    log = args.log / f"{name}.log" if args.log else None
    command += [str(args.threads), str(args.context)]
    return EngineProcess(name, command, log, advice=" (--log DIR keeps all)")


def best_speculative(speeds: Speeds, engine: str) -> str | None:
    """An engine's fastest setting with speculation, by the geometric mean over prompts."""
    means = {
        setting: stats.geomean(stats.median(runs) for runs in by_prompt.values())
        for (name, setting), by_prompt in speeds.items()
        if name == engine and setting != "plain"
    }
    return max(means, key=lambda setting: means[setting]) if means else None


def finals(speeds: Speeds, engines: Sequence[str]) -> list[Method]:
    """The methods that are measured in full: plain decoding and the best speculation of each engine."""
    chosen = ((name, setting) for name in engines for setting in ("plain", best_speculative(speeds, name)))
    return [(name, setting) for name, setting in chosen if setting is not None]


def compared(speeds: Speeds, ids: Sequence[str]) -> dict[str, Any]:
    """One workload: mean speeds, and Outrider's `auto` against the fastest setting of all peers.

    ids: of the workload's prompts. `speeds` must have a value for each method, prompt and run.
    """
    means = {c: stats.geomean(stats.median(by[i]) for i in ids) for c, by in speeds.items()}
    found: dict[str, Any] = {
        "tokens_per_s": {f"{name}, {setting}": v for (name, setting), v in means.items()}
    }
    peers = [c for c in means if c[0] != OWN]
    if peers:
        best = max(peers, key=lambda c: means[c])
        own = speeds[OWN, "auto"]
        ratios = [[a / b for a, b in zip(own[i], speeds[best][i], strict=True)] for i in ids]
        ratio, interval = stats.speedup(ratios)
        found |= {"best_peer": ", ".join(best), "ratio": ratio, "interval": list(interval)}
    return found


def rows(result: Mapping[str, Any]) -> list[list[str]]:
    """The header, and a row for each workload with a column for each method of the finals."""
    found = result["workloads"]
    names = list(next(iter(found.values()))["tokens_per_s"])
    shown = [f"{n} (loop)" if n.split(",")[0] in LOOPED and not n.endswith("plain") else n for n in names]
    lines = [["workload", *shown, "best peer", "auto / best peer", "95%"]]
    for workload, row in found.items():
        interval = row.get("interval")
        lines.append(
            [
                workload,
                *(f"{row['tokens_per_s'][n]:.1f}" for n in names),
                row.get("best_peer", "–"),
                f"×{row['ratio']:.2f}" if "ratio" in row else "–",
                f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else "–",
            ]
        )
    return lines


def summary(result: Mapping[str, Any]) -> str:
    """How steady the machine was, and whether the target holds."""
    probe, mean = result["machine"]["probe"], result["geomean"]
    before, after = (probe[when]["read_gb_per_s"] for when in ("before", "after"))
    text = f"probe: {before:.1f} → {after:.1f} GB/s (moved by {probe['drift']:.0%})"
    if mean is None:
        return text
    verdict = "holds" if mean >= TARGET else "MISSED"
    return f"{text}\nauto against the best peer, geometric mean: ×{mean:.2f} (target ×{TARGET:g}: {verdict})"


def measured(
    journal: Journal, methods: Sequence[Method], ids: Sequence[str], runs: int
) -> dict[Method, dict[str, list[float]]]:
    """The speeds of these methods in the journal."""
    return {
        (name, setting): {
            i: [journal[name, setting, i, str(run)]["tokens_per_s"] for run in range(runs)] for i in ids
        }
        for name, setting in methods
    }


def order(methods: Sequence[Method], run: int) -> Iterator[Method]:
    """The order of a run: forward and backward in turn, so that a linear drift of the machine cancels out."""
    return iter(methods) if run % 2 == 0 else reversed(methods)


class Measurement:
    """Executes the runs that the journal lacks."""

    def __init__(self, workers: Sequence[EngineProcess], journal: Journal, args: argparse.Namespace) -> None:
        self._workers = {worker.name: worker for worker in workers}
        self._journal, self._args = journal, args
        self._prompts: dict[str, list[int]] = {}

    def _ids(self, item: workloads.Item) -> list[int]:
        if item.id not in self._prompts:
            self._prompts[item.id] = self._workers[OWN].ask({"render": item.prompt})["ids"]
        return self._prompts[item.id]

    def take(self, methods: Sequence[Method], items: Sequence[workloads.Item], runs: int) -> None:
        """Execute all runs of these methods, prompt by prompt, and print the time that is left."""
        cells = [
            (name, setting, item, run)
            for run in range(runs)
            for item in items
            for name, setting in order(methods, run)
            if (name, setting, item.id, str(run)) not in self._journal
        ]
        start = time.perf_counter()
        for done, (name, setting, item, run) in enumerate(cells):
            found = self._workers[name].ask({"setting": setting, "ids": self._ids(item), "n": self._args.n})
            self._journal.add((name, setting, item.id, str(run)), found)
            left = (time.perf_counter() - start) / (done + 1) * (len(cells) - done - 1)
            speed = f"{found['tokens_per_s']:.1f} tokens/s"
            print(f"{item.id} {name} {setting}: {speed}; {left / 60:.0f} min left", file=sys.stderr)
            time.sleep(self._args.rest)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-md", "--model-draft", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--workloads", type=lambda s: s.split(","), default=list(workloads.BUILT_IN))
    parser.add_argument(
        "--sweep", type=int, default=1, help="prompts of a workload on which all settings are tried"
    )
    parser.add_argument("--limit", type=int, default=6, help="prompts of a workload")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("-n", type=int, default=256, help="most tokens of a run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument(
        "--rest", type=float, default=0.2, help="seconds between runs, as threads keep spinning"
    )
    parser.add_argument("--log", type=Path, metavar="DIR", help="keep the engines' stderr in this folder")
    parser.add_argument("--journal", type=Path, default=RESULT.with_suffix(".jsonl"))
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    if bad := [peer for peer in args.peer if "=" not in peer]:
        parser.error(f"--peer {bad[0]!r} is not NAME=PYTHON")
    return args


def main() -> int:
    """Run sweep and finals and print the table. Returns 1 when the target is missed."""
    args = arguments()
    if args.log:
        args.log.mkdir(parents=True, exist_ok=True)
    settings = {
        "outrider": outrider.__version__,
        "models": [args.model.name, args.model_draft and args.model_draft.name],
        **{name: getattr(args, name) for name in ("n", "threads", "context")},
    }
    journal = Journal(args.journal, settings)
    pythons = {OWN: sys.executable, **dict(peer.split("=", 1) for peer in args.peer)}
    workers = [started(name, python, args) for name, python in pythons.items()]
    everything = [(worker.name, setting) for worker in workers for setting in worker.info["settings"]]
    by_workload = {name: workloads.load(name)[: args.limit] for name in args.workloads}
    swept = [item for items in by_workload.values() for item in items[: args.sweep]]
    items = [item for items in by_workload.values() for item in items]
    print(f"{len(everything)} settings on {len(swept)} prompts, then the finals", file=sys.stderr)

    before = machine.probe()
    measurement = Measurement(workers, journal, args)
    measurement.take(everything, swept, 1)
    tried = measured(journal, everything, [item.id for item in swept], 1)
    methods = finals(tried, list(pythons))
    measurement.take(methods, items, args.runs)
    after = machine.probe()
    for worker in workers:
        worker.close()

    speeds = measured(journal, methods, [item.id for item in items], args.runs)
    comparison = {name: compared(speeds, [item.id for item in mine]) for name, mine in by_workload.items()}
    ratios = [row["ratio"] for row in comparison.values() if "ratio" in row]
    result: dict[str, Any] = {
        "machine": {
            **machine.describe(args.threads),
            "probe": {"before": before, "after": after, "drift": machine.drift(before, after)},
        },
        "settings": {**settings, "sweep": args.sweep, "limit": args.limit, "runs": args.runs},
        "engines": {worker.name: worker.info for worker in workers},
        "sweep": {
            ", ".join(c): stats.geomean(v for runs in by.values() for v in runs) for c, by in tried.items()
        },
        "workloads": comparison,
        "geomean": stats.geomean(ratios) if ratios else None,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print("tokens per second, greedy, without prefill\n")
    print(f"{aligned(rows(result))}\n\n{summary(result)}")
    return 0 if result["geomean"] is None or result["geomean"] >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
