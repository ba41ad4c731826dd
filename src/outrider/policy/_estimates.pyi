from collections.abc import Mapping, Sequence
from typing import Final, final

WIDEST: Final[int]
"""Tokens up to which a curve is a table."""
GUESSED_SLOPE: Final[float]
"""T(n) / T(1) grows by this per token when nothing was measured."""
REPEATS: Final[int]
"""So many outliers in a row are taken for a change."""

@final
class CostCurve:
    """Seconds of a pass by the number of its tokens (a Kalman filter, Kalman 1960; see `cost_model`).

    measured: seconds by n; None or empty starts from a guess that the first steps correct. Values that are
              not positive finite numbers, or whose n is below 1, are left out.
    longer:   the same with `positions` more in the context, of as many widths; None or empty where the
              context is not known to matter.
    """

    def __init__(
        self,
        measured: Mapping[int, float] | None = None,
        longer: Mapping[int, float] | None = None,
        positions: float = 0.0,
    ) -> None: ...
    def move(self, positions: float) -> None:
        """The context is now this many positions longer than where it was measured: each adds what it took in
        the longer one."""

    def seconds(self, n: int) -> float:
        """Seconds of a pass over n >= 0 tokens, which never falls as n grows and is 0 for none; beyond WIDEST
        along the line of the upper half, less what its tokens do not attend to."""

    def doubt(self, n: int) -> float:
        """Standard deviation of log(T(n) / T(1)): how sure the ratio is that decides on drafting."""

    def observe(self, n: int, seconds: float) -> bool:
        """Learn from one pass. True when the curve just jumped, so that what is known of other widths is in
        doubt. A single outlier is clipped; REPEATS of them in a row are taken for a change."""

    def observe_total(self, predicted: float, seconds: float) -> bool:
        """Learn from several passes at once: only the level can be told from their sum."""

    def elsewhere(self) -> CostCurve:
        """A copy that is less sure, to start from in another context."""

    def age(self, steps: float) -> None:
        """Steps have passed that this curve saw nothing of."""

    def best_count(self, chances: Sequence[float], base: int, rate: float) -> tuple[int, float]:
        """(nodes to verify, their gain in tokens over verifying none).

        chances: path probabilities, descending.
        base:    tokens in the pass anyway.
        rate:    token rate, the value of time, in tokens per second.
        """

    def best_nodes(
        self, paths: Sequence[Sequence[float]], base: int, rate: float
    ) -> tuple[list[list[int]], int, float]:
        """(the nodes to verify of each tree, ascending; how many in all; their gain in tokens over verifying
        none), by the nodes' path probabilities, which never rise from a parent to its child. Of equal ones
        the first. `base` and `rate` as for `best_count`."""

EDGES: Final[tuple[float, ...]]
"""Of confidence, between bins."""
CENTRES: Final[tuple[float, ...]]
"""What is expected of the tokens in each bin, before anything is known."""
MAX_PROBABILITY: Final[float]
"""No acceptance probability is higher."""
SHARED_DECAY: Final[float]
"""Factor on a count over all requests, for each further token."""

def stage_of(depth: int) -> int:
    """The group of a draft depth (1 = child of the anchor): 1, 2, 3 to 4, 5 to 8, further."""

@final
class RequestRates:
    """What `AcceptanceRates` has learned of one request."""

    def __init__(self) -> None: ...

@final
class AcceptanceRates:
    """One drafter's acceptance probabilities (histogram calibration, Zadrozny and Elkan 2001; see
    `acceptance_rates`).

    start:  expected before anything is known, 0..1; counts for `weight` > 0 tokens.
    decay:  0 .. 1, factor on a request's own counts for each further token.

    Probabilities are of a node given that its parent was accepted. A confidence of None means that the
    drafter does not say, or has not drafted yet: then the depth alone tells. Depths count from 1.
    prior_odds: how many times as good the odds are expected to be in this request as where the drafter was
    verified; a drafter's own confidence reflects that already, so it counts only where there is none.
    """

    start: float

    def __init__(self, start: float = 0.7, weight: float = 2.0, decay: float = 0.95) -> None: ...
    def probability(
        self,
        request: RequestRates,
        depth: int,
        confidence: float | None = None,
        prior_odds: float | None = None,
    ) -> float:
        """Of a node at `depth`, 0 < probability <= MAX_PROBABILITY."""

    def tree_probabilities(
        self, request: RequestRates, parents: Sequence[int], confidence: Sequence[float], max_nodes: int
    ) -> tuple[list[float], list[float]]:
        """(acceptance probability of each node, of its path), of a tree's first `max_nodes` nodes.

        parents: of each node, before its children; -1 is the anchor. ValueError for any other.
        confidence: in each node, 0..1.
        """

    def observe(
        self,
        request: RequestRates,
        depth: int,
        confidence: float | None,
        accepted: float,
        prior_odds: float | None = None,
    ) -> None:
        """A node was verified: its parent was accepted, and it was or was not."""

    def observe_tree(
        self,
        request: RequestRates,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float],
        max_nodes: int,
        emitted: Sequence[int],
        prior_odds: float | None = None,
    ) -> None:
        """The first `max_nodes` nodes of a tree were offered, parents first, and the text went on with the
        tokens `emitted`: learn from every node whose parent is in the text, verified or not. Raises
        ValueError for a parent that does not come before its child."""

    def observe_pruned(
        self, request: RequestRates, depth: int, probability: float, prior_odds: float | None = None
    ) -> None:
        """A node was drafted but pruned; by its confidence it would have been accepted with `probability`."""

    def begin_request(self) -> None:
        """A request begins: counts by depth decay, so that a drafter that did badly in the requests before
        is tried again some requests later."""

    @property
    def mean(self) -> float:
        """Acceptance rate over everything that was observed lately."""

    @property
    def evidence(self) -> float:
        """Tokens observed, older ones counting less."""

