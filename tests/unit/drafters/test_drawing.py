"""Drawing below a node from a part of the vocabulary: as from all of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.drafters.draft_sequence import DraftSlots, GrowingTree
from outrider.drafters.drawing import Drawing
from outrider.engines.base import Cache
from outrider.errors import ModelError
from tests.support.toy_model import ToyModel

VOCAB = 40


@dataclass
class Wants:
    """A guide that asks for so many siblings, and records the confidence in each."""

    siblings: int
    stated: list[float] = field(default_factory=list)

    def drew(self, parent: int, confidence: float) -> bool:
        self.stated.append(confidence)
        return len(self.stated) <= self.siblings

    def next_node(self, ready: int = -1) -> int:
        return -1


def tree(siblings: int | None, budget: int) -> tuple[GrowingTree, Wants | None]:
    sampler = Sampler(SamplingParams(temperature=0.0), VOCAB, seed=3)
    cache: Cache = ToyModel(VOCAB, 64).new_cache(8)
    guide = None if siblings is None else Wants(siblings)
    slots = DraftSlots(cache, sampler)
    made = GrowingTree(slots, VOCAB, [TokenContext([1, 2])], budget, [], StepRandomness(3, 2), guide, None)
    return made, guide


@given(
    values=st.lists(st.integers(-30, 30), min_size=1, max_size=VOCAB, unique=True),
    siblings=st.none() | st.integers(0, 4),
    budget=st.integers(1, 4),
    data=st.data(),
)
def test_the_likeliest_of_a_part_are_those_of_all(
    values: list[int], siblings: int | None, budget: int, data: st.DataObject
) -> None:
    ids = np.array(data.draw(st.permutations(range(VOCAB)))[: len(values)], np.int32)
    logits = np.array([value / 4 for value in values], np.float32)
    row = np.full(VOCAB, -np.inf, np.float32)
    row[ids] = logits
    (whole, first), (part, second) = tree(siblings, budget), tree(siblings, budget)
    Drawing("coupled").below(whole, row)
    Drawing("coupled").below(part, logits, ids)
    assert part.tokens == whole.tokens
    assert part.parents == whole.parents
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert second.stated == pytest.approx(first.stated, abs=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_told(bad: float) -> None:
    logits = np.array([bad] * 3, np.float32)
    with pytest.raises(ModelError):
        Drawing("coupled").below(tree(1, 2)[0], logits, np.arange(3, dtype=np.int32))
