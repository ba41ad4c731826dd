"""A controller that never changes its mind: the same number of draft tokens in every step."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.decoding.controller import DraftLimits
from outrider.decoding.types import StepRecord
from outrider.errors import ConfigError
from outrider.policy.cost_model import CostModel
from outrider.policy.mixed_batches import MixedBatchPolicy


class FixedController:
    """Always the same number of draft tokens, as far as there is room for them; 0 turns drafting off."""

    def __init__(self, num_speculative_tokens: int) -> None:
        if num_speculative_tokens < 0:
            raise ConfigError(f"num_speculative_tokens must be at least 0, not {num_speculative_tokens}")
        self.num_speculative_tokens = num_speculative_tokens
        self._joining = MixedBatchPolicy(CostModel())

    def beside(self, sequences: int, joining: int = 0) -> int:
        return self._joining.count(sequences, joining)

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
        self._joining.begin([room.context for room in batch])
        return [min(self.num_speculative_tokens, room.most) for room in batch]

    def curious(self, request_id: str) -> int:
        return 0

    def record(self, request_id: str, step: StepRecord) -> None:
        self._joining.record(step)

    def explain(self, request_id: str) -> str:
        if self.num_speculative_tokens == 0:
            return "off: num_speculative_tokens is 0"
        return f"on: a fixed draft of up to {self.num_speculative_tokens} tokens"

    def release(self, request_id: str) -> None:
        pass
