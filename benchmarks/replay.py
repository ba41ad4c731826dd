"""Measures the controller on recorded texts, with a simulated clock: `auto` against fixed settings.

    python benchmarks/replay.py [--methods auto,'draft_model 3',…] [--workloads …] [--temps 0,0.7] [--limit N]
        [--seeds N] [--behind N] [--cap N] [--cold] [--mixed]

The Qwen target generated the texts of the built-in workloads once; here its passes replay them. Draft model,
drafters, controller and step loop are real, but a pass takes the time given in COSTS, measured on an idle
machine, and nothing else takes time. Results are therefore the same in every run and on every machine, and
differences of 1% are meaningful. A sweep takes minutes instead of hours. As in `outrider bench`, decoding
begins when the target's prefill ends, so a draft prefill in the first step is charged. Not simulated are
variations of the machine's speed, and the time of lookups and planning (a quarter of a millisecond per step).

One text changes a workload's mean by several percent, so results on six texts may be chance: a gain of 5% on
them vanished on the forty texts of `--limit 8 --seeds 5`. The texts of a workload follow one another unless
`--mixed` shuffles them: what one kind of text teaches about another shows only then.

Texts that are missing in the file --texts are generated first (some minutes, once). Writes
results/replay.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from never_slower import AS_THE_BEST, PLAIN, at_least_one, check_names, fixed_settings, names
from outrider.bench import stats, workloads
from outrider.bench.cost_curve import aligned
from outrider.bench.runner import prompt_of
from outrider.bench.workloads import SEED_STRIDE, texts_per_prompt
from outrider.cli.demo import present_pair
from outrider.config.engine import EngineConfig
from outrider.config.speculative import (
    AutoConfig,
    DraftModelConfig,
    NgramConfig,
    SpeculativeConfig,
    SuffixConfig,
)
from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.base import EngineCaps, ForwardItem, LanguageModel, VocabSubsetModel
from outrider.engines.native import calibrate
from outrider.engines.pass_times import CONTEXT
from outrider.llm import LLM
from outrider.models.source import ModelSource
from outrider.native_engine import native_rows
from outrider.pipeline import build_all, load_native
from outrider.policy.cost_model import CostCurve, CostModel

RESULTS = Path(__file__).resolve().parent / "results"
# Milliseconds of a pass over n tokens at a context of 256, on two cores of a Zen 5. "draft" is the 0.5B with
# Q3_0 weights: up to 8 tokens with a quarter of its vocabulary, as when it drafts; from 9 tokens on, as in
# its prefill. Tiles of ten tokens cause the jumps after 10, 16 and 20.
COSTS = {
    "target": dict(enumerate((18.9, 19.1, 19.6, 20.0, 21.0, 22.7, 25.1, 27.0, 29.6, 31.3), start=1))
    | {11: 37.3, 12: 39.4, 13: 40.5, 14: 42.7, 15: 45.0, 16: 47.3, 17: 53.9, 18: 56.0, 19: 58.9, 20: 62.5}
    | {21: 65.6, 24: 72.7, 28: 85.1, 32: 94.4},
    "draft": dict(enumerate((3.85, 3.95, 4.15, 4.3, 4.5, 4.9, 5.4, 5.9, 6.3, 6.8), start=1))
    | {11: 7.9, 12: 8.4, 16: 10.5, 20: 12.8, 24: 15.5, 28: 17.7, 32: 19.9},
}
MOST_TOKENS = 256
STORED_AT_ONCE = 16  # texts that are lost when the process ends early, at most
RIVAL = 0.04  # probability of each other token / the likeliest token's: below min_p, so none is sampled


@dataclass(frozen=True, slots=True)
class Text:
    """A text that the target generated.

    asked:   the prompt as text.
    prompt:  its token ids, with the chat template.
    output:  the generated token ids.
    certain: for each token of the output, the probability of the target's likeliest token.
    """

    workload: str
    id: str
    temperature: float
    seed: int
    asked: str
    prompt: list[int]
    output: list[int]
    certain: list[float]


class Clock:
    """A simulated clock, in seconds, which only forward passes advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, costs: CostCurve, items: Sequence[ForwardItem]) -> None:
        """Advance by the time of a pass over these items."""
        self.now += costs.seconds(sum(len(item.tokens) for item in items))


