"""Counts and times of one request, under the definitions of the glossary."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from outrider.decoding.types import StepRecord

CONSTRAINT = "constraint"  # the name among drafters of tokens that structured output leaves no choice about


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None


@dataclass(slots=True)
class DraftCounts:
    """What one drafter did for a request: drafts that were not empty, their tokens, seconds."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_seconds: float = 0.0

    def add(self, drafted: int, accepted: int, seconds: float) -> None:
        """Count one draft, which may be empty."""
        self.num_drafts += drafted > 0
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.draft_seconds += seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_rate": _ratio(self.num_accepted_tokens, self.num_draft_tokens),
            "mean_acceptance_length": (
                1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None
            ),
            "draft_ms": 1e3 * self.draft_seconds,
        }


@dataclass(slots=True)
class RequestMetrics:
    """Accumulates the steps of a request. Times are readings of the loop's clock, in seconds.

    arrived, first_token, last_token: when the request was added and when its tokens came.
    num_passes:  target passes that scored this request (prefill not counted).
    num_tokens:  emitted tokens.
    sampling_seconds: the part of other_seconds that went into verifying and sampling.
    cached_tokens: prompt tokens that came from the prefix cache.
    speculation: why speculation was on or off, as a sentence.
    """

    arrived: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    num_passes: int = 0
    num_tokens: int = 0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    sampling_seconds: float = 0.0
    cached_tokens: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    by_drafter: dict[str, DraftCounts] = field(default_factory=dict)
    accepted_at: Counter[int] = field(default_factory=Counter)  # by depth, 1 = child of the anchor
    speculation: str = ""

    def record(self, step: StepRecord, now: float) -> None:
        """Add one step whose tokens came at `now`."""
        self.num_passes += 1
        self.num_tokens += step.emitted
        self.verify_seconds += step.verify_seconds
        self.other_seconds += step.other_seconds
        self.sampling_seconds += step.sampling_seconds
        if step.emitted:
            self.first_token = now if self.first_token is None else self.first_token
            self.last_token = now
        self.drafts.add(step.drafted, step.accepted, step.draft_seconds)
        forced = min(step.accepted, step.forced)
        if step.forced:
            self.by_drafter.setdefault(CONSTRAINT, DraftCounts()).add(step.forced, forced, 0.0)
        if step.drafted > step.forced:
            counts = self.by_drafter.setdefault(step.source, DraftCounts())
            counts.add(step.drafted - step.forced, step.accepted - forced, step.draft_seconds)
        for depth in step.accepted_depths:  # (Counter.update takes longer for a few)
            self.accepted_at[depth] += 1

    def to_dict(self) -> dict[str, Any]:
        """The `metrics` object of `outrider run --json`. A rate with nothing to divide by is None."""
        draft = self.drafts.to_dict()
        first, last, later = self.first_token, self.last_token, self.num_tokens - 1
        decode = last - first if first is not None and last is not None else 0.0
        tpot = _ratio(decode, later) if decode > 0 else None
        return {
            "decode_tokens_per_s": _ratio(later, decode) if decode > 0 else None,
            "ttft_ms": None if first is None else 1e3 * (first - self.arrived),
            "tpot_ms": None if tpot is None else 1e3 * tpot,
            "num_drafts": draft["num_drafts"],
            "num_draft_tokens": draft["num_draft_tokens"],
            "num_accepted_tokens": draft["num_accepted_tokens"],
            "acceptance_rate": draft["acceptance_rate"],
            "mean_acceptance_length": draft["mean_acceptance_length"],
            "block_efficiency": _ratio(self.num_tokens, self.num_passes),
            "draft_ms": draft["draft_ms"],
            "verify_ms": 1e3 * self.verify_seconds,
            "other_ms": 1e3 * self.other_seconds,
            "sampling_ms": 1e3 * self.sampling_seconds,
            "accepted_per_pos": [self.accepted_at[d] for d in range(1, max(self.accepted_at, default=0) + 1)],
            "drafters": {name: counts.to_dict() for name, counts in self.by_drafter.items()},
            "speculation": self.speculation,
        }
