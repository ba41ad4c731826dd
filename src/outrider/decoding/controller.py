"""How much to draft. The loop asks before every step and tells what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.decoding.costs import CostModel
from outrider.decoding.joining import Joining
from outrider.decoding.types import StepRecord
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Room:
    """What a request could use: at most `tokens` drafted ones before max_tokens or the context's end.

    context:     tokens of its text.
    constrained: whether structured output may leave it tokens without a choice.
    limit:       most draft tokens that the request itself allows in a step, or None.
    """

    request_id: str
    tokens: int
    context: int = 0
    constrained: bool = False
    limit: int | None = None

    @property
    def most(self) -> int:
        """Most draft tokens, both limits considered."""
        return self.tokens if self.limit is None else min(self.tokens, self.limit)


class Controller(Protocol):
    """Chooses each step's draft sizes."""

    def beside(self, sequences: int, joining: int = 0) -> int:
        """How many prompt tokens, of `joining` requests that will then decode too, may join a pass in which
        so many sequences decode; 0 to let them wait for another one. Without such sequences: how many a pass
        may have that is theirs alone, at least 1; whoever arrives or leaves has to wait for it."""

    def choose(self, batch: Sequence[Room], prompt_tokens: int = 0) -> list[int]:
        """Most draft nodes for each request, 0 .. its `most`. 0 is plain decoding and costs nothing.
        `prompt_tokens` of other requests share the pass."""

    def curious(self, request_id: str) -> int:
        """Of how many tokens of this request it would like to know how certain the target is of them."""

    def record(self, request_id: str, step: StepRecord) -> None:
        """What a step drafted, had accepted and cost."""

    def explain(self, request_id: str) -> str:
        """Why speculation is on or off for this request, in words."""

    def release(self, request_id: str) -> None:
        """The request has ended."""


class FixedController:
    """Always the same number of draft tokens, as far as there is room for them; 0 turns drafting off."""

    def __init__(self, num_speculative_tokens: int) -> None:
        if num_speculative_tokens < 0:
            raise ConfigError(f"num_speculative_tokens must be at least 0, not {num_speculative_tokens}")
        self.num_speculative_tokens = num_speculative_tokens
        self._joining = Joining(CostModel())

    def beside(self, sequences: int, joining: int = 0) -> int:
        return self._joining.count(sequences, joining)

    def choose(self, batch: Sequence[Room], prompt_tokens: int = 0) -> list[int]:
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