def curve(costs: Mapping[int, float]) -> CostCurve:
    """A cost curve in seconds from milliseconds by width."""
    return CostCurve({n: ms / 1e3 for n, ms in costs.items()})


class ReplayCache:
    """A cache without content; it has only a length."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0

    def truncate(self, length: int) -> None:
        self.length = length

    def keep(self, base: int, slots: Sequence[int]) -> None:
        self.length = base + len(slots)

    def close(self) -> None:
        self.length = 0


class Replay:
    """A LanguageModel that replays `text`: after a prefix of it, its next token is the likeliest. After any
    other tokens it gives token 0."""

    caps = EngineCaps(tree_attention=True, exact_bits=True)

    def __init__(self, vocab_size: int, costs: Mapping[int, float], clock: Clock) -> None:
        self.vocab_size, self.max_positions = vocab_size, 1 << 20
        self.text: list[int] = []
        self.certain: dict[int, float] = {}  # by the token's position in the text
        self.costs = curve(costs)
        self.prefill_seconds = 0.0  # of passes without logits
        self._clock = clock

    def new_cache(self, capacity: int) -> ReplayCache:
        return ReplayCache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        began = self._clock()
        self._clock.run(self.costs, items)
        if not any(len(item.rows) for item in items):
            self.prefill_seconds += self._clock() - began
        return [self._rows(item) for item in items]

    def _rows(self, item: ForwardItem) -> FloatArray:
        assert isinstance(item.cache, ReplayCache)
        base, text = item.cache.length, self.text
        right: list[bool] = []
        places: list[int] = []
        for token, parent in zip(item.tokens.tolist(), item.parents.tolist(), strict=True):
            place = base if parent < 0 else places[parent] + 1
            right.append((parent < 0 or right[parent]) and place < len(text) and token == text[place])
            places.append(place)
        item.cache.length = base + len(places)
        rows = np.full((len(item.rows), self.vocab_size), -30.0, np.float32)
        for row, node in enumerate(item.rows.tolist()):
            after = places[node] + 1
            token = text[after] if right[node] and after < len(text) else 0
            rows[row, token] = 30.0
            rest = (
                1.0 / self.certain.get(after, 1.0) - 1.0
            )  # probability of all other tokens / the likeliest token's
            if rest > 0.0:
                count = min(self.vocab_size - 1, math.ceil(rest / RIVAL))
                rivals = (token + 1 + np.arange(count)) % self.vocab_size
                rows[row, rivals] = 30.0 + math.log(rest / count)
        return rows


class Timed:
    """A model whose passes advance the simulated clock by given times."""

    def __init__(self, inner: VocabSubsetModel, costs: Mapping[int, float], clock: Clock) -> None:
        self._inner, self._clock = inner, clock
        self.caps = inner.caps
        self.costs = curve(costs)
        self.vocab_size, self.max_positions = inner.vocab_size, inner.max_positions
        self.vocab_block_size = inner.vocab_block_size

    def on(self, clock: Clock) -> Timed:
        """The same model with another clock."""
        made = copy.copy(self)
        made._clock = clock
        return made

    def new_cache(self, capacity: int) -> Any:
        return self._inner.new_cache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        self._clock.run(self.costs, items)
        return self._inner.forward(items)

    def forward_subset(self, items: Sequence[ForwardItem], blocks: IntArray) -> list[FloatArray]:
        self._clock.run(self.costs, items)
        return self._inner.forward_subset(items, blocks)


def items_of(workload: str, behind: int) -> list[workloads.Item]:
    """The prompts of a built-in workload. With `behind`, each has that many other prompts before it: long
    prompts of which only the end matters, as in a conversation."""
    items = workloads.load(workload)
    if not behind:
        return items
    every = [item for name in workloads.BUILT_IN for item in workloads.load(name)]
    every += [] if workload in workloads.BUILT_IN else items
    found = []
    for item in items:
        at = every.index(item)
        said = "\n\n".join(every[(at + 7 * k) % len(every)].prompt for k in range(1, behind + 1))
        prompt = f"This was asked before:\n\n{said}\n\nNow answer this and nothing else:\n\n{item.prompt}"
        found.append(workloads.Item(f"{item.id} behind {behind}", workload, prompt))
    return found


def texts_of(place: Path, target: str, args: argparse.Namespace) -> list[Text]:
    """The texts that `args` selects, from the file `place`. Missing ones, and those whose prompt has changed,
    are generated by the target first."""
    lines = json.loads(place.read_text("utf-8")) if place.exists() else []
    asked = {item.id: item.prompt for name in workloads.EVERY for item in items_of(name, args.behind)}
    form = {field.name for field in fields(Text)}  # a file of an older version lacks some
    texts = [Text(**line) for line in lines if line.keys() == form]
    known = {(t.id, t.temperature, t.seed): t for t in texts if asked.get(t.id, t.asked) == t.asked}
    wanted = {
        (item.id, t, SEED_STRIDE * k + i): item
        for name in args.workloads
        for t in args.temps
        for k in range(texts_per_prompt(args.seeds, t))
        for i, item in enumerate(items_of(name, args.behind)[: args.limit])
    }
    missing = [(key, item) for key, item in wanted.items() if key not in known]
    if missing:
        (pipeline,) = build_all(EngineConfig(target, max_num_seqs=4), [AutoConfig()])
        llm = LLM.from_pipeline(pipeline)
        place.parent.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(missing), STORED_AT_ONCE):
            batch = missing[first : first + STORED_AT_ONCE]
            prompts = [prompt_of(pipeline, item.prompt, False) for _, item in batch]
            params = [
                replace(PLAIN, temperature=t, max_tokens=args.n, seed=seed) for (_, t, seed), _ in batch
            ]
            written = llm.generate(prompts, params)
            for (key, item), out in zip(batch, written, strict=True):
                ids = list(out.prompt_token_ids), list(out.outputs[0].token_ids)
                known[key] = Text(item.workload, *key, item.prompt, *ids, certain=shares(llm, *ids))
            place.write_text(json.dumps([asdict(text) for text in known.values()]), "utf-8")
    return [known[key] for key in wanted]


def shares(llm: LLM, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """`Text.certain` of an output after its prompt."""
    params = replace(PLAIN, max_tokens=1, prompt_logprobs=1)
    (out,) = llm.generate({"prompt_token_ids": [*prompt, *output]}, params)
    assert out.prompt_logprobs is not None
    each = out.prompt_logprobs[len(prompt) :]
    return [math.exp(max(said.logprob for said in place.values())) for place in each if place]


def load_timed(source: ModelSource, threads: int | None, clock: Clock) -> Timed:
    """The draft model, loaded."""
    draft = load_native(source, threads)
    assert isinstance(draft, VocabSubsetModel)
    return Timed(draft, COSTS["draft"], clock)


class Stage:
    """All methods on one replayed target.

    load_draft: gives the draft model; its passes take what they are said to cost.
    most:       tokens that a text may have. The controller knows this, and not where a text ends by itself.
    """

    def __init__(
        self,
        target: str,
        choices: Mapping[str, SpeculativeConfig],
        load_draft: Callable[[ModelSource, int | None, Clock], Timed] = load_timed,
        *,
        most: int = MOST_TOKENS,
    ) -> None:
        self._clock, self._most = Clock(), most
        models: list[Replay] = []

        def load(source: ModelSource, threads: int | None) -> LanguageModel:
            if not models:  # the target is the first
                models.append(Replay(source.architecture.vocab_size, COSTS["target"], self._clock))
                return models[0]
            return load_draft(source, threads, self._clock)

        def costs(model: LanguageModel, blocks: IntArray | None) -> CostModel:
            assert isinstance(model, Replay | Timed)
            return CostModel({n: model.costs.seconds(n) for n in calibrate.WIDTHS}, CONTEXT)

        config = EngineConfig(target, max_num_seqs=1)
        pipelines = build_all(config, list(choices.values()), load, costs=costs, clock=self._clock)
        self._target, self._ends = models[0], pipelines[0].tokenizer.eos_ids
        self._llms = {
            name: LLM.from_pipeline(replace(pipeline, rows=native_rows()), shared=False)
            for name, pipeline in zip(choices, pipelines, strict=True)
        }

    def speedup(self, method: str, text: Text) -> float:
        """The speed-up over plain decoding, from the end of the target's prefill on. Raises SystemExit when
        the text changes."""
        self._target.text = [*text.prompt, *text.output]
        self._target.certain = dict(enumerate(text.certain, start=len(text.prompt)))
        most = max(self._most, len(text.output)) if text.output[-1] in self._ends else len(text.output)
        params = replace(PLAIN, temperature=text.temperature, max_tokens=most, seed=text.seed)
        began, self._target.prefill_seconds = self._clock(), 0.0
        (out,) = self._llms[method].generate({"prompt_token_ids": text.prompt}, params)
        if list(out.outputs[0].token_ids) != text.output:
            raise SystemExit(f"{method} changed the text of {text.id} at temperature {text.temperature:g}")
        metrics = out.outputs[0].metrics
        assert metrics.last_token is not None
        plain = len(text.output) * self._target.costs.seconds(1)
        return plain / (metrics.last_token - began - self._target.prefill_seconds)


def table(rows: Mapping[tuple[str, str], Mapping[str, float]], methods: Sequence[str]) -> str:
    """A row for each workload and temperature, and the geometric means."""
    lines = [["T", "workload", *methods, "auto / best fixed"]]
    for (temperature, workload), row in rows.items():
        fixed = [row[m] for m in methods if m != "auto"]
        share = f"{row['auto'] / max(fixed):.2f}" if fixed and "auto" in row else "–"
        lines.append([temperature, workload, *(f"{row[m]:.2f}" for m in methods), share])
    for temperature in dict.fromkeys(t for t, _ in rows):
        mine = [row for (t, _), row in rows.items() if t == temperature]
        means = (f"{stats.geomean(row[m] for row in mine):.2f}" for m in methods)
        lines.append([temperature, "all", *means, ""])
    return aligned(lines)


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select texts, except the workloads."""
    parser.add_argument("--temps", type=lambda s: [float(t) for t in s.split(",")], default=[0.0, 0.7])
    parser.add_argument("--limit", type=at_least_one, default=6, help="prompts of a workload")
    parser.add_argument(
        "--seeds", type=at_least_one, default=1, help="texts of each prompt above temperature 0"
    )
    parser.add_argument("-n", type=at_least_one, default=MOST_TOKENS, help="most tokens of a text")
    parser.add_argument("--behind", type=int, default=0, help="other prompts before each")
    parser.add_argument("--texts", type=Path, default=Path.home() / ".cache/outrider/replay_texts.json")


