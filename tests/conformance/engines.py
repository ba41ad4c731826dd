"""The engines that the suite runs on. A further one joins by adding a factory to ENGINES.

A factory makes models small enough for hundreds of texts, with a vocabulary of at least 48 ids and a
context of at least 96 positions: a target, and a draft that agrees with it part of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.engines.base import LanguageModel, StepEngine
from outrider.engines.step import CachedStepEngine
from outrider.engines.toy import ToyModel


@dataclass(frozen=True)
class Models:
    """A target and a draft over the same vocabulary."""

    target: LanguageModel
    draft: LanguageModel

    def engine(self) -> StepEngine:
        return CachedStepEngine(self.target, tree_attention=True, exact_bits=True)


def toy_models() -> Models:
    target = ToyModel(48, 128, seed=1, sharpness=2.5, memory=0.4)
    return Models(target, ToyModel(48, 128, seed=2, sharpness=2.5, memory=0.4, like=target, similarity=0.95))


ENGINES: dict[str, Callable[[], Models]] = {"toy": toy_models}
