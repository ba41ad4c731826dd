"""Rejection sampling: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
decoding" (ICML 2023); Chen et al., "Accelerating large language model decoding with speculative sampling"
(2023). With several candidates for a place it is the recursion of SpecInfer (Miao et al. 2023) and EAGLE.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, NextKind, TargetScores, Verdict
from outrider.decoding.verifiers.distributions import StepRandomness, ratio, residual


class RejectionVerifier:
    """Accept a token x drawn from q with probability min(1, p(x) / q(x)), p being the target's
    distribution after all of the request's sampling stages; else go on with p' = norm(max(p - q, 0)).

    A place with several candidates takes them in order, each judged by what the ones before it left
    of p, and by the q that it was itself drawn from. When all are rejected, the token is drawn from
    what is left: it is the recovered token; after a leaf it is the bonus token, from p itself.

    Every emitted token has the target's distribution, given the ones before it, whatever the drafts
    (docs/exactness.md has the proof). A point mass is a q of 1: accepted with probability p(x), and
    x is then taken out of p. At temperature 0 the tokens are the greedy ones.

    chance: makes a step's randomness from (seed, position).
    """

    name = "rejection"
    needs: frozenset[str] = frozenset()
    trees = True
    draft_probs = True

    def __init__(self, chance: Callable[[int, int], StepRandomness] = StepRandomness) -> None:
        self._chance = chance

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        chance = self._chance(sampler.seed, context.position)
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(draft.parents.tolist()):
            children.setdefault(parent, []).append(node)
        path: list[int] = []
        at = -1
        while True:
            try:
                outlook = sampler.outlook(scores.logits[at + 1], context)
            except Exception:
                if not path:
                    raise
                return Verdict.ending(draft, path)
            left: Distribution | None = None  # what the candidates so far leave, if there were any
            for node in children.get(at, ()):
                token, drawn_from = int(draft.tokens[node]), draft.distribution(node)
                if chance.accepts(ratio(left or outlook, drawn_from, token), node):
                    break
                left = residual(left or outlook.whole(), drawn_from)
            else:
                kind: NextKind = "recovered" if at in children else "bonus"
                return Verdict(tuple(path), chance.chooses(left or outlook.whole()), kind)
            path.append(node)
            context = context.then(token)
            at = node
