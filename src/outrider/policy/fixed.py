"""A controller that never adapts: the same draft budget in every step."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.errors import ConfigError
from outrider.policy.cost_model import CostModel
from outrider.policy.mixed_batches import MixedBatchPolicy
from outrider.policy.report import Account


class FixedController:
    """The same number of draft tokens in every step, within each request's limits; 0 turns drafting off."""

    def __init__(self, num_speculative_tokens: int) -> None:
        if num_speculative_tokens < 0:
            raise ConfigError(f"num_speculative_tokens must be at least 0, not {num_speculative_tokens}")
        self.num_speculative_tokens = num_speculative_tokens
        self._batches = MixedBatchPolicy(CostModel())

    def begin(self) -> None:
        return None

    def prefill_budget(self, decoding: int, joining: int = 0) -> int:
        return self._batches.prefill_budget(decoding, joining)

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
        self._batches.begin_pass([limits.context for limits in batch])
        return [min(self.num_speculative_tokens, limits.max_tokens) for limits in batch]

    def confidence_rows_wanted(self, state: None) -> int:
        return 0

    def record(self, state: None, step: StepRecord) -> None:
        self._batches.record(step)

    def explain(self, state: None) -> str:
        if self.num_speculative_tokens == 0:
            return "off: num_speculative_tokens is 0"
        return f"on: a fixed draft of up to {self.num_speculative_tokens} tokens"

    def release(self, state: None) -> None:
        pass

    def account(self) -> Account | None:
        return None

    def take_account(self) -> Account | None:
        return None

    def pass_seconds(self) -> tuple[int, tuple[float, ...]] | None:
        return None
