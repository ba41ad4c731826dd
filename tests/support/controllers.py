"""Makes `AutoController`s as drafting.py does, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.draft_model import DraftModelSource
from outrider.policy.lookup import LookupSource
from outrider.policy.planner import Drawing, Planner
from outrider.policy.request_state import RequestState
from outrider.policy.tree import DraftPass, DraftPlan, DraftQuery, ModelDraft, Node
from outrider.policy.tuning import DEFAULT, Tuning

LOOKUP, MODEL = "suffix", "draft_model"


def make_auto(
    target: CostModel | None = None,
    model: CostModel | None = None,
    *,
    lookup: bool = True,
    max_nodes: int = 16,
    planner: type[Planner] = Planner,
    controller: type[AutoController] = AutoController,
    tuning: Tuning = DEFAULT,
    **options: Any,
) -> AutoController:
    """A controller with a lookup drafter and, if `model` is given, a draft model with these `options` (see
    `Planner.add_model`). `planner` and `controller` can be broken twins of the classes."""
    made = planner(target, tuning)
    if lookup:
        made.add_lookup(LOOKUP)
    if model is not None:
        made.add_model(MODEL, model, **options)
    return controller(made, max_nodes=max_nodes)


class Named:
    """A controller and its planner for requests with names: `DraftLimits` and `DraftQuery` have a name
    instead of a state."""

    def __init__(self, controller: AutoController) -> None:
        self.controller, self.planner = controller, controller.planner
        self.states: dict[str, RequestState] = {}

    def state(self, name: str) -> RequestState:
        if name not in self.states:
            self.states[name] = self.controller.begin()
        return self.states[name]

    @property
    def model(self) -> DraftModelSource:
        return self.planner.models[MODEL]

    @property
    def lookup(self) -> LookupSource:
        return self.planner.lookups[LOOKUP]

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
        limits = [replace(limits, state=self.state(limits.state)) for limits in batch]
        return self.controller.choose(limits, prompt_tokens)

    def plan(self, queries: Sequence[DraftQuery]) -> list[DraftPlan]:
        for query in queries:
            if isinstance(query.state, str):
                query.state = self.state(query.state)
        return self.planner.plan(queries)

    def finish(
        self,
        queries: Sequence[DraftQuery],
        plans: Sequence[DraftPlan],
        drafts: Sequence[ModelDraft | None],
        seconds: float = 0.0,
        passes: Sequence[tuple[int, int]] = (),
    ) -> list[list[Node]]:
        for query in queries:
            if isinstance(query.state, str):
                query.state = self.state(query.state)
        drawings = {MODEL: Drawing(seconds, [DraftPass(*each) for each in passes])}
        return self.planner.finish(queries, plans, drafts, drawings)

    def observe(self, name: str, accepted: Sequence[int], emitted: Sequence[int]) -> None:
        self.planner.observe(self.state(name), accepted, emitted)

    def record(self, name: str, step: StepRecord) -> None:
        self.controller.record(self.state(name), step)

    def explain(self, name: str) -> str:
        return self.controller.explain(self.state(name))

    def release(self, name: str) -> None:
        self.controller.release(self.states.pop(name, self.controller.begin()))
