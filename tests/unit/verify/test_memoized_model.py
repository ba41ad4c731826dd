"""The memoized model gives the model's own rows, for chains and trees, with one pass for each text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from outrider.decoding.types import Draft, FloatArray, Verdict
from outrider.engines.base import ForwardItem
from outrider.engines.step import CachedStepEngine
from outrider.verify.memoized_model import MemoizedModel
from tests.support.toy_model import ToyModel


class Counting(ToyModel):
    """A toy that counts its passes and the tokens in them."""

    passes = tokens = 0

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        self.passes += 1
        self.tokens += sum(len(item.tokens) for item in items)
        return super().forward(items)


def walk(model: ToyModel | MemoizedModel) -> list[FloatArray]:
    """The rows of three steps: a chain, a tree of which a path is kept, and plain decoding."""
    engine = CachedStepEngine(model)
    seq = engine.open([5, 6, 7], 40)
    engine.prefill(seq, 2)
    tree = Draft(np.array([1, 2, 3, 4], np.int32), np.array([-1, -1, 1, 0], np.int32))
    rows = []
    for draft, verdict in (
        (Draft.chain([8, 9], "test"), Verdict((0,), 3, "recovered")),
        (tree, Verdict((1, 2), 11, "bonus")),
        (Draft.empty(), Verdict((), 12, "bonus")),
    ):
        rows.append(engine.score([(seq, draft)])[0].logits)
        engine.commit(seq, verdict)
    engine.close(seq)
    return rows


def test_rows_are_the_models_own_at_one_pass_a_text() -> None:
    inner = Counting(32, 64)
    model = MemoizedModel(inner)
    expected = walk(inner)
    for rows, wanted in zip(walk(model), expected, strict=True):  # not remembering: passed on
        np.testing.assert_array_equal(rows, wanted)
    before = inner.passes
    with model.memoizing():
        for _ in range(3):
            for rows, wanted in zip(walk(model), expected, strict=True):
                np.testing.assert_array_equal(rows, wanted)
        assert model.texts == inner.passes - before == 3 + 5 + 1
        assert inner.tokens < 100
    assert model.texts == 0
    assert (model.vocab_size, model.max_positions) == (32, 64)


def test_a_failed_pass_leaves_it_usable() -> None:
    class Failing(ToyModel):
        fails = False

        def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
            if self.fails:
                raise RuntimeError("no")
            return super().forward(items)

    inner = Failing(32, 64)
    model = MemoizedModel(inner)
    with model.memoizing():
        model.row((1, 2, 3, 4))
        inner.fails = True
        with pytest.raises(RuntimeError):
            model.row((1, 2, 9, 9))
        inner.fails = False
        found = model.row((1, 2, 3, 5)).copy()
    with model.memoizing():
        np.testing.assert_array_equal(model.row((1, 2, 3, 5)), found)


def test_hidden_states_are_the_models_own_too() -> None:
    inner = ToyModel(32, 64)
    model = MemoizedModel(inner)
    engine = CachedStepEngine(model)

    def states() -> list[FloatArray]:
        seq = engine.open([5, 6, 7, 8], 40, taps=(0, 2))
        engine.prefill(seq, 3)
        (scores,) = engine.score(
            [(seq, Draft(np.array([1, 2, 3], np.int32), np.array([-1, -1, 1], np.int32)))]
        )
        assert seq.hidden is not None
        assert scores.hidden is not None
        found = [rows for _, rows in seq.hidden.take_prompt()] + [scores.hidden, scores.logits]
        engine.close(seq)
        return found

    wanted = states()
    with model.memoizing():
        for _ in range(2):
            for rows, expected in zip(states(), wanted, strict=True):
                np.testing.assert_array_equal(rows, expected)
