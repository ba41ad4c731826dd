"""Operations on distributions for the rules `rejection` and `block`: residual, ratio, draws of siblings."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.rng import Floats
from outrider.decoding.types import Distribution


def positive_excess(target: Distribution, draft: Distribution, scale: float = 1.0) -> Floats:
    """max(scale * target_probs - draft_probs, 0) along target.ids, float64[k]. Other tokens have 0."""
    excess: Floats = scale * target.probs
    ids, probs = draft
    if ids is target.ids or (len(ids) == len(target.ids) and (ids == target.ids).all()):
        excess -= probs
    elif len(ids) < len(target.ids):
        at = np.minimum(target.ids.searchsorted(ids), len(target.ids) - 1)
        common = target.ids[at] == ids
        excess[at[common]] -= probs[common]
    else:
        at = np.minimum(ids.searchsorted(target.ids), len(ids) - 1)
        excess -= np.where(ids[at] == target.ids, probs[at], 0.0)
    return np.maximum(excess, 0.0, out=excess)


def residual(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    """The normalised positive excess: what the next token is drawn from after a rejection.

    When target and draft are equal there is no excess, and no token is rejected but by rounding; then the
    result is `target`.
    """
    excess = positive_excess(target, draft, scale)
    mass = excess.sum()
    if mass <= 0.0:
        return target
    positive = np.flatnonzero(excess)
    return Distribution(target.ids[positive], excess[positive] / mass)


class TokenProbability(Protocol):
    """A distribution that can be asked for one token's probability."""

    def of(self, token: int) -> float: ...


def ratio(target: TokenProbability, draft: TokenProbability, token: int) -> float:
    """target_prob / draft_prob of a token that was drawn from `draft`, so the divisor is positive."""
    return target.of(token) / draft.of(token)


def siblings(
    distribution: Distribution, count: int, randomness: StepRandomness, first: int
) -> tuple[list[int], list[Distribution]]:
    """Draw up to `count` different tokens without replacement. Returns (tokens, the distribution that each
    was drawn from), the second as `Draft.probs` wants it.

    first: index of the first token's draft node; the others get the indices after it.
    """
    tokens: list[int] = []
    draft_probs: list[Distribution] = []
    while len(tokens) < count and len(distribution.ids):
        token = randomness.draft_token(distribution, first + len(tokens))
        tokens.append(token)
        draft_probs.append(distribution)
        others = (distribution.ids != token) & (distribution.probs > 0.0)
        remaining = distribution.probs[others]
        distribution = Distribution(distribution.ids[others], remaining / remaining.sum())
    return tokens, draft_probs
