"""Rows whose tokens an engine draws itself, where its logits are, so that tokens and not logits come back.

The rule `coupled` asks for nothing but the token that the request's sampler draws from each row. That token
is a function of (logits, parameters, seed, position), so it can be computed beside the logits, on a GPU for
instance, for all rows of a pass at once. It must be the token of `Sampler.token`; where it may not be, the
engine gives none, and the sampler draws it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft

UNDRAWN = -1  # in place of a token that the sampler must draw


@dataclass(frozen=True, slots=True, eq=False)
class RowDraws:
    """How the tokens after the rows of one sequence are drawn.

    seed, vocab_size: of the request's sampler; ids from vocab_size on are never drawn.
    positions: int64[n + 1], index in the sequence of the token that each row gives: after the anchor, then
               after the n nodes of the draft.
    """

    params: SamplingParams
    seed: int
    vocab_size: int
    positions: npt.NDArray[np.int64]


def row_draws(sampler: Sampler, context: TokenContext, draft: Draft) -> RowDraws | None:
    """How the rows of a step are drawn; None where what the sampler does depends on more than the row:
    penalties, masks, structured output."""
    if sampler.adjusts(context):
        return None
    depths = [0]
    for parent in draft.parents.tolist():
        depths.append(depths[parent + 1] + 1)
    positions = np.array(depths, np.int64) + context.position
    return RowDraws(sampler.params, sampler.seed, sampler.vocab_size, positions)
