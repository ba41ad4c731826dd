"""From opened drafts to loaded ones: each draft model, or head on the target, once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from outrider.config.speculative import SpeculativeConfig
from outrider.drafters.vocab_subset import frequent_blocks
from outrider.drafting import Costs, DraftHead, DraftModel, HeadCosts, HeadEngine
from outrider.engines.base import LanguageModel
from outrider.engines.heads import HeadModel
from outrider.errors import ConfigError
from outrider.models.source import ModelSource
from outrider.opening import OpenedDraft, distinct, weights_key
from outrider.policy.cost_model import CostModel

ModelLoader: TypeAlias = Callable[[ModelSource, int | None], LanguageModel]


def load_native_head(source: ModelSource, threads: int | None) -> HeadModel:
    """A head on the native engine."""
    from outrider.engines.native.head import NativeHead  # the compiled extension

    return NativeHead.load(source, threads=threads)


def native_head_cost(head: HeadModel) -> CostModel:
    """What its passes cost, measured once per head and machine."""
    from outrider.engines.native.calibrate import head_cost_model  # the compiled extension

    return head_cost_model(head)


def native_heads(loader: ModelLoader) -> HeadEngine:
    """The native engine runs heads beside models of any loader."""
    del loader
    return HeadEngine(load_native_head, native_head_cost)


def guessed_head_cost(head: HeadModel) -> CostModel:
    """Where nobody times passes: a guess, which the first steps correct."""
    return CostModel()


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft's description, and what drafts."""

    source: ModelSource
    drafts: DraftModel | DraftHead


def load_drafts(
    drafts: Mapping[SpeculativeConfig, OpenedDraft],
    threads: int | None,
    max_context: int,
    *,
    loader: ModelLoader,
    wrap: Callable[[LanguageModel], LanguageModel],
    costs: Costs,
    heads: HeadEngine | None,
) -> dict[SpeculativeConfig, LoadedDraft]:
    """Each draft, loaded, by the choice that it was opened for.

    max_context: most positions of a sequence of the target.
    Other arguments are those of `pipeline.build_all`; heads: None where the engine runs none.
    """
    loaded: dict[object, Callable[[OpenedDraft], DraftModel | DraftHead]] = {}
    for draft in distinct(drafts):
        key = weights_key(draft.source)
        if draft.head is None:
            loaded[key] = _model(loader(draft.source, threads), wrap, costs)
        elif heads is None:
            raise ConfigError(f"{draft.source.path}: this engine runs no heads")
        else:
            loaded[key] = _head(heads.load(draft.source, threads), heads.cost, max_context)
    return {
        choice: LoadedDraft(draft.source, loaded[weights_key(draft.source)](draft))
        for choice, draft in drafts.items()
    }


def _model(
    model: LanguageModel, wrap: Callable[[LanguageModel], LanguageModel], costs: Costs
) -> Callable[[OpenedDraft], DraftModel]:
    wrapped = wrap(model)
    cost = functools.partial(costs, model, frequent_blocks(model))
    return lambda draft: DraftModel(wrapped, draft.common_size, cost)


def _head(model: HeadModel, cost: HeadCosts, max_context: int) -> Callable[[OpenedDraft], DraftHead]:
    def made(draft: OpenedDraft) -> DraftHead:
        head = draft.head
        assert head is not None
        return DraftHead(
            model,
            head.taps,
            head.order,
            head.target_ids,
            max_context,
            head.whole_prompt,
            functools.partial(cost, model),
        )

    return made
