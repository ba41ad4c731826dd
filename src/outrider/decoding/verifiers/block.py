"""Block verification: Sun et al., "Block verification accelerates speculative decoding" (ICLR 2025)."""

from __future__ import annotations

from collections.abc import Callable

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.sampler import LazyDistribution, Sampler
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.decoding.verifiers.distributions import StepRandomness, excess, ratio, residual


class BlockVerifier:
    """Judge the draft as a whole: a token that `rejection` would give up may stay for the ones after it.

    For a chain x_1 .. x_n, with p the target's distributions after all of the request's sampling
    stages and q the draft's (the paper's algorithm 2):

        w_0 = 1,  w_i = min(w_(i-1) * p(x_i | x_1 .. x_(i-1)) / q(x_i | x_1 .. x_(i-1)), 1)
        s_i = sum over x of max(w_i * p(x | x_1 .. x_i) - q(x | x_1 .. x_i), 0)
        h_i = s_i / (s_i + 1 - w_i) for i < n,  h_n = w_n

    Each i = 1 .. n is accepted with probability h_i, independently; the longest prefix accepted is
    kept, at least the empty one. The next token comes from norm(max(w_i * p - q, 0)) after a prefix of
    i < n tokens, from p after all n. The output has the target's distribution, and no rule keeps more of
    a chain on average (docs/exactness.md). At temperature 0 the tokens are the greedy ones.

    Chains only: of a draft that branches, the nodes are judged up to the first that is not the child of
    the one before it.

    chance: makes a step's randomness from (seed, position).
    """

    name = "block"
    needs: frozenset[str] = frozenset()
    trees = False
    draft_probs = True

    def __init__(self, chance: Callable[[int, int], StepRandomness] = StepRandomness) -> None:
        self._chance = chance

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        chance = self._chance(sampler.seed, context.position)
        size = next((i for i, parent in enumerate(draft.parents.tolist()) if parent != i - 1), len(draft))
        weights, rows = [1.0], [sampler.outlook(scores.logits[0], context)]
        after: LazyDistribution | None = rows[0]  # to draw from when the whole chain is kept
        for i in range(size):
            token = int(draft.tokens[i])
            weights.append(min(weights[i] * ratio(rows[i], draft.distribution(i), token), 1.0))
            if weights[-1] == 0.0:  # and so it stays
                break
            context = context.then(token)
            try:
                after = sampler.outlook(scores.logits[i + 1], context)
            except Exception:  # the chain ends here, and nothing can be said about the token after it
                size, after = i + 1, None
                break
            rows.append(after)
        # From the longest prefix down: of those that nothing depends on, h is not worked out.
        if size == 0 or chance.accepts(weights[-1], size - 1):
            if after is None:
                return Verdict.ending(draft, range(size))
            return Verdict(tuple(range(size)), chance.chooses(after.whole()), "bonus")
        kept = len(weights) - 2
        while kept > 0 and not chance.accepts(_share(rows[kept], draft, kept, weights[kept]), kept - 1):
            kept -= 1
        left = residual(rows[kept].whole(), draft.distribution(kept), weights[kept])
        return Verdict(tuple(range(kept)), chance.chooses(left), "recovered")


def _share(row: LazyDistribution, draft: Draft, i: int, weight: float) -> float:
    """h_i for i < n, with w_i and the target's row after i tokens."""
    drawn_from = draft.distribution(i)
    if len(drawn_from.ids) == 1:  # a point mass: what is left is the rest
        surplus = weight * (1.0 - row.of(int(drawn_from.ids[0])))
    else:
        surplus = float(excess(row.whole(), drawn_from, weight).sum())
    # Without a surplus there is nothing to recover from: then h is 0, or 0 / 0 and of no account.
    return surplus / (surplus + (1.0 - weight)) if surplus > 0.0 else 0.0
