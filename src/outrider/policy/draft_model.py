"""What is learned of a draft model, and how far it should draft: length, price, and the trees it grew."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates
from outrider.policy.cost_model import CostModel
from outrider.policy.draft_prefill import DraftPrefillPolicy, PrefillState
from outrider.policy.exploration import ProbeSchedule
from outrider.policy.optimism import Optimism, TextAcceptance
from outrider.policy.report import COLD, PREFILL, UNLIKELY, Off
from outrider.policy.target_confidence import TargetConfidence, TextConfidence
from outrider.policy.token_rate import StepContext
from outrider.policy.tree import (
    DraftPass,
    DraftPlan,
    DraftQuery,
    ModelDraft,
    Node,
    WeightedTree,
    merge,
)
from outrider.policy.tree_growth import ModelRates, TreeGrowth, row_length
from outrider.policy.tuning import DEFAULT, Tuning


class DraftModelState:
    """One request.

    first, sibling, lookahead: its own part of the source's acceptance rates.
    confidence:  the target's, in this text.
    pass_seconds: decayed seconds of its draft passes after the first, and what they would have been with a
                 pass for each token.
    truncated:   whether the draft model does not see the middle of the prompt.
    verified:    how its tokens did.
    """

    __slots__ = (
        *("confidence", "first", "lookahead", "pass_seconds"),
        *("prefill", "probes", "sibling", "truncated", "verified"),
    )

    def __init__(self, tuning: Tuning) -> None:
        self.first, self.sibling, self.lookahead = RequestRates(), RequestRates(), RequestRates()
        self.confidence, self.prefill = TextConfidence(), PrefillState()
        self.verified = TextAcceptance()
        self.probes = ProbeSchedule(tuning)
        self.pass_seconds = [0.0, 0.0]
        self.truncated = False


@dataclass(slots=True, eq=False)
class GrowthPlan:
    """What one draft model would draft in a step.

    value:   in tokens over plain decoding, of the whole step.
    plans:   for the requests that it drafts for, by index: with draft_tokens and guide.
    off:     why it drafts for none of them; `waiting` why not for some, by index.
    """

    name: str
    value: float
    plans: dict[int, DraftPlan] = field(default_factory=dict)
    off: Off | None = None
    waiting: dict[int, Off] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Batch:
    """Requests that would be drafted for together.

    expected:    for each, the tokens expected to be accepted of 0, 1, 2, … drawn ones.
    plain_width: tokens in the target's pass without a draft; `width` with what is drafted otherwise.
    usual_feed:  tokens of the first draft pass as a rule; `feed` this time, with unprocessed tokens.
    other:       tokens expected of what is drafted otherwise.
    """

    expected: list[list[float]]
    plain_width: int
    width: int
    usual_feed: int
    feed: int
    other: float


class DraftModelSource:
    """One draft model, over all requests.

    cost:      of its passes.
    max_depth: most tokens in a row that it may draw in a step.
    confident: whether it states a confidence in each token, so that it can stop early.
    branching: whether its trees may branch.
    """

    def __init__(
        self,
        name: str,
        cost: CostModel,
        *,
        max_depth: int = 8,
        confident: bool = True,
        branching: bool = True,
        tuning: Tuning = DEFAULT,
    ) -> None:
        self.name, self.cost, self._tuning = name, cost, tuning
        self.target_confidence = TargetConfidence(tuning)
        # Of first choices, of others where those before are wrong, and of lookups as predictions of them.
        weight, decay = tuning.model_start_weight, tuning.acceptance_decay
        self.first = AcceptanceRates(tuning.model_start, weight, decay)
        self.first_truncated = AcceptanceRates(tuning.model_start_truncated, weight, decay)  # see `truncate`
        self.sibling = AcceptanceRates(tuning.sibling_start, tuning.sibling_start_weight, decay)
        self.lookahead = AcceptanceRates(tuning.lookahead_start, tuning.lookahead_start_weight, decay)
        self.prefill = DraftPrefillPolicy(tuning)
        self.optimism = Optimism(tuning)
        self._pass_seconds = [0.0, 0.0]  # as in DraftModelState, over all requests
        self._overhead = 0.0  # seconds of a step that a drawn tree takes beside its passes
        self._max_depth, self._confident, self._branching = max_depth, confident, branching

    # --- Requests ----------------------------------------------------------------------------------

    def begin(self) -> DraftModelState:
        self.first.begin_request()
        return DraftModelState(self._tuning)

    def truncate(self, state: DraftModelState) -> None:
        """The draft model will not see the middle of this request's prompt."""
        if not state.truncated:
            state.truncated = True
            self.first_truncated.begin_request()

    def end(self, state: DraftModelState) -> None:
        self.prefill.end_request(state.prefill)
        self.optimism.end_request(state.verified)

    def observe_target(self, state: DraftModelState, shares: Sequence[float]) -> None:
        """The target gave these probabilities to its likeliest tokens."""
        self.target_confidence.observe(state.confidence, shares)

    # --- Planning ----------------------------------------------------------------------------------

    def plan(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        base: int,
        value: float,
        step: StepContext,
    ) -> GrowthPlan:
        """Draft where that is worth more than `value`, that of the ready proposals alone. Changes no plan;
        `settle` must follow.

        base: tokens in the target's pass without drafts.
        """
        self.prefill.begin_step()
        better: list[int] = []  # requests that are better off with the draft model
        batch = _Batch([], base, base, 0, 0, 0.0)
        cold = self.first.evidence < self._tuning.model_cold_tokens
        found, length = GrowthPlan(self.name, value), 0
        for i, (query, plan) in enumerate(zip(queries, plans, strict=True)):
            ready, unprocessed = plan.expected_accepted, query.unprocessed(self.name)
            expected = [0.0] if unprocessed is None else self._expected(query, query.budget)
            if unprocessed is not None and expected[-1] > ready and not (cold and better):
                better.append(i)
                batch.expected.append(expected)
                batch.usual_feed += min(unprocessed, 2)
                batch.feed += unprocessed
            else:
                if cold and better and unprocessed is not None:
                    found.waiting[i] = Off(self.name, COLD)
                batch.other += ready
                batch.width += len(plan.nodes)
        if better:
            length = self._best_length(found, batch, queries, step)
        if length:
            for i in better:
                found.plans[i] = self._growth(queries[i], length, base, step, sharers=len(better))
        return found

    def settle(self, queries: Sequence[DraftQuery]) -> None:
        """The step's plan is made, with this source or another."""
        able = [q.state.models[self.name].prefill for q in queries if q.unprocessed(self.name) is not None]
        self.prefill.end_step(able, len(queries))

    def _growth(
        self, query: DraftQuery, length: int, base: int, step: StepContext, *, sharers: int
    ) -> DraftPlan:
        """In the place of ready proposals."""
        plan = DraftPlan(source=self.name, draft_tokens=min(length, query.budget))
        if self._confident:
            plan.draft_tokens = min(self._max_depth, query.budget)
            plan.guide = self._guide(query, base, step, sharers)
        return plan

    def _best_length(
        self, found: GrowthPlan, batch: _Batch, queries: Sequence[DraftQuery], step: StepContext
    ) -> int:
        """How many tokens pay most over `found.value`, which is raised to theirs; 0 if none do, or
        the prefill is deferred."""
        rate, draw = step.rate, step.draw[self.name]
        one, first = draw(len(batch.expected)) * self._mean_pass_share(queries, step), draw(batch.usual_feed)
        prefill = rate * max(0.0, draw(batch.feed) - first)  # once, and paid off over the steps to come
        spent = first + self._overhead - step.curve.seconds(batch.plain_width) - one
        left = min([query.state.tokens_left for query in queries])
        each = batch.expected
        if prefill > 0.0 and not any(query.state.models[self.name].truncated for query in queries):
            each = [self.optimism.hoped(expected) for expected in each]
        length, best, gained, chance, first_worth = row_length(
            step.curve,
            each,
            other=batch.other,
            width=batch.width,
            spent=spent,
            one=one,
            rate=rate,
            value=found.value,
            prefill=prefill,
            horizon=self._tuning.prefill_horizon,
            left=left,
            requests=len(queries),
        )
        if gained > 0.0:
            found.off = Off(self.name, PREFILL, need=(draw(batch.feed) - first) / step.plain)
        else:
            requests, need = len(batch.expected), chance - (first_worth - found.value)
            found.off = Off(self.name, UNLIKELY, chance / requests, need / requests)
        if not length:
            return 0
        states = [query.state.models[self.name].prefill for query in queries]
        ripe = self.prefill.is_worth(states, prefill, best - found.value, left)
        if not ripe and any(query.has_lookup for query in queries):
            return 0
        found.value = best
        return length

    def _expected(self, query: DraftQuery, budget: int) -> list[float]:
        """Tokens that are expected to be accepted of 0, 1, 2, … drawn ones, before any is drawn."""
        return self._rates(query.state.models[self.name]).expected(min(self._max_depth, budget))

    def _guide(self, query: DraftQuery, base: int, step: StepContext, sharers: int) -> TreeGrowth:
        state = query.state.models[self.name]
        return TreeGrowth(
            self._rates(state),
            step.curve,
            self.cost.at(step.context),
            step.rate,
            base,
            pass_share=self._pass_share(state, step),
            sharers=sharers,
            max_depth=self._max_depth,
            max_siblings=self._tuning.max_siblings,
            branching=self._branching,
        )

    def _rates(self, state: DraftModelState) -> ModelRates:
        prior_odds = self.target_confidence.prior_odds(state.confidence)
        return ModelRates(self._first(state), state.first, self.sibling, state.sibling, prior_odds)

    def _first(self, state: DraftModelState) -> AcceptanceRates:
        return self.first_truncated if state.truncated else self.first

    # --- Lookahead ---------------------------------------------------------------------------------

    def lookahead_length(
        self, state: DraftModelState, confidence: Sequence[float], sharers: int, step: StepContext
    ) -> int:
        """How many of the tokens that a lookup predicts should be fed along with the one that the model draws
        from: as many as save more passes than they lengthen this one. `confidence` is the lookup's in each,
        given those before."""
        draw, path = step.draw[self.name], 1.0
        saved = draw(sharers)
        for i, stated in enumerate(confidence):
            path *= self.lookahead.probability(state.lookahead, i + 1, stated)
            if path * saved <= draw(sharers * (i + 2)) - draw(sharers * (i + 1)):
                return i
        return len(confidence)

    def observe_lookahead(
        self, state: DraftModelState, rank: int, confidence: float, predicted: bool
    ) -> None:
        """Whether the model drew the token predicted `rank` tokens ahead."""
        self.lookahead.observe(state.lookahead, rank, confidence, predicted)

    # --- What drafting took and gave ---------------------------------------------------------------

    def observe_overhead(self, seconds: float) -> None:
        """A drawn tree took so much of a step beside what `observe_passes` is told."""
        self._overhead += self._tuning.overhead_smoothing * (max(0.0, seconds) - self._overhead)

    def observe_passes(
        self,
        drafted: Sequence[tuple[DraftQuery, ModelDraft]],
        *,
        seconds: float,
        passes: Sequence[DraftPass],
        step: StepContext,
    ) -> float:
        """Learn what drafting took. Returns what it should take as a rule, without prefill."""
        first, rows = 0, 0
        for query, draft in drafted:
            first += min(query.unprocessed(self.name) or 1, 2)
            rows = max(rows, draft.height)
        draw = step.draw[self.name]
        total = sum([draw(width - prefilled) for width, prefilled in passes])
        predicted = sum([draw(width) for width, _ in passes])
        self.cost.at(step.context).observe_total(predicted, seconds)
        taken, usual = max(0.0, total - draw(first)), (rows - 1) * draw(len(drafted))
        decay = self._tuning.pass_share_decay
        states = [query.state.models[self.name].pass_seconds for query, _ in drafted]
        for sums in (self._pass_seconds, *states):
            sums[0] = decay * sums[0] + taken
            sums[1] = decay * sums[1] + usual
        return total + self._overhead

    def _mean_pass_share(self, queries: Sequence[DraftQuery], step: StepContext) -> float:
        return sum([self._pass_share(q.state.models[self.name], step) for q in queries]) / len(queries)

    def _pass_share(self, state: DraftModelState, step: StepContext) -> float:
        """Of a draft pass, what a drawn token takes after the first, as a rule."""
        taken, usual = self._pass_seconds
        weight = self._tuning.pass_share_weight * step.draw[self.name](1)
        mean = (taken + weight) / (usual + weight)
        taken, usual = state.pass_seconds
        return (taken + weight * mean) / (usual + weight)

    def build_tree(self, query: DraftQuery, plan: DraftPlan, draft: ModelDraft) -> list[Node]:
        """The tree of what was drawn and the ready proposals; without trees, or where distributions are
        stated, what was drawn alone."""
        rates = self._rates(query.state.models[self.name])
        probabilities, given_wrong = rates.of_tree(draft.parents, draft.confidence)
        if self._branching and not draft.stated:
            grown = WeightedTree(self.name, draft.tokens, draft.parents, probabilities, given_wrong)
            return merge([*plan.ready, grown])
        tree: list[Node] = []
        path = 1.0
        each = zip(draft.tokens, draft.confidence, probabilities, strict=True)
        for rank, (token, confidence, probability) in enumerate(each, start=1):
            path *= probability
            tree.append(Node(token, rank - 2, rank, path, (self.name,), rank, confidence))
        return tree

    def observe_pruned(self, state: DraftModelState, tree: Sequence[Node], kept: Sequence[int]) -> None:
        """The first pruned token of a row will never be verified; its estimate counts in its place."""
        within = set(kept)
        for i, node in enumerate(tree):
            if node.model_rank and not node.sibling_rank and i not in within:
                above = tree[node.parent].path_probability if node.parent >= 0 else 1.0
                prior_odds = self.target_confidence.prior_odds(state.confidence)
                self._first(state).observe_pruned(
                    state.first, node.model_rank, node.path_probability / above, prior_odds
                )
                return

    def observe_verified(
        self, state: DraftModelState, nodes: Sequence[Node], accepted: Collection[int]
    ) -> None:
        """Learn from a tree of which the nodes `accepted` were (-1, the anchor, among them)."""
        right = {nodes[i].parent: nodes[i].sibling_rank for i in accepted if i >= 0 and nodes[i].model_rank}
        for i, node in enumerate(nodes):
            if not node.model_rank or node.parent not in accepted:
                continue
            rank, confidence = node.sibling_rank, node.model_confidence
            if not rank:
                prior_odds = self.target_confidence.prior_odds(state.confidence)
                first = self._first(state)
                first.observe(state.first, node.model_rank, confidence, i in accepted, prior_odds)
                self.target_confidence.observe_verified(state.confidence)
                state.verified.add(i in accepted)
            elif right.get(node.parent, rank) >= rank:  # those before it are wrong
                self.sibling.observe(state.sibling, rank, confidence, i in accepted)
