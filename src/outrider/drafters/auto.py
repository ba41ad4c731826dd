"""Several drafters in one step, as a `Planner` chooses: lookups first, a draft model where it is worth it.

Lookup drafters propose trees that are ready; draft models grow theirs on demand, where that is
worth more. The planner merges and prunes them to one tree for each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.metrics import EARLIER_OUTPUTS
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.drafters.base import Drafter, HiddenStateDrafter
from outrider.drafters.lookahead import DraftLookahead
from outrider.drafters.recording_guide import RecordingGuide
from outrider.errors import ConfigError
from outrider.policy.planner import Planner
from outrider.policy.propose import propose_step
from outrider.policy.request_state import RequestState
from outrider.policy.token_rate import StepContext
from outrider.policy.tree import DraftPass, DraftPlan, DraftQuery, Lookup, ModelDraft, Node, Proposal
from outrider.policy.tuning import DEFAULT

# Unprocessed tokens that a draft model may process in one step before it draws, about as long as a pass of
# the target takes; and where no other sequence waits.
PREFILL_BUDGET, PREFILL_BUDGET_SINGLE = DEFAULT.draft_prefill_budget, DEFAULT.draft_prefill_budget_single
MIXED = "mixed"  # the source of a draft that several drafters have a part in


class LookupDrafter(Drafter, Protocol):
    """A drafter whose trees are ready when it is asked. To take part under `auto`, it is also added to the
    planner (`Planner.add_lookup`)."""

    def lookup(self, job: ProposeJob, budget: int) -> Lookup | None:
        """What may follow, up to `budget` nodes; empty when there is no idea, None when there will never be
        one for this request."""


@runtime_checkable
class Following(Protocol):
    """A lookup drafter that also predicts what a draft model draws."""

    def likely_path(
        self, request_id: str, context: TokenContext, max_tokens: int
    ) -> tuple[list[int], list[float]]:
        """(tokens, the probability of each given those before) of the likeliest path after a context."""


class ModelDrafter(Protocol):
    """A drafter that grows trees on demand. Also added to the planner (`Planner.add_model`).

    passes:      of the last `propose`.
    pass_seconds: what they took; None where it does not say.
    looks_ahead: whether it asks a job's lookahead.
    """

    passes: list[DraftPass]
    looks_ahead: bool

    @property
    def pass_seconds(self) -> float | None: ...

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    def begin(self, request: Request) -> None: ...

    def unprocessed(
        self, job: ProposeJob, copied: int = 0, too_expensive: Callable[[int], bool] | None = None
    ) -> int | None:
        """How many tokens it would process before the first draw; None when it cannot draft here.

        copied:        of the sequence's last tokens, how many stand earlier in it as well.
        too_expensive: whether so many tokens of a prompt take too long; it may leave some out then.
        """

    def propose(self, jobs: Sequence[ProposeJob], prefill_budget: int | None = None) -> list[Draft]:
        """See `Drafter.propose`; each job's guide is asked, and its lookahead may be. At most
        `prefill_budget` tokens are processed before anything is drawn: who has more gets an empty draft."""

    def end(self, request_id: str) -> None: ...


class AutoDrafter:
    """Lookup drafters and draft models as `planner` chooses; at least one of them.

    clock: seconds; how long drafting takes is measured for the planner, the output never depends on it.
    The needs of the lookup drafters decide whether drafts may branch. A draft model that states its
    distributions has its chain kept whole and unmixed. Each drafter that reads the target's hidden states
    (HiddenStateDrafter) gets those of its own layers, of every position.
    """

    name = MIXED

    def __init__(
        self,
        planner: Planner,
        lookups: Sequence[LookupDrafter] = (),
        models: Sequence[ModelDrafter] = (),
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not lookups and not models:
            raise ConfigError("a mixed drafter needs at least one drafter")
        self.planner, self.clock = planner, clock
        self.lookups = {drafter.name: drafter for drafter in lookups}
        self.models = {drafter.name: drafter for drafter in models}
        self._parts: tuple[LookupDrafter | ModelDrafter, ...] = (*lookups, *models)
        self._tapped = [part for part in self._parts if isinstance(part, HiddenStateDrafter) and part.taps]
        self.taps = tuple(sorted({layer for part in self._tapped for layer in part.taps}))
        # By name; asked in every step, where an `isinstance` of a protocol takes as long as a short lookup.
        self.following = {name: part for name, part in self.lookups.items() if isinstance(part, Following)}
        self._states: dict[str, RequestState] = {}  # of requests with a draft that is not verified yet

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*[drafter.needs for drafter in self.lookups.values()])

    def begin(self, request: Request) -> None:
        for drafter in self._parts:
            drafter.begin(request)

    def prefilled(self, request_id: str, start: int, hidden: FloatArray) -> None:
        for part in self._tapped:
            part.prefilled(request_id, start, self._of_layers(hidden, part.taps))

    def _of_layers(self, hidden: FloatArray, taps: tuple[int, ...]) -> FloatArray:
        """Of float32[n, len(self.taps) * hidden size], the columns of these layers."""
        if taps == self.taps:
            return hidden
        by_layer = hidden.reshape(len(hidden), len(self.taps), -1)
        return by_layer[:, [self.taps.index(layer) for layer in taps]].reshape(len(hidden), -1)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        step = _Step(self)
        trees = propose_step(self.planner, step, jobs)
        drafts = []
        for job, tree in zip(jobs, trees, strict=True):
            job.state.proposed = len(tree)
            self._states[job.request_id] = job.state
            draft = _draft(tree, step.stated.get(job.request_id))
            for name, lookup in step.shared.get(job.request_id, ()):
                draft = _with_earlier_outputs(draft, tree, name, lookup)
            drafts.append(draft)
        return drafts

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        if scores.hidden is not None:
            for part in self._tapped:
                hidden = self._of_layers(scores.hidden, part.taps)
                own = scores if hidden is scores.hidden else TargetScores(scores.logits, hidden)
                part.observe(request_id, draft, verdict, own)
        if (state := self._states.pop(request_id, None)) is None:
            return
        forced = len(draft) - state.proposed  # a constraint's tokens come first
        path = verdict.path
        if len(path) >= forced >= 0 and path[:forced] == tuple(range(forced)):
            tokens, kept = draft.tokens.tolist(), path[forced:]
            emitted = [*[tokens[node] for node in kept], verdict.next_token]
            self.planner.observe(state, [node - forced for node in kept], emitted)

    def end(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        for drafter in self._parts:
            drafter.end(request_id)


@dataclass(slots=True, eq=False)
class _Step:
    """The drafters of one step, for `propose_step`.

    stated: by request, the draft of a draft model that states distributions.
    shared: by request, (drafter, tree) of lookups that found tokens in other requests' outputs alone.
    """

    owner: AutoDrafter
    stated: dict[str, Draft] = field(default_factory=dict)
    shared: dict[str, list[tuple[str, Lookup]]] = field(default_factory=dict)
    _last: float = 0.0

    def lap(self) -> float:
        now = self.owner.clock()
        seconds, self._last = now - self._last, now
        return seconds

    def query(self, job: ProposeJob) -> DraftQuery:
        proposals: list[Proposal] = []
        copied = 0
        for name, lookup in self.owner.lookups.items():
            if job.allows(name) and (tree := lookup.lookup(job, job.budget)) is not None:
                copied = max(copied, tree.copied)
                if any(tree.shared):
                    self.shared.setdefault(job.request_id, []).append((name, tree))
                proposals.append(Proposal(name, tree))
        for name, model in self.owner.models.items():
            if job.allows(name):
                unprocessed = model.unprocessed(job, copied, self._too_expensive(job, name))
                if unprocessed is not None:
                    proposals.append(Proposal(name, unprocessed=unprocessed))
        return DraftQuery(job.state, job.budget, proposals, len(job.context.path))

    def _too_expensive(self, job: ProposeJob, source: str) -> Callable[[int], bool]:
        planner, state = self.owner.planner, job.state
        return lambda tokens: planner.prompt_too_expensive(source, tokens, state)

    def draw(
        self, source: str, drawn: Sequence[tuple[ProposeJob, DraftQuery, DraftPlan]]
    ) -> tuple[list[ModelDraft | None], Sequence[DraftPass], float | None]:
        model = self.owner.models[source]
        guides = [RecordingGuide(plan.guide) for _, _, plan in drawn]
        lookaheads: list[DraftLookahead | None] = []
        asked: list[ProposeJob] = []
        for guide, (job, query, plan) in zip(guides, drawn, strict=True):
            budget = plan.draft_tokens if plan.guide is None else query.budget
            lookahead = self._lookahead(source, job, plan, len(drawn)) if model.looks_ahead else None
            lookaheads.append(lookahead)
            asked.append(
                ProposeJob(  # `dataclasses.replace` takes ten times as long
                    job.request_id,
                    job.context,
                    budget,
                    job.sampler,
                    guide,
                    lookahead,
                    job.drafters,
                    job.state,
                )
            )
        step: StepContext = drawn[0][0].state.step
        drafts = model.propose(asked, PREFILL_BUDGET_SINGLE if step.base == 1 else PREFILL_BUDGET)
        found: list[ModelDraft | None] = []
        for (job, _, _), guide, lookahead, draft in zip(drawn, guides, lookaheads, drafts, strict=True):
            if lookahead is not None:
                lookahead.learn(draft)
            if not len(draft):
                found.append(None)
                continue
            stated = draft.probs is not None
            found.append(ModelDraft(draft.tokens.tolist(), guide.stated, stated, draft.parents.tolist()))
            if stated:
                self.stated[job.request_id] = draft
        return found, model.passes, model.pass_seconds

    def _lookahead(
        self, source: str, job: ProposeJob, plan: DraftPlan, sharers: int
    ) -> DraftLookahead | None:
        """By the first lookup drafter that can predict; None without one."""
        for name, lookup in self.owner.following.items():
            if job.allows(name):
                return DraftLookahead(
                    self.owner.planner.models[source],
                    job.state,
                    plan.offered,
                    partial(lookup.likely_path, job.request_id),
                    job.context,
                    sharers=sharers,
                )
        return None


def _draft(tree: Sequence[Node], stated: Draft | None) -> Draft:
    """The tree as a draft. `stated` is the draft model's own, whose chain ends the tree."""
    if not tree:
        return Draft.empty(MIXED)
    names = {name for node in tree for name in node.sources}
    source, sources = names.pop() if len(names) == 1 else MIXED, None
    if source == MIXED:
        sources = tuple([node.sources[0] for node in tree])
    probs = None
    if stated is not None and stated.probs is not None:
        probs = (*[None] * (len(tree) - len(stated)), *stated.probs)
    tokens = np.array([node.token for node in tree], np.int32)
    return Draft(tokens, np.array([node.parent for node in tree], np.int32), probs, source, sources)


def _with_earlier_outputs(draft: Draft, tree: Sequence[Node], name: str, lookup: Lookup) -> Draft:
    """The draft of `tree`, with EARLIER_OUTPUTS as the source of the nodes that no other drafter proposes and
    that `lookup`, of the drafter `name`, found in other requests' outputs alone."""
    known = {edge: i for i, edge in enumerate(zip(lookup.parents, lookup.tokens, strict=True))}
    sources = [draft.origin(i) for i in range(len(tree))]
    own = {-1: -1}  # the lookup's node, by the tree's
    for i, node in enumerate(tree):
        if node.parent not in own or (found := known.get((own[node.parent], node.token))) is None:
            continue
        own[i] = found
        if lookup.shared[found] and node.sources == (name,):
            sources[i] = EARLIER_OUTPUTS
    return replace(draft, sources=tuple(sources)) if EARLIER_OUTPUTS in sources else draft
