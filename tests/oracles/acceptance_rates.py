"""Specification of the C++ AcceptanceRates (acceptance_rates.h): whether drafts are accepted. Slow.

A drafter's confidence is calibrated by a histogram (Zadrozny and Elkan 2001): the share of accepted tokens in
each bin of confidence, over all requests, shrunk towards the bin's centre, and in each bin by depth, shrunk
towards the bin. Where confidence has predicted acceptance worse than the plain mean does, the bins are shrunk
towards the mean instead. How a request differs from the others is a factor on the odds, learned from its own
latest tokens. All counts decay exponentially.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98)  # of confidence, between bins
CENTRES = (0.01, 0.035, 0.075, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.925, 0.965, 0.985)
STAGES = 5  # groups of depths: 1, 2, 3 to 4, 5 to 8, further
MAX_PROBABILITY = 0.995

# Weights of what an estimate is shrunk towards, in tokens.
BIN_WEIGHT = 4.0  # a bin's centre
CELL_WEIGHT = 8.0  # a bin, for each group of depths in it; the mean, for each group of depths
REQUEST_WEIGHT = 8.0  # "as in other requests", of each outcome

SHARED_DECAY = 0.99  # of counts over all requests, for each token
NEW_REQUEST_DECAY = 0.9  # of counts by depth, for each new request
CONFIDENCE_PENALTY_RATE = 3.0  # how fast confidence loses its weight by its excess error
TOLERANCE = 0.3  # excess error that costs no weight


def stage_of(depth: int) -> int:
    """The group of a depth; a child of the anchor has depth 1. Raises ValueError below that."""
    if depth < 1:
        raise ValueError("a depth is 1 or more")
    return 0 if depth == 1 else 1 if depth == 2 else 2 if depth <= 4 else 3 if depth <= 8 else STAGES - 1


def check_tree(parents: Sequence[int]) -> None:
    if any(not -1 <= parent < node for node, parent in enumerate(parents)):
        raise ValueError("a parent comes before its children")


def scale_odds(p: float, odds: float | None) -> float:
    """The probability whose odds are `odds` times those of `p`; None leaves it as it is."""
    if odds is None:
        return p
    return min(MAX_PROBABILITY, p * odds / (1.0 - p + p * odds))


@dataclass
class Count:
    """Decayed numbers of tokens."""

    accepted: float = 0.0
    tried: float = 0.0

    def add(self, accepted: float) -> None:
        self.accepted = SHARED_DECAY * self.accepted + accepted
        self.tried = SHARED_DECAY * self.tried + 1.0

    def decay(self) -> None:
        self.accepted *= NEW_REQUEST_DECAY
        self.tried *= NEW_REQUEST_DECAY

    def shrunk(self, towards: float, weight: float) -> float:
        """The share of accepted tokens, where `towards` counts for `weight` tokens."""
        return (self.accepted + weight * towards) / (self.tried + weight)


class RequestOdds:
    """The odds of one request's tokens, as a multiple of what was expected of them."""

    def __init__(self) -> None:
        self.accepted = self.expected = self.tried = 0.0  # decayed

    def observe(self, expected: float, accepted: float, decay: float) -> None:
        self.accepted = decay * self.accepted + accepted
        self.expected = decay * self.expected + expected
        self.tried = decay * self.tried + 1.0

    @property
    def odds(self) -> float | None:
        """None before the first observation."""
        if self.tried == 0.0:
            return None
        k = REQUEST_WEIGHT
        rejected = self.tried - self.accepted
        not_expected = self.tried - self.expected
        return (self.accepted + k) * (not_expected + k) / ((rejected + k) * (self.expected + k))


class RequestRates:
    """What is known of one request with one drafter."""

    def __init__(self) -> None:
        self.by_confidence, self.by_depth = RequestOdds(), RequestOdds()


