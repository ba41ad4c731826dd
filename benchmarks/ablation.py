"""What each mechanism of the controller gains: `auto` on recorded texts without it, by replay.py's clock.

    python benchmarks/ablation.py [--off NAME,NAME+NAME,…] [--pairs-of NAMES] [--limit N] [--seeds N]
        [--mixed] [--no-draft] [--list]

Runs `auto` over the texts of replay.py with everything on, then with each mechanism of ablation_mechanisms.py
off (or those of --off, several at once with a +, "" for none; or all pairs of --pairs-of), and prints how
much faster `auto` is with it, in percent of the geometric mean over workloads and temperatures. The first run
computes most of the draft model's rows (memoized_rows.py), 49,000 for the 288 texts of the defaults, in some
minutes; each further one takes half a minute and 10 ms for each row that only its drafts ask for, mostly some
hundred. Runs that the file --runs has of the same code and the same texts are not repeated, so that several
processes can share the work.

Not shown: what looking up and planning save or take, which are free by this clock, and what only a machine's
changing speed or several requests at once call for.

--no-draft is the same without a draft model.

Writes results/ablation.json and results/ablation.md (with --no-draft, ablation_no_draft); with --page, the
latter from the former, without runs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import replay
from ablation_mechanisms import MECHANISMS, Mechanism, off
from memoized_rows import MemoizedModel, RowStore
from never_slower import names
from outrider.bench import stats, workloads
from outrider.bench.cost_curve import aligned
from outrider.bench.report import markdown_table
from outrider.cli.demo import present_pair
from outrider.config.speculative import AutoConfig
from outrider.engines.base import VocabSubsetModel
from outrider.models.source import ModelSource
from outrider.pipeline import load_native
from replay import RESULTS, Clock, Stage, Text, Timed, add_text_options, in_order, text_settings, texts_of

ROOT = Path(__file__).resolve().parents[1]
# What decides on a run, besides the texts and the models.
SOURCES = (
    "src/**/*.py",
    "csrc/policy/*",
    "csrc/lookup/*",
    "benchmarks/replay.py",
    "benchmarks/ablation_*.py",
)
CACHE = Path.home() / ".cache/outrider"
EVERYTHING = "everything on"
JOINT = " + "

Speedups = dict[str, float]  # by text, see `key`


def key(text: Text) -> str:
    """A text's name in the file of runs."""
    return f"{text.workload} {text.temperature:g} {text.id} {text.seed}"


def cells(run: Speedups) -> dict[tuple[str, str], float]:
    """The geometric mean of each (workload, temperature)."""
    found: dict[tuple[str, str], list[float]] = {}
    for name, speedup in run.items():
        workload, temperature, *_ = name.split(" ")
        found.setdefault((workload, temperature), []).append(speedup)
    return {cell: stats.geomean(values) for cell, values in found.items()}


def percent(on: float, without: float) -> float:
    return 100.0 * (on / without - 1.0)


def summary(on: Speedups, without: Speedups) -> dict[str, Any]:
    """How much faster the texts of a run are with a mechanism than without, in percent: the geometric mean
    over all (workload, temperature), its standard error by the spread over texts, the same for each
    temperature, and the workload that it does least and most for."""
    with_it, without_it = cells(on), cells(without)
    temperatures = sorted({temperature for _, temperature in with_it})
    ratios: dict[tuple[str, str], list[float]] = {}
    for name in on:
        workload, temperature, *_ = name.split(" ")
        ratios.setdefault((workload, temperature), []).append(math.log(on[name] / without[name]))
    spread = [float(np.var(each, ddof=1)) / len(each) for each in ratios.values() if len(each) > 1]
    by_workload = {
        workload: percent(
            stats.geomean(with_it[c] for c in with_it if c[0] == workload),
            stats.geomean(without_it[c] for c in with_it if c[0] == workload),
        )
        for workload in dict.fromkeys(w for w, _ in with_it)
    }
    return {
        "speedup": stats.geomean(without_it.values()),
        "gain": percent(stats.geomean(with_it.values()), stats.geomean(without_it.values())),
        "error": 100.0 * math.sqrt(sum(spread)) / max(1, len(ratios)),
        "by_temperature": {
            t: percent(
                stats.geomean(with_it[c] for c in with_it if c[1] == t),
                stats.geomean(without_it[c] for c in with_it if c[1] == t),
            )
            for t in temperatures
        },
        "by_workload": by_workload,
    }


def gains(runs: Mapping[str, Speedups]) -> dict[str, dict[str, Any]]:
    """The `summary` of each run over the same texts as that with everything on, highest gains first."""
    on = runs[EVERYTHING]
    same = {name: run for name, run in runs.items() if name != EVERYTHING and run.keys() == on.keys()}
    found = {name: summary(on, run) for name, run in same.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]["gain"]))


