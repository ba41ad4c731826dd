"""The draft model's side of the plan: how many tokens it should draw, when to stop, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from outrider.policy.acceptance_rates import Acceptance
from outrider.policy.cost_model import CostModel
from outrider.policy.draft_prefill import DraftPrefillPolicy
from outrider.policy.target_confidence import TargetConfidence
from outrider.policy.tree import DraftPass, DraftPlan, DraftQuery, ModelDraft, Node, chosen, merge
from outrider.policy.tree_growth import PathProbabilities, TreeGrowth

START = 0.8  # chance of its tokens before anything is known
TRIED = 24.0  # tokens of evidence from which a draft model is no longer new
FEW = 8.0  # tokens of evidence until which the model draws for one request at a time
START_WEIGHT = 8.0  # tokens that count as much as what is expected at the start
FORETOLD_START = 0.3  # chance that it draws what a lookup expects, before anything is known
SHARE_WEIGHT = 8.0  # passes that "as in other texts" counts for, where its tokens take fewer than one each
SHARE_MEMORY = 0.95  # of what is known of that, after one more draft
BESIDE_START = 0.4  # chance of a second choice where the first is wrong, before anything is known
SMOOTH = 0.1  # of a new value in a running mean
HORIZON = 32  # steps over which catching up is paid off, if the output lasts as long


@dataclass(slots=True, eq=False)
class Prices:
    """What things cost in one step.

    seconds: of a pass of the target over n tokens; `draw` is the same of the draft model.
    rate:    tokens per second that time is worth.
    left:    by request, tokens until the output must end.
    """

    seconds: Callable[[int], float]
    rate: float
    left: dict[str, int]


@dataclass(slots=True, eq=False)
class _Pass:
    """Some requests that would be drafted for together.

    hopes: for each, the tokens expected to be accepted of 0, 1, 2, … drawn ones.
    plain: tokens in the target's pass without a draft; `wide` with what is drafted otherwise.
    usual: tokens of the draft model's first pass as a rule; `fed` this time, with what it has missed.
    other: tokens expected of what is drafted otherwise.
    """

    hopes: list[list[float]]
    plain: int
    wide: int
    usual: int
    fed: int
    other: float


class DraftModelPlanner:
    """Plans for a draft model.

    cost:      of its passes.
    longest:   most tokens that it may draw in a step.
    confident: whether it says how confident it is in each token, so that it can stop early.
    tree:      whether its drafts may branch.
    """

    def __init__(
        self,
        cost: CostModel,
        *,
        longest: int = 8,
        confident: bool = True,
        tree: bool = True,
    ) -> None:
        self.cost = cost
        self.certainty = TargetConfidence()  # of the target
        self.accepted = Acceptance(START, START_WEIGHT, self.certainty.odds)  # its first choices
        self.beside = Acceptance(BESIDE_START)  # the others, where those before are wrong
        self.foretold = Acceptance(FORETOLD_START)  # what lookups expect it to draw
        # Decayed seconds of drawing after the first pass, and what these would be with a pass for each token.
        self._took: dict[str, list[float]] = {}
        self._took_all = [0.0, 0.0]
        self._longest, self._confident, self._tree = longest, confident, tree
        self.draw = cost.at(0).seconds
        self._beside_gain = 0.0  # running mean of what second choices add to a draft, in tokens
        self.catching_up = DraftPrefillPolicy()

    def at(self, context: int) -> None:
        """A step begins, with texts of about this many tokens."""
        self.draw = self.cost.at(context).seconds

    def plan(
        self,
        asks: Sequence[DraftQuery],
        choices: Sequence[DraftPlan],
        base: int,
        value: float,
        prices: Prices,
    ) -> float:
        """Let the model draw where that is worth more than `value`, the lookups' alone: in their place, or
        behind the likeliest path of one. Returns what it is worth, in tokens over plain decoding."""
        self.catching_up.begin_step()
        worth = self._plan(asks, choices, base, value, prices)
        self.catching_up.end_step([ask.request_id for ask in asks if ask.behind is not None], len(asks))
        return worth

    def _plan(
        self,
        asks: Sequence[DraftQuery],
        choices: Sequence[DraftPlan],
        base: int,
        value: float,
        prices: Prices,
    ) -> float:
        drawn: list[tuple[DraftQuery, DraftPlan]] = []  # who is better off with the draft model
        step = _Pass([], base, base, 0, 0, 0.0)
        cold = self.accepted.evidence < FEW
        for ask, choice in zip(asks, choices, strict=True):
            looked = choice.looked
            hoped = self._hoped(ask, ask.room) if ask.behind is not None else [0.0]
            if ask.behind is not None and hoped[-1] > looked and not (cold and drawn):
                drawn.append((ask, choice))
                step.hopes.append(hoped)
                step.usual += min(ask.behind, 2)
                step.fed += ask.behind
            else:
                step.other += looked
                step.wide += len(choice.nodes)
        best, longest = self._best_length(step, asks, value, prices) if drawn else (value, 0)
        if len(asks) == 1 and choices[0].nodes and asks[0].behind is not None:
            behind = self._plan_behind(asks[0], choices[0], base, best, prices)
            if behind is not None:
                return behind
        if longest:
            for ask, choice in drawn:
                choice.draft = min(longest, ask.room)
                if self._confident:
                    choice.draft = min(self._longest, ask.room)
                    choice.guide = self._guide(ask.request_id, base, 1.0, prices, sharers=len(drawn))
        return best

    def _plan_behind(
        self, ask: DraftQuery, choice: DraftPlan, base: int, value: float, prices: Prices
    ) -> float | None:
        """Let the model go on behind a lookup's likeliest path, if that is worth more than `value`."""
        assert ask.behind is not None
        after, depth = _likeliest_leaf(ask, choice)
        path = choice.paths[after]
        hoped = [path * tokens for tokens in self._hoped(ask, ask.room - len(choice.nodes))]
        looked = choice.looked
        usual, wide = min(ask.behind, 2) + depth, base + len(choice.nodes)
        step = _Pass([hoped], base, wide, usual, ask.behind + depth, looked)
        worth, count = self._best_length(step, [ask], value, prices)
        if not count:
            return None
        choice.after, choice.draft = after, count
        if self._confident:
            choice.draft = len(hoped) - 1
            choice.guide = self._guide(ask.request_id, wide, path, prices, longest=choice.draft)
        return worth

    def _best_length(
        self, step: _Pass, asks: Sequence[DraftQuery], value: float, prices: Prices
    ) -> tuple[float, int]:
        """(worth, tokens to draw): how long drafts pay most over `value`; 0 tokens if none does, or catching
        up is to wait."""
        rate, seconds, draw = prices.rate, prices.seconds, self.draw
        one, first = draw(len(step.hopes)) * self._share(asks), draw(step.usual)
        excess = rate * max(0.0, draw(step.fed) - first)  # once, and paid off over the steps to come
        spent = first - seconds(step.plain) - one
        left = min([prices.left[ask.request_id] for ask in asks])
        beside = self._beside_gain * len(step.hopes) if self._confident else 0.0
        best, best_gain, longest = value, 0.0, 0
        for k in range(1, max([len(hoped) for hoped in step.hopes])):
            gained, wide = step.other, step.wide
            for hoped in step.hopes:
                at = k if k < len(hoped) else len(hoped) - 1
                gained += hoped[at]
                wide += at
            worth = gained - rate * (seconds(wide) + spent + k * one) + beside
            steps = max(1.0, min(float(HORIZON), left / (1.0 + gained / len(asks))))
            gain = worth - value - excess / steps
            if gain > best_gain:
                best, best_gain, longest = worth, gain, k
        ids, new = [ask.request_id for ask in asks], self.accepted.evidence < TRIED
        ripe = self.catching_up.is_worth(ids, excess, best - value, new=new)
        if not ripe and any(ask.lookup is not None for ask in asks):
            return value, 0
        if longest:
            self.catching_up.pay(excess)
        return best, longest

    def _hoped(self, ask: DraftQuery, room: int) -> list[float]:
        """Accepted tokens that are expected of drawing 0, 1, 2, … tokens, before any is drawn."""
        chance, request_id = self.accepted.chance, ask.request_id
        path, total, sums = 1.0, 0.0, [0.0]
        for rank in range(1, min(self._longest, room) + 1):
            path *= chance(request_id, rank)
            total += path
            sums.append(total)
        return sums

    def _guide(
        self, request_id: str, base: int, path: float, prices: Prices, *, sharers: int = 1, longest: int = 0
    ) -> TreeGrowth:
        """Draw while the chance that the next tokens are accepted is worth their drawing and verifying."""
        return TreeGrowth(
            self._reckoner(request_id),
            prices.seconds,
            self.draw,
            prices.rate,
            base,
            share=self._share_of(request_id),
            sharers=sharers,
            path=path,
            longest=longest or self._longest,
            tree=self._tree,
        )

    def _reckoner(self, request_id: str) -> PathProbabilities:
        return PathProbabilities(self.accepted, self.beside, request_id)

    def tried(self, request_id: str, nodes: Sequence[Node], kept: Collection[int]) -> None:
        """Learn from a tree of which the nodes at `kept` were accepted (-1, the anchor, among them)."""
        right = {nodes[i].parent: nodes[i].beside for i in kept if i >= 0 and nodes[i].drawn}
        for i, node in enumerate(nodes):
            if not node.drawn or node.parent not in kept:
                continue
            if not node.beside:
                self.accepted.learn(request_id, node.drawn, node.model, i in kept)
                self.certainty.tried(request_id)
            elif right.get(node.parent, node.beside) >= node.beside:  # those before it are wrong
                self.beside.learn(request_id, node.beside, node.model, i in kept)

    def begin(self) -> None:
        """A new text begins."""
        self.accepted.begin()

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self.accepted.forget(request_id)
        self.beside.forget(request_id)
        self.foretold.forget(request_id)
        self.certainty.forget(request_id)
        self.catching_up.forget(request_id)
        self._took.pop(request_id, None)

    def learn(
        self,
        asks: Sequence[DraftQuery],
        choices: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        *,
        seconds: float,
        fed: Sequence[DraftPass],
        context: int,
    ) -> float:
        """Learn what drawing took, in these passes. Returns what it should take as a rule, without what had
        been missed."""
        first, most, active = 0, 0, 0
        for ask, choice, drawn in zip(asks, choices, drafts, strict=True):
            if drawn is not None:
                first += min(ask.behind or 1, 2) + (0 if choice.after < 0 else _depth(ask, choice.after))
                most, active = max(most, _height(drawn.parents)), active + 1
        draw, ids = self.draw, [ask.request_id for ask in asks]
        total = sum([draw(width - missed) for width, missed in fed])
        self.cost.at(context).observe_total(sum([draw(width) for width, _ in fed]), seconds)
        took, usual = max(0.0, total - draw(first)), (most - 1) * draw(active)
        of_each = [self._took.setdefault(ids[i], [0.0, 0.0]) for i, drawn in enumerate(drafts) if drawn]
        for sums in (self._took_all, *of_each):
            sums[0] = SHARE_MEMORY * sums[0] + took
            sums[1] = SHARE_MEMORY * sums[1] + usual
        return total

    def foretell(self, request_id: str, confidence: Sequence[float], sharers: int) -> int:
        """How many tokens of what a lookup expects to follow the model should be fed along with the one that
        it draws from: as many as make passes needless for more than they add to this one. `confidence` is
        the lookup's in each, given those before."""
        draw, path = self.draw, 1.0
        saved = draw(sharers)
        for i, said in enumerate(confidence):
            path *= self.foretold.chance(request_id, i + 1, said)
            if path * saved <= draw(sharers * (i + 2)) - draw(sharers * (i + 1)):
                return i
        return len(confidence)

    def _share(self, asks: Sequence[DraftQuery]) -> float:
        return sum([self._share_of(ask.request_id) for ask in asks]) / len(asks)

    def _share_of(self, request_id: str) -> float:
        """Of a pass, what a token takes after the first, as a rule."""
        took, usual = self._took_all
        weight = SHARE_WEIGHT * self.draw(1)
        usually = (took + weight) / (usual + weight)
        took, usual = self._took.get(request_id, (0.0, 0.0))
        return (took + weight * usually) / (usual + weight)

    def grow(self, ask: DraftQuery, choice: DraftPlan, drawn: ModelDraft) -> list[Node]:
        """The tree of what was drawn and the lookup's nodes; without trees, or where distributions are
        stated, what was drawn alone, or behind the lookup's chosen nodes."""
        reckoner = self._reckoner(ask.request_id)
        for parent, confidence in zip(drawn.parents, drawn.confidence, strict=True):
            reckoner.add(parent, confidence)
        if self._tree and not drawn.stated:
            said = replace(drawn, confidence=reckoner.said)
            return merge(ask.lookup, choice.chances, said, reckoner.chances, choice.after)
        nodes = chosen(ask.lookup, choice) if choice.after >= 0 else []
        at = choice.nodes.index(choice.after) if choice.after >= 0 else -1
        each = zip(drawn.tokens, drawn.confidence, reckoner.chances, strict=True)
        for rank, (token, confidence, chance) in enumerate(each, start=1):
            path, depth = (nodes[at].path, nodes[at].depth) if at >= 0 else (1.0, 0)
            nodes.append(Node(token, at, depth + 1, path * chance, False, rank, confidence))
            at = len(nodes) - 1
        return nodes

    def spread(self, gain: float) -> None:
        """Second choices have added this much to a draft, their verification paid, as far as was expected."""
        self._beside_gain += SMOOTH * (gain - self._beside_gain)

    def suppose(self, request_id: str, tree: Sequence[Node], kept: Sequence[int]) -> None:
        """The first drawn token of a row that is not verified will never be known; its chance must do."""
        within = set(kept)
        for i, node in enumerate(tree):
            if node.drawn and not node.beside and i not in within:
                above = tree[node.parent].path if node.parent >= 0 else 1.0
                self.accepted.suppose(request_id, node.drawn, node.path / above)
                return


def _likeliest_leaf(ask: DraftQuery, choice: DraftPlan) -> tuple[int, int]:
    """(node, depth): where the likeliest path through a lookup's chosen nodes ends."""
    assert ask.lookup is not None
    at, depth = -1, 0
    for i in choice.nodes:  # likelier siblings come first
        if ask.lookup.parents[i] == at:
            at, depth = i, depth + 1
    return at, depth


def _depth(ask: DraftQuery, node: int) -> int:
    """How deep a lookup's node is; 1 = child of the anchor."""
    assert ask.lookup is not None
    depth = 0
    while node >= 0:
        node = ask.lookup.parents[node]
        depth += 1
    return depth


def _height(parents: Sequence[int]) -> int:
    """How many tokens the longest row of a drawn tree has."""
    heights: list[int] = []
    for parent in parents:
        heights.append(heights[parent] + 1 if parent >= 0 else 1)
    return max(heights)
