"""`AcceptanceRates` for requests that are identified by names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates


class NamedRates:
    """prior_odds: gives each request's prior odds (see `AcceptanceRates`); None for none."""

    def __init__(
        self,
        start: float = 0.7,
        weight: float = 2.0,
        prior_odds: Callable[[str], float] | None = None,
        decay: float = 0.95,
    ) -> None:
        self.rates = AcceptanceRates(start, weight, decay)
        self.requests: dict[str, RequestRates] = {}
        self._prior_odds = prior_odds

    def _of(self, name: str) -> RequestRates:
        return self.requests.setdefault(name, RequestRates())

    def _prior(self, name: str) -> float | None:
        return None if self._prior_odds is None else self._prior_odds(name)

    @property
    def start(self) -> float:
        return self.rates.start

    @property
    def mean(self) -> float:
        return self.rates.mean

    @property
    def evidence(self) -> float:
        return self.rates.evidence

    def probability(self, name: str, depth: int, confidence: float | None = None) -> float:
        return self.rates.probability(self._of(name), depth, confidence, self._prior(name))

    def tree_probabilities(
        self, name: str, parents: Sequence[int], confidence: Sequence[float], max_nodes: int
    ) -> tuple[list[float], list[float]]:
        return self.rates.tree_probabilities(self._of(name), parents, confidence, max_nodes)

    def observe(self, name: str, depth: int, confidence: float | None, accepted: float) -> None:
        self.rates.observe(self._of(name), depth, confidence, accepted, self._prior(name))

    def observe_tree(
        self,
        name: str,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float],
        *,
        max_nodes: int,
        emitted: Sequence[int],
    ) -> None:
        prior, of = self._prior(name), self._of(name)
        self.rates.observe_tree(of, tokens, parents, confidence, max_nodes, emitted, prior)

    def observe_pruned(self, name: str, depth: int, probability: float) -> None:
        self.rates.observe_pruned(self._of(name), depth, probability, self._prior(name))

    def begin_request(self) -> None:
        self.rates.begin_request()

    def end(self, name: str) -> None:
        """Discard what was learned about the request."""
        self.requests.pop(name, None)
