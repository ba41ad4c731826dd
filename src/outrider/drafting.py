"""From a configuration of drafting to its parts: drafter, controller and acceptance rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from outrider.config.speculative import (
    AutoConfig,
    NgramConfig,
    NoneConfig,
    SpeculativeConfig,
    SuffixConfig,
    WithDraft,
)
from outrider.decoding.request import Request
from outrider.decoding.types import IntArray
from outrider.decoding.verifiers.base import VERIFIERS, Verifier, check_pair
from outrider.drafters.auto import AutoDrafter
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.drawing import Draws
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.with_prediction import WithPrediction
from outrider.engines.base import LanguageModel
from outrider.engines.heads import HeadModel
from outrider.models.source import ModelSource
from outrider.policy.auto import AutoController
from outrider.policy.cost_model import CostModel
from outrider.policy.fixed import FixedController
from outrider.policy.planner import Planner
from outrider.policy.report import Reporting

Costs: TypeAlias = Callable[[LanguageModel, IntArray | None], CostModel]
"""What a model's passes cost, with the logits of some vocabulary blocks (see `VocabSubsetModel`) or all."""
HeadCosts: TypeAlias = Callable[[HeadModel], CostModel]


def guessed_costs(model: LanguageModel, blocks: IntArray | None) -> CostModel:
    """Costs of an engine that nobody has timed: a guess, which the first steps correct."""
    return CostModel()


@dataclass(frozen=True, slots=True)
class HeadEngine:
    """How an engine loads a head, by its description and the number of threads, and what its passes cost."""

    load: Callable[[ModelSource, int | None], HeadModel]
    cost: HeadCosts


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model.

    common_size: how many leading ids of the vocabulary it shares with the target.
    cost:        measures what its passes cost.
    """

    model: LanguageModel
    common_size: int
    cost: Callable[[], CostModel]


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A loaded head on the target; see `Eagle3Drafter`. cost: measures what its passes cost."""

    model: HeadModel
    taps: tuple[int, ...]
    order: tuple[int, ...]
    target_ids: IntArray | None
    max_context: int
    whole_prompt: int | None
    cost: Callable[[], CostModel]


@dataclass(frozen=True, slots=True)
class Drafting:
    """One choice of drafter. `controller` is shared by all step loops, so that what it learns is kept.

    parts: the drafters that `drafter` is made of; itself where it is one. That of predictions is none of
           them: it drafts for requests that bring one.
    share: of the time of the target's pass over one token, that of the draft's, when they were loaded; None
           where nobody timed them.
    """

    drafter: Drafter | None
    controller: Reporting
    verifier: Verifier
    parts: tuple[Drafter, ...] = ()
    share: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the drafters that may propose."""
        return tuple(part.name for part in self.parts)

    def fixed(self, count: int) -> list[Drafting]:
        """For each part, the same with drafts of up to `count` tokens from it alone, whatever they cost."""
        return [Drafting(part, FixedController(count), self.verifier, (part,)) for part in self.parts]


def make_verifier(choice: SpeculativeConfig) -> Verifier:
    """The acceptance rule of a configuration; without speculation, plain decoding's."""
    return VERIFIERS["coupled" if isinstance(choice, NoneConfig) else choice.verification]()


def make_lookup(choice: SpeculativeConfig) -> SuffixDrafter | None:
    """The suffix drafter that a configuration asks for, or None. Needs no model, so that a bad value is told
    before anything is loaded. Raises ConfigError."""
    if not isinstance(choice, SuffixConfig | AutoConfig):
        return None
    return SuffixDrafter(
        tree=make_verifier(choice).trees,
        namespace=_namespace,
        suffix_decoding_max_tree_depth=choice.suffix_decoding_max_tree_depth,
        suffix_decoding_max_cached_requests=choice.suffix_decoding_max_cached_requests,
        suffix_decoding_max_spec_factor=choice.suffix_decoding_max_spec_factor,
        suffix_decoding_min_token_prob=choice.suffix_decoding_min_token_prob,
    )


def make_drafting(
    choice: SpeculativeConfig,
    cost: Callable[[], CostModel],
    draft: DraftModel | DraftHead | None,
    lookup: SuffixDrafter | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Drafting:
    """The parts of one choice.

    cost:          measures what the target's passes cost; called if the choice needs to know.
    draft, lookup: where the choice asks for them.
    clock:         seconds, for the controller and the drafters.
    Raises ConfigError when the rule cannot judge what the drafter proposes.
    """
    verifier = make_verifier(choice)
    drafter: Drafter | None = lookup
    if isinstance(choice, NoneConfig):
        return Drafting(None, FixedController(0), verifier)
    controller: Reporting = FixedController(choice.num_speculative_tokens)
    if isinstance(choice, NgramConfig):
        drafter = NgramDrafter(choice.prompt_lookup_max, choice.prompt_lookup_min)
    model, share = None, None
    if isinstance(choice, WithDraft) and draft is not None:
        drafter = model = _model_drafter(choice, draft, _draws(choice, verifier), clock)
    parts: tuple[Drafter, ...] = tuple(part for part in (lookup, model) if part is not None)
    prediction = PredictionDrafter(tree=verifier.trees)
    if isinstance(choice, AutoConfig):
        planner = Planner(target_cost := cost())
        planner.add_lookup(prediction.name, optional=True)
        if lookup is not None:
            planner.add_lookup(lookup.name)
        if model is not None and draft is not None:
            draft_cost = draft.cost()
            share = _share(draft_cost, target_cost)
            planner.add_model(model.name, draft_cost, branching=verifier.trees)
        controller = AutoController(planner, max_nodes=choice.num_speculative_tokens)
        drafter = AutoDrafter(
            planner,
            [prediction] if lookup is None else [prediction, lookup],
            [] if model is None else [model],
            clock=clock,
        )
    assert drafter is not None
    parts = parts or (drafter,)
    if isinstance(choice, NgramConfig | SuffixConfig):
        drafter = WithPrediction(drafter, prediction)
    check_pair(verifier, drafter)
    return Drafting(drafter, controller, verifier, parts, share)


def _share(draft: CostModel, target: CostModel) -> float | None:
    if draft.guessed or target.guessed:
        return None
    return draft.at(0).seconds(1) / target.at(0).seconds(1)


def _model_drafter(
    choice: WithDraft, draft: DraftModel | DraftHead, draws: Draws, clock: Callable[[], float]
) -> DraftModelDrafter | Eagle3Drafter:
    if isinstance(draft, DraftModel):
        return DraftModelDrafter(
            draft.model, common_size=draft.common_size, max_context=choice.max_model_len, draws=draws
        )
    return Eagle3Drafter(
        draft.model,
        taps=draft.taps,
        order=draft.order,
        target_ids=draft.target_ids,
        max_context=min(draft.max_context, choice.max_model_len or draft.max_context),
        whole_prompt=draft.whole_prompt,
        draws=draws,
        clock=clock,
    )


def _draws(choice: WithDraft, verifier: Verifier) -> Draws:
    if choice.draft_sample_method == "greedy":
        return "greedy"
    return "independent" if verifier.draft_probs else "coupled"


def _namespace(request: Request) -> str | None:
    return request.namespace
