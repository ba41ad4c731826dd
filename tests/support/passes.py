"""Passes of any engine over one sequence, and the comparison of their bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from outrider.decoding.types import FloatArray
from outrider.engines.base import Cache, ForwardItem, LanguageModel


def item(
    cache: Cache,
    tokens: Sequence[int],
    parents: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> ForwardItem:
    """A chain unless `parents` are given; the logits of all tokens unless `rows` are."""
    n = len(tokens)
    return ForwardItem(
        cache,
        np.array(tokens, np.int32),
        np.arange(-1, n - 1, dtype=np.int32) if parents is None else np.array(parents, np.int32),
        np.arange(n, dtype=np.int32) if rows is None else np.array(rows, np.int32),
    )


def run(
    model: LanguageModel, cache: Cache, tokens: Sequence[int], parents: Sequence[int] | None = None
) -> FloatArray:
    """The logits of all tokens of one sequence."""
    return model.forward([item(cache, tokens, parents)])[0]


def same_bits(one: FloatArray, other: FloatArray) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one.view(np.uint32), other.view(np.uint32)))


class PositionTimer:
    """A clock by which a pass of any model of this kind takes a second for each token and position before
    it."""

    def __init__(self, kind: type[LanguageModel], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        forward = kind.forward

        def timed(model: LanguageModel, items: Sequence[ForwardItem]) -> list[FloatArray]:
            self.now += sum(float(item.cache.length * len(item.tokens)) for item in items)
            return forward(model, items)

        monkeypatch.setattr(kind, "forward", timed)

    def __call__(self) -> float:
        return self.now
