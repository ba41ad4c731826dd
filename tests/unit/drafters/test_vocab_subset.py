"""A draft model that computes part of its vocabulary: the same drafts, as far as that part reaches."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.drafters import vocab_subset
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.engines.base import ForwardItem
from tests.support.toy_model import ToyModel

VOCAB = 64


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocab_subset, "MIN_FREQUENT", 16)


def rows(model: ToyModel, blocks: list[int] | None) -> np.ndarray:
    cache = model.new_cache(8)
    item = ForwardItem(
        cache, np.array([5, 9], np.int32), np.array([-1, 0], np.int32), np.arange(2, dtype=np.int32)
    )
    if blocks is None:
        return model.forward([item])[0]
    return model.forward_subset([item], np.array(blocks, np.int32))[0]


def test_the_frequent_ids_are_the_first_quarter() -> None:
    blocks = vocab_subset.frequent_blocks(ToyModel(VOCAB))
    assert blocks is not None
    assert blocks.tolist() == [0, 1, 2, 3], "16 ids, 4 in a block"
    assert vocab_subset.frequent_blocks(ToyModel(16)) is None, "nothing to leave out"
    assert vocab_subset.frequent_blocks(object()) is None  # type: ignore[arg-type]


def test_the_toys_blocks_are_those_of_the_whole() -> None:
    model = ToyModel(VOCAB)
    whole, part = rows(model, None), rows(model, [1, 5])
    inside = np.isin(np.arange(VOCAB) // 4, [1, 5])
    assert (part[:, inside] == whole[:, inside]).all()
    assert np.isneginf(part[:, ~inside]).all()
    for wrong in ([5, 1], [1, 1], [-1], [16]):
        with pytest.raises(ValueError, match="ascending"):
            rows(model, wrong)


def test_a_text_brings_its_own_ids() -> None:
    model = ToyModel(VOCAB)
    frequent = vocab_subset.frequent_blocks(model)
    assert frequent is not None
    one, other = (
        vocab_subset.VocabSubset(model, frequent, [50, 9999]),
        vocab_subset.VocabSubset(model, frequent, []),
    )
    other.add([40, 41, 3])
    assert vocab_subset.union_blocks([one]).tolist() == [0, 1, 2, 3, 12]
    assert vocab_subset.union_blocks([one, other]).tolist() == [0, 1, 2, 3, 10, 12]
    assert vocab_subset.union_blocks([other]).tolist() == [0, 1, 2, 3, 10], "a pass for both changes neither"


def propose(prompt: list[int], stop: int, *, whole: bool) -> tuple[list[int], list[int]]:
    """(the draft, the ids that were computed in its last pass)."""
    computed: list[list[int]] = []

    class Watched(ToyModel):
        def forward_subset(self, items, blocks):  # type: ignore[no-untyped-def]
            computed.append(blocks.tolist())
            return super().forward_subset(items, blocks)

    drafter = DraftModelDrafter(Watched(VOCAB, sharpness=4.0, memory=0.1))
    if whole:
        drafter._frequent = None
    params = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=[stop])
    drafter.begin(Request("r", tuple(prompt), params))
    job = ProposeJob("r", TokenContext(prompt), 6, Sampler(params, VOCAB))
    (draft,) = drafter.propose([job])
    return draft.tokens.tolist(), computed[-1] if computed else []


@pytest.mark.parametrize("seed", range(8))
def test_drafts_are_the_same_as_far_as_the_ids_reach(seed: int) -> None:
    prompt = np.random.default_rng(seed).integers(0, VOCAB, 5).tolist()
    (whole, none), (part, blocks) = propose(prompt, 60, whole=True), propose(prompt, 60, whole=False)
    assert none == []
    assert {15, *(token // 4 for token in prompt)} <= set(blocks), (
        "the stop id and the prompt's can be drafted"
    )
    for a, b in zip(whole, part, strict=False):
        if a // 4 not in blocks:
            assert a != b
            break
        assert a == b
