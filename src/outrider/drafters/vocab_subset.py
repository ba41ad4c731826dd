"""The part of the output matrix (LM head) that a draft model computes: logits of the tokens it may need.

The idea of FR-Spec (Zhao et al. 2025): of a vocabulary of 150,000 tokens a quarter makes up nearly all text,
and a token that the draft model cannot propose costs acceptance only. BPE vocabularies are roughly ordered by
frequency, so the frequent tokens are the first ids. The tokens of the request's own sequence are added.

A vocabulary block is a number of consecutive ids that are computed together (`VocabSubsetModel`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from outrider.decoding.types import IntArray
from outrider.engines.base import LanguageModel, VocabSubsetModel
from outrider.policy.tuning import DEFAULT

FREQUENT_DIVISOR, MIN_FREQUENT = DEFAULT.vocab_subset_divisor, DEFAULT.vocab_subset_min

BlockMask = npt.NDArray[np.bool_]


def frequent_blocks(model: LanguageModel) -> IntArray | None:
    """The vocabulary blocks of the frequent ids, int32[b] ascending; None when the model computes its output
    matrix as a whole, or has no more ids than these."""
    if not isinstance(model, VocabSubsetModel):
        return None
    count = frequent_block_count(model.vocab_size, model.vocab_block_size)
    return None if count is None else np.arange(count, dtype=np.int32)


def frequent_block_count(vocab_size: int, block_size: int) -> int | None:
    """How many vocabulary blocks the frequent ids of a vocabulary are; None when that would be all of it."""
    count = -(-max(MIN_FREQUENT, vocab_size // FREQUENT_DIVISOR) // block_size)
    return None if count * block_size >= vocab_size else count


class VocabSubset:
    """The vocabulary blocks of one request, as bool[blocks]: the frequent ones and those of its tokens.

    ids: further ids that the draft model may have to propose, as stop tokens.
    """

    def __init__(self, model: VocabSubsetModel, frequent: IntArray, ids: Collection[int]) -> None:
        self._block_size, self._vocab_size = model.vocab_block_size, model.vocab_size
        self.blocks: BlockMask = np.zeros(-(-model.vocab_size // self._block_size), bool)
        self.blocks[frequent] = True
        self.add([i for i in ids if i < self._vocab_size])

    def add(self, ids: Iterable[int]) -> None:
        """Add the blocks of these ids, which must be below the model's vocab_size."""
        for token in ids:
            self.blocks[token // self._block_size] = True


def union_blocks(subsets: Collection[VocabSubset]) -> IntArray:
    """The vocabulary blocks of a pass for several requests, int32[b] ascending."""
    union, *others = (subset.blocks for subset in subsets)
    for other in others:
        union = union | other
    return np.flatnonzero(union).astype(np.int32)
