"""T(n), the time of a pass over n tokens on this machine: measured in about a second, then kept on disk.

A record is found by all that its numbers depend on: the model's file (path, size, time of change), its
quantization, the processor, kernels and threads, the engine's version and build. The file is
not trusted: what is not a small table of plausible numbers is measured again, and so is what was recorded
while other load slowed the machine. The controller corrects a curve with every step, so a bad one costs a few
steps; but an answer of a few tokens has no more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from outrider.decoding.types import FloatArray, IntArray
from outrider.engines.base import Cache, EngineCaps, ForwardItem, LanguageModel, VocabSubsetModel
from outrider.engines.heads import TOGETHER, HeadItem, HeadModel
from outrider.engines.native import _core
from outrider.engines.native.head import NativeHead
from outrider.engines.native.model import NativeModel
from outrider.machine import cpu_name
from outrider.models.source import ModelSource
from outrider.models.sources.download import cache_root, read_json, write_json
from outrider.policy.cost_model import CostModel
from outrider.version import __version__

logger = logging.getLogger("outrider")


def pass_widths(token_tile: int, usual_token_tile: int) -> tuple[int, ...]:
    """The widths of passes, in tokens, that are measured for kernels with these token tiles (csrc/kernels).

    Where a pass needs one token tile more, one token more costs much more: the last width before and the
    first one after such a step are among them.
    """
    steps = (token_tile, token_tile + 1, 2 * usual_token_tile + 1, 2 * token_tile)
    return tuple(sorted({1, 2, 3, 4, 6, 8, 12, 16, *steps}))


WIDTHS = pass_widths(*_core.token_tiles("auto"))  # for models that do not say what their kernels' tiles are
DRAFT_ROWS = 8  # most tokens of a draft pass whose logits are wanted; wider passes are draft prefill
CONTEXT = 32  # tokens in the cache before those that are measured
ROUNDS = 12  # most rounds; the least time of a width counts
SECONDS = 1.0  # for one model, about
UNSTEADY = 1.4  # two measurements of one token may differ by this factor, or other load has changed
PLAUSIBLE = (1e-6, 1e3)  # seconds of a pass
FOLDER = "cost-curves"
HEAD = "head"  # in the facts of a head's curve


def cost_model(model: NativeModel, blocks: IntArray | None = None, folder: Path | None = None) -> CostModel:
    """What a pass of `model` costs: from the record on disk (`folder`, or one in Outrider's cache), or
    measured now and recorded. Never raises for the record's sake.

    blocks: of the vocabulary, as a draft model computes them, see `VocabSubsetModel`; None for all.
    """
    return _on_record(
        place_of(_facts(model, blocks), folder),
        _widths(model),
        _computing(model, blocks),
        lambda: _one_token(_computing(model, blocks), context=0),
        lambda: measure_curve(model, blocks),
    )


def head_cost_model(head: HeadModel, folder: Path | None = None) -> CostModel:
    """What a pass of a head on the native engine costs, in the same way. Rows are those that come with the
    target's hidden states, the dearer ones."""
    if not isinstance(head, NativeHead):
        return CostModel()
    facts = [*head.source.fingerprint(), *facts_of_kernels(head.isa, head.threads), HEAD]
    model = HeadAsModel(head)
    return _on_record(
        place_of(facts, folder), WIDTHS, model, lambda: _one_token(model), lambda: measure_head(head)
    )


def measure_head(head: HeadModel, seconds: float = SECONDS) -> dict[int, float]:
    """`measure` a head, as `measure_curve` does a model."""
    return measure(HeadAsModel(head), seconds, widths=WIDTHS, most_rows=1)


def spread_of_head(head: HeadModel, curve: Mapping[int, float]) -> float:
    """`spread_of` for a head."""
    return _spread(HeadAsModel(head), curve)


def _on_record(
    path: Path,
    widths: Sequence[int],
    model: LanguageModel,
    least: Callable[[], float],
    measured: Callable[[], dict[int, float]],
) -> CostModel:
    """What passes of `model` cost, from the record at `path` unless one token takes much less now.

    least:    seconds of a pass of one token, as few as there may be.
    measured: the curve, where there is none on record.
    """
    curve = read(path, widths)
    if curve is not None and curve[1] > UNSTEADY * least():
        curve = None
    if curve is None:
        curve = measured()
        spread = _spread(model, curve)
        if 1.0 + spread <= UNSTEADY:  # else good enough for now, not to be kept
            keep(path, curve, spread)
    return CostModel(curve, CONTEXT)


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


def measure_curve(
    model: NativeModel,
    blocks: IntArray | None = None,
    seconds: float = SECONDS,
    without: Collection[int] = (),
) -> dict[int, float]:
    """`measure` a model at its own widths; as a draft model, where `blocks` of the vocabulary are given.

    without: widths that are left out.
    """
    rows = None if blocks is None else DRAFT_ROWS
    widths = [n for n in _widths(model) if n not in without]
    return measure(_computing(model, blocks), seconds, widths=widths, most_rows=rows)


def spread_of(model: NativeModel, blocks: IntArray | None, curve: Mapping[int, float]) -> float:
    """By how much a pass of one token takes longer or shorter now than `curve` says, as a share: 0 where no
    other load came or went meanwhile."""
    return _spread(_computing(model, blocks), curve)


def _spread(model: LanguageModel, curve: Mapping[int, float]) -> float:
    ratio = _one_token(model) / curve[1]
    return max(ratio, 1 / ratio) - 1.0


def _one_token(model: LanguageModel, context: int = CONTEXT) -> float:
    return measure(model, 0.0, widths=(1,), context=context)[1]


def _computing(model: NativeModel, blocks: IntArray | None) -> LanguageModel:
    return model if blocks is None else SubsetModel(model, blocks)


class SubsetModel:
    """A LanguageModel with the logits of some blocks of its vocabulary only."""

    def __init__(self, model: VocabSubsetModel, blocks: IntArray) -> None:
        self._model, self._blocks = model, blocks
        self.caps, self.vocab_size, self.max_positions = model.caps, model.vocab_size, model.max_positions

    def new_cache(self, capacity: int) -> Cache:
        return self._model.new_cache(capacity)

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        return self._model.forward_subset(items, self._blocks)


def measure(
    model: LanguageModel,
    seconds: float = SECONDS,
    *,
    clock: Callable[[], float] = time.perf_counter,
    widths: Sequence[int] = WIDTHS,
    most_rows: int | None = None,
    context: int = CONTEXT,
) -> dict[int, float]:
    """Seconds of a pass by its number of tokens, for `widths` as far as the model's context reaches, after
    `context` tokens: the least of rounds over all widths, which together take about `seconds` but go round at
    least once. The logits of all tokens are computed, but of more than `most_rows` those of the last."""
    room = min(context, model.max_positions - 1)
    widths = [n for n in widths if room + n <= model.max_positions]
    cache = model.new_cache(room + widths[-1])
    best = dict.fromkeys(widths, math.inf)

    def timed(n: int) -> float:
        cache.truncate(room)
        item = _item(cache, n, model.vocab_size, rows=n if most_rows is None or n <= most_rows else 1)
        began = clock()
        model.forward([item])
        return clock() - began

    try:
        if room:
            model.forward([_item(cache, room, model.vocab_size, rows=0)])
        timed(1)  # brings the weights in
        end = clock() + seconds
        for _ in range(ROUNDS):
            for n in widths:
                best[n] = min(best[n], timed(n))
            if clock() >= end:
                break
    finally:
        cache.close()
    return best


def _item(cache: Cache, count: int, vocab_size: int, *, rows: int) -> ForwardItem:
    """`count` tokens, a chain, and the logits of the last `rows`."""
    tokens = ((7919 * np.arange(1, count + 1)) % vocab_size).astype(np.int32)
    wanted = np.arange(count - rows, count, dtype=np.int32)
    return ForwardItem(cache, tokens, np.arange(-1, count - 1, dtype=np.int32), wanted)


def _widths(model: NativeModel) -> tuple[int, ...]:
    return pass_widths(model.token_tile, model.usual_token_tile)


def _facts(model: NativeModel, blocks: IntArray | None) -> list[object]:
    """Everything that the curve depends on."""
    return [
        *model.source.fingerprint(),
        *facts_of_kernels(model.isa, model.threads),
        None if blocks is None else [len(blocks), DRAFT_ROWS],
    ]


def facts_of_kernels(isa: str, threads: int) -> list[object]:
    """Everything about this machine and engine that a curve depends on."""
    build = Path(_core.__file__).stat()  # kernels change within a version
    widths = pass_widths(*_core.token_tiles(isa))
    return [*(cpu_name(), isa, threads, __version__, widths, CONTEXT), *(build.st_size, build.st_mtime_ns)]


def place_of(facts: Sequence[object], folder: Path | None = None) -> Path:
    """The file of a curve that depends on these facts."""
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return (folder or cache_root() / FOLDER) / f"{name}.json"


class Recorded(NamedTuple):
    """A curve on record.

    when:   of the measurement, in seconds since the epoch.
    spread: by how much a measurement right after it differed, as a share; None where it is not on record.
    """

    seconds: dict[int, float]
    when: float
    spread: float | None


def recorded(
    source: ModelSource, isa: str, threads: int, blocks: IntArray | None, folder: Path | None = None
) -> Recorded | None:
    """The curve on record for a model, or a head, that is not loaded; None where there is none."""
    is_head = source.architecture.head is not None
    computed = HEAD if is_head else None if blocks is None else [len(blocks), DRAFT_ROWS]
    path = place_of([*source.fingerprint(), *facts_of_kernels(isa, threads), computed], folder)
    curve = read(path, WIDTHS if is_head else pass_widths(*_core.token_tiles(isa)))
    if curve is None:
        return None
    spread = read_json(path).get("spread")
    known = isinstance(spread, float) and 0.0 <= spread <= UNSTEADY
    return Recorded(curve, path.stat().st_mtime, spread if known else None)  # type: ignore[arg-type]


def keep(path: Path, curve: Mapping[int, float], spread: float) -> None:
    """Write a curve and its `spread_of`, where that is possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        seconds = {str(n): seconds for n, seconds in curve.items()}
        write_json(path, {"seconds": seconds, "spread": float(spread)})
    except OSError as error:
        logger.debug("what passes cost could not be kept in %s: %s", path, error)


def read(path: Path, widths: Sequence[int]) -> dict[int, float] | None:
    """The curve in a file, or None where there is none to be trusted."""
    try:
        return _checked(read_json(path)["seconds"], widths)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _checked(found: Any, widths: Sequence[int]) -> dict[int, float]:
    """The seconds by width. Raises ValueError, TypeError or AttributeError for anything but such a table."""
    curve = {int(width): float(seconds) for width, seconds in found.items()}
    least, most = PLAUSIBLE
    if 1 not in curve or not set(curve) <= set(widths) or not all(least <= s <= most for s in curve.values()):
        raise ValueError("its numbers are implausible")
    return curve
