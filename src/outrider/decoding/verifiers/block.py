"""Block verification: Sun et al., "Block verification accelerates speculative decoding" (ICLR 2025)."""

from __future__ import annotations

from collections.abc import Callable

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import LazyDistribution, Sampler
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.decoding.verifiers.distributions import positive_excess, ratio, residual


class BlockVerifier:
    """Accept a prefix of the draft, decided over the draft as a whole (the paper's algorithm 2).

    For a chain x_1 .. x_n, with p the target's probabilities after all of the request's sampling stages and
    q the draft's, as in Leviathan et al. (the paper writes M_b and M_s):

        w_0 = 1,  w_i = min(w_(i-1) * p(x_i | x_1 .. x_(i-1)) / q(x_i | x_1 .. x_(i-1)), 1)
        s_i = sum over x of max(w_i * p(x | x_1 .. x_i) - q(x | x_1 .. x_i), 0)
        h_i = s_i / (s_i + 1 - w_i) for i < n,  h_n = w_n

    Each prefix of i = 1 .. n tokens is accepted with probability h_i, independently; the longest accepted
    one is kept, or the empty one. The next token is drawn from norm(max(w_i * p - q, 0)) after a prefix of
    i < n tokens, and from p after all n. The output has the target's distribution, and no exact rule keeps
    more of a chain on average (docs/exactness.md). At temperature 0 the tokens are the greedy ones.

    Chains only: a draft that branches is cut before the first node whose parent is not the node before it.

    randomness: makes a step's randomness from (seed, position).
    """

    name = "block"
    needs: frozenset[str] = frozenset()
    trees = False
    draft_probs = True
    drawn_rows = False

    def __init__(self, randomness: Callable[[int, int], StepRandomness] = StepRandomness) -> None:
        self._randomness = randomness

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        """See `Verifier.verify`."""
        randomness = self._randomness(sampler.seed, context.position)
        size = next((i for i, parent in enumerate(draft.parents.tolist()) if parent != i - 1), len(draft))
        weights = [1.0]  # w_i
        targets = [sampler.lazy_distribution(scores.logits[0], context)]  # p after i tokens
        bonus: LazyDistribution | None = targets[0]  # what the bonus token is drawn from
        for i in range(size):
            token = int(draft.tokens[i])
            weights.append(min(weights[i] * ratio(targets[i], draft.distribution(i), token), 1.0))
            if weights[-1] == 0.0:  # and so are all later ones
                break
            context = context.then(token)
            try:
                bonus = sampler.lazy_distribution(scores.logits[i + 1], context)
            except Exception:  # no token can follow: the chain ends here, without a bonus token
                size, bonus = i + 1, None
                break
            targets.append(bonus)
        # From the longest prefix down, so that h_i of the shorter ones is computed only if it is needed.
        if size == 0 or randomness.accepts(weights[-1], size - 1):
            if bonus is None:
                return Verdict.ending(draft, range(size))
            return Verdict(tuple(range(size)), randomness.next_token(bonus.whole()), "bonus")
        kept = len(weights) - 2
        while kept > 0 and not randomness.accepts(
            _accept_probability(targets[kept], draft, kept, weights[kept]), kept - 1
        ):
            kept -= 1
        after = residual(targets[kept].whole(), draft.distribution(kept), weights[kept])
        return Verdict(tuple(range(kept)), randomness.next_token(after), "recovered")


def _accept_probability(target: LazyDistribution, draft: Draft, i: int, weight: float) -> float:
    """h_i for i < n, from w_i and the target's distribution after i tokens."""
    draft_probs = draft.distribution(i)
    if len(draft_probs.ids) == 1:  # a point mass: the excess is all but its token
        excess = weight * (1.0 - target.of(int(draft_probs.ids[0])))
    else:
        excess = float(positive_excess(target.whole(), draft_probs, weight).sum())
    # Without excess there is nothing to recover from: h is 0, or 0 / 0, and then it does not matter.
    return excess / (excess + (1.0 - weight)) if excess > 0.0 else 0.0
