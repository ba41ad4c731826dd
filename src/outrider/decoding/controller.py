"""How much to draft. The loop asks before every step and tells what came of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.decoding.types import StepRecord


@dataclass(frozen=True, slots=True)
class DraftLimits:
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

    def choose(self, batch: Sequence[DraftLimits], prompt_tokens: int = 0) -> list[int]:
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


class Guide(Protocol):
    """Leads a draft model while it draws a tree. Nodes are numbered from 0 as they are drawn."""

    def drew(self, parent: int, confidence: float) -> bool:
        """A node was drawn below `parent` (-1 for where the draft starts), siblings one after the other, with
        this confidence (0..1). Says whether the next likely token should be drawn beside it."""

    def frontier(self, ready: Collection[int] = ()) -> list[int]:
        """Of the nodes drawn since it was last asked, those to draw on from in the next pass, ascending;
        none to stop. A node that is `ready` takes no pass, if it is the only one that is drawn on from."""
