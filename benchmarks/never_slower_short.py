"""Checks the promises of `auto` where there is little time to learn.

    python benchmarks/never_slower.py --short [--kinds labels,'long 3000','busy code','loop chat']
        [--caps 1,5,16] [--cold-caps 5,16] [--limit N] [--runs K] [--temps 0,0.7]

A cell is a set of models, a temperature and a kind of text:

- a short workload's name: answers of at most 48 tokens, with each cap (`num_speculative_tokens`) of `auto`;
- `long N`: a question at the end of a prompt of at least N tokens, made of the texts of `passages`;
- `busy W`, `memory W`: texts of workload W while a busy process, or one that reads memory, comes and goes;
- `loop W`: five texts of one prompt at temperature 0.7 and cap 5, one after the other in one process, without
  and with looking drafts up in earlier outputs.

All methods of a cell run interleaved. `warm` methods go on from cell to cell; of a `cold` one, every text is
the first of its process. Plain decoding runs twice in every round: how far its second run comes out from the
first is the noise of a text, and a single text counts as too slow when it is by more than that.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import outrider
from never_slower import (
    AS_THE_BEST,
    NEVER_SLOWER,
    PLAIN,
    RESULTS,
    Models,
    against_best,
    at_least_one,
    check_names,
    judged,
    names,
    publish,
    sets,
    steadiest,
)
from outrider.bench import stats, workloads
from outrider.bench.interleaved import ColdMethod, TimedMethod
from outrider.bench.journal import Journal
from outrider.bench.report import BASELINE
from outrider.bench.runner import measure
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NoneConfig, SpeculativeConfig
from outrider.engines.step import CachedStepEngine
from outrider.pipeline import Pipeline, build_all
from replay import capped_settings

AGAIN = "plain again"  # plain decoding a second time, for the noise
WORST_TEXT, UNDER_LOAD, LOOP = 0.93, 0.95, 1.5
UNCAPPED = 16  # the default of num_speculative_tokens under `auto`
LOOP_CAP, LOOP_RUNS, LOOP_TEMPERATURE, LOOP_TOKENS = 5, 5, 0.7, 128
LOAD_TOKENS, LOAD_PERIOD = 96, 24
PREFIX_BYTES = 2 << 30
LONG, LOADS = (1000, 3000, 6000), ("busy", "memory")
USUAL_LIMIT = 3  # prompts of a kind, but for those that take long
USUAL_LIMITS = {"long": 2, "busy": 2, "memory": 2}
KINDS = (
    *workloads.SHORT,
    *(f"long {size}" for size in LONG),
    *(f"{load} {name}" for load in LOADS for name in ("code", "extract")),
    *("loop chat", "loop code"),
)
PROGRAMS = {
    "busy": "print(flush=True)\nwhile True: pass",
    "memory": "import numpy\na = numpy.ones(1 << 25)\nprint(flush=True)\nwhile True: a.sum()",
}


# --- What is measured ------------------------------------------------------------------------------


def is_loaded(tokens: int) -> bool:
    """Whether there is other load while a text has so many tokens: it comes and goes, and is off at first."""
    return tokens // LOAD_PERIOD % 2 == 1


class Load:
    """A process that takes the processor or the memory while `at` says so. A context manager."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", PROGRAMS[kind]], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # from here on it does nothing else
        self.running = True
        self.at(0)

    def at(self, tokens: int) -> None:
        """Run, or stand still, as a text of so many tokens asks for."""
        if (wanted := is_loaded(tokens)) != self.running:
            self._process.send_signal(signal.SIGCONT if wanted else signal.SIGSTOP)
            self.running = wanted

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def long_items(size: int, count_tokens: Callable[[str], int]) -> list[workloads.Item]:
    """The questions of `passages`, the shortest first, each behind as many paragraphs of the others' texts as
    make a prompt of at least `size` tokens."""
    found = []
    every = workloads.load("passages")
    for item in sorted(every, key=lambda item: len(item.prompt)):
        at = every.index(item)
        others = [every[(at + k) % len(every)].prompt for k in range(1, len(every))]
        paragraphs = [p for other in others for p in other.split("\n\n")[2:-1]]
        taken: list[str] = []
        while (missing := size - count_tokens("\n\n".join([*taken, item.prompt]))) > 0 and paragraphs:
            taken.append(paragraphs.pop(0))
            while paragraphs and count_tokens(taken[-1]) < missing / 2:  # fewer counts of the whole
                taken[-1] += "\n\n" + paragraphs.pop(0)
        before = ["Other texts, which are not asked about:", *taken] if taken else []
        found.append(workloads.Item(item.id, f"long {size}", "\n\n".join([*before, item.prompt])))
    return found


