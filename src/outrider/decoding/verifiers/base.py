"""The protocol of acceptance rules (verifiers), the table of them, and the checks around them.

A verifier decides which draft tokens the target accepts, and which token comes after them. It is pure: no
model, file or clock, and its randomness is a function of the request's seed and the position. The code is
NumPy in float64, and is the specification that a faster implementation is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.errors import ConfigError


class Verifier(Protocol):
    """An acceptance rule.

    needs:       names of `EngineCaps` fields that the engine must have.
    trees:       accepts drafts that branch.
    draft_probs: uses `Draft.probs`, so a draft model should draw with its own randomness (`StepRandomness`)
                 and state its distributions. A draft without them is verified as one of point masses, which
                 is exact too.
    drawn_rows:  asks for the sampler's token of each row only, so that an engine may draw it.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def trees(self) -> bool: ...

    @property
    def draft_probs(self) -> bool: ...

    @property
    def drawn_rows(self) -> bool: ...

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        """Verify one sequence's draft. `context` ends with the anchor; row 0 of `scores` is its row.

        Raises what the sampler raises for row 0. When it raises for a later row, the verdict ends with the
        last accepted token: the output may end there, and if not, the next step raises the error.
        """


VERIFIERS: Mapping[str, Callable[[], Verifier]] = {
    "coupled": CoupledVerifier,
    "rejection": RejectionVerifier,
    "block": BlockVerifier,
}


class _DrafterNeeds(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...


def check_pair(verifier: Verifier, drafter: _DrafterNeeds) -> None:
    """Raise ConfigError when the drafter proposes trees and the rule accepts chains only."""
    if "tree_attention" in drafter.needs and not verifier.trees:
        able = ", ".join(name for name, make in VERIFIERS.items() if make().trees)
        raise ConfigError(
            f"verification {verifier.name!r} judges chains, and the drafter {drafter.name!r} proposes trees: "
            f"choose one of {able}"
        )


def check_draft(draft: Draft, vocab_size: int, budget: int, *, tree: bool) -> Draft:
    """The longest valid prefix of `draft`: at most `budget` nodes, ids inside the vocabulary, every parent
    before its child, no branches unless `tree`.

    This keeps a drafter's bug out of the output: a shorter draft only makes the step shorter. A stated
    distribution that has ids outside the vocabulary, or no probability for the token, is dropped; the token
    then counts as a point mass.
    """
    tokens, parents = draft.tokens, draft.parents
    integers = tokens.dtype.kind in "iu" and parents.dtype.kind in "iu"
    if not integers or tokens.ndim != 1 or tokens.shape != parents.shape:
        return Draft.empty(draft.source)
    # Python integers: for so few nodes, and right after a pass, several times as fast as NumPy.
    size = 0
    for token, parent in zip(tokens[: max(0, budget)].tolist(), parents.tolist(), strict=False):
        if not (0 <= token < vocab_size and -1 <= parent < size and (tree or parent == size - 1)):
            break
        size += 1
    complete = draft.sources is None or len(draft.sources) == size
    if size == len(tokens) and complete and draft.probs is None and tokens.dtype == parents.dtype == np.int32:
        return draft
    probs = None
    if draft.probs is not None and len(draft.probs) == len(tokens):
        stated = zip(draft.probs[:size], tokens[:size].tolist(), strict=True)
        probs = tuple(
            d if d is not None and _is_possible(d, token, vocab_size) else None for d, token in stated
        )
    sources = None if draft.sources is None or len(draft.sources) < size else draft.sources[:size]
    return Draft(
        tokens[:size].astype(np.int32), parents[:size].astype(np.int32), probs, draft.source, sources
    )


def _is_possible(distribution: Distribution, token: int, vocab_size: int) -> bool:
    ids, probs = distribution
    inside = len(ids) == len(probs) > 0 and ids[0] >= 0 and ids[-1] < vocab_size
    return inside and distribution.of(token) > 0.0
