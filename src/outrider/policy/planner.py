"""Plans a step: which drafters draft for which request, how far, and which nodes are verified.

A node is worth verifying, and a token worth drafting, while its acceptance probability exceeds the token rate
times its price (token_rate.py). Drafters are of two kinds: a lookup's trees are ready when they are proposed,
and cost their verification alone; a draft model's are grown on demand. There may be any number of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outrider.policy.cost_model import CostModel
from outrider.policy.draft_model import DraftModelSource, GrowthPlan
from outrider.policy.exploration import ExplorationBudget
from outrider.policy.lookup import LookupSource
from outrider.policy.lookup_backoff import LookupBackoff
from outrider.policy.report import CANNOT, MEASURING, NO_DRAFTER, NOTHING, PRUNED, UNLIKELY, Off
from outrider.policy.request_state import RequestState
from outrider.policy.token_rate import StepContext, TokenRate
from outrider.policy.tree import (
    ROOT,
    DraftPass,
    DraftPlan,
    DraftQuery,
    ModelDraft,
    Node,
    OfferedTree,
    chosen,
    offer,
    subtree,
)
from outrider.policy.tuning import DEFAULT, Tuning


class Drawing(NamedTuple):
    """What a draft model's part of a step took: seconds in all, its passes, and seconds of these alone where
    they are known."""

    seconds: float
    passes: Sequence[DraftPass]
    computing: float | None = None

    @property
    def beside(self) -> float:
        """Seconds that were not its passes'."""
        return 0.0 if self.computing is None else self.seconds - self.computing


