"""The tokens that a draft is likely to need: a draft model leaves out the rest of its output matrix.

The idea of FR-Spec (Zhao et al. 2025): of a vocabulary of 150,000 tokens a quarter makes up nearly all
text, and a token that the draft cannot propose costs acceptance only. Vocabularies made by merging (BPE) are
ordered by frequency already, so the frequent tokens are the first ids; the others are those of the
request's own text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from outrider.decoding.types import IntArray
from outrider.engines.base import LanguageModel, VocabSubsetModel

SHARE = 4  # one in so many ids is frequent
LEAST = 24_576  # but no fewer than these: smaller vocabularies spend less on their output matrix

Blocks = npt.NDArray[np.bool_]


def frequent(model: LanguageModel) -> IntArray | None:
    """The blocks of the ids that every draft may need, ascending; None for a model that cannot leave any out,
    or has too few."""
    if not isinstance(model, VocabSubsetModel):
        return None
    count = -(-max(LEAST, model.vocab_size // SHARE) // model.block_size)
    if count * model.block_size >= model.vocab_size:
        return None
    return np.arange(count, dtype=np.int32)


class VocabSubset:
    """The blocks that one request needs, as bool[blocks]: the frequent ones and those of its own tokens."""

    def __init__(self, model: VocabSubsetModel, always: IntArray, ids: Collection[int]) -> None:
        self._size, self._vocab_size = model.block_size, model.vocab_size
        self.blocks: Blocks = np.zeros(-(-model.vocab_size // model.block_size), bool)
        self.blocks[always] = True
        self.add([i for i in ids if i < self._vocab_size])

    def add(self, ids: Iterable[int]) -> None:
        """The text has these ids, all of them the model's."""
        for token in ids:
            self.blocks[token // self._size] = True


def together(parts: Collection[VocabSubset]) -> IntArray:
    """The blocks of a pass for several requests, ascending."""
    first, *others = (part.blocks for part in parts)
    for other in others:
        first = first | other
    return np.flatnonzero(first).astype(np.int32)
