"""The native engine's entries in `pipeline.ENGINES`, but for what loads models."""

from __future__ import annotations

from outrider.decoding.sampling.sampler import RowSampler
from outrider.decoding.types import IntArray
from outrider.drafting import Costs, guessed_costs
from outrider.engines.base import LanguageModel
from outrider.policy.cost_model import CostModel


def native_costs() -> Costs:
    """What passes of the native engine cost, measured once per model and machine."""
    from outrider.engines.native import NativeModel, calibrate  # the compiled extension

    def costs(model: LanguageModel, blocks: IntArray | None) -> CostModel:
        if isinstance(model, NativeModel):
            return calibrate.cost_model(model, blocks)
        return guessed_costs(model, blocks)

    return costs


def native_rows() -> RowSampler | None:
    """The native engine's sampler. Raises ConfigError for a bad OUTRIDER_SAMPLER."""
    from outrider.engines.native.sampling import row_sampler  # the compiled extension

    return row_sampler()
