"""Several drafters in one step, under a controller: lookups first, a draft model where it is worth its time.

The controller plans (`AutoController`); this drafter carries it out: it looks up, lets the draft model draw
in the lookup's place, beside it or behind it, and proposes the tree of both that the controller cut. While
the draft model draws, lookups foretell what it will: drafting is speculated on as decoding is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from outrider.decoding.controller import Guide
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.lookahead import DraftLookahead, LastDraft
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import ConfigError
from outrider.policy.auto import AutoController
from outrider.policy.tree import DraftPass, DraftPlan, DraftQuery, ModelDraft, Node, path_to

# Tokens of a text that the draft model reads in one step before it draws: about as long as a pass of the
# target takes; and where no other text waits.
PATIENCE, PATIENCE_ALONE = 32, 256
MIXED = "mixed"  # the source of a draft that both drafters have a part in


class AutoDrafter:
    """A lookup drafter and a draft model as `controller` chooses; either may be None, not both.

    clock: seconds; what drawing takes is measured for the controller, the output never depends on it.
    The needs of the lookup decide whether drafts may branch. A draft model that states its distributions has
    its chain kept whole and to itself.
    """

    name = MIXED

    def __init__(
        self,
        controller: AutoController,
        lookup: SuffixDrafter | None,
        model: DraftModelDrafter | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if lookup is None and model is None:
            raise ConfigError("a mixed drafter needs at least one drafter")
        self.controller, self._lookup, self._model = controller, lookup, model
        self._clock = clock
        self._proposed: dict[str, int] = {}  # nodes that were proposed, of each request
        self._rests: dict[str, LastDraft] = {}  # the last draft of the draft model, of each request

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self._lookup is None else self._lookup.needs

    def begin(self, request: Request) -> None:
        for drafter in (self._lookup, self._model):
            if drafter is not None:
                drafter.begin(request)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        began = self._clock()
        asks = [self._ask(job) for job in jobs]
        choices = self.controller.plan(asks)
        planned = drawn = self._clock()
        drafts: list[ModelDraft | None] = [None] * len(jobs)
        stated: list[Draft | None] = [None] * len(jobs)
        fed: Sequence[DraftPass] = ()
        if self._model is not None and any(choice.draft for choice in choices):
            drafts, stated = self._draw(self._model, jobs, asks, choices)
            drawn, fed = self._clock(), self._model.passes
        trees = self.controller.finish(asks, choices, drafts, drawn - planned, fed)
        for job, tree in zip(jobs, trees, strict=True):
            self._proposed[job.request_id] = len(tree)
        found = [_draft(tree, source) for tree, source in zip(trees, stated, strict=True)]
        self.controller.looked(planned - began + self._clock() - drawn)
        return found

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        ahead = len(draft) - self._proposed.pop(request_id, 0)  # a constraint's tokens come first
        path = verdict.path
        if len(path) >= ahead >= 0 and path[:ahead] == tuple(range(ahead)):
            tokens, kept = draft.tokens.tolist(), path[ahead:]
            emitted = [*[tokens[node] for node in kept], verdict.next_token]
            self.controller.observe(request_id, [node - ahead for node in kept], emitted)

    def end(self, request_id: str) -> None:
        self._proposed.pop(request_id, None)
        self._rests.pop(request_id, None)
        for drafter in (self._lookup, self._model):
            if drafter is not None:
                drafter.end(request_id)

    def _ask(self, job: ProposeJob) -> DraftQuery:
        context = job.context
        lookup, behind = None, None
        if self._lookup is not None and job.allows(self._lookup.name):
            lookup = self._lookup.lookup(job, job.budget)
        if self._model is not None and job.allows(self._model.name):
            behind = self._model.unprocessed(
                job, lookup.copied if lookup is not None else 0, self.controller.dear
            )
        return DraftQuery(job.request_id, job.budget, len(context.tokens), lookup, behind, len(context.path))

    def _draw(
        self,
        model: DraftModelDrafter,
        jobs: Sequence[ProposeJob],
        asks: Sequence[DraftQuery],
        choices: Sequence[DraftPlan],
    ) -> tuple[list[ModelDraft | None], list[Draft | None]]:
        """What the draft model draws for those that it is chosen for; the drafts that state distributions."""
        found: list[ModelDraft | None] = [None] * len(jobs)
        stated: list[Draft | None] = [None] * len(jobs)
        guides: dict[int, RecordingGuide] = {}
        tellers: list[DraftLookahead | None] = []
        sharers = sum([choice.draft > 0 for choice in choices])
        asked: list[ProposeJob] = []
        for i, (job, ask, choice) in enumerate(zip(jobs, asks, choices, strict=True)):
            if choice.draft:
                guides[i] = RecordingGuide(choice.guide)
                ahead = path_to(ask.lookup, choice.after) if ask.lookup is not None else []
                room = choice.draft
                if choice.guide is not None:
                    room = ask.room - (len(choice.nodes) if choice.after >= 0 else 0)
                context = job.context.along(ahead)
                teller = None
                if self._lookup is not None and job.allows(self._lookup.name):
                    rest = self._rests.get(job.request_id)
                    teller = DraftLookahead(
                        self.controller, self._lookup, ask, context, choice.after, rest=rest, sharers=sharers
                    )
                tellers.append(teller)
                asked.append(replace(job, context=context, budget=room, guide=guides[i], foretell=teller))
        drafts = model.propose(asked, PATIENCE_ALONE if self.controller.alone else PATIENCE)
        for (i, guide), teller, draft in zip(guides.items(), tellers, drafts, strict=True):
            if teller is not None:
                rest = self._rests[jobs[i].request_id] = teller.learn(draft)
                self.controller.covered(jobs[i].request_id, teller.covered(rest.tokens))
            if len(draft):
                alone = draft.probs is not None
                found[i] = ModelDraft(draft.tokens.tolist(), guide.said, alone, draft.parents.tolist())
                stated[i] = draft if alone else None
        return found, stated


class RecordingGuide:
    """The choice's own guide, or a chain, keeping what it is told."""

    def __init__(self, guide: Guide | None) -> None:
        self._guide = guide
        self.said: list[float | None] = []

    def drew(self, parent: int, confidence: float) -> bool:
        self.said.append(confidence)
        return self._guide is not None and self._guide.drew(parent, confidence)

    def frontier(self, ready: Collection[int] = ()) -> list[int]:
        return [len(self.said) - 1] if self._guide is None else self._guide.frontier(ready)


def _draft(tree: Sequence[Node], stated: Draft | None) -> Draft:
    """The tree as a draft. `stated` is the draft model's own, whose chain ends the tree."""
    if not tree:
        return Draft.empty(MIXED)
    looked, ranks = [node.by_lookup for node in tree], [node.drawn for node in tree]
    drawn = any(ranks)
    source = MIXED if drawn and any(looked) else DraftModelDrafter.name if drawn else SuffixDrafter.name
    probs = None
    if stated is not None and stated.probs is not None:
        probs = (*[None] * (len(tree) - len(stated)), *stated.probs)
    tokens = np.array([node.token for node in tree], np.int32)
    sources = None
    if source == MIXED:
        sources = tuple(SuffixDrafter.name if n.by_lookup else DraftModelDrafter.name for n in tree)
    return Draft(tokens, np.array([node.parent for node in tree], np.int32), probs, source, sources)