class Planner:
    """Plans for the drafter that carries the plan out, which calls `plan`, `finish` and
    `observe_seconds` once a step, and `observe` for each request once its draft is verified.

    target: what a pass of the target costs; None starts from a guess.

    Drafters take part once they are added (`add_lookup`, `add_model`). Deterministic: its decisions follow
    from its arguments and the numbers that it is given.
    """

    def __init__(self, target: CostModel | None = None, tuning: Tuning = DEFAULT) -> None:
        self.target = CostModel() if target is None else target
        self.tuning = tuning
        self.lookups: dict[str, LookupSource] = {}
        self.models: dict[str, DraftModelSource] = {}
        self.budget = ExplorationBudget(tuning)
        self.token_rate = TokenRate(tuning)
        self._finishing = 0.0  # seconds that `finish` takes without a drawn tree
        self._backoff = LookupBackoff(self.target.at(0).seconds(1), tuning)

    # --- Drafters ----------------------------------------------------------------------------------

    def add_lookup(self, name: str, *, optional: bool = False) -> LookupSource:
        """A drafter of trees that are ready when they are proposed, see `LookupSource`."""
        source = self.lookups[name] = LookupSource(name, self.tuning, optional=optional)
        return source

    def add_model(
        self,
        name: str,
        cost: CostModel,
        *,
        max_depth: int = 8,
        confident: bool = True,
        branching: bool = True,
    ) -> DraftModelSource:
        """A draft model, see `DraftModelSource`."""
        source = self.models[name] = DraftModelSource(
            name, cost, max_depth=max_depth, confident=confident, branching=branching, tuning=self.tuning
        )
        return source

    # --- Requests and steps ------------------------------------------------------------------------

    def begin_request(self, state: RequestState) -> None:
        """Before the first step of a request."""
        state.lookups = {name: source.begin() for name, source in self.lookups.items()}
        state.models = {name: source.begin() for name, source in self.models.items()}

    def end_request(self, state: RequestState) -> None:
        for name, model in state.models.items():
            self.models[name].end(model)

    def begin_step(self, width: int, context: int, *, prompt_tokens: int = 0, new: int = 0) -> StepContext:
        """A step of `width` requests of about `context` tokens, `new` of them in their first step."""
        curve = self.target.at(context)
        step = self.token_rate.begin_step(curve, width, context, prompt_tokens=prompt_tokens, new=new)
        step.draw = {name: source.cost.at(context).seconds for name, source in self.models.items()}
        return step

    # --- The plan ----------------------------------------------------------------------------------

    def plan(self, queries: Sequence[DraftQuery]) -> list[DraftPlan]:
        """What to draft for each request of a step."""
        if not queries:
            return []
        step = step_of(queries)
        rate, seconds = step.rate, step.curve.seconds
        base = step.base + sum([query.forced for query in queries])
        plans = [self._offered(query) for query in queries]
        paths = [plan.offered.path_probabilities for plan in plans]
        best, count, value = step.curve.best_nodes(paths, base, rate)
        for query, plan, nodes in zip(queries, plans, best, strict=True):
            plan.nodes = _likeliest(plan.offered, nodes, query.budget)
        value, growths = self._plan_models(queries, plans, base, value, step)
        measuring = self._probe(queries, plans, base, value, step)
        if not all(plan.nodes or plan.draft_tokens for plan in plans):
            need = rate * (seconds(base + count + 1) - seconds(base + count))  # of one more token's chance
            self._note_off(queries, plans, growths, need, measuring=measuring)
        price = (seconds(base + count) - seconds(base)) / max(1, count)  # of verifying a node
        for query, plan in zip(queries, plans, strict=True):
            gain = plan.expected_accepted / rate - price * len(plan.nodes)
            drawing = plan.draft_tokens > 0
            self._backoff.update(
                query.state.backoff, gain, drawing=drawing, plain=step.plain, width=step.width
            )
        return plans

    def _note_off(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        growths: Mapping[str, GrowthPlan],
        need: float,
        *,
        measuring: bool,
    ) -> None:
        """Why nothing is drafted for requests without a draft; `need` is the chance from which a token of a
        lookup pays."""
        for i, (query, plan) in enumerate(zip(queries, plans, strict=True)):
            if plan.nodes or plan.draft_tokens:
                continue
            if measuring:
                query.state.off = [Off("", MEASURING)]
                continue
            found: list[Off] = []
            offered = plan.offered
            proposed = [proposal.source for proposal in query.proposals]
            for name, source in self.lookups.items():
                if source.optional and name not in proposed:
                    continue
                each = zip(offered.path_probabilities, offered.sources, strict=False)
                chance = max([path for path, names in each if name in names], default=None)
                found.append(Off(name, NOTHING) if chance is None else Off(name, UNLIKELY, chance, need))
            for name, growth in growths.items():
                if query.unprocessed(name) is None:
                    found.append(Off(name, CANNOT))
                elif (off := growth.waiting.get(i, growth.off)) is not None:
                    found.append(off)
            query.state.off = found or [Off("", NO_DRAFTER)]

    def observe_seconds(
        self, looking: float, finishing: float, requests: int, drawn: Mapping[str, Drawing]
    ) -> None:
        """What looking up and planning took in a step of so many requests, what `finish` did, and what was
        drawn. What `finish` takes longer for a drawn tree is a price of drawing it."""
        if not drawn:
            self._finishing += self.tuning.overhead_smoothing * (finishing - self._finishing)
        for name, drawing in drawn.items():
            longer = (finishing - self._finishing) / len(drawn)
            self.models[name].observe_overhead(drawing.beside + longer)
        self.observe_lookup_seconds(looking + (self._finishing if drawn else finishing), requests)

    def observe_lookup_seconds(self, seconds: float, requests: int) -> None:
        """What looking up and planning took in a step, for so many requests."""
        self._backoff.observe_seconds(seconds, requests)

    def _offered(self, query: DraftQuery) -> DraftPlan:
        """The ready proposals of one request, with calibrated probabilities."""
        state, plan = query.state, DraftPlan()
        for proposal in query.proposals:
            name, tree = proposal.source, proposal.tree
            if tree is None or not tree.tokens:
                continue
            weighted, paths = self.lookups[name].weigh(state.lookups[name], tree, query.budget)
            plan.ready.append(weighted)
            if len(plan.ready) == 1:
                p, sources = weighted.probabilities, [(name,)] * len(paths)
                plan.offered = OfferedTree(tree.tokens, tree.parents, tree.confidence, p, paths, sources)
        if len(plan.ready) > 1:
            plan.offered = offer(plan.ready, plan.offered.confidence)
        return plan

    def _plan_models(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        base: int,
        value: float,
        step: StepContext,
    ) -> tuple[float, Mapping[str, GrowthPlan]]:
        """Let the draft model draft whose plan is worth most, if that is more than `value`, that of the ready
        proposals. Returns what the step is worth, in tokens over plain decoding, and all plans by name."""
        found = {name: source.plan(queries, plans, base, value, step) for name, source in self.models.items()}
        best: GrowthPlan | None = None
        for growth in found.values():
            if growth.plans and (best is None or growth.value > best.value):
                best = growth
        for source in self.models.values():
            source.settle(queries)
        if best is None:
            return value, found
        for i, growth_plan in best.plans.items():
            plan = plans[i]
            plan.source, plan.draft_tokens = growth_plan.source, growth_plan.draft_tokens
            plan.guide = growth_plan.guide
            queries[i].state.off = [Off(best.name, PRUNED)]  # if nothing of it is verified
        return best.value, found

    def _probe(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        base: int,
        value: float,
        step: StepContext,
    ) -> bool:
        """Spend some of the exploration budget on finding out what a plain pass costs now, or how a drafter
        that is off would do. Returns whether the step is plain for that."""
        seconds = step.curve.seconds
        size = sum([max(plan.draft_tokens, len(plan.nodes)) for plan in plans])
        uncertain = size and step.curve.doubt(base + size) > self.tuning.max_cost_deviation
        if uncertain and self.budget.take(value / step.rate):
            for plan in plans:
                plan.nodes, plan.source, plan.draft_tokens = [], None, 0
            return True
        price = seconds(base + size + 1) - seconds(base + size)  # of verifying one node more
        for query, plan in zip(queries, plans, strict=True):
            state = query.state
            for name in {name for node in plan.nodes for name in plan.offered.sources[node]}:
                state.lookups[name].probes.used()
            if plan.draft_tokens and plan.source is not None:
                state.models[plan.source].probes.used()
            if plan.nodes or plan.draft_tokens or not query.budget:
                continue
            if self._probe_lookup(query, plan, price) or self._probe_model(query, plan, price, step):
                break
        return False

    def _probe_lookup(self, query: DraftQuery, plan: DraftPlan, price: float) -> bool:
        """Verify the likeliest token of a lookup that is off; whether there is one to be probed."""
        for ready in plan.ready:
            probes = query.state.lookups[ready.source].probes
            if ready.probabilities and probes.due and self.budget.take(price):
                first = next(i for i, names in enumerate(plan.offered.sources) if ready.source in names)
                query.state.probe_price = price
                plan.nodes = [*_ancestors(plan.offered, first), first]
                probes.probed()
                return True
        return False

    def _probe_model(self, query: DraftQuery, plan: DraftPlan, price: float, step: StepContext) -> bool:
        """Draft one token with a model that is off; whether there is one to be probed."""
        for name in self.models:
            state, unprocessed = query.state.models[name], query.unprocessed(name)
            if unprocessed is None or not state.probes.due:
                continue
            price_here = price + step.draw[name](unprocessed)
            if self.budget.take(price_here):
                query.state.probe_price = price_here
                plan.source, plan.draft_tokens = name, 1
                state.probes.probed()
                return True
        return False

    # --- What the drafter asks as it carries the plan out --------------------------------------------

    def prompt_too_expensive(self, source: str, tokens: int, state: RequestState) -> bool:
        """Whether a draft model would take so long over that many tokens of a prompt that in most texts the
        drafts would not make up for more than the prompt's end is worth: then it shall not see the middle,
        and its drafts are expected to be the worse for it."""
        step = state.step
        assert step is not None
        if step.draw[source](tokens) <= self.tuning.prefill_max_steps * step.plain:
            return False
        self.models[source].truncate(state.models[source])
        return True

    # --- The trees ---------------------------------------------------------------------------------

    def finish(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        drawings: Mapping[str, Drawing] | None = None,
    ) -> list[list[Node]]:
        """The trees to verify. `drafts` are what each plan's draft model has drawn, if anything; `drawings`
        what that took, by draft model."""
        if not queries:
            return []
        step, seconds = step_of(queries), 0.0
        if drafts.count(None) == len(drafts):
            trees = [chosen(plan) for plan in plans]
        else:
            for name, drawing in (drawings or {}).items():
                drafted = [
                    (query, draft)
                    for query, plan, draft in zip(queries, plans, drafts, strict=True)
                    if draft is not None and plan.source == name
                ]
                if drafted:
                    source = self.models[name]
                    taken = drawing.seconds - drawing.beside
                    seconds += source.observe_passes(drafted, seconds=taken, passes=drawing.passes, step=step)
            trees = [
                chosen(plan) if draft is None else self._source(plan).build_tree(query, plan, draft)
                for query, plan, draft in zip(queries, plans, drafts, strict=True)
            ]
            trees = self._prune(queries, plans, trees, drafts, step)
        base = step.base + sum([query.forced for query in queries])
        size = sum([len(tree) for tree in trees])
        probing, expected = False, float(step.width)
        for query, plan, tree in zip(queries, plans, trees, strict=True):
            state, accepted = query.state, sum([node.path_probability for node in tree])
            state.tree, state.tree_source, state.expected = tree, plan.source, 1.0 + accepted
            probing = probing or state.probe_price > 0.0
            expected += accepted
        if not probing:
            self.token_rate.observe(step, expected, seconds + step.curve.seconds(base + size))
        return trees

    def _source(self, plan: DraftPlan) -> DraftModelSource:
        assert plan.source is not None
        return self.models[plan.source]

    def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        """Which nodes of the tree that `finish` gave were accepted, from the anchor on, and the tokens that
        the text went on with."""
        for name, lookup in state.lookups.items():
            self.lookups[name].learn(lookup, emitted)
        copied = sum([not state.tree[i].model_rank for i in accepted])
        for each in state.models.values():
            each.prefill.copied += copied
        if state.tree_source is not None:
            model = self.models[state.tree_source]
            model.observe_verified(state.models[state.tree_source], state.tree, {ROOT, *accepted})
        state.tree = []

    def _prune(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        trees: list[list[Node]],
        drafts: Sequence[ModelDraft | None],
        step: StepContext,
    ) -> list[list[Node]]:
        """Keep the nodes that pay, all of a draft that states its distributions, and probes, which are paid
        for; but not what a lookup proposes besides a draft model's probe."""
        probes = [query.state.probe_price > 0.0 for query in queries]
        whole = [
            probe or (draft is not None and draft.stated) for probe, draft in zip(probes, drafts, strict=True)
        ]
        trees = [
            subtree(tree, [i for i, node in enumerate(tree) if node.model_rank])
            if probe and draft is not None
            else tree
            for tree, probe, draft in zip(trees, probes, drafts, strict=True)
        ]
        base = step.base + sum([query.forced for query in queries])
        base += sum([len(tree) for tree, all_of_it in zip(trees, whole, strict=True) if all_of_it])
        paths = [
            [] if all_of_it else [node.path_probability for node in tree]
            for tree, all_of_it in zip(trees, whole, strict=True)
        ]
        kept, _, _ = step.curve.best_nodes(paths, base, step.rate)
        out = []
        for query, plan, tree, best, all_of_it in zip(queries, plans, trees, kept, whole, strict=True):
            nodes = best[: query.budget]
            if all_of_it or len(nodes) == len(tree):
                out.append(tree)
                continue
            if plan.source is not None:
                self._source(plan).observe_pruned(query.state.models[plan.source], tree, nodes)
            out.append(subtree(tree, nodes))
        return out


def step_of(queries: Sequence[DraftQuery]) -> StepContext:
    """The step that all of them are of."""
    step = queries[0].state.step
    assert step is not None, "a request drafts in a step that a controller has chosen budgets for"
    return step


def _likeliest(offered: OfferedTree, nodes: list[int], budget: int) -> list[int]:
    """At most `budget` of the nodes, ascending; of several merged proposals there may be more."""
    if len(nodes) <= budget:
        return nodes
    paths = offered.path_probabilities
    return sorted(sorted(nodes, key=lambda node: -paths[node])[:budget])


def _ancestors(offered: OfferedTree, node: int) -> list[int]:
    """The nodes above a node, from the top."""
    path: list[int] = []
    while (node := offered.parents[node]) >= 0:
        path.append(node)
    return path[::-1]
