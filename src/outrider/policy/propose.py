"""The drafting of a step: ask all drafters, plan, grow trees, and merge them. `AutoDrafter` runs it with real
drafters, the simulator of the tests with made-up ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from outrider.policy.planner import Drawing
from outrider.policy.tree import DraftPass, DraftPlan, DraftQuery, ModelDraft, Node

Job = TypeVar("Job")
Job_contra = TypeVar("Job_contra", contravariant=True)


class StepPlanner(Protocol):
    """What `propose_step` needs of a `Planner`."""

    def plan(self, queries: Sequence[DraftQuery]) -> list[DraftPlan]: ...

    def finish(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        drawings: Mapping[str, Drawing],
    ) -> list[list[Node]]: ...

    def observe_seconds(
        self, looking: float, finishing: float, requests: int, drawn: Mapping[str, Drawing]
    ) -> None: ...


class StepDrafters(Protocol[Job_contra]):
    """The drafters of one step."""

    def query(self, job: Job_contra) -> DraftQuery:
        """What all drafters propose for one request."""

    def draw(
        self, source: str, drawn: Sequence[tuple[Job_contra, DraftQuery, DraftPlan]]
    ) -> tuple[list[ModelDraft | None], Sequence[DraftPass], float | None]:
        """(the trees that a draft model grows for these requests, None for no draft; its passes; seconds that
        these took, None where all that `lap` counts is theirs)."""

    def lap(self) -> float:
        """Seconds since the last call."""


def propose_step(planner: StepPlanner, drafters: StepDrafters[Job], jobs: Sequence[Job]) -> list[list[Node]]:
    """The tree to verify of each request."""
    drafters.lap()
    queries = [drafters.query(job) for job in jobs]
    plans = planner.plan(queries)
    looking = drafters.lap()
    drafts: list[ModelDraft | None] = [None] * len(jobs)
    drawings: dict[str, Drawing] = {}
    for source in dict.fromkeys([plan.source for plan in plans if plan.draft_tokens]):
        assert source is not None
        drawing = [i for i, plan in enumerate(plans) if plan.draft_tokens and plan.source == source]
        found, passes, computing = drafters.draw(source, [(jobs[i], queries[i], plans[i]) for i in drawing])
        for i, draft in zip(drawing, found, strict=True):
            drafts[i] = draft
        drawings[source] = Drawing(drafters.lap(), passes, computing)
    trees = planner.finish(queries, plans, drafts, drawings)
    planner.observe_seconds(looking, drafters.lap(), len(jobs), drawings)
    return trees
