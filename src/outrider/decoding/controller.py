"""The seam between the step loop and whatever decides how much to draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from outrider.decoding.types import StepRecord

RequestState: TypeAlias = Any
"""What a controller keeps of one request: made by `Controller.begin`, handed along, opaque to the loop."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a request could use in a step.

    state:         what `Controller.begin` made for the request.
    tokens:        most draft tokens before max_tokens or the end of the context.
    context:       tokens of the sequence, prompt and output.
    constrained:   whether structured output may determine tokens.
    request_limit: most draft tokens that the request itself allows in a step, or None.
    """

    state: RequestState
    tokens: int
    context: int = 0
    constrained: bool = False
    request_limit: int | None = None

    @property
    def max_tokens(self) -> int:
        """Most draft tokens, both limits considered."""
        return self.tokens if self.request_limit is None else min(self.tokens, self.request_limit)


class Controller(Protocol):
    """Chooses each step's draft budgets. The loop calls `choose`, then `record` once for each request."""

    def begin(self) -> RequestState:
        """A request arrives. Returns what the controller will keep of it."""

    def prefill_budget(self, decoding: int, joining: int = 0) -> int:
        """How many prompt tokens the next pass may hold beside `decoding` sequences that decode (a mixed
        batch); 0 for none. The prompts belong to `joining` requests that will decode afterwards. With no
        sequence decoding, how many prompt tokens one pass may have, at least 1: requests that arrive or are
        aborted wait for that pass."""

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
        """The draft budget of each request in nodes, 0 .. its `max_tokens`. 0 is plain decoding and costs
        nothing. `prompt_tokens` of other requests share the pass."""

    def confidence_rows_wanted(self, state: RequestState) -> int:
        """For how many of the step's emitted tokens it wants the target's confidence."""

    def record(self, state: RequestState, step: StepRecord) -> None:
        """What a step drafted, had accepted and cost."""

    def explain(self, state: RequestState) -> str:
        """Why speculation is on or off for this request, in words."""

    def release(self, state: RequestState) -> None:
        """The request has ended; it may never have had a step."""


class Guide(Protocol):
    """Directs how a draft model grows a tree. Nodes are numbered from 0 in the order they are drawn."""

    def drew(self, parent: int, confidence: float) -> bool:
        """A node was drawn below `parent` (-1: the root of the draft), siblings one after the other, with
        this confidence, 0..1. Returns whether a further sibling should be drawn."""

    def next_node(self, ready: int = -1) -> int:
        """Which of the nodes drawn since the last call gets children next; -1 to stop. The logits after the
        node `ready` are known already: it takes no pass."""
