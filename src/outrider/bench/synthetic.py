"""The speed of pairs whose files are not here: real passes over random weights of their exact shapes.

Engine, step loop, drafters and controller are the real ones and take the time that they take. What random
weights cannot give is a text: whether the target accepts a draft token is drawn with a given probability, by
the token's position. Nothing of the text is shown, and each number is said to be synthetic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from outrider.bench import machine
from outrider.bench.cost_curve import aligned
from outrider.config.speculative import (
    AutoConfig,
    DraftModelConfig,
    Eagle3Config,
    NoneConfig,
    SpeculativeConfig,
)
from outrider.decoding.events import FinishEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import FloatArray, IntArray
from outrider.drafters.vocab_subset import frequent_blocks
from outrider.drafting import DraftHead, DraftModel, make_drafting, make_lookup
from outrider.engines.base import Cache, EngineCaps, ForwardItem
from outrider.engines.heads import HeadItem
from outrider.engines.native import NativeModel, calibrate
from outrider.engines.native.head import NativeHead
from outrider.engines.native.sampling import row_sampler
from outrider.engines.pass_times import CONTEXT
from outrider.engines.step import CachedStepEngine
from outrider.models.eagle3.head import Eagle3Head
from outrider.models.source import ModelSource
from outrider.plan.slices import with_random_weights
from outrider.policy.cost_model import CostModel, LongerContext

SURE = 30.0  # logit of the token that a row is for, above the others' 0
DRAFTS = (1, 2, 3, 5, 8)  # fixed lengths beside `auto`


def position_share(position: int, what: int) -> float:
    """A number in [0, 1) that only depends on the position: the fractional part of multiples of irrational
    numbers, mixed (a Weyl sequence would be too even)."""
    mixed = np.uint64(position * 4 + what)
    with np.errstate(over="ignore"):
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1)):
            mixed = np.uint64((mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor))
    return float(mixed >> np.uint64(11)) / float(1 << 53)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How likely draft tokens are accepted.

    name:  as reports have it: a probability, or the name of a profile.
    rates: by position in the draft, that a token is accepted if those before it are; the last one is of all
           further positions too.
    mean:  of the tokens that are tried.
    """

    name: float | str
    rates: tuple[float, ...]
    mean: float

    @staticmethod
    def of(probability: float) -> Acceptance:
        """The same at all positions."""
        return Acceptance(probability, (probability,), probability)

    def at(self, position: int) -> float:
        """Of a position, from 1 on."""
        return self.rates[min(position, len(self.rates)) - 1]