def table(document: Mapping[str, Any]) -> str:
    """A line for each run without something."""
    rows = document["off"]
    temperatures = list(next(iter(rows.values()))["by_temperature"]) if rows else []
    lines = [["off", "speed-up", "gain %", "±", *(f"T={t}" for t in temperatures), "least", "most"]]
    lines += [
        [
            name,
            f"{row['speedup']:.3f}",
            f"{row['gain']:+.2f}",
            f"{row['error']:.2f}",
            *(f"{row['by_temperature'][t]:+.2f}" for t in temperatures),
            *(f"{workload} {gain:+.1f}" for gain, workload in extremes(row)),
        ]
        for name, row in rows.items()
    ]
    return f"{EVERYTHING}: {document['everything_on']:.3f}\n\n{aligned(lines)}"


def extremes(row: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The workloads of the lowest and the highest gain."""
    each = sorted((gain, workload) for workload, gain in row["by_workload"].items())
    return [each[0], each[-1]]


def page(document: Mapping[str, Any], mechanisms: Sequence[Mechanism]) -> str:
    """The table in Markdown: each mechanism, then the runs without several, and what is no mechanism any
    more."""
    rows = document["off"]
    known = {mechanism.name: mechanism for mechanism in mechanisms}
    lines = [["mechanism", "what it decides", "file", "gain %", "±", "least", "most"]]
    several = [["mechanisms", "gain %", "±", "least", "most"]]
    deleted = [["mechanism", "gain %", "±", "least", "most"]]
    idle = [name for name in known if name in rows and rows[name]["gain"] == rows[name]["error"] == 0.0]
    for name, row in rows.items():
        if name in idle:
            continue
        numbers = [f"{row['gain']:+.2f}", f"{row['error']:.2f}"]
        numbers += [f"{workload} {gain:+.1f}" for gain, workload in extremes(row)]
        if (mechanism := known.get(name)) is not None:
            files = ", ".join(f"`{file}`" for file in mechanism.file.split(", "))
            lines.append([name, mechanism.decides, files, *numbers])
        else:
            (several if JOINT in name else deleted).append([name, *numbers])
    count = f"{document['seeds']} texts of each" if document["seeds"] > 1 else "one text of each"
    models = "with a draft model" if document["draft"] else "without a draft model"
    found = [
        "# What each mechanism of the controller gains",
        f"Written by `benchmarks/ablation.py`: `auto` {models}, on recorded texts as `benchmarks/replay.py` "
        "replays them, without one mechanism at a time. Over the built-in workloads "
        f"({document['limit']} prompts of each, {count} at temperatures above 0) it is "
        f"{document['everything_on']:.3f} times as fast as "
        "plain decoding with everything on. The gain is how much faster it is with the mechanism than "
        "without, in percent of the geometric mean over workloads and temperatures; ± is the "
        "standard error by the spread over texts; then the workloads that gain least and most.",
        "Mechanisms substitute for one another, so gains do not add up. The clock charges passes only: what "
        "looking up and planning cost or save, what several requests at once need, and what a machine's "
        "changing speed calls for (the exploration budget, what the cost curve learns) are not shown. The "
        "prompts are short; prompt truncation pays on long ones.",
    ]
    if len(lines) > 1:
        found.append(markdown_table(lines))
    if idle:
        found.append(f"Off or on, all texts take the same time: {', '.join(idle)}.")
    if len(several) > 1:
        found += ["## Several at once", markdown_table(several)]
    if len(deleted) > 1:
        found += ["## Deleted since", markdown_table(deleted)]
    return "\n\n".join(found) + "\n"


def fingerprint(texts: Sequence[Text]) -> str:
    """A digest of the code and the texts of a run."""
    digest = hashlib.sha256(repr([(key(text), text.prompt, text.output) for text in texts]).encode())
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def read_runs(place: Path, code: str) -> dict[str, Speedups]:
    """The runs with this `fingerprint` in a file of JSON lines."""
    if not place.exists():
        return {}
    lines = [json.loads(line) for line in place.read_text("utf-8").splitlines()]
    return {line["off"]: line["speedup"] for line in lines if line.get("code") == code}


class Replays:
    """Runs with one draft model, or none. It computes with one thread: its passes are few, and several
    processes may share the work."""

    def __init__(self, target: str, draft: str | None, folder: Path, most: int) -> None:
        self._target, self._folder, self._most = target, folder, most
        self._choices = {"auto": AutoConfig(draft)}
        self._store: RowStore | None = None

    def _load(self, source: ModelSource, threads: int | None, clock: Clock) -> Timed:
        if self._store is None:
            model = load_native(source, 1)
            assert isinstance(model, VocabSubsetModel)
            self._store = RowStore(model, self._folder)
        return MemoizedModel(self._store, replay.COSTS["draft"], clock)

    def run(self, without: Sequence[Mechanism], texts: Sequence[Text]) -> Speedups:
        """`auto` without some mechanisms on all texts, in order: it learns from one to the next."""
        with off(without):
            stage = Stage(self._target, self._choices, self._load, most=self._most)
            found = {}
            for text in texts:
                if self._store is not None:
                    self._store.begin(key(text), text.prompt, text.output)
                found[key(text)] = stage.speedup("auto", text)
        if self._store is not None:
            self._store.save()
        return found

    @property
    def computed(self) -> int:
        return 0 if self._store is None else self._store.computed

    def check(self, texts: Sequence[Text]) -> None:
        """Raises SystemExit where the real draft model makes another speed-up than the memoized one."""
        for _ in range(2):  # the second from stored rows alone
            memoized = self.run((), texts)
        stage = Stage(self._target, self._choices, most=self._most)
        for text in texts:
            name, real = key(text), stage.speedup("auto", text)
            if memoized[name] != real:
                raise SystemExit(f"{name}: {memoized[name]} from stored rows, {real} from the model")


def wanted(args: argparse.Namespace, mechanisms: Sequence[Mechanism]) -> list[str]:
    """The runs that are asked for, by name."""
    if args.pairs_of:
        return [JOINT.join(pair) for pair in itertools.combinations(args.pairs_of, 2)]
    return [mechanism.name for mechanism in mechanisms] if args.off is None else args.off


def joined(text: str) -> list[str]:
    """Names of runs, separated by commas; those without several mechanisms with a +."""
    return [JOINT.join(part.strip() for part in name.split("+")) for name in names(text) if name]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--off", type=joined, help='instead of each; "" for none')
    parser.add_argument("--pairs-of", type=names, help="run all pairs of these")
    parser.add_argument("--no-draft", dest="draft", action="store_false", help="lookups alone")
    parser.add_argument("--list", action="store_true", help="say which mechanisms there are")
    parser.add_argument("--page", action="store_true", help="write the page of --json again")
    parser.add_argument(
        "--check", type=int, default=0, metavar="N", help="compare N texts with the real model"
    )
    parser.add_argument("--mixed", action="store_true", help="the texts of all workloads in a shuffled order")
    add_text_options(parser)
    parser.set_defaults(limit=8, seeds=5)
    parser.add_argument("--workloads", type=names, default=list(workloads.BUILT_IN))
    parser.add_argument("--runs", type=Path, default=CACHE / "ablation_runs.jsonl", help="finished runs")
    parser.add_argument("--rows", type=Path, default=CACHE / "ablation_rows", help="the draft model's rows")
    parser.add_argument("--json", type=Path, help="and the page, as .md")
    args = parser.parse_args()
    if args.json is None:
        args.json = RESULTS / ("ablation.json" if args.draft else "ablation_no_draft.json")
    known = {mechanism.name for mechanism in MECHANISMS}
    for name in (*(args.off or ()), *(args.pairs_of or ())):
        if unknown := set(name.split(JOINT)) - known:
            parser.error(f"no mechanism is called {', '.join(sorted(unknown))}; --list names them")
    return args


def main() -> int:
    """Record what is missing, run, print."""
    args = arguments()
    if args.list:
        print(aligned([["name", "decides", "file"], *([m.name, m.decides, m.file] for m in MECHANISMS)]))
        return 0
    if args.page:
        document = json.loads(args.json.read_text("utf-8"))
        args.json.with_suffix(".md").write_text(page(document, MECHANISMS), "utf-8")
        return 0
    if (pair := present_pair()) is None:
        print("needs the Qwen pair: outrider pull qwen-coder-1.5b qwen-coder-0.5b", file=sys.stderr)
        return 1
    target, draft = str(pair[0]), str(pair[1]) if args.draft else None
    texts = texts_of(args.texts, target, args)
    kinds = itertools.product(args.temps, args.workloads)
    texts = in_order(texts, kinds, mixed=args.mixed)  # as replay.py runs them
    replays = Replays(target, draft, args.rows, args.n)
    if args.check:
        replays.check(texts[:: max(1, len(texts) // args.check)][: args.check])
    known = {mechanism.name: mechanism for mechanism in MECHANISMS}
    code = fingerprint(texts) + ("" if args.draft else "-no-draft")
    for name in (EVERYTHING, *wanted(args, MECHANISMS)):
        if name in read_runs(args.runs, code):
            continue
        began, computed = time.monotonic(), replays.computed
        run = replays.run([] if name == EVERYTHING else [known[part] for part in name.split(JOINT)], texts)
        args.runs.parent.mkdir(parents=True, exist_ok=True)
        with args.runs.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"off": name, "code": code, "speedup": run}) + "\n")
        mean, seconds = stats.geomean(cells(run).values()), time.monotonic() - began
        print(f"{name}: {mean:.3f} ({seconds:.0f} s, {replays.computed - computed} rows)", file=sys.stderr)
    runs = read_runs(args.runs, code)
    document = {
        **text_settings(args),
        "draft": args.draft,
        "everything_on": stats.geomean(cells(runs[EVERYTHING]).values()),
        "off": gains(runs),
    }
    print(table(document))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    args.json.with_suffix(".md").write_text(page(document, MECHANISMS), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