@final
class ModelRates:
    """What is known of a draft model's tokens in one request.

    first:      of first choices, by their rank in a row; `first_request` is the request's own part.
    sibling:    of further choices, by how many came before, those being wrong; `sibling_request` likewise.
    prior_odds: of first choices, see `AcceptanceRates`; None for none.
    """

    def __init__(
        self,
        first: AcceptanceRates,
        first_request: RequestRates,
        sibling: AcceptanceRates,
        sibling_request: RequestRates,
        prior_odds: float | None = None,
    ) -> None: ...
    def expected(self, most: int) -> list[float]:
        """Tokens that are expected to be accepted of 0, 1, 2, … `most` drawn ones, before any is drawn."""

    def of_tree(
        self, parents: Sequence[int], confidence: Sequence[float | None]
    ) -> tuple[list[float], list[float | None]]:
        """(acceptance probability of each node given its parent, its confidence), in the order in which they
        were drawn.

        A sibling's probability is computed given that the ones before it are wrong, so that siblings never
        sum to above 1, and its confidence is returned given that.
        parents:    of each node, before its children; -1 is the draft's start. ValueError for any other.
        confidence: the draft model's own, 0..1; None where it does not say.
        """

@final
class TreeGrowth:
    """Implements `Guide`: draws children and siblings while the acceptance probability is worth the price.

    seconds:    of a pass of the target; `draw` is the same of the draft model.
    rate:       token rate, the value of time, in tokens per second.
    base:       tokens in the target's pass without this draft.
    pass_share: of a draft pass, what a drawn token takes as a rule: lookahead makes some passes needless.
    sharers:    requests that are drafted for at the same time, and assumed to do as this one; at least 1.
    max_depth:  most tokens in a row.
    max_siblings: most of one parent; without `branching` there are none.
    capsule:    for the native engine.
    """

    def __init__(
        self,
        rates: ModelRates,
        seconds: CostCurve,
        draw: CostCurve,
        rate: float,
        base: int,
        *,
        pass_share: float = 1.0,
        sharers: int = 1,
        max_depth: int = 8,
        max_siblings: int = 3,
        branching: bool = True,
    ) -> None: ...
    def drew(self, parent: int, confidence: float) -> bool: ...
    def next_node(self, ready: int = -1) -> int: ...
    @property
    def capsule(self) -> object: ...

def row_length(
    seconds: CostCurve,
    expected: Sequence[Sequence[float]],
    *,
    other: float,
    width: int,
    spent: float,
    one: float,
    rate: float,
    value: float,
    prefill: float,
    horizon: float,
    left: float,
    requests: int,
) -> tuple[int, float, float, float, float]:
    """How many tokens in a row a draft model should draw: (length, worth, gained, chance, first).

    seconds:  of a pass of the target.
    expected: for each request that is drafted for, the tokens expected to be accepted of 0, 1, 2, … drawn
              ones; ValueError where one has none.
    other:    tokens expected of what is drafted otherwise.
    width:    tokens in the target's pass without what is drawn.
    spent:    seconds that drawing takes however many are drawn, less those of a plain pass; `one` is what it
              takes for each more.
    rate:     token rate, the value of time, in tokens per second.
    value:    tokens: what the step is worth without drawing.
    prefill:  tokens, paid once for at most `horizon` steps to come, in which each request has up to `left`
              tokens more.
    requests: of the step.

    length: what pays most, 0 if nothing does; `worth` is the step's with it, in tokens.
    gained: most over `value`, prefill aside; below 0 where nothing is.
    chance: tokens more that are expected of drawing one; `first` is the step's worth with it.
    """
