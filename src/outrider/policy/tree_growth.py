"""How a draft model's tree grows: what its nodes' chances are, where it branches, and when it stops."""

from __future__ import annotations

from collections.abc import Callable, Collection

from outrider.policy.acceptance_rates import Acceptance
from outrider.policy.tree import refed

MOST_CHOICES = 2  # siblings, the first among them: a third is hardly ever right
WIDEST = 4  # nodes that are drawn on from in one pass
LESS = 0.75  # of the usual chance: a token behind a further branch
NO_PARENT = -2


class PathProbabilities:
    """Chances of the nodes that a draft model draws for a request, told in the order in which they are drawn.

    A sibling's chance is reckoned given that the ones before it are wrong, so that together they never have
    more than there is.

    first:  learns of the model's first choices, by their rank in a row.
    beside: learns of its further choices, by how many came before, where those were wrong.
    """

    __slots__ = (
        "_beside",
        "_first",
        "_last",
        "_request_id",
        "_unsaid",
        "besides",
        "chances",
        "left",
        "ranks",
        "said",
    )

    def __init__(self, first: Acceptance, beside: Acceptance, request_id: str) -> None:
        self._first, self._beside, self._request_id = first, beside, request_id
        self._last = NO_PARENT
        self.left = self._unsaid = 1.0  # beside the last node and its siblings: by its chances, by its word
        self.ranks: list[int] = []  # 1 for the first of a row
        self.besides: list[int] = []  # siblings drawn before
        self.chances: list[float] = []  # given the parent
        self.said: list[
            float | None
        ] = []  # confidence; of further siblings, given that those before are wrong

    def add(self, parent: int, confidence: float | None) -> float:
        """The chance of the next node, given its parent."""
        rank = self.ranks[parent] + 1 if parent >= 0 else 1
        if parent != self._last:
            self._last = parent
            self.left = self._unsaid = 1.0
            beside, said = 0, confidence
            chance = self._first.chance(self._request_id, rank, said)
        else:
            beside = self.besides[-1] + 1
            said = None if confidence is None else min(1.0, confidence / max(self._unsaid, 1e-6))
            chance = self.left * self._beside.chance(self._request_id, beside, said)
        self.left -= chance
        self._unsaid -= confidence or 0.0
        self.ranks.append(rank)
        self.besides.append(beside)
        self.chances.append(chance)
        self.said.append(said)
        return chance

    def next_in_row(self, node: int) -> float:
        """The chance of the first token behind a node, before it is drawn."""
        return self._first.chance(self._request_id, self.ranks[node] + 1)


class TreeGrowth:
    """Implements `Guide`: draws on, and beside, while the chance of acceptance is worth the price.

    A token beside another costs no pass of the draft model, only its verification. All nodes that are drawn
    on from share one pass of the draft model.

    seconds: of a pass of the target over n tokens; `draw` is the same of the draft model.
    rate:    tokens per second that time is worth.
    base:    tokens in the target's pass without this draft.
    share:   of such a pass, what a token takes as a rule: some are drawn without one.
    sharers: requests that are drafted for at the same time, and taken to do as this one.
    path:    chance of the path that the draft hangs from.
    longest: tokens in a row.
    tree:    whether it may branch.
    """

    def __init__(
        self,
        reckoner: PathProbabilities,
        seconds: Callable[[int], float],
        draw: Callable[[int], float],
        rate: float,
        base: int,
        *,
        share: float = 1.0,
        sharers: int = 1,
        path: float = 1.0,
        longest: int = 8,
        tree: bool = True,
    ) -> None:
        self._reckoner = reckoner
        self._seconds, self._draw, self._rate = seconds, draw, rate
        self._base, self._share, self._sharers, self._path = base, share, sharers, path
        self._longest, self._tree = longest, tree
        self._parents: list[int] = []
        self._paths: list[float] = []
        self._new: list[int] = []  # drawn since `frontier` was last asked

    def drew(self, parent: int, confidence: float) -> bool:
        above = self._paths[parent] if parent >= 0 else self._path
        path = above * self._reckoner.add(parent, confidence)
        beside = self._reckoner.besides[-1]
        self._new.append(len(self._parents))
        self._parents.append(parent)
        self._paths.append(path)
        if beside and path <= self._verifying(path):
            return False
        most = above * self._reckoner.left
        return self._tree and beside + 1 < MOST_CHOICES and most > self._verifying(most)

    def frontier(self, ready: Collection[int] = ()) -> list[int]:
        new, self._new = self._new, []
        if not new or self._reckoner.ranks[new[0]] >= self._longest:
            return []
        paths, hope = self._paths, self._reckoner.next_in_row(new[0])
        if new[0] in ready:
            chance = paths[new[0]] * hope
            return new[:1] if chance > self._verifying(chance) else []
        if len(new) > 1:
            new.sort(key=paths.__getitem__, reverse=True)
        spent, count = 0.0, 0
        for m, node in enumerate(new[:WIDEST], start=1):
            fed = 1 if m == 1 else len(refed(self._parents, new[:m])[1])
            drawing = self._rate * self._share * self._draw(fed * self._sharers) / self._sharers
            chance = paths[node] * hope * (1.0 if m == 1 else LESS)
            if chance <= drawing - spent + self._verifying(chance, m - 1):
                break
            spent, count = drawing, m
        return sorted(new[:count])

    def _verifying(self, path: float, more: int = 0) -> float:
        """What it costs, in tokens, to verify a node of such a path, beside the likelier ones and `more`: of
        those that are less likely none would keep its place against it."""
        size = sum([other > path for other in self._paths]) + more
        now = self._base + self._sharers * size
        return self._rate * (self._seconds(now + self._sharers) - self._seconds(now)) / self._sharers
