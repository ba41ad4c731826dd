"""T(n) on a device: measured at start, as on the CPU. Not kept on disk, since it takes about a second.

A pass over n tokens costs about the same whether they are of one sequence or of several, so the controller
reads one curve for all batches: at large ones it drafts less, and then nothing.
"""

from __future__ import annotations

from outrider.decoding.types import IntArray
from outrider.engines.base import LanguageModel
from outrider.engines.heads import HeadModel
from outrider.engines.pass_times import (
    CONTEXT,
    LONGER_WIDTHS,
    longer_of,
    measure,
    measure_head,
    measured_longer,
)
from outrider.engines.torch.head import TorchHead
from outrider.engines.torch.model import TorchModel
from outrider.policy.cost_model import CostModel, LongerContext

# Passes are padded to powers of two, or to 16 tokens: the last widths before a step, and the first after it.
WIDTHS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33)
UNPADDED_WIDTHS = (1, 2, 4, 8, 16, 32)  # of transformers' own classes
SECONDS = 1.0


def cost_model(model: LanguageModel, blocks: IntArray | None) -> CostModel:
    """What a pass of `model` costs, measured now. Of vocabulary blocks it knows none."""
    if not isinstance(model, TorchModel):  # one of transformers' own, whose caches cannot be padded
        return CostModel(measure(model, SECONDS, widths=UNPADDED_WIDTHS), CONTEXT)
    measure(model, 0.0, widths=WIDTHS)  # makes graphs and compiles kernels
    curve = measure(model, SECONDS, widths=WIDTHS)
    return CostModel(curve, CONTEXT, measured_longer(model, curve, _longer(model)))


def _longer(model: TorchModel) -> LongerContext | None:
    """The longer context in which a model is measured: the pool holds it beside the short one."""
    positions = model.max_positions
    if model.pool_positions is not None:
        positions = min(positions, model.pool_positions - CONTEXT - LONGER_WIDTHS[-1])
    return longer_of(model.spec.layers, positions)


def head_cost_model(head: HeadModel) -> CostModel:
    """What a pass of a head costs, measured now."""
    if not isinstance(head, TorchHead):
        return CostModel()
    measure_head(head, 0.0, WIDTHS)
    return CostModel(measure_head(head, SECONDS, WIDTHS), CONTEXT)
