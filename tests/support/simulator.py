"""Decoding without a model or a clock: replays traces of what drafters would have proposed through a policy.

A `Trace` has, for one text, what each drafter proposes at each position; a `World` has the times of passes.
`simulate` runs the drafting of the real step (`propose_step`) on them and sums up the seconds, so that a
controller can be compared with every fixed setting on the same texts, thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

from outrider.decoding.controller import DraftLimits, RequestState
from outrider.decoding.types import StepRecord
from outrider.policy.planner import Drawing
from outrider.policy.propose import StepPlanner, propose_step
from outrider.policy.tree import (
    ROOT,
    DraftPass,
    DraftPlan,
    DraftQuery,
    Lookup,
    ModelDraft,
    Node,
    OfferedTree,
    Proposal,
    WeightedTree,
    chosen,
    merge,
)

LOOKUP, MODEL = "suffix", "draft_model"  # the drafters of a trace


class SimulatedPlanner(StepPlanner, Protocol):
    def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None: ...


class Policy(Protocol):
    """The policy to simulate: `AutoController` or a fixed setting."""

    @property
    def planner(self) -> SimulatedPlanner: ...

    def begin(self) -> RequestState: ...

    def choose(self, batch: Sequence[DraftLimits]) -> list[int]: ...

    def record(self, state: RequestState, step: StepRecord) -> None: ...

    def release(self, state: RequestState) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One text and what would be drafted for it.

    prompt:     tokens before it.
    truth:      its tokens.
    lookups:    by position, what a lookup drafter proposes; None without one.
    model:      by position, the draft model's token after the true text; None without a draft model.
    confidence: by position, the draft model's confidence in that token; None if it states none.
    second, second_confidence: the same for its second choice; None if it never samples one.
    others:     by name, the `lookups` of further lookup drafters.
    """

    prompt: int
    truth: Sequence[int]
    lookups: Sequence[Lookup] | None = None
    model: Sequence[int] | None = None
    confidence: Sequence[float] | None = None
    second: Sequence[int] | None = None
    second_confidence: Sequence[float] | None = None
    others: Mapping[str, Sequence[Lookup]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The times of the parts of a step, in seconds.

    target:   of a pass of the target over n tokens, in step i of the simulation.
    draft:    of a pass of the draft model over n tokens.
    overhead: of the rest of a step.
    looking:  of lookups, in a step that may draft.
    load:     factor on a pass over n tokens, of either model, that begins at this second of the simulation.
    """

    target: Callable[[int, int], float]
    draft: Callable[[int], float] = lambda n: 0.0
    overhead: float = 0.0
    looking: float = 0.0
    load: Callable[[int, float], float] = lambda n, at: 1.0


@dataclass(slots=True, eq=False)
class Outcome:
    """The total seconds and tokens. `steps` has an entry for each pass: (seconds so far, tokens so far,
    nodes); `ends` has the second at which each text ended."""

    seconds: float = 0.0
    tokens: int = 0
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Sequence:
    state: RequestState
    trace: Trace
    at: int = 0
    checked: int = 0  # tokens of prompt and text in the draft model's cache
    held: list[int] | None = None  # the tokens that it processed after the text in this step

    @property
    def left(self) -> int:
        return len(self.trace.truth) - self.at

    def query(self, budget: int) -> DraftQuery:
        trace, proposals = self.trace, list[Proposal]()
        if trace.lookups is not None:
            proposals.append(Proposal(LOOKUP, trace.lookups[self.at]))
        proposals += [Proposal(name, trees[self.at]) for name, trees in trace.others.items()]
        if trace.model is not None:
            proposals.append(Proposal(MODEL, unprocessed=trace.prompt + self.at - self.checked))
        return DraftQuery(self.state, budget, proposals)

    def draw(self, query: DraftQuery, plan: DraftPlan) -> ModelDraft:
        """The draft model's draft; after a wrong token all further ones are wrong too."""
        trace, out = self.trace, ModelDraft([], [])
        guide = None if trace.confidence is None else plan.guide
        budget = plan.draft_tokens if guide is None else query.budget
        # For each node: its position, and whether all tokens up to it are right.
        places = {ROOT: (self.at - 1, True)}
        parent = ROOT
        while True:
            at, right = places[parent][0] + 1, places[parent][1]
            for sibling_rank in range(1 + (trace.second is not None)):
                if at >= len(trace.truth) or len(out.tokens) >= budget:
                    self._hold(out)
                    return out
                token, confidence = self._choice(at, sibling_rank)
                token = token if right else -1 - sibling_rank
                places[len(out.tokens)] = at, right and token == trace.truth[at]
                out.tokens.append(token)
                out.parents.append(parent)
                out.confidence.append(confidence)
                if guide is None or confidence is None or not guide.drew(parent, confidence):
                    break
            parent = len(out.tokens) - 1 if guide is None else guide.next_node()
            if parent == ROOT:
                self._hold(out)
                return out

    def _choice(self, at: int, sibling_rank: int) -> tuple[int, float | None]:
        """(token, confidence) of the draft model's first or second choice at a position."""
        trace = self.trace
        tokens, confidence = trace.model, trace.confidence
        if sibling_rank:
            tokens, confidence = trace.second, trace.second_confidence
        assert tokens is not None
        return tokens[at], None if confidence is None else confidence[at]

    def _hold(self, drawn: ModelDraft) -> None:
        """Record the draft model's cache after the text: the nodes that it drew on from."""
        self.held = [drawn.tokens[node] for node in sorted({*drawn.parents} - {ROOT})]

    def advance(self, count: int) -> None:
        """Advance by `count` emitted tokens; the draft model's cache keeps its right tokens."""
        if self.held is not None:
            self.checked = self.trace.prompt + self.at
            emitted = self.trace.truth[self.at : self.at + count - 1]
            for wanted, held in zip(emitted, self.held, strict=False):
                if wanted != held:
                    break
                self.checked += 1
            self.held = None
        self.at += count

    def accepted(self, tree: Sequence[Node]) -> list[int]:
        """The accepted nodes: those along the true text."""
        path: list[int] = []
        parent = -1
        for i, node in enumerate(tree):
            wanted = self.at + len(path)
            if (
                node.parent == parent
                and wanted < len(self.trace.truth) - 1
                and node.token == self.trace.truth[wanted]
            ):
                path.append(i)
                parent = i
        return path


@dataclass(slots=True, eq=False)
class _Drafters:
    """The drafters of one step, for `propose_step`; the world gives the time of each lap."""

    world: World
    at: float  # the second of the simulation
    laps: list[float] = field(default_factory=list)
    drawing: float = 0.0  # seconds

    def query(self, job: tuple[_Sequence, int]) -> DraftQuery:
        self.laps = [0.0, self.world.looking]
        return job[0].query(job[1])

    def draw(
        self, source: str, drawn: Sequence[tuple[tuple[_Sequence, int], DraftQuery, DraftPlan]]
    ) -> tuple[list[ModelDraft | None], Sequence[DraftPass], float | None]:
        drafts: list[ModelDraft | None] = []
        fed: list[int] = []  # tokens, pass by pass
        missed = 0
        for (seq, _), query, plan in drawn:
            draft = seq.draw(query, plan)
            drafts.append(draft)
            unprocessed = query.unprocessed(source) or 0
            own = [unprocessed, *[1] * (draft.height - 1)]
            fed = [a + b for a, b in zip_longest(fed, own, fillvalue=0)]
            missed += max(0, unprocessed - 2)
        seconds = sum(self.world.draft(size) * self.world.load(size, self.at) for size in fed)
        self.drawing += seconds
        self.laps = [0.0, seconds]
        return drafts, [DraftPass(size, 0 if i else missed) for i, size in enumerate(fed)], None

    def lap(self) -> float:
        return self.laps.pop() if self.laps else 0.0


def simulate(policy: Policy, traces: Iterable[Trace], world: World, *, width: int = 1) -> Outcome:
    """Decode all texts in order, `width` of them concurrently."""
    waiting = [trace for trace in traces if len(trace.truth)]
    waiting.reverse()
    live: list[_Sequence] = []
    out = Outcome()
    while live or waiting:
        while waiting and len(live) < width:
            live.append(_Sequence(policy.begin(), waiting.pop()))
        _step(policy, live, world, out)
        for seq in [seq for seq in live if not seq.left]:
            policy.release(seq.state)
            live.remove(seq)
            out.ends.append(out.seconds)
    return out


def _step(policy: Policy, live: Sequence[_Sequence], world: World, out: Outcome) -> None:
    limits = [DraftLimits(seq.state, seq.left - 1, seq.trace.prompt + seq.at) for seq in live]
    budgets = policy.choose(limits)
    jobs = [(seq, budget) for seq, budget in zip(live, budgets, strict=True) if budget > 0]
    trees: dict[int, list[Node]] = {}  # by the sequence's identity
    drafting = 0.0
    if jobs:
        drafters = _Drafters(world, out.seconds)
        found = propose_step(policy.planner, drafters, jobs)
        drafting = world.looking + drafters.drawing
        trees = {id(seq): tree for (seq, _), tree in zip(jobs, found, strict=True)}
    size = len(live) + sum(map(len, trees.values()))
    seconds = world.target(size, len(out.steps)) * world.load(size, out.seconds + drafting)
    for seq in live:
        tree = trees.get(id(seq), [])
        path = seq.accepted(tree)
        policy.planner.observe(seq.state, path, seq.trace.truth[seq.at : seq.at + len(path) + 1])
        seq.advance(len(path) + 1)
        out.tokens += len(path) + 1
        share = drafting / len(jobs) if id(seq) in trees else 0.0
        record = StepRecord(
            "draft",
            len(tree),
            len(path),
            len(path) + 1,
            share,
            seconds / len(live),
            world.overhead / len(live),
        )
        policy.record(seq.state, record)
    out.seconds += drafting + seconds + world.overhead
    out.steps.append((out.seconds, out.tokens, size - len(live)))


class FixedPolicy:
    """A fixed setting: up to `nodes` of the lookup's likeliest nodes, or `draft` tokens of the draft model.
    With both, the draft model drafts if the lookup proposes nothing. With `siblings`, the draft model's
    second choice at each position is verified too. The policy is its own planner."""

    def __init__(self, nodes: int = 0, draft: int = 0, *, siblings: bool = False) -> None:
        self.nodes, self.draft, self.siblings = nodes, draft, siblings

    @property
    def planner(self) -> FixedPolicy:
        return self

    def begin(self) -> Any:
        return object()

    def choose(self, batch: Sequence[DraftLimits]) -> list[int]:
        most = max(self.nodes, self.draft * (1 + self.siblings))
        return [min(limits.tokens, most) for limits in batch]

    def plan(self, queries: Sequence[DraftQuery]) -> list[DraftPlan]:
        plans = []
        for query in queries:
            plan, tree = DraftPlan(), query.proposals[0].tree if query.proposals else None
            if tree is not None:
                sure, sources = [1.0] * len(tree.tokens), [(LOOKUP,)] * len(tree.tokens)
                plan.offered = OfferedTree(tree.tokens, tree.parents, sure, sure, sure, sources)
                plan.nodes = list(range(min(len(tree.tokens), self.nodes, query.budget)))
            if not plan.nodes and query.unprocessed(MODEL) is not None:
                plan.source, plan.draft_tokens = MODEL, min(self.draft, query.budget)
                plan.guide = _Comb(plan.draft_tokens) if self.siblings else None
            plans.append(plan)
        return plans

    def finish(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        drawings: Mapping[str, Drawing],
    ) -> list[list[Node]]:
        trees = []
        for plan, draft in zip(plans, drafts, strict=True):
            if draft is None:
                trees.append(chosen(plan))
            else:
                sure = [1.0] * len(draft.tokens)
                trees.append(merge([WeightedTree(MODEL, draft.tokens, draft.parents, sure)]))
        return trees

    def observe(self, state: RequestState, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        pass

    def record(self, state: RequestState, step: StepRecord) -> None:
        pass

    def observe_seconds(
        self, looking: float, finishing: float, requests: int, drawn: Mapping[str, Drawing]
    ) -> None:
        pass

    def release(self, state: RequestState) -> None:
        pass


class _Comb:
    """Implements `Guide`: a chain of `length` first choices, each with the second choice as its sibling."""

    def __init__(self, length: int) -> None:
        self._length, self._parents = length, [-2]

    def drew(self, parent: int, confidence: float) -> bool:
        self._parents.append(parent)
        return self._parents[-2] != parent

    def next_node(self, ready: int = -1) -> int:
        parents, self._length = self._parents, self._length - 1
        last = len(parents) - 2
        return last - (parents[-1] == parents[-2]) if self._length else -1