def text_settings(args: argparse.Namespace) -> dict[str, int]:
    """The settings of the texts, for a results file."""
    return {name: getattr(args, name) for name in ("limit", "seeds", "n", "behind")}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ["auto", *fixed_settings("draft")]
    parser.add_argument("--methods", type=names, default=known, help=f"of {', '.join(known)}")
    add_text_options(parser)
    parser.add_argument(
        "--cold", action="store_true", help="every text as the first of a process, with nothing learned"
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="the texts of all workloads and temperatures in one shuffled order, as a server meets them",
    )
    parser.add_argument(
        "--cap",
        type=at_least_one,
        help="`num_speculative_tokens` of auto, against fixed settings with at most as many",
    )
    parser.add_argument("--workloads", type=names, default=list(workloads.BUILT_IN))
    parser.add_argument("--json", type=Path, default=RESULTS / "replay.json")
    args = parser.parse_args()
    if args.cap is not None:
        known = list(capped_settings("draft", args.cap))
        if args.methods == parser.get_default("methods"):
            args.methods = known
    check_names(parser, args, methods=known, workloads=workloads.EVERY)
    return args


def in_order(texts: Sequence[Text], cells: Iterable[tuple[float, str]], *, mixed: bool) -> list[Text]:
    """The texts cell by cell, each a (temperature, workload), or shuffled, the same way each time."""
    found = [t for cell in cells for t in texts if (t.temperature, t.workload) == cell]
    if mixed:
        random.Random(0).shuffle(found)
    return found