def autos(kind: str, args: argparse.Namespace) -> dict[str, int]:
    """The caps of the `auto` methods of a cell, by name."""
    if kind.startswith("loop"):
        return {f"own text {LOOP_CAP}": LOOP_CAP, f"earlier outputs {LOOP_CAP}": LOOP_CAP}
    if kind.startswith(LOADS):
        return {f"warm {UNCAPPED}": UNCAPPED}
    warm, cold = args.caps, args.cold_caps
    if kind.startswith("long"):
        warm, cold = [UNCAPPED], [UNCAPPED]
    return {f"warm {cap}": cap for cap in warm} | {f"cold {cap}": cap for cap in cold}


def fixed_settings(draft: str | None, caps: Collection[int]) -> dict[str, SpeculativeConfig]:
    """The fixed settings that some cap allows, by name."""
    found = {name: made for cap in caps for name, made in capped_settings(draft or "", cap).items()}
    return {n: made for n, made in found.items() if n != "auto" and (draft or "draft_model" not in n)}


def within(fixed: Collection[str], cap: int) -> list[str]:
    """Those of the fixed settings that draft at most `cap` tokens in a step: their names end with that."""
    return [name for name in fixed if int(name.rsplit(" ", 1)[1]) <= cap]


def finalists(swept: Mapping[str, float], caps: Collection[int]) -> list[str]:
    """The best setting of the sweep for each cap."""
    best = [max(usable, key=lambda n: swept[n]) for cap in caps if (usable := within(swept, cap))]
    return list(dict.fromkeys(best))


def replace_runs(args: argparse.Namespace, runs: int) -> argparse.Namespace:
    """The options with another number of runs."""
    return argparse.Namespace(**{**vars(args), "runs": runs})


class Stage:
    """All methods on one set of models."""

    def __init__(self, models: Models, args: argparse.Namespace) -> None:
        caps = sorted({*args.caps, *args.cold_caps, UNCAPPED, LOOP_CAP})
        self.fixed = fixed_settings(models.draft, caps)
        choices: dict[str, SpeculativeConfig] = {BASELINE: NoneConfig(), AGAIN: NoneConfig()}
        choices |= {f"warm {cap}": AutoConfig(models.draft, num_speculative_tokens=cap) for cap in caps}
        choices |= self.fixed
        config = EngineConfig(models.target, max_num_seqs=len(choices) + len(caps), threads=args.threads)
        made = build_all(config, list(choices.values()))
        engine = made[0].engine
        if isinstance(engine, CachedStepEngine):
            engine.share_prefixes(PREFIX_BYTES)
        self.pipelines = dict(zip(choices, made, strict=True))
        self._args = args

    def method(self, name: str) -> Pipeline | TimedMethod:
        """A method by its name in `autos`, or that of a fixed setting or of plain decoding."""
        state, _, cap = name.rpartition(" ")
        if state == "cold":
            return ColdMethod(self.pipelines[f"warm {cap}"])
        if state in ("own text", "earlier outputs"):  # of the loop
            return TimedMethod(self.pipelines[f"warm {cap}"].fresh(), shared=state == "earlier outputs")
        return self.pipelines[name]

    def count_tokens(self, text: str) -> int:
        return len(self.pipelines[BASELINE].tokenizer.encode(text))

    def run(self, kind: str, temperature: float) -> dict[str, Any]:
        """Measure a cell: a sweep of the fixed settings, where they count, and then all methods."""
        args, (first, _, rest) = self._args, kind.partition(" ")
        limit, tokens, seeds, warm_up = args.limit or USUAL_LIMITS.get(first, USUAL_LIMIT), args.n, 1, None
        is_long = first == "long"
        items = long_items(int(rest), self.count_tokens) if is_long else workloads.load(rest or kind)
        if first in LOADS:
            tokens = LOAD_TOKENS
        if first == "loop":
            limit, tokens, seeds, warm_up = 1, LOOP_TOKENS, LOOP_RUNS, items[1]
            args = replace_runs(args, 1)  # a second round would meet the first one's outputs
        params = replace(PLAIN, temperature=temperature, max_tokens=tokens)
        swept: dict[str, float] = {}
        caps = autos(kind, args)
        if first not in (*LOADS, "loop"):
            tried = self.fixed if first != "long" else {n: self.fixed[n] for n in self.long_fixed}
            methods = {name: self.pipelines[name] for name in (BASELINE, *tried)}
            sweep = measure(methods, items[: min(limit, args.sweep)], params, runs=1)
            found = sweep["workloads"][0]["methods"]
            swept = {name: m["speedup"] for name, m in found.items() if name != BASELINE}
        chosen = [BASELINE, AGAIN, *caps, *finalists(swept, sorted(set(caps.values())))]
        finals = {name: self.method(name) for name in chosen}
        with contextlib.ExitStack() as stack:
            options: dict[str, Any] = {"seeds": seeds, "warm_up": warm_up}
            if first in LOADS:
                options["before_step"] = stack.enter_context(Load(first)).at
            entry = steadiest(finals, items[:limit], params, args, **options)
        return {"sweep": swept, "caps": caps, **entry}

    @property
    def long_fixed(self) -> list[str]:
        """Fixed settings for long prompts, which a draft model reads as a whole each time: the usual ones."""
        usual = (f"suffix {UNCAPPED}", f"ngram {LOOP_CAP}", "draft_model 3")
        return [name for name in usual if name in self.fixed]


