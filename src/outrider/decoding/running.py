"""What the step loop keeps of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import DraftLimits, RequestState
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.prefill import PromptLogprobs
from outrider.decoding.request import Request
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.stops import Emitter

if TYPE_CHECKING:
    from outrider.engines.base import SeqHandle


@dataclass(slots=True, eq=False)
class Running:
    """A request in the loop. It has a `handle` once it is `opened`.

    forced: how many tokens of this step's draft the constraint left no choice about.
    """

    request: Request
    context: TokenContext
    sampler: Sampler
    emitter: Emitter
    metrics: RequestMetrics
    prompt_logprobs: PromptLogprobs
    forced: int = 0
    handle: SeqHandle = field(init=False)
    opened: bool = False
    state: RequestState = None  # the controller's

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def limits(self) -> DraftLimits:
        """What it could use of the next step."""
        return DraftLimits(
            self.state,
            max(0, self.emitter.remaining - 1),
            len(self.context.tokens),
            self.request.constraint is not None,
            self.request.draft_limit,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """A sequence's share of a step: seconds of drafting and of the pass. width: all tokens of the pass."""

    draft: float
    verify: float
    width: int
