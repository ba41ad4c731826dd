"""Rejection sampling: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
decoding" (ICML 2023); Chen et al., "Accelerating large language model decoding with speculative sampling"
(2023). Siblings are verified by the recursion of SpecInfer (Miao et al. 2023) and EAGLE (Li et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, NextKind, TargetScores, Verdict
from outrider.decoding.verifiers.distributions import ratio, residual


class RejectionVerifier:
    """Accept a draft token x with probability min(1, p(x) / q(x)), else replace p by norm(max(p - q, 0)).

    Symbols as in Leviathan et al. (Chen et al. swap them): p is the target's distribution after all of the
    request's sampling stages, q the distribution that x was drawn from.

    Siblings are verified in order, each against the p that the rejected ones before it left, and with its
    own q. When all children of a node are rejected, the recovered token is drawn from the p that is left.
    After a leaf the bonus token is drawn from the target's p itself.

    Each emitted token has the target's distribution, given the tokens before it, whatever was drafted
    (docs/exactness.md has the proof). For a point mass q(x) is 1: x is accepted with probability p(x), and
    else removed from p. At temperature 0 the tokens are the greedy ones.

    randomness: makes a step's randomness from (seed, position).
    """

    name = "rejection"
    needs: frozenset[str] = frozenset()
    trees = True
    draft_probs = True
    drawn_rows = False

    def __init__(self, randomness: Callable[[int, int], StepRandomness] = StepRandomness) -> None:
        self._randomness = randomness

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        """See `Verifier.verify`."""
        randomness = self._randomness(sampler.seed, context.position)
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(draft.parents.tolist()):
            children.setdefault(parent, []).append(node)
        path: list[int] = []
        at = -1
        while True:
            try:
                target = sampler.lazy_distribution(scores.logits[at + 1], context)
            except Exception:
                if not path:
                    raise
                return Verdict.ending(draft, path)
            left: Distribution | None = None  # p after rejected siblings; None before the first rejection
            for node in children.get(at, ()):
                token, draft_probs = int(draft.tokens[node]), draft.distribution(node)
                if randomness.accepts(ratio(left or target, draft_probs, token), node):
                    break
                left = residual(left or target.whole(), draft_probs)
            else:
                kind: NextKind = "recovered" if at in children else "bonus"
                return Verdict(tuple(path), randomness.next_token(left or target.whole()), kind)
            path.append(node)
            context = context.then(token)
            at = node
