"""Block verification: Sun et al., "Block verification accelerates speculative decoding" (ICLR 2025)."""

from __future__ import annotations

from collections.abc import Callable

from outrider.decoding.chance import Chance, excess, ratio, residual
from outrider.decoding.context import TokenContext
from outrider.decoding.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict


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

    def __init__(self, chance: Callable[[int, int], Chance] = Chance) -> None:
        self._chance = chance

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        chance = self._chance(sampler.seed, context.position)
        size = next((i for i, parent in enumerate(draft.parents.tolist()) if parent != i - 1), len(draft))
        weight, kept = 1.0, 0
        target = sampler.distribution(scores.logits[0], context)
        left: Distribution | None = target
        after: Distribution | None = target  # to draw from when the whole chain is kept
        for i in range(size):
            drawn_from, token = draft.distribution(i), int(draft.tokens[i])
            surplus = float(excess(target, drawn_from, weight).sum())
            # Without a surplus there is nothing to recover from: then h is 0, or 0 / 0 and of no account.
            share = surplus / (surplus + (1.0 - weight)) if surplus > 0.0 else 0.0
            if i == 0 or chance.accepts(share, i - 1):
                kept, left = i, residual(target, drawn_from, weight)
            weight = min(weight * ratio(target, drawn_from, token), 1.0)
            if weight == 0.0:  # and so it stays
                break
            context = context.then(token)
            try:
                target = sampler.distribution(scores.logits[i + 1], context)
            except Exception:  # the chain ends here, and nothing can be said about the token after it
                size, after = i + 1, None
                break
            after = target
        if size and chance.accepts(weight, size - 1):
            kept, left = size, after
        if left is None:
            return Verdict.ending(draft, range(kept))
        return Verdict(tuple(range(kept)), chance.chooses(left), "bonus" if kept == size else "recovered")