class AcceptanceRates:
    """Probabilities that nodes of one drafter are accepted, given that their parents are.

    start:  the probability before anything is known; counts for `weight` tokens.
    decay:  factor on a request's counts for each further token.
    prior_odds, in most calls: the odds expected in the request, as a multiple of the others'. It counts for
            probabilities by depth only: a drafter's confidence takes such knowledge into account itself.
    """

    def __init__(self, start: float = 0.7, weight: float = 2.0, decay: float = 0.95) -> None:
        self.start, self.weight, self.decay = start, weight, decay
        self.bins = [Count() for _ in CENTRES]
        self.cells = [[Count() for _ in range(STAGES)] for _ in CENTRES]  # by bin and group of depths
        self.stages = [Count() for _ in range(STAGES)]
        self.all = Count()
        self.verified = Count()  # those with a confidence
        self.excess_error = 0.0  # decayed sum of squared errors: confidence less the mean

    def probability(
        self,
        request: RequestRates,
        depth: int,
        confidence: float | None = None,
        prior_odds: float | None = None,
    ) -> float:
        """Of a node at `depth`. None: the drafter states no confidence, or has not drafted yet."""
        stage = stage_of(depth)
        if confidence is not None:
            return scale_odds(self._calibrated(bin_of(confidence), stage), request.by_confidence.odds)
        return scale_odds(self._expected(stage, prior_odds), request.by_depth.odds)

    def tree_probabilities(
        self, request: RequestRates, parents: Sequence[int], confidence: Sequence[float], max_nodes: int
    ) -> tuple[list[float], list[float]]:
        """(probability of each node, of its path), of a tree's first `max_nodes` nodes."""
        parents, confidence = parents[: max(max_nodes, 0)], confidence[: max(max_nodes, 0)]
        if len(confidence) != len(parents):
            raise ValueError("each node has a parent and a confidence")
        check_tree(parents)
        found: list[float] = []
        paths: list[float] = []
        depths: list[int] = []
        for parent, stated in zip(parents, confidence, strict=True):
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
            found.append(self.probability(request, depths[-1], stated))
            paths.append((paths[parent] if parent >= 0 else 1.0) * found[-1])
        return found, paths

    def observe(
        self,
        request: RequestRates,
        depth: int,
        confidence: float | None,
        accepted: float,
        prior_odds: float | None = None,
    ) -> None:
        """A node whose parent was accepted was accepted, or was not."""
        stage = stage_of(depth)
        accepted = float(accepted)
        if confidence is not None:
            which = bin_of(confidence)
            by_bin, by_mean = CENTRES[which] - accepted, self.verified_mean - accepted
            self.excess_error = SHARED_DECAY * self.excess_error + (by_bin * by_bin - by_mean * by_mean)
            for count in (self.verified, self.bins[which], self.cells[which][stage]):
                count.add(accepted)
            # By the calibration with this token counted: a first request sets the standard.
            request.by_confidence.observe(self._calibrated(which, stage), accepted, self.decay)
        self.observe_pruned(request, depth, accepted, prior_odds)

    def observe_tree(
        self,
        request: RequestRates,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float],
        *,
        max_nodes: int,
        emitted: Sequence[int],
        prior_odds: float | None = None,
    ) -> None:
        """The first `max_nodes` nodes of a tree were proposed, and the text went on with `emitted`: this
        decides every node whose parent is the anchor or in the text, whether it was verified or not."""
        most = max(max_nodes, 0)
        tokens, parents, confidence = tokens[:most], parents[:most], confidence[:most]
        if not len(tokens) == len(parents) == len(confidence):
            raise ValueError("each node has a token, a parent and a confidence")
        check_tree(parents)
        depths: dict[int, int] = {-1: 0}  # of the nodes that are in the text
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if parent not in depths or depths[parent] == len(emitted):
                continue
            depth = depths[parent] + 1
            right = token == emitted[depth - 1]
            if right:
                depths[node] = depth
            self.observe(request, depth, confidence[node], right, prior_odds)

    def observe_pruned(
        self, request: RequestRates, depth: int, probability: float, prior_odds: float | None = None
    ) -> None:
        """A node was drafted but not verified, and would have been accepted with this probability."""
        stage = stage_of(depth)
        self.all.add(probability)
        self.stages[stage].add(probability)
        request.by_depth.observe(self._expected(stage, prior_odds), probability, self.decay)

    def begin_request(self) -> None:
        """A new request begins, whose text may be unlike those before."""
        for count in (self.all, *self.stages):
            count.decay()

    @property
    def mean(self) -> float:
        """The acceptance rate over all that was observed lately."""
        return self.all.shrunk(self.start, self.weight)

    @property
    def evidence(self) -> float:
        """Decayed number of tokens observed."""
        return self.all.tried

    @property
    def verified_mean(self) -> float:
        return self.verified.shrunk(self.start, self.weight)

    def _expected(self, stage: int, prior_odds: float | None) -> float:
        """By depth: in a request of which only the prior is known."""
        shared = min(MAX_PROBABILITY, self.stages[stage].shrunk(self.mean, CELL_WEIGHT))
        return scale_odds(shared, prior_odds)

    def _calibrated(self, which: int, stage: int) -> float:
        """By confidence, over all requests."""
        excess = CONFIDENCE_PENALTY_RATE * (self.excess_error - TOLERANCE)
        trust = 1.0 / (1.0 + math.exp(min(50.0, excess)))
        centre = trust * CENTRES[which] + (1.0 - trust) * self.verified_mean
        in_bin = self.bins[which].shrunk(centre, BIN_WEIGHT)
        return min(MAX_PROBABILITY, self.cells[which][stage].shrunk(in_bin, CELL_WEIGHT))


def bin_of(confidence: float) -> int:
    return bisect_right(EDGES, confidence)
