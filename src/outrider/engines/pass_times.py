"""What a pass over n tokens takes: measured on any engine, as the least of a few rounds over all widths."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from outrider.decoding.types import FloatArray
from outrider.engines.base import Cache, EngineCaps, ForwardItem, LanguageModel, PaddedCache
from outrider.engines.heads import TOGETHER, HeadItem, HeadModel
from outrider.models.spec import LayerSpec
from outrider.policy.cost_model import LongerContext

DRAFT_ROWS = 8  # most tokens of a draft pass whose logits are wanted; wider passes are draft prefill
CONTEXT = 32  # tokens in the cache before those that are measured
ROUNDS = 12  # most rounds; the least time of a width counts
SECONDS = 1.0  # for one model, about
# Of the longer context: tokens before those that are measured, widths, most rounds and about how long. Each
# of these passes takes turns with one in the short context, since the difference of both counts.
LONGER, LONGER_WIDTHS, LONGER_ROUNDS, LONGER_SECONDS = 1024, (1, 4, 16), 6, 0.5
LEAST_LONGER = 256  # a model with less context is not measured in a longer one


def measure(
    model: LanguageModel,
    seconds: float = SECONDS,
    *,
    widths: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
    most_rows: int | None = None,
    context: int = CONTEXT,
) -> dict[int, float]:
    """Seconds of a pass by its number of tokens, for `widths` as far as the model's context reaches, after
    `context` tokens: the least of rounds over all widths, which together take about `seconds` but go round at
    least once. The logits of all tokens are computed, but of more than `most_rows` those of the last."""
    room = min(context, model.max_positions - 1)
    widths = [n for n in widths if room + n <= model.max_positions]
    passes = _Passes(model, room, widths[-1], most_rows, clock)
    best = dict.fromkeys(widths, math.inf)
    try:
        passes.compute()
        passes.seconds(1)  # brings the weights in
        for _ in _rounds(ROUNDS, seconds, clock):
            for n in widths:
                best[n] = min(best[n], passes.seconds(n))
    finally:
        passes.close()
    return best


def _rounds(most: int, seconds: float, clock: Callable[[], float]) -> Iterator[None]:
    """Up to `most` rounds of measurements, until these have taken `seconds`, but one at least."""
    end = clock() + seconds
    for _ in range(most):
        yield
        if clock() >= end:
            return


def measure_longer(
    model: LanguageModel,
    curve: Mapping[int, float],
    context: int = LONGER,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """What the passes of some widths take, in seconds, after `context` tokens where they take `curve` in the
    short context: by the difference of both, measured in turns. The model's caches are `PaddedCache`s."""
    near = _Passes(model, CONTEXT, LONGER_WIDTHS[-1], DRAFT_ROWS, clock)
    far = _Passes(model, context, LONGER_WIDTHS[-1], DRAFT_ROWS, clock)
    short, long = ({n: math.inf for n in LONGER_WIDTHS if n in curve} for _ in range(2))
    try:
        near.compute()
        far.pad()
        for _ in _rounds(LONGER_ROUNDS, LONGER_SECONDS, clock):
            for n in short:
                short[n], long[n] = min(short[n], near.seconds(n)), min(long[n], far.seconds(n))
    finally:
        near.close()
        far.close()
    return {n: curve[n] + long[n] - short[n] for n in short}


class _Passes:
    """Passes over up to `widest` tokens after `context` others. most_rows: as in `measure`."""

    def __init__(
        self,
        model: LanguageModel,
        context: int,
        widest: int,
        most_rows: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._model, self._context, self._most_rows, self._clock = model, context, most_rows, clock
        self._cache = model.new_cache(context + widest)

    def compute(self) -> None:
        """The tokens before."""
        if self._context:
            self._model.forward([_item(self._cache, self._context, self._model.vocab_size, rows=0)])

    def pad(self) -> None:
        """Positions of no meaning in their place."""
        cast(PaddedCache, self._cache).pad(self._context)

    def seconds(self, n: int) -> float:
        self._cache.truncate(self._context)
        rows = n if self._most_rows is None or n <= self._most_rows else 1
        item = _item(self._cache, n, self._model.vocab_size, rows=rows)
        began = self._clock()
        self._model.forward([item])
        return self._clock() - began

    def close(self) -> None:
        self._cache.close()


def _item(cache: Cache, count: int, vocab_size: int, *, rows: int) -> ForwardItem:
    """`count` tokens, a chain, and the logits of the last `rows`."""
    tokens = ((7919 * np.arange(1, count + 1)) % vocab_size).astype(np.int32)
    wanted = np.arange(count - rows, count, dtype=np.int32)
    return ForwardItem(cache, tokens, np.arange(-1, count - 1, dtype=np.int32), wanted)


def longer_of(layers: Sequence[LayerSpec], positions: int) -> LongerContext | None:
    """The longer context in which a model of these layers is measured, without seconds. None where it has too
    few positions for that."""
    context = min(LONGER, positions - LONGER_WIDTHS[-1])
    windows = Counter(layer.window for layer in layers)
    return LongerContext(context, {}, tuple(windows.items())) if context >= LEAST_LONGER else None


def measured_longer(
    model: LanguageModel, curve: Mapping[int, float], longer: LongerContext | None
) -> LongerContext | None:
    """The same with the seconds that `measure_longer` finds."""
    if longer is None:
        return None
    return replace(longer, seconds=measure_longer(model, curve, longer.context))


def measure_head(head: HeadModel, seconds: float, widths: Sequence[int]) -> dict[int, float]:
    """`measure` a head, of whose rows in a pass the last has logits."""
    return measure(HeadAsModel(head), seconds, widths=widths, most_rows=1)


class HeadAsModel:
    """A LanguageModel for `measure`: a head's passes over tokens that come with some hidden states, wide ones
    in two as its drafter makes them."""

    caps = EngineCaps(tree_attention=False, exact_bits=True)

    def __init__(self, head: HeadModel) -> None:
        self._head = head
        self.vocab_size, self.max_positions = head.token_count, 1 << 20
        self._states = np.empty((0, head.state_width), np.float32)  # made once: that is not the pass's time

    def new_cache(self, capacity: int) -> Cache:
        return self._head.new_cache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        (item,) = items
        tokens, rows = item.tokens, item.rows
        if len(tokens) > len(self._states):
            self._states = np.ones((len(tokens), self._head.state_width), np.float32)
        states = self._states[: len(tokens)]
        if len(tokens) > TOGETHER and len(rows):
            before = HeadItem(item.cache, tokens[:-1], states[:-1], rows[:0])
            self._head.forward_head([before], fed_back=False)
            tokens, states, rows = tokens[-1:], states[-1:], np.zeros(1, np.int32)
        return self._head.forward_head([HeadItem(item.cache, tokens, states, rows)], fed_back=False)[0]