def capped_settings(draft: str, cap: int) -> dict[str, SpeculativeConfig]:
    """`auto` and the fixed settings that draft at most `cap` tokens in a step, by name."""
    found: dict[str, SpeculativeConfig] = {"auto": AutoConfig(draft, num_speculative_tokens=cap)}
    found[f"suffix {cap}"] = SuffixConfig(cap)
    found[f"ngram {cap}"] = NgramConfig(cap, prompt_lookup_max=4, prompt_lookup_min=2)
    return found | {f"draft_model {k}": DraftModelConfig(draft, k) for k in range(1, min(cap, 5) + 1)}


def main() -> int:
    """Generate missing texts, replay and print. Returns 1 when `auto` is slower than the best fixed setting
    in some cell."""
    args = arguments()
    if (pair := present_pair()) is None:
        print("needs the Qwen pair: outrider pull qwen-coder-1.5b qwen-coder-0.5b", file=sys.stderr)
        return 1
    target, draft = map(str, pair)
    texts = texts_of(args.texts, target, args)
    choices = (
        {"auto": AutoConfig(draft), **fixed_settings(draft)}
        if args.cap is None
        else capped_settings(draft, args.cap)
    )
    asked = {name: choices[name] for name in args.methods}
    loaded: list[Timed] = []  # the draft model, which no text changes

    def load_once(source: ModelSource, threads: int | None, clock: Clock) -> Timed:
        loaded[:] = [loaded[0].on(clock) if loaded else load_timed(source, threads, clock)]
        return loaded[0]

    stage = Stage(target, asked, load_once, most=args.n)
    found: dict[tuple[float, str], dict[str, list[float]]] = {
        (temperature, workload): {method: [] for method in args.methods}
        for temperature in args.temps
        for workload in args.workloads
    }
    for at, text in enumerate(in_order(texts, found, mixed=args.mixed)):
        if args.cold and at:
            stage = Stage(target, asked, load_once, most=args.n)
        for method in args.methods:
            found[text.temperature, text.workload][method].append(stage.speedup(method, text))
        print(f"{at + 1} of {len(texts)}: {text.id}, T {text.temperature:g}", file=sys.stderr)
    rows = {
        (f"{temperature:g}", workload): {m: stats.geomean(v) for m, v in each.items()}
        for (temperature, workload), each in found.items()
    }
    cells = [{"workload": w, "temperature": t, "speedup": each} for (t, w), each in found.items()]
    document = {"costs_ms": COSTS, **text_settings(args), "cap": args.cap, "mixed": args.mixed}
    document["cells"] = cells
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(table(rows, args.methods))
    below = [
        where
        for where, row in rows.items()
        if "auto" in row and row["auto"] < AS_THE_BEST * max(row.values())
    ]
    print(f"\nauto under {AS_THE_BEST:g} of the best fixed setting: {below or 'nowhere'}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
