"""Specification of the C++ Acceptance (acceptance.h): the chance that a drafted token is accepted. Slow.

A drafter's confidence is calibrated by a histogram (Zadrozny and Elkan 2001): the share of accepted tokens in
each bin of confidence, over all requests, shrunk towards the bin's centre, and in each bin by depth, shrunk
towards the bin. Where confidence has predicted acceptance worse than the plain mean does, the bins are shrunk
towards the mean instead. How a request differs from the others is a factor on the odds, learned from its own
latest tokens. All counts decay exponentially.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98)  # of confidence, between bins
CENTRES = (0.01, 0.035, 0.075, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.925, 0.965, 0.985)
STAGES = 5  # groups of depths: 1, 2, 3 to 4, 5 to 8, further
MAX_CHANCE = 0.995

# Weights of what an estimate is shrunk towards, in tokens.
BIN_WEIGHT = 4.0  # a bin's centre
CELL_WEIGHT = 8.0  # a bin, for each group of depths in it; the mean, for each group of depths
REQUEST_WEIGHT = 8.0  # "as in other requests", of each outcome

SHARED_DECAY = 0.99  # of counts over all requests, for each token
NEW_TEXT_DECAY = 0.9  # of counts without a confidence, for each new text
CONFIDENCE_PENALTY_RATE = 3.0  # how fast confidence loses its weight by its excess error
TOLERANCE = 0.3  # excess error that costs no weight

Prior = Callable[[str], float]


def stage_of(depth: int) -> int:
    """The group of a depth; a child of the anchor has depth 1. Raises ValueError below that."""
    if depth < 1:
        raise ValueError("a depth is 1 or more")
    return 0 if depth == 1 else 1 if depth == 2 else 2 if depth <= 4 else 3 if depth <= 8 else STAGES - 1


def check_tree(parents: Sequence[int]) -> None:
    if any(not -1 <= parent < node for node, parent in enumerate(parents)):
        raise ValueError("a parent comes before its children")


def scale_odds(chance: float, odds: float | None) -> float:
    """The chance whose odds are `odds` times those of `chance`; None leaves it as it is."""
    if odds is None:
        return chance
    return min(MAX_CHANCE, chance * odds / (1.0 - chance + chance * odds))


@dataclass
class Count:
    """Decayed numbers of tokens."""

    accepted: float = 0.0
    tried: float = 0.0

    def add(self, accepted: float) -> None:
        self.accepted = SHARED_DECAY * self.accepted + accepted
        self.tried = SHARED_DECAY * self.tried + 1.0

    def decay(self) -> None:
        self.accepted *= NEW_TEXT_DECAY
        self.tried *= NEW_TEXT_DECAY

    def shrunk(self, towards: float, weight: float) -> float:
        """The share of accepted tokens, where `towards` counts for `weight` tokens."""
        return (self.accepted + weight * towards) / (self.tried + weight)


@dataclass
class RequestOdds:
    """By request: the odds of its tokens, as a multiple of what was expected of them."""

    decay: float
    sums: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # accepted, expected, tried

    def learn(self, request_id: str, expected: float, accepted: float) -> None:
        got, hoped, tried = self.sums.get(request_id, (0.0, 0.0, 0.0))
        self.sums[request_id] = (
            self.decay * got + accepted,
            self.decay * hoped + expected,
            self.decay * tried + 1.0,
        )

    def odds(self, request_id: str) -> float | None:
        """None for a request of which nothing is known."""
        if request_id not in self.sums:
            return None
        got, hoped, tried = self.sums[request_id]
        k = REQUEST_WEIGHT
        return (got + k) * (tried - hoped + k) / ((tried - got + k) * (hoped + k))

    def forget(self, request_id: str) -> None:
        self.sums.pop(request_id, None)


class Acceptance:
    """Chances that nodes of one drafter are accepted, given that their parents are.

    start:  the chance before anything is known; counts for `weight` tokens.
    prior:  by request: the odds expected there, as a multiple of the others'. For chances by depth only: a
            drafter's confidence takes such knowledge into account itself.
    memory: what a request's counts keep for each token more.
    """

    def __init__(
        self, start: float = 0.7, weight: float = 2.0, prior: Prior | None = None, memory: float = 0.95
    ) -> None:
        self.start, self.weight, self.prior = start, weight, prior
        self.bins = [Count() for _ in CENTRES]
        self.cells = [[Count() for _ in range(STAGES)] for _ in CENTRES]  # by bin and group of depths
        self.stages = [Count() for _ in range(STAGES)]
        self.all = Count()
        self.verified = Count()  # those with a confidence
        self.excess_error = 0.0  # decayed sum of squared errors: confidence less the mean
        self.by_confidence, self.by_depth = RequestOdds(memory), RequestOdds(memory)

    def chance(self, request_id: str, depth: int, confidence: float | None = None) -> float:
        """Of a node at `depth`. None: the drafter states no confidence, or has not drafted yet."""
        stage = stage_of(depth)
        if confidence is not None:
            return scale_odds(
                self._calibrated(bin_of(confidence), stage), self.by_confidence.odds(request_id)
            )
        return scale_odds(self._expected(request_id, stage), self.by_depth.odds(request_id))

    def chances(
        self, request_id: str, parents: Sequence[int], confidence: Sequence[float], most: int
    ) -> tuple[list[float], list[float]]:
        """(chance of each node, probability of its path), of a tree's first `most` nodes."""
        parents, confidence = parents[: max(most, 0)], confidence[: max(most, 0)]
        if len(confidence) != len(parents):
            raise ValueError("each node has a parent and a confidence")
        check_tree(parents)
        chances: list[float] = []
        paths: list[float] = []
        depths: list[int] = []
        for parent, stated in zip(parents, confidence, strict=True):
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
            chances.append(self.chance(request_id, depths[-1], stated))
            paths.append((paths[parent] if parent >= 0 else 1.0) * chances[-1])
        return chances, paths

    def learn(self, request_id: str, depth: int, confidence: float | None, accepted: float) -> None:
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
            self.by_confidence.learn(request_id, self._calibrated(which, stage), accepted)
        self.suppose(request_id, depth, accepted)

    def learn_tree(
        self,
        request_id: str,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float],
        *,
        most: int,
        emitted: Sequence[int],
    ) -> None:
        """The first `most` nodes of a tree were proposed, and the text went on with `emitted`: this decides
        every node whose parent is the anchor or in the text, whether it was verified or not."""
        most = max(most, 0)
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
            self.learn(request_id, depth, confidence[node], right)

    def suppose(self, request_id: str, depth: int, chance: float) -> None:
        """A node was drafted but not verified, and would have been accepted with this chance."""
        stage = stage_of(depth)
        self.all.add(chance)
        self.stages[stage].add(chance)
        self.by_depth.learn(request_id, self._expected(request_id, stage), chance)

    def begin(self) -> None:
        """A new text begins, which may be unlike those before."""
        for count in (self.all, *self.stages):
            count.decay()

    def forget(self, request_id: str) -> None:
        """The request has ended, or its text has changed character."""
        self.by_confidence.forget(request_id)
        self.by_depth.forget(request_id)

    @property
    def mean(self) -> float:
        """The chance of a node over all that was tried lately."""
        return self.all.shrunk(self.start, self.weight)

    @property
    def evidence(self) -> float:
        """Decayed number of tokens tried."""
        return self.all.tried

    @property
    def verified_mean(self) -> float:
        return self.verified.shrunk(self.start, self.weight)

    def _expected(self, request_id: str, stage: int) -> float:
        """By depth: of a request of which only the prior is known."""
        shared = min(MAX_CHANCE, self.stages[stage].shrunk(self.mean, CELL_WEIGHT))
        return scale_odds(shared, None if self.prior is None else self.prior(request_id))

    def _calibrated(self, which: int, stage: int) -> float:
        """By confidence, over all requests."""
        excess = CONFIDENCE_PENALTY_RATE * (self.excess_error - TOLERANCE)
        trust = 1.0 / (1.0 + math.exp(min(50.0, excess)))
        centre = trust * CENTRES[which] + (1.0 - trust) * self.verified_mean
        in_bin = self.bins[which].shrunk(centre, BIN_WEIGHT)
        return min(MAX_CHANCE, self.cells[which][stage].shrunk(in_bin, CELL_WEIGHT))


def bin_of(confidence: float) -> int:
    return bisect_right(EDGES, confidence)
