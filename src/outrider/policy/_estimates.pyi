from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

WIDEST: Final[int]
"""Tokens up to which a curve is a table."""
GUESSED_SLOPE: Final[float]
"""T(n) / T(1) grows by this per token when nothing was measured."""
REPEATS: Final[int]
"""A step far off counts as an accident until it was so often in a row."""

@final
class CostCurve:
    """Seconds of a pass by the number of its tokens (a Kalman filter, Kalman 1960; see `costs`).

    measured: seconds by n; None or empty starts from a guess that the first steps correct. Values that are
              not positive finite numbers, or whose n is not, are left out.
    """

    def __init__(self, measured: Mapping[int, float] | None = None) -> None: ...
    def seconds(self, n: int) -> float:
        """Seconds of a pass over n >= 0 tokens, which never falls as n grows and is 0 for none; beyond WIDEST
        along the line of the upper half."""

    def doubt(self, n: int) -> float:
        """Standard deviation of log(T(n) / T(1)): how sure the ratio is that decides on drafting."""

    def observe(self, n: int, seconds: float) -> bool:
        """Learn from one pass. True when the curve just jumped, so that what is known of other widths is in
        doubt. A single step far off is taken for an accident; the same thrice is believed."""

    def observe_total(self, predicted: float, seconds: float) -> bool:
        """Learn from several passes at once: only the level can be told from their sum."""

    def elsewhere(self) -> CostCurve:
        """A copy that is less sure, to start from in another context."""

    def age(self, steps: float) -> None:
        """Steps have passed that this curve saw nothing of."""

    def best_count(self, chances: Sequence[float], base: int, rate: float) -> tuple[int, float]:
        """How many of the nodes to verify, and what that is worth in tokens over verifying none.

        chances: path probabilities, descending.
        base:    tokens in the pass anyway.
        rate:    tokens per second that time is worth.
        """

    def best_nodes(
        self, paths: Sequence[Sequence[float]], base: int, rate: float
    ) -> tuple[list[list[int]], int, float]:
        """(the nodes to verify of each tree, ascending; how many; what they are worth in tokens over
        verifying none), by the chances of the nodes' paths, which never rise from a parent to its child. Of
        equal ones the first. `base` and `rate` as for `best_count`."""

EDGES: Final[tuple[float, ...]]
"""Of confidence, between bins."""
CENTRES: Final[tuple[float, ...]]
"""What is expected of the tokens in each bin, before anything is known."""
MOST: Final[float]
"""No chance is higher."""
SHARED_MEMORY: Final[float]
"""What is left of a count, of all requests, after one more token."""

def stage_of(depth: int) -> int:
    """Which group of draft depths (1 = child of the anchor): 1, 2, 3 and 4, 5 to 8, further."""

@final
class Acceptance:
    """One drafter's chances (a histogram calibration, Zadrozny and Elkan 2001; see `estimate`). `start` is
    what is expected of it before anything is known, 0..1, and counts for `weight` > 0 tokens. `prior` says
    how many times as good the odds are expected to be in a request as where the drafter has been tried; a
    drafter's own confidence knows of that already.

    Chances are of a node given that its parent was accepted. A confidence of None means that the drafter
    does not say, or has not drafted yet: then the depth alone tells. Depths count from 1. `memory`, 0 .. 1,
    is what is left of a request's counts after one more token.
    """

    start: float

    def __init__(
        self,
        start: float = 0.7,
        weight: float = 2.0,
        prior: Callable[[str], float] | None = None,
        memory: float = 0.95,
    ) -> None: ...
    def chance(self, request_id: str, depth: int, confidence: float | None = None) -> float:
        """The chance of acceptance of a node at `depth`, 0 < chance <= MOST."""

    def chances(
        self, request_id: str, parents: Sequence[int], confidence: Sequence[float], most: int
    ) -> tuple[list[float], list[float]]:
        """(chance of each node given its parent, chance of its path), of a tree's first `most` nodes.

        parents: of each node, before its children; -1 is the anchor. ValueError for any other.
        confidence: in each node, 0..1.
        """

    def learn(self, request_id: str, depth: int, confidence: float | None, accepted: bool) -> None:
        """A node was tried: its parent was accepted, and it was or was not."""

    def learn_tree(
        self,
        request_id: str,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float],
        most: int,
        emitted: Sequence[int],
    ) -> None:
        """The first `most` nodes of a tree were offered, in topological order, and the text went on with the
        tokens `emitted`: learn from every node whose parent is in the text, verified or not. Raises
        ValueError for a parent that does not come before its child."""

    def suppose(self, request_id: str, depth: int, chance: float) -> None:
        """A node was drafted but not tried; by its confidence it would have been accepted with `chance`."""

    def begin(self) -> None:
        """A new text begins: trust a little less that it is like the ones before, so that a drafter that did
        badly is given a chance again some texts later."""

    def forget(self, request_id: str) -> None:
        """The request has ended, or its text has changed character: it is like any other again."""

    @property
    def mean(self) -> float:
        """The chance of a node, over everything that was tried lately."""

    @property
    def evidence(self) -> float:
        """Tokens tried or supposed, older ones counting less."""