# --- Verdicts --------------------------------------------------------------------------------------


def noise(methods: Mapping[str, Any], text: str) -> float:
    """The largest factor between the seconds of plain decoding's two runs in a round of a text."""
    return max(math.exp(abs(math.log(ratio))) for ratio in methods[AGAIN]["ratios"][text])


def worst_text(methods: Mapping[str, Any], name: str) -> tuple[str, float, tuple[float, float]]:
    """(text, its speed-up, what it may be but for the noise) of the text that most surely is the slowest:
    that of the lowest upper end."""
    found = []
    for text, ratios in methods[name]["ratios"].items():
        value, factor = stats.median(ratios), noise(methods, text)
        found.append((text, value, (value / factor, value * factor)))
    return min(found, key=lambda entry: entry[2][1])


def targets(found: Mapping[tuple[str, ...], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every target with its measured value, interval and verdict."""
    checked = []
    for (models, temperature, kind), cell in found.items():
        methods, first = cell["methods"], kind.split(" ")[0]
        for name, cap in cell["caps"].items():
            where, mine = f"{models}, T {temperature}, {kind}, {name}", methods[name]
            value, interval = mine["speedup"], mine["speedup_ci"]
            if first == "loop":
                # Of mean seconds, as whoever runs a prompt five times counts; the texts are the same.
                value = methods[BASELINE]["seconds"]["total"] / mine["seconds"]["total"]
                target = "loop" if name.startswith("own text") else "loop with earlier outputs"
                checked.append(judged(target, where, LOOP, value, interval))
                continue
            if first in LOADS:
                checked.append(judged("under other load", where, UNDER_LOAD, value, interval))
                continue
            checked.append(judged("never slower", where, NEVER_SLOWER, value, interval))
            text, value, interval = worst_text(methods, name)
            checked.append(judged("slowest text", f"{where}, {text}", WORST_TEXT, value, interval))
            fixed = [n for n in methods if n not in (BASELINE, AGAIN, *cell["caps"])]
            if (best := against_best(cell, name, within(fixed, cap))) is not None:
                checked.append(judged("as fast as the best", where, AS_THE_BEST, best[1], best[2]))
    return checked + over_all_kinds(found)


def over_all_kinds(found: Mapping[tuple[str, ...], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The targets of the geometric mean over the texts of all short kinds, for each method."""
    ratios: dict[tuple[str, str, str], list[Sequence[float]]] = {}
    for (models, temperature, kind), cell in found.items():
        for name in cell["caps"] if kind in workloads.SHORT else ():
            ratios.setdefault((models, temperature, name), []).extend(
                cell["methods"][name]["ratios"].values()
            )
    return [
        judged(
            "never slower, all kinds",
            f"{models}, T {temperature}, {name}",
            NEVER_SLOWER,
            *stats.speedup(each),
        )
        for (models, temperature, name), each in ratios.items()
    ]


HEADER = [
    *("models", "T", "texts", "auto", "auto / plain", "95%", "slowest text"),
    *("best fixed", "auto / best", "same", "drift"),
]


def rows(found: Mapping[tuple[str, ...], Mapping[str, Any]]) -> list[list[str]]:
    """The header, and a row for each cell and `auto` method."""
    lines = [HEADER]
    for cell, values in found.items():
        methods = values["methods"]
        fixed = [n for n in methods if n not in (BASELINE, AGAIN, *values["caps"])]
        for name, cap in values["caps"].items():
            mine = methods[name]
            (low, high), (_, slowest, ends) = mine["speedup_ci"], worst_text(methods, name)
            best = against_best(values, name, within(fixed, cap))
            lines.append(
                [
                    *cell,
                    name,
                    f"{mine['speedup']:.3f}",
                    f"{low:.2f}–{high:.2f}",
                    f"{slowest:.2f} ({ends[0]:.2f}–{ends[1]:.2f})",
                    "–" if best is None else best[0],
                    "–" if best is None else f"{best[1]:.3f}",
                    "yes" if mine["identical"] else "NO",
                    f"{values['drift']:.0%}",
                ]
            )
    return lines


# --- The command -----------------------------------------------------------------------------------


def whole_numbers(text: str) -> list[int]:
    """Parse an option of several numbers, separated by commas."""
    return [at_least_one(part.strip()) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    there = [m.name for m in sets()]
    parser.add_argument("--short", action="store_true", help="these cells")
    parser.add_argument("--sets", type=names, default=there[-1:], help=f"of {', '.join(there)}")
    parser.add_argument("--kinds", type=names, default=list(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--temps", type=lambda s: [float(t) for t in s.split(",")], default=[0.0, 0.7])
    parser.add_argument("--caps", type=whole_numbers, default=[1, 2, 3, 5, 8, UNCAPPED], help="warm")
    parser.add_argument("--cold-caps", type=whole_numbers, default=[5, UNCAPPED])
    parser.add_argument(
        "--limit", type=at_least_one, help="prompts of a kind (default: 3, 2 of long ones and beside a load)"
    )
    parser.add_argument("--runs", type=at_least_one, default=3)
    parser.add_argument("-n", type=at_least_one, default=48, help="most tokens of a short text")
    parser.add_argument("--sweep", type=at_least_one, default=2, help="prompts of the sweep")
    parser.add_argument("--again", type=int, default=0, help="repetitions while the machine is unsteady")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--journal", type=Path, default=RESULTS / "short_texts.jsonl")
    parser.add_argument("--json", type=Path, default=RESULTS / "short_texts.json")
    args = parser.parse_args()
    check_names(parser, args, sets=there, kinds=KINDS)
    return args


def cells(args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """(set, temperature, kind) of every cell. Other load is measured at the first temperature only, the loop
    at its own."""
    for name in args.sets:
        for kind in args.kinds:
            temperatures: Sequence[float] = args.temps
            if kind.startswith(LOADS):
                temperatures = args.temps[:1]
            if kind.startswith("loop"):
                temperatures = [LOOP_TEMPERATURE]
            for temperature in temperatures:
                yield name, f"{temperature:g}", kind


def main() -> int:
    """Measure what the journal lacks, write the results and print them. Returns 1 when a target is missed or
    a token was changed."""
    args = arguments()
    kept = ("caps", "cold_caps", "limit", "runs", "n", "sweep", "threads")
    settings = {
        "outrider": outrider.__version__,
        "models": {m.name: [Path(m.target).name, m.draft and Path(m.draft).name] for m in sets()},
        **{name: getattr(args, name) for name in kept},
    }
    journal = Journal(args.journal, settings)
    wanted = list(cells(args))
    for models in sets():
        todo = [cell for cell in wanted if cell[0] == models.name and cell not in journal]
        stage = Stage(models, args) if todo else None
        for cell in todo:
            assert stage is not None
            journal.add(cell, stage.run(cell[2], float(cell[1])))
            print(", ".join(cell), file=sys.stderr)
    found = {cell: journal[cell] for cell in wanted}
    return publish(args, settings, found, targets(found), rows(found))
