"""`AutoController`s as drafting.py makes them, for tests."""

from __future__ import annotations

from typing import Any

from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.planner import Planner
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
    """With a lookup drafter and, if its passes' cost is given, a draft model of these `options` (see
    `Planner.add_model`); broken twins stand in for the classes."""
    made = planner(target, tuning)
    if lookup:
        made.add_lookup(LOOKUP)
    if model is not None:
        made.add_model(MODEL, model, **options)
    return controller(made, max_nodes=max_nodes)
