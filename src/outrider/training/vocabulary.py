"""The part of the vocabulary that a head can propose: the most frequent tokens of the answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int64]

STEP = 1024  # sizes are multiples of this many ids
MOST = 32768


def counted(texts: Iterable[Sequence[int]], vocab_size: int) -> Ids:
    """How often each id occurs: int64[vocab_size]."""
    found = np.zeros(vocab_size, np.int64)
    for ids in texts:
        found += np.bincount(np.asarray(ids, np.int64), minlength=vocab_size)[:vocab_size]
    return found


def chosen(counts: Ids, size: int, coverage: float, tested: Ids) -> Ids:
    """The ids of the `size` most frequent tokens, ascending; of equals the lower ids. With size 0, of as
    few as make up `coverage` of the `tested` ones, in steps of STEP and at most MOST.

    counts: int64[vocabulary], of the texts to learn from; they have all of their own tokens, so that these
            would promise too much.
    tested: the same, of other texts.
    """
    order = np.argsort(-counts, kind="stable")
    if size == 0:
        parts = np.cumsum(tested[order]) / max(1, tested.sum())
        needed = int(np.searchsorted(parts, coverage)) + 1
        size = min(MOST, -(-needed // STEP) * STEP)
    return np.sort(order[: min(size, len(counts))])


def coverage(counts: Ids, ids: Ids) -> float:
    """Which part of the counted tokens has one of these ids."""
    return float(counts[ids].sum() / max(1, counts.sum()))
