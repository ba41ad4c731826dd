"""What a pass over n tokens of a model costs on this machine: on record, or predicted from a part of it."""

from __future__ import annotations

import contextlib
import os

import numpy as np

from outrider.decoding.types import IntArray
from outrider.drafters.vocab_subset import frequent_block_count
from outrider.engines.native import NativeModel, _core, calibrate
from outrider.engines.native.calibrate import pass_widths
from outrider.engines.native.head import NativeHead
from outrider.engines.native.model import PANEL
from outrider.machine import available_processors
from outrider.models.quantization import loaded_type
from outrider.models.source import ModelSource
from outrider.models.sources.download import cache_root
from outrider.plan.slices import slice_of, with_random_weights
from outrider.plan.speed import Curve

__all__ = ["Curve", "curve_of"]

# To measure the part of a model that stands for it; 0.2 gave errors of -16 to +20%, 0.35 of -12 to +10% in
# ten of twelve (benchmarks/predictions.py --only speed).
ROUNDS_SECONDS = 0.35
BETWEEN = (
    3,
    6,
    12,
)  # widths that are not measured: T is almost straight from the one before to the one after
PREDICTED = "predicted-curves"  # folder in the cache


def curve_of(source: ModelSource, threads: int | None = None, *, drafts: bool = False) -> Curve:
    """The curve of a model on the native engine.

    drafts: of a draft model, which computes part of its vocabulary, or of a head.
    """
    isa, count = _core.kernels(os.environ.get("OUTRIDER_ISA", "auto")), threads or available_processors()
    is_head = source.architecture.head is not None
    blocks = _frequent(source.architecture.vocab_size, 1.0) if drafts and not is_head else None
    with contextlib.suppress(FileNotFoundError):  # a shape has no file
        if (found := calibrate.recorded(source, isa, count, blocks)) is not None:
            return Curve(found.seconds, "measured", found.when, spread=found.spread)
    place = calibrate.place_of(
        [*_shapes(source), *calibrate.facts_of_kernels(isa, count), drafts],
        cache_root() / PREDICTED,
    )
    seconds = calibrate.read(place, pass_widths(*_core.token_tiles(isa)))
    if seconds is None:
        seconds, spread = _of_head(source, count) if is_head else _predicted(source, count, drafts)
        if 1.0 + spread <= calibrate.UNSTEADY:
            calibrate.keep(place, seconds, spread)
    return Curve(seconds, "predicted", None)


def _predicted(source: ModelSource, threads: int, drafts: bool) -> tuple[dict[int, float], float]:
    """T(n) by a part of the model, and its spread."""
    part, share = slice_of(source)
    model = NativeModel.load(part, threads=threads, weights_cache=False)
    blocks = _frequent(source.architecture.vocab_size, share) if drafts else None
    between = set(BETWEEN) - {model.token_tile, model.token_tile + 1}  # where T makes a step
    found = calibrate.measure_curve(model, blocks, ROUNDS_SECONDS, between)
    spread = calibrate.spread_of(model, blocks, found)
    return {n: seconds / share for n, seconds in found.items()}, spread


def _of_head(source: ModelSource, threads: int) -> tuple[dict[int, float], float]:
    """The same for a head, which is as small as a part of its target: all of it is measured."""
    head = NativeHead.load(with_random_weights(source), threads=threads)
    found = calibrate.measure_head(head, ROUNDS_SECONDS)
    return found, calibrate.spread_of_head(head, found)


def _frequent(vocab_size: int, share: float) -> IntArray | None:
    """The vocabulary blocks that a draft model computes, of a model with this share of the vocabulary."""
    count = frequent_block_count(vocab_size, PANEL)
    return None if count is None else np.arange(max(1, round(share * count)), dtype=np.int32)


def _shapes(source: ModelSource) -> list[object]:
    """All that the speed of a model depends on, whatever its weights are."""
    spec = source.architecture
    kinds = [[t.name, loaded_type(source, t), list(t.shape)] for t in source.tensors.values()]
    return [spec.name, spec.n_heads, spec.n_kv_heads, spec.head_dim, sorted(map(str, kinds))]
