"""What is learned of a drafter whose trees are ready when they are proposed, such as a lookup."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates
from outrider.policy.exploration import ProbeSchedule
from outrider.policy.tree import Lookup, WeightedTree
from outrider.policy.tuning import DEFAULT, Tuning


class LookupState:
    """One request.

    offered:  what it proposed in this step, and how many nodes of it were considered; until they are learned
              from.
    """

    __slots__ = ("offered", "probes", "rates")

    def __init__(self, tuning: Tuning) -> None:
        self.rates = RequestRates()
        self.probes = ProbeSchedule(tuning)
        self.offered: tuple[Lookup, int] | None = None


class LookupSource:
    """One drafter, over all requests.

    optional: it drafts for requests only that bring something to look up in; for others it is not spoken of.
    """

    def __init__(self, name: str, tuning: Tuning = DEFAULT, *, optional: bool = False) -> None:
        self.name, self.optional, self._tuning = name, optional, tuning
        self.rates = AcceptanceRates(tuning.lookup_start, tuning.lookup_start_weight, tuning.acceptance_decay)

    def begin(self) -> LookupState:
        return LookupState(self._tuning)

    def weigh(self, state: LookupState, tree: Lookup, budget: int) -> tuple[WeightedTree, list[float]]:
        """(the tree's first `budget` nodes with calibrated probabilities, their path probabilities)."""
        state.offered = tree, budget
        probabilities, paths = self.rates.tree_probabilities(
            state.rates, tree.parents, tree.confidence, budget
        )
        return WeightedTree(self.name, tree.tokens, tree.parents, probabilities), paths

    def learn(self, state: LookupState, emitted: Sequence[int]) -> None:
        """The text went on with `emitted`. It tells of all nodes that were offered: one that is not verified
        for its low probability would keep that for good otherwise."""
        if state.offered is not None:
            tree, budget = state.offered
            self.rates.observe_tree(state.rates, tree.tokens, tree.parents, tree.confidence, budget, emitted)
            state.offered = None
