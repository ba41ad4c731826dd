"""The uniform random numbers of one step, for the rules `rejection` and `block` and for their drafts."""

from __future__ import annotations

import numpy as np

from outrider.decoding.sampling.rng import ACCEPT, DRAFT, NEXT, uniforms
from outrider.decoding.types import Distribution

_CHUNK = 16  # numbers whose uniforms are computed at a time, for all purposes
_SPAN = 1024  # probabilities that are summed before the one among them is searched
_PURPOSES = (DRAFT, ACCEPT, NEXT)


class StepRandomness:
    """The randomness of one step of one request: a pure function of the seed and the step's position.

    Every decision of a step has a uniform of its own. Its purpose is drafting, accepting or choosing the
    token after the accepted path; its number is the index of the node. Each step emits a token, so no two
    steps have the same position, and no uniform is used twice. With uniforms by token position instead, a
    rejected draft token and the next step's draft of that position would share one. Under a rule that
    looks at the whole draft before it decides, as `block` does, the output would then not be exact.

    position: index in the sequence of the step's first token: `context.position` of a context without path.
    """

    def __init__(self, seed: int, position: int) -> None:
        self._seed, self._position = seed, position
        self._chunks: dict[int, dict[int, list[float]]] = {}  # by chunk, then by purpose

    def uniform(self, purpose: int, number: int) -> float:
        """A uniform from [0, 1). purpose: DRAFT, ACCEPT or NEXT of `rng`."""
        chunk, at = divmod(number, _CHUNK)
        if chunk not in self._chunks:
            numbers = np.tile(np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK), len(_PURPOSES))
            values = uniforms(self._seed, self._position, np.repeat(_PURPOSES, _CHUNK), numbers)
            rows = values.reshape(len(_PURPOSES), _CHUNK).tolist()
            self._chunks[chunk] = dict(zip(_PURPOSES, rows, strict=True))
        return self._chunks[chunk][purpose][at]

    def draft_token(self, distribution: Distribution, node: int) -> int:
        """The token of a draft node, drawn from `distribution`."""
        return sample_inverse_cdf(distribution, self.uniform(DRAFT, node))

    def accepts(self, probability: float, node: int) -> bool:
        """Whether a draft node is accepted: true with `probability`; always when that is 1 or more."""
        return self.uniform(ACCEPT, node) < probability

    def next_token(self, distribution: Distribution) -> int:
        """The token after the accepted path, drawn from `distribution`."""
        return sample_inverse_cdf(distribution, self.uniform(NEXT, 0))


def sample_inverse_cdf(distribution: Distribution, uniform: float) -> int:
    """The first token, by ascending id, whose cumulative probability exceeds `uniform` (0 <= u < 1).

    `uniform` is scaled by the sum of the probabilities as rounded, so a token of probability 0 is never
    returned.
    """
    ids, probs = distribution
    span_ends = np.add.reduceat(probs, np.arange(0, len(probs), _SPAN)).cumsum()
    wanted = uniform * span_ends[-1]
    span = int(span_ends.searchsorted(wanted, side="right"))
    start = span * _SPAN
    cumulative = probs[start : start + _SPAN].cumsum()
    # Rounding may put the span's sum above the last cumulative probability: then the last token is meant.
    last = int(cumulative.searchsorted(cumulative[-1]))
    at = cumulative.searchsorted(wanted - (span_ends[span - 1] if span else 0.0), side="right")
    return int(ids[start + min(int(at), last)])
