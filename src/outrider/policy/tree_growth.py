"""How a draft model's tree grows: probabilities of its nodes, where it branches, and when it stops."""

from __future__ import annotations

from collections.abc import Callable

from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates
from outrider.policy.tuning import DEFAULT, Tuning

NO_PARENT = -2


class ModelRates:
    """What is known of a draft model's tokens in one request.

    first:      of first choices, by their rank in a row; `first_request` is the request's own part.
    sibling:    of further choices, by how many came before, those being wrong; `sibling_request` likewise.
    prior_odds: of first choices, see `AcceptanceRates`; None for none.
    """

    __slots__ = ("first", "first_request", "prior_odds", "sibling", "sibling_request")

    def __init__(
        self,
        first: AcceptanceRates,
        first_request: RequestRates,
        sibling: AcceptanceRates,
        sibling_request: RequestRates,
        prior_odds: float | None = None,
    ) -> None:
        self.first, self.first_request = first, first_request
        self.sibling, self.sibling_request = sibling, sibling_request
        self.prior_odds = prior_odds

    def of_first(self, rank: int, confidence: float | None = None) -> float:
        return self.first.probability(self.first_request, rank, confidence, self.prior_odds)

    def of_sibling(self, sibling_rank: int, confidence: float | None) -> float:
        return self.sibling.probability(self.sibling_request, sibling_rank, confidence)


class NodeProbabilities:
    """Acceptance probabilities of the nodes of a growing tree, added in the order in which they are drawn.

    A sibling's is computed given that the ones before it are wrong, so that siblings never sum to above 1.
    All lists are by node:
    ranks:         1 for the first of a row.
    sibling_ranks: siblings drawn before.
    probabilities: given the parent.
    confidence:    the draft model's; of further siblings, given that those before are wrong.
    """

    __slots__ = (
        "_last_parent",
        "_rates",
        "_unstated",
        "confidence",
        "probabilities",
        "ranks",
        "remaining",
        "sibling_ranks",
    )

    def __init__(self, rates: ModelRates) -> None:
        self._rates = rates
        self._last_parent = NO_PARENT
        # Probability that the last node and its siblings leave to others: calibrated, and as stated.
        self.remaining = self._unstated = 1.0
        self.ranks: list[int] = []
        self.sibling_ranks: list[int] = []
        self.probabilities: list[float] = []
        self.confidence: list[float | None] = []

    def add(self, parent: int, confidence: float | None) -> float:
        """The next node's acceptance probability, given its parent."""
        rank = self.ranks[parent] + 1 if parent >= 0 else 1
        if parent != self._last_parent:
            self._last_parent = parent
            self.remaining = self._unstated = 1.0
            sibling_rank, stated = 0, confidence
            probability = self._rates.of_first(rank, stated)
        else:
            sibling_rank = self.sibling_ranks[-1] + 1
            stated = None if confidence is None else min(1.0, confidence / max(self._unstated, 1e-6))
            probability = self.remaining * self._rates.of_sibling(sibling_rank, stated)
        self.remaining -= probability
        self._unstated -= confidence or 0.0
        self.ranks.append(rank)
        self.sibling_ranks.append(sibling_rank)
        self.probabilities.append(probability)
        self.confidence.append(stated)
        return probability

    def next_in_row(self, node: int) -> float:
        """Of a node's first child, before it is drawn."""
        return self._rates.of_first(self.ranks[node] + 1)


class TreeGrowth:
    """Implements `Guide`: draws children and siblings while the acceptance probability is worth the price.

    A sibling takes no pass of the draft model, only its verification. Of siblings, the likeliest alone gets
    children: what another would add is not worth a wider draft pass.

    seconds:    of a pass of the target over n tokens; `draw` is the same of the draft model.
    rate:       token rate, the value of time, in tokens per second.
    base:       tokens in the target's pass without this draft.
    pass_share: of a draft pass, what a drawn token takes as a rule: lookahead makes some passes needless.
    sharers:    requests that are drafted for at the same time, and assumed to do as this one.
    max_depth:  most tokens in a row.
    branching:  whether the tree may branch.
    """

    def __init__(
        self,
        nodes: NodeProbabilities,
        seconds: Callable[[int], float],
        draw: Callable[[int], float],
        rate: float,
        base: int,
        *,
        pass_share: float = 1.0,
        sharers: int = 1,
        max_depth: int = 8,
        branching: bool = True,
        tuning: Tuning = DEFAULT,
    ) -> None:
        self._nodes = nodes
        self._seconds, self._draw, self._rate = seconds, draw, rate
        self._base, self._pass_share, self._sharers = base, pass_share, sharers
        self._max_depth, self._branching, self._tuning = max_depth, branching, tuning
        self._parents: list[int] = []
        self._paths: list[float] = []
        self._new: list[int] = []  # drawn since `next_node` was last asked

    def drew(self, parent: int, confidence: float) -> bool:
        above = self._paths[parent] if parent >= 0 else 1.0
        path = above * self._nodes.add(parent, confidence)
        sibling_rank = self._nodes.sibling_ranks[-1]
        self._new.append(len(self._parents))
        self._parents.append(parent)
        self._paths.append(path)
        if sibling_rank and path <= self._verification_price(path):
            return False
        best_case = above * self._nodes.remaining
        more_siblings = self._branching and sibling_rank + 1 < self._tuning.max_siblings
        return more_siblings and best_case > self._verification_price(best_case)

    def next_node(self, ready: int = -1) -> int:
        new, self._new = self._new, []
        if not new or self._nodes.ranks[new[0]] >= self._max_depth:
            return -1
        node = new[0]
        if node != ready:
            node = max(new, key=self._paths.__getitem__)
        path = self._paths[node] * self._nodes.next_in_row(node)
        price = 0.0 if node == ready else self._drawing_price()
        return node if path > price + self._verification_price(path) else -1

    def _drawing_price(self) -> float:
        """In tokens, of a draft pass."""
        return self._rate * self._pass_share * self._draw(self._sharers) / self._sharers

    def _verification_price(self, path: float) -> float:
        """In tokens, of verifying a node of this path probability besides the likelier ones; less likely ones
        would be pruned before it."""
        size = sum([other > path for other in self._paths])
        now = self._base + self._sharers * size
        return self._rate * (self._seconds(now + self._sharers) - self._seconds(now)) / self._sharers
