"""Draws the children of a draft's node from the logits after it, with what the request samples by."""

from __future__ import annotations

from typing import Literal, TypeAlias

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, FloatArray
from outrider.drafters.confidence import SiblingDraws, approximate_probability
from outrider.drafters.draft_sequence import GrowingTree
from outrider.errors import ConfigError

Draws: TypeAlias = Literal["coupled", "independent", "greedy"]


class Drawing:
    """How tokens are drawn from a draft model's distribution.

    draws: "coupled": with the target's noise, so that both draw the same token as often as possible (for the
           rule `coupled`). "independent": with `StepRandomness`, and the draft states the distributions (for
           `rejection` and `block`). "greedy": the likeliest token. Each is exact under each rule, since a
           token without a stated distribution is a point mass.
    """

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def coupled(self, sampler: Sampler) -> bool:
        """Whether a draft's tokens are drawn with the target's noise; at temperature 0 there is none."""
        return self._draws == "coupled" or sampler.params.temperature == 0.0

    def below(self, tree: GrowingTree, row: FloatArray) -> None:
        """Draw the children of the tree's node, after which the logits are `row`: float32[vocab]. In coupled
        drawing, siblings too, the tokens that come next with the same noise, as the guide wants them."""
        sampler, guide, parent = tree.sequence.sampler, tree.guide, tree.node
        context = tree.contexts[parent + 1]
        coupled = self.coupled(sampler)
        adjusted = row
        try:
            if coupled:
                row = row[: sampler.vocab_size]
                adjusted = sampler.adjusted(row, context)
                token, drawn_from = sampler.draw(adjusted, row, context.position), None
            else:
                distribution = sampler.distribution(row, context)
                token, drawn_from = self._draw(tree.randomness, distribution, context)
        except ConfigError:  # the request allows no token that this model knows
            return
        tree.add(parent, token, drawn_from)
        if guide is None:
            return
        if not coupled:
            guide.drew(parent, approximate_probability(row, token, sampler.params.temperature))
            return
        siblings = SiblingDraws(sampler, adjusted, row, context.position)
        try:
            following = siblings.after(token)
            more = guide.drew(parent, siblings.confidence(following))
            while more and following is not None and len(tree.tokens) < tree.budget:
                tree.add(parent, following, None)
                more = guide.drew(parent, 1.0 - siblings.confidence(following))
                following = siblings.after(following) if more else None
        finally:
            siblings.restore()

    def _draw(
        self, randomness: StepRandomness, distribution: Distribution, context: TokenContext
    ) -> tuple[int, Distribution | None]:
        """(token, the distribution to state for it) of "independent" and "greedy" drawing."""
        if self._draws == "greedy":
            return int(distribution.ids[distribution.probs.argmax()]), None
        return randomness.draft_token(distribution, len(context.path)), distribution
