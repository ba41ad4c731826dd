"""Counts and times of one request, under the definitions of the glossary."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from outrider.decoding.types import StepRecord

CONSTRAINT = "constraint"  # the name among drafters of tokens that structured output leaves no choice about
PREDICTION = "prediction"  # of those that the request's prediction proposed
EARLIER_OUTPUTS = "earlier_outputs"  # of those that a lookup found in other requests' outputs alone


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

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None without drafts."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts; None without drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
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
    prediction:  drafts with tokens of the request's prediction, and these tokens; no seconds.
    earlier_outputs: the same of tokens that a lookup found in other requests' outputs alone.
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
    rejected_at: Counter[int] = field(default_factory=Counter)  # the same, of where drafts were left
    prediction: DraftCounts = field(default_factory=DraftCounts)
    earlier_outputs: DraftCounts = field(default_factory=DraftCounts)
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
        if step.predicted[0]:
            self.prediction.add(*step.predicted, 0.0)
        if step.earlier[0]:
            self.earlier_outputs.add(*step.earlier, 0.0)
        for depth in step.accepted_depths:  # (Counter.update takes longer for a few)
            self.accepted_at[depth] += 1
        if step.rejected_depth:
            self.rejected_at[step.rejected_depth] += 1

    def to_dict(self) -> dict[str, Any]:
        """The `metrics` object of `outrider run --json`. A rate with nothing to divide by is None."""
        return {name: getattr(self, name) for name in _DOCUMENT} | {
            "drafters": {name: counts.to_dict() for name, counts in self.by_drafter.items()},
            "earlier_outputs": {
                "num_draft_tokens": self.earlier_outputs.num_draft_tokens,
                "num_accepted_tokens": self.earlier_outputs.num_accepted_tokens,
            },
            "speculation": self.speculation,
        }

    # The document's values, as attributes.

    @property
    def num_drafts(self) -> int:
        """Drafts that were not empty."""
        return self.drafts.num_drafts

    @property
    def num_draft_tokens(self) -> int:
        return self.drafts.num_draft_tokens

    @property
    def num_accepted_tokens(self) -> int:
        return self.drafts.num_accepted_tokens

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None without drafts."""
        return self.drafts.acceptance_rate

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts; None without drafts."""
        return self.drafts.mean_acceptance_length

    @property
    def block_efficiency(self) -> float | None:
        """Tokens for each pass of the target."""
        return _ratio(self.num_tokens, self.num_passes)

    @property
    def accepted_per_pos(self) -> list[int]:
        """Accepted tokens by position in the draft, the first first."""
        return [self.accepted_at[d] for d in range(1, max(self.accepted_at, default=0) + 1)]

    @property
    def ttft_ms(self) -> float | None:
        """Milliseconds from the arrival to the first token."""
        return None if self.first_token is None else 1e3 * (self.first_token - self.arrived)

    @property
    def tpot_ms(self) -> float | None:
        """Milliseconds for each token after the first."""
        decode = self._decode_seconds
        per_token = _ratio(decode, self.num_tokens - 1) if decode > 0 else None
        return None if per_token is None else 1e3 * per_token

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second after the first."""
        decode = self._decode_seconds
        return _ratio(self.num_tokens - 1, decode) if decode > 0 else None

    @property
    def _decode_seconds(self) -> float:
        if self.first_token is None or self.last_token is None:
            return 0.0
        return self.last_token - self.first_token

    @property
    def draft_ms(self) -> float:
        return 1e3 * self.drafts.draft_seconds

    @property
    def verify_ms(self) -> float:
        return 1e3 * self.verify_seconds

    @property
    def other_ms(self) -> float:
        return 1e3 * self.other_seconds

    @property
    def sampling_ms(self) -> float:
        return 1e3 * self.sampling_seconds

    # Under OpenAI's names.

    @property
    def accepted_prediction_tokens(self) -> int:
        """Tokens of the output that were drafted from the request's prediction."""
        return self.prediction.num_accepted_tokens

    @property
    def rejected_prediction_tokens(self) -> int:
        """Tokens that were drafted from the request's prediction and are not in the output."""
        return self.prediction.num_draft_tokens - self.prediction.num_accepted_tokens

    # The same under vLLM's names.

    @property
    def num_generation_tokens(self) -> int:
        return self.num_tokens

    @property
    def arrival_time(self) -> float:
        """In seconds of a clock that starts anywhere, as all times here: differences mean something."""
        return self.arrived

    @property
    def first_token_time(self) -> float | None:
        return self.first_token

    @property
    def last_token_time(self) -> float | None:
        return self.last_token

    @property
    def finished_time(self) -> float | None:
        return self.last_token

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from the arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def spec_token_acceptance_counts(self) -> list[int]:
        """The number of drafts, then accepted tokens by position in the draft."""
        return [self.num_drafts, *self.accepted_per_pos]


_DOCUMENT = (
    *("decode_tokens_per_s", "ttft_ms", "tpot_ms", "num_drafts", "num_draft_tokens", "num_accepted_tokens"),
    *("acceptance_rate", "mean_acceptance_length", "block_efficiency", "draft_ms", "verify_ms", "other_ms"),
    *("sampling_ms", "accepted_per_pos"),
)
