"""The default rule: the target's own sampled token decides, with noise that the draft model shares.

Draft and target draw with the same Gumbel noise (Daliri, Musco and Suresh, "Coupling without communication
and drafter-invariant speculative decoding", 2024), so they often draw the same token.
"""

from __future__ import annotations

from outrider.decoding.context import TokenContext
from outrider.decoding.drawing import UNDRAWN
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, TargetScores, Verdict


class CoupledVerifier:
    """Accept a draft token when it is the token that the target samples at its position.

    The emitted tokens are the target's own, whatever was drafted; the draft only decides how many of them
    come from one pass. At temperature 0 this is greedy verification. An empty draft is plain decoding.
    """

    name = "coupled"
    needs: frozenset[str] = frozenset()
    trees = True
    draft_probs = False
    drawn_rows = True

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        """See `Verifier.verify`."""
        children: dict[tuple[int, int], int] = {}  # (parent, token) -> its first node
        for node, edge in enumerate(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)):
            children.setdefault(edge, node)
        inner = {parent for parent, _ in children}
        path: list[int] = []
        at = -1
        drawn = None if scores.drawn is None else scores.drawn.tokens
        while True:
            try:
                token = UNDRAWN if drawn is None else drawn[at + 1]
                if token == UNDRAWN:
                    token = sampler.token(scores.logits[at + 1], context)
            except Exception:
                if not path:
                    raise
                return Verdict.ending(draft, path)
            node = children.get((at, token), -1)
            if node < 0:
                return Verdict(tuple(path), token, "recovered" if at in inner else "bonus")
            path.append(node)
            context = context.then(token)
            at = node
