"""How likely a drafter's next token is to be accepted, learned as the drafts are verified.

A drafter's own confidence is sorted into bins and calibrated by what came of it (a histogram calibration,
Zadrozny and Elkan 2001, with Beta posteriors), all requests together; a bin of which little is known is taken
at its word as far as confidence has foretold better than the mean. How much better or worse a drafter does in
one request than expected is a factor on the odds, learned from its latest tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98)  # of confidence, between bins
CENTRES = (0.01, 0.035, 0.075, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.925, 0.965, 0.985)
STAGES = (0, 1, 2, 2, 3, 3, 3, 3)  # depth - 1 to stage; all deeper ones are the last
LAST_STAGE = 4

BIN_WEIGHT = 4.0  # tokens that a bin's own centre counts for
CELL_WEIGHT = 8.0  # tokens that a bin counts for in each of its stages
START_WEIGHT = 2.0  # tokens that the start value counts for, where there is no confidence
ANEW = 0.9  # what is left of what other texts taught, when a new one begins
REQUEST_WEIGHT = 8.0  # tokens, of each outcome, that "as in other requests" counts for
SHARED_MEMORY = 0.99  # what is left of a count, of all requests, after one more token
REQUEST_MEMORY = 0.95
SUSPICION = 3.0  # how fast a confidence that foretells nothing loses its weight
FAITH = 0.3  # how much of that, in squared errors, it is forgiven
MOST = 0.995


def stage_of(depth: int) -> int:
    """Which group of draft depths (1 = child of the anchor): 1, 2, 3 and 4, 5 to 8, further."""
    return STAGES[depth - 1] if depth <= len(STAGES) else LAST_STAGE


class _Requests:
    """How each request compares with all of them: a factor on the odds of a chance.

    prior: the factor that is expected by what is known of a request otherwise.
    """

    def __init__(self, prior: Callable[[str], float] | None = None) -> None:
        self._prior = prior
        self._sums: dict[str, list[float]] = {}  # decayed: got, expected, tried
        self._odds: dict[str, float] = {}

    def adjust(self, request_id: str, chance: float) -> float:
        chance, odds = self._expected(request_id, chance), self._odds.get(request_id)
        return chance if odds is None else _times(chance, odds)

    def _expected(self, request_id: str, chance: float) -> float:
        return chance if self._prior is None else _times(chance, self._prior(request_id))

    def learn(self, request_id: str, expected: float, got: float) -> None:
        expected = self._expected(request_id, expected)
        sums = self._sums.get(request_id)
        if sums is None:
            sums = self._sums[request_id] = [0.0, 0.0, 0.0]
        sums[0] = got = REQUEST_MEMORY * sums[0] + got
        sums[1] = hoped = REQUEST_MEMORY * sums[1] + expected
        sums[2] = tried = REQUEST_MEMORY * sums[2] + 1.0
        k = REQUEST_WEIGHT
        self._odds[request_id] = (got + k) * (tried - hoped + k) / ((tried - got + k) * (hoped + k))

    def forget(self, request_id: str) -> None:
        self._sums.pop(request_id, None)
        self._odds.pop(request_id, None)


def _times(chance: float, odds: float) -> float:
    """The chance with odds so many times as good."""
    return min(MOST, chance * odds / (1.0 - chance + chance * odds))


class Acceptance:
    """One drafter's chances. `start` is what is expected of it before anything is known, 0..1, and counts for
    `weight` tokens. `prior` says how many times as good the odds are expected to be in a request as where the
    drafter has been tried; a drafter's own confidence knows of that already.

    Chances are of a node given that its parent was accepted. A confidence of None means that the drafter
    does not say, or has not drafted yet: then the depth alone tells.
    """

    def __init__(
        self,
        start: float = 0.7,
        weight: float = START_WEIGHT,
        prior: Callable[[str], float] | None = None,
    ) -> None:
        self.start, self._weight = start, weight
        # Decayed [accepted, tried] counts, of all requests: by bin, by bin and stage, by stage.
        self._bins = [[0.0, 0.0] for _ in CENTRES]
        self._cells = [[[0.0, 0.0] for _ in range(LAST_STAGE + 1)] for _ in CENTRES]
        self._stages = [[0.0, 0.0] for _ in range(LAST_STAGE + 1)]
        self._all = [0.0, 0.0]
        self._tested = [0.0, 0.0]  # of those with a confidence, without what was only supposed
        self._vanity = 0.0  # decayed: how much worse confidence has foretold than the mean, squared errors
        self._by_confidence, self._by_depth = _Requests(), _Requests(prior)
        self._weigh()

    def chance(self, request_id: str, depth: int, confidence: float | None = None) -> float:
        """The chance of acceptance of a node at `depth`, 0 < chance <= MOST."""
        stage = stage_of(depth)
        if confidence is None:
            return self._by_depth.adjust(request_id, self._at_stage(stage))
        which = bisect_right(EDGES, confidence)
        return self._by_confidence.adjust(request_id, self._in_cell(which, stage))

    def learn(self, request_id: str, depth: int, confidence: float | None, accepted: bool) -> None:
        """A node was tried: its parent was accepted, and it was or was not."""
        got = float(accepted)
        if confidence is not None:
            which, stage = bisect_right(EDGES, confidence), stage_of(depth)
            worse = (CENTRES[which] - got) ** 2 - (self._tested_mean - got) ** 2
            self._vanity = SHARED_MEMORY * self._vanity + worse
            for count in (self._tested, self._bins[which], self._cells[which][stage]):
                count_in(count, got)
            self._weigh()
            # Expected by what is known now, this token counted: a first request sets the standard.
            self._by_confidence.learn(request_id, self._in_cell(which, stage), got)
        self.suppose(request_id, depth, got)

    def suppose(self, request_id: str, depth: int, chance: float) -> None:
        """A node was drafted but not tried; by its confidence it would have been accepted with `chance`."""
        stage = stage_of(depth)
        count_in(self._all, chance)
        count_in(self._stages[stage], chance)
        self._by_depth.learn(request_id, self._at_stage(stage), chance)

    def begin(self) -> None:
        """A new text begins: trust a little less that it is like the ones before, so that a drafter that did
        badly is given a chance again some texts later."""
        for count in (self._all, *self._stages):
            count[0] *= ANEW
            count[1] *= ANEW

    def forget(self, request_id: str) -> None:
        """The request has ended, or its text has changed character: it is like any other again."""
        self._by_confidence.forget(request_id)
        self._by_depth.forget(request_id)

    @property
    def mean(self) -> float:
        """The chance of a node, over everything that was tried lately."""
        return (self._all[0] + self._weight * self.start) / (self._all[1] + self._weight)

    @property
    def evidence(self) -> float:
        """Tokens tried or supposed, older ones counting less."""
        return self._all[1]

    def _weigh(self) -> None:
        """Work out what all bins have in common, after a token with a confidence was tried."""
        self._tested_mean = (self._tested[0] + self._weight * self.start) / (self._tested[1] + self._weight)
        self._trust = 1.0 / (1.0 + math.exp(min(50.0, SUSPICION * (self._vanity - FAITH))))

    def _at_stage(self, stage: int) -> float:
        got, tried = self._stages[stage]
        return min(MOST, (got + CELL_WEIGHT * self.mean) / (tried + CELL_WEIGHT))

    def _in_cell(self, which: int, stage: int) -> float:
        centre = self._trust * CENTRES[which] + (1.0 - self._trust) * self._tested_mean
        got, tried = self._bins[which]
        above = (got + BIN_WEIGHT * centre) / (tried + BIN_WEIGHT)
        got, tried = self._cells[which][stage]
        return min(MOST, (got + CELL_WEIGHT * above) / (tried + CELL_WEIGHT))


def count_in(count: list[float], got: float) -> None:
    """One token more, of which `got` is to be summed: older ones count less."""
    count[0] = SHARED_MEMORY * count[0] + got
    count[1] = SHARED_MEMORY * count[1] + 1.0