class _Wrapped:
    """A model whose passes are computed and whose logits are not its own."""

    def __init__(self, inner: NativeModel, acceptance: Acceptance) -> None:
        self.inner, self.acceptance = inner, acceptance
        self.vocab_size, self.max_positions = inner.vocab_size, inner.max_positions
        self.vocab_block_size = inner.vocab_block_size
        # Prefixes are not shared: the prompts are random, and each run shall compute its own.
        self.caps = EngineCaps(tree_attention=True, exact_bits=True, hidden_states=True)

    def new_cache(self, capacity: int) -> Cache:
        return self.inner.new_cache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        starts = [item.cache.length for item in items]
        rows = self.inner.forward(items)
        return [self._replaced(*each) for each in zip(items, starts, rows, strict=True)]

    @property
    def hidden_size(self) -> int:
        return self.inner.hidden_size

    @property
    def num_layers(self) -> int:
        return self.inner.num_layers

    def forward_hidden(
        self, items: Sequence[ForwardItem], taps: Sequence[int]
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        starts = [item.cache.length for item in items]
        rows, hidden = self.inner.forward_hidden(items, taps)
        return [self._replaced(*each) for each in zip(items, starts, rows, strict=True)], hidden

    def forward_subset(self, items: Sequence[ForwardItem], blocks: IntArray) -> list[FloatArray]:
        starts = [item.cache.length for item in items]
        rows = self.inner.forward_subset(items, blocks)
        return [self._replaced(*each) for each in zip(items, starts, rows, strict=True)]

    def _replaced(self, item: ForwardItem, start: int, rows: FloatArray) -> FloatArray:
        depths: list[int] = []
        for parent in item.parents.tolist():
            depths.append(0 if parent < 0 else depths[parent] + 1)
        for row, node in enumerate(item.rows.tolist()):
            self._write(rows[row], item, node, start, depths[node] + 1)
        return rows

    def _write(self, row: FloatArray, item: ForwardItem, node: int, start: int, depth: int) -> None:
        """Write the logits after `node`, for the token at `depth` in the draft. start: tokens before the
        pass."""
        raise NotImplementedError


class SyntheticTarget(_Wrapped):
    """Its token at a position is the first draft token there with the probability of `acceptance`, and else
    one that no drafter proposes."""

    def _write(self, row: FloatArray, item: ForwardItem, node: int, start: int, depth: int) -> None:
        position = start + depth
        token = int(position_share(position, 0) * self.vocab_size)
        drafted = item.tokens[np.flatnonzero(item.parents == node)]
        if len(drafted):
            while token in drafted:
                token = (token + 1) % self.vocab_size
            if position_share(position, 1) < self.acceptance.at(depth):
                token = int(drafted[0])
        row.fill(0.0)
        row[token] = SURE


class SyntheticDraft(_Wrapped):
    """It is as sure of its token as it is often right, on average."""

    def _write(self, row: FloatArray, item: ForwardItem, node: int, start: int, depth: int) -> None:
        _write_guess(row, start + depth, self.acceptance)


class SyntheticHead:
    """The same for a head's passes."""

    def __init__(self, inner: NativeHead, acceptance: Acceptance) -> None:
        self.inner, self.acceptance = inner, acceptance
        self.vocab_size, self.token_count = inner.vocab_size, inner.token_count
        self.hidden_size, self.state_width = inner.hidden_size, inner.state_width

    def new_cache(self, capacity: int) -> Cache:
        return self.inner.new_cache(capacity)

    def forward_head(
        self, items: Sequence[HeadItem], *, fed_back: bool
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        starts = [item.cache.length for item in items]
        logits, states = self.inner.forward_head(items, fed_back=fed_back)
        for item, start, rows in zip(items, starts, logits, strict=True):
            for row, place in zip(rows, item.rows.tolist(), strict=True):
                row.fill(0.0)
                _write_guess(row, start + place + 1, self.acceptance)
        return logits, states


def _write_guess(row: FloatArray, position: int, acceptance: Acceptance) -> None:
    """Write logits over those that are known: of a token that only depends on the position, and is as likely
    as it is often right."""
    known = row != -np.inf
    size = int(np.count_nonzero(known))
    row[known] = 0.0
    token = int(np.flatnonzero(known)[int(position_share(position, 2) * size)])
    odds = acceptance.mean / max(1e-6, 1.0 - acceptance.mean)
    row[token] = math.log(odds * max(1, size - 1))


@dataclass(frozen=True, slots=True)
class Run:
    """One way of decoding the same number of tokens.

    speedup: plain seconds / seconds, decoding only.
    """

    method: str
    acceptance: float | str
    tokens_per_s: float
    speedup: float
    measured_acceptance: float
    mean_acceptance_length: float


@dataclass(frozen=True, slots=True)
class Settings:
    """acceptances: how likely draft tokens are accepted; prompt, tokens: of a text; runs: of each."""

    acceptances: Sequence[Acceptance]
    prompt: int = 64
    tokens: int = 96
    runs: int = 2
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model or head with random weights, and what its passes take."""

    model: NativeModel | NativeHead
    source: ModelSource
    curve: dict[int, float]
    head: Eagle3Head | None = None
    longer: LongerContext | None = None

    def cost(self) -> CostModel:
        return CostModel(self.curve, CONTEXT, self.longer)

    def described(self) -> dict[str, Any]:
        return {
            "name": self.source.display_name,
            "weights_bytes": self.model.weights_bytes,
            "read_gb_per_s": self.model.read_gb_per_s(),
            "cost_curve_ms": {str(n): seconds * 1e3 for n, seconds in self.curve.items()},
        }


def measure(
    target: ModelSource,
    draft: ModelSource | Eagle3Head | None,
    settings: Settings,
    on_step: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """The document of `outrider bench --synthetic --json`. on_step: called with what is done next."""
    large, small = _load(target, settings.threads, False, on_step), None
    if isinstance(draft, Eagle3Head):
        small = _load_head(draft, settings.threads, on_step)
    elif draft is not None:
        small = _load(draft, settings.threads, True, on_step)
    found: list[Run] = []
    for acceptance in settings.acceptances if small is not None else ():
        assert small is not None
        found += _acceptance(large, small, acceptance, settings, on_step)
    return {
        "synthetic": True,
        "machine": {**machine.describe(large.model.threads), "isa": large.model.isa},
        "target": large.described(),
        "draft": None if small is None else small.described(),
        "prompt_tokens": settings.prompt,
        "tokens": settings.tokens,
        "runs": [asdict(run) for run in found],
    }


def _load(
    source: ModelSource, threads: int | None, drafts: bool, on_step: Callable[[str], object]
) -> _Loaded:
    """drafts: as a draft model, which computes part of its vocabulary."""
    on_step(f"making {source.display_name}")
    model = NativeModel.load(with_random_weights(source), threads=threads, weights_cache=False)
    on_step(f"measuring passes of {source.display_name}")
    blocks = frequent_blocks(model) if drafts else None
    curve = calibrate.measure_curve(model, blocks)
    return _Loaded(model, source, curve, longer=calibrate.measured_longer(model, blocks, curve))


def _load_head(head: Eagle3Head, threads: int | None, on_step: Callable[[str], object]) -> _Loaded:
    source = head.source
    on_step(f"making {source.display_name}")
    model = NativeHead.load(with_random_weights(source), threads=threads)
    on_step(f"measuring passes of {source.display_name}")
    return _Loaded(model, source, calibrate.measure_head(model), head)


def _acceptance(
    large: _Loaded,
    small: _Loaded,
    acceptance: Acceptance,
    settings: Settings,
    on_step: Callable[[str], object],
) -> list[Run]:
    """Plain decoding, `auto`, and fixed lengths, in turns."""
    choices: dict[str, SpeculativeConfig] = {"none": NoneConfig(), "auto": AutoConfig("synthetic")}
    fixed = DraftModelConfig if small.head is None else Eagle3Config
    choices |= {f"{fixed.method} {n}": fixed("synthetic", n) for n in DRAFTS}
    loops = {name: _loop(choice, large, small, acceptance) for name, choice in choices.items()}
    times: dict[str, list[float]] = {name: [] for name in choices}
    last: dict[str, RequestMetrics] = {}
    for run in range(settings.runs):
        for name, loop in loops.items():
            on_step(f"acceptance {acceptance.name}, {name}")
            seconds, last[name] = _decode(loop, large.model.vocab_size, settings, run)
            times[name].append(seconds)
    plain = min(times["none"])
    return [
        Run(
            name,
            acceptance.name,
            (settings.tokens - 1) / min(times[name]),
            plain / min(times[name]),
            last[name].num_accepted_tokens / max(1, last[name].num_draft_tokens),
            1.0 + last[name].num_accepted_tokens / max(1, last[name].num_drafts),
        )
        for name in choices
    ]


def _loop(choice: SpeculativeConfig, large: _Loaded, small: _Loaded, acceptance: Acceptance) -> StepLoop:
    assert isinstance(large.model, NativeModel)
    target = SyntheticTarget(large.model, acceptance)
    drafting = make_drafting(
        choice,
        large.cost,
        _draft(small, acceptance, target),
        make_lookup(choice),
    )
    return StepLoop(
        CachedStepEngine(target),
        drafting.drafter,
        drafting.verifier,
        drafting.controller,
        clock=time.perf_counter,
        max_num_seqs=1,
        rows=row_sampler(),
    )


def _draft(small: _Loaded, acceptance: Acceptance, target: SyntheticTarget) -> DraftModel | DraftHead:
    if isinstance(small.model, NativeModel):
        return DraftModel(SyntheticDraft(small.model, acceptance), target.vocab_size, small.cost)
    model, head = SyntheticHead(small.model, acceptance), small.head
    assert head is not None
    return DraftHead(model, head.taps, head.order, head.target_ids, target.max_positions, None, small.cost)


def _decode(loop: StepLoop, vocab_size: int, settings: Settings, run: int) -> tuple[float, RequestMetrics]:
    """Seconds from the first token to the last, and the metrics."""
    prompt = tuple(
        int(position_share(i, 3) * vocab_size) for i in range(1000 * run, 1000 * run + settings.prompt)
    )
    params = SamplingParams(temperature=0.0, max_tokens=settings.tokens, ignore_eos=True)
    loop.add(Request("synthetic", prompt, params))
    first: float | None = None
    while loop.unfinished:
        for event in loop.step():
            now = time.perf_counter()
            if isinstance(event, FinishEvent):
                if event.error is not None:
                    raise event.error
                assert first is not None
                return now - first, event.metrics
            first = first or now
    raise AssertionError("a request ends with an event")


def text(document: dict[str, Any]) -> str:
    """The document for a reader."""
    lines = [
        f"SYNTHETIC: random weights, acceptance as given; {document['machine']['cpu']}, "
        f"{document['machine']['threads']} threads, {document['machine']['isa']}"
    ]
    for role in ("target", "draft"):
        if (model := document[role]) is not None:
            curve = model["cost_curve_ms"]
            one = curve["1"]
            ratios = ", ".join(f"{n} {ms / one:.2f}" for n, ms in curve.items() if n in ("2", "4", "8", "16"))
            lines.append(
                f"{role} {model['name']}: {one:.1f} ms a token, {model['weights_bytes'] / one / 1e6:.1f} of "
                f"{model['read_gb_per_s']:.1f} GB/s; T(n)/T(1): {ratios}"
            )
    runs = document["runs"]
    methods = list(dict.fromkeys(run["method"] for run in runs))
    rows = [["acceptance", *methods]]
    for acceptance in dict.fromkeys(run["acceptance"] for run in runs):
        of = {run["method"]: run for run in runs if run["acceptance"] == acceptance}
        rows.append([f"{acceptance}", f"{of['none']['tokens_per_s']:.1f} tokens/s",
                     *(f"x {of[m]['speedup']:.2f}" for m in methods[1:])])  # fmt: skip
    return "\n".join(lines + (["", aligned(rows)] if runs else []))
