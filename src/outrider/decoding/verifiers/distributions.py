"""What the rules that accept by chance are made of: a step's randomness, and differences of distributions."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from outrider.decoding.sampling.rng import ACCEPT, DRAFT, NEXT, Floats, uniforms
from outrider.decoding.types import Distribution

_CHUNK = 16  # numbers whose uniforms are made at a time, for all purposes
_BLOCK = 1024  # tokens whose probabilities are summed before the one among them is looked for
_PURPOSES = (DRAFT, ACCEPT, NEXT)


class StepRandomness:
    """The randomness of one step of one request, a pure function of the seed and the step's position.

    Every draw of a step has a uniform of its own: nodes by their index, and drafting, accepting and
    the token after the path by their purpose. Steps have different positions, since each emits a token,
    so nothing drawn for a draft that was given up is ever used again. (With noise by token position it
    would be, and a rule whose decision depends on the whole draft, as `block`'s, would lose exactness.)

    position: index in the sequence of the step's first token, `context.position` without a path.
    """

    def __init__(self, seed: int, position: int) -> None:
        self._seed, self._position = seed, position
        self._made: dict[int, dict[int, list[float]]] = {}  # by chunk and purpose

    def uniform(self, purpose: int, number: int) -> float:
        """The number of a purpose (DRAFT, ACCEPT or NEXT of `rng`), from [0, 1)."""
        chunk, at = divmod(number, _CHUNK)
        if chunk not in self._made:
            numbers = np.tile(np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK), len(_PURPOSES))
            made = uniforms(self._seed, self._position, np.repeat(_PURPOSES, _CHUNK), numbers)
            rows = made.reshape(len(_PURPOSES), _CHUNK).tolist()
            self._made[chunk] = dict(zip(_PURPOSES, rows, strict=True))
        return self._made[chunk][purpose][at]

    def draws(self, distribution: Distribution, node: int) -> int:
        """The token of a draft's node, drawn from `distribution`."""
        return pick(distribution, self.uniform(DRAFT, node))

    def accepts(self, probability: float, node: int) -> bool:
        """Whether a node is accepted: true with this probability, which may be above 1 for certain."""
        return self.uniform(ACCEPT, node) < probability

    def chooses(self, distribution: Distribution) -> int:
        """The token after the accepted path."""
        return pick(distribution, self.uniform(NEXT, 0))


def pick(distribution: Distribution, uniform: float) -> int:
    """The token whose share of the unit interval, laid out by ascending id, holds `uniform` (0 <= u < 1).

    Never one of probability 0: the total times u rounds to less than the total, and shares are open above.
    """
    ids, probs = distribution
    ends = np.add.reduceat(
        probs, np.arange(0, len(probs), _BLOCK)
    ).cumsum()  # first the block, then the token
    wanted = uniform * ends[-1]
    block = int(ends.searchsorted(wanted, side="right"))
    start = block * _BLOCK
    shares = probs[start : start + _BLOCK].cumsum()
    # A block's sum may end a rounding step above its last share: then that share is meant.
    last = int(shares.searchsorted(shares[-1]))
    at = shares.searchsorted(wanted - (ends[block - 1] if block else 0.0), side="right")
    return int(ids[start + min(int(at), last)])


def excess(target: Distribution, draft: Distribution, scale: float = 1.0) -> Floats:
    """max(scale * target - draft, 0) along target.ids, float64[k]; it is 0 for every other token."""
    left: Floats = scale * target.probs
    ids, probs = draft
    if ids is target.ids or (len(ids) == len(target.ids) and (ids == target.ids).all()):
        left -= probs
    elif len(ids) < len(target.ids):
        at = np.minimum(target.ids.searchsorted(ids), len(target.ids) - 1)
        shared = target.ids[at] == ids
        left[at[shared]] -= probs[shared]
    else:
        at = np.minimum(ids.searchsorted(target.ids), len(ids) - 1)
        left -= np.where(ids[at] == target.ids, probs[at], 0.0)
    return np.maximum(left, 0.0, out=left)


def residual(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    """The normalised excess: what is left to draw from when a token drawn from `draft` is rejected.

    No token is ever rejected when target and draft are the same; should rounding say otherwise, the
    answer is `target`.
    """
    left = excess(target, draft, scale)
    mass = left.sum()
    if mass <= 0.0:
        return target
    some = np.flatnonzero(left)
    return Distribution(target.ids[some], left[some] / mass)


class TokenProbability(Protocol):
    """What knows tokens' probabilities."""

    def of(self, token: int) -> float: ...


def ratio(target: TokenProbability, draft: TokenProbability, token: int) -> float:
    """target(token) / draft(token); the token was drawn from `draft`, so it has some probability there."""
    return target.of(token) / draft.of(token)


def siblings(
    distribution: Distribution, count: int, chance: StepRandomness, first: int
) -> tuple[list[int], list[Distribution]]:
    """Up to `count` different tokens drawn one after the other, each from what the ones before it leave,
    with the distributions that they were drawn from, as `Draft.probs` states them.

    first: the first one's node; the others are the nodes after it.
    """
    tokens: list[int] = []
    drawn_from: list[Distribution] = []
    while len(tokens) < count and len(distribution.ids):
        token = chance.draws(distribution, first + len(tokens))
        tokens.append(token)
        drawn_from.append(distribution)
        others = (distribution.ids != token) & (distribution.probs > 0.0)
        left = distribution.probs[others]
        distribution = Distribution(distribution.ids[others], left / left.sum())
    return tokens, drawn_from
