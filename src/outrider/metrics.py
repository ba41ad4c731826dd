"""What `LLM.get_metrics()` returns: counts, under vLLM's names where it has them.

for metric in llm.get_metrics():
    if metric.name == "vllm:spec_decode_num_accepted_tokens":
        print(metric.value)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.decoding.metrics import RequestMetrics


@dataclass(frozen=True)
class Metric:
    """A count. labels: "model_name"."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Counter(Metric):
    """A number that grows."""

    value: int


@dataclass(frozen=True)
class Vector(Metric):
    """A list of such numbers, one for each position in a draft."""

    values: list[int]


@dataclass(frozen=True, slots=True)
class DraftTotals:
    """What an engine has counted of its drafts. per_position: accepted tokens by position in the draft."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    per_position: tuple[int, ...] = ()

    def __sub__(self, before: DraftTotals) -> DraftTotals:
        """Since it was `before`: later counts have no fewer positions."""
        then = (*before.per_position, *[0] * (len(self.per_position) - len(before.per_position)))
        return DraftTotals(
            self.num_drafts - before.num_drafts,
            self.num_draft_tokens - before.num_draft_tokens,
            self.num_accepted_tokens - before.num_accepted_tokens,
            tuple(now - count for now, count in zip(self.per_position, then, strict=True)),
        )


def metrics_of(total: RequestMetrics, model: str) -> list[Metric]:
    """The counts of `total`. They are of requests that have ended."""
    earlier, name = total.earlier_outputs, "outrider:spec_decode_num_{}_tokens_earlier_outputs"
    more = {
        name.format("draft"): earlier.num_draft_tokens,
        name.format("accepted"): earlier.num_accepted_tokens,
    }
    drafts = DraftTotals(
        total.num_drafts, total.num_draft_tokens, total.num_accepted_tokens, tuple(total.accepted_per_pos)
    )
    return _metrics(total, model, drafts, more)


def whole_metrics(total: RequestMetrics, model: str, drafts: DraftTotals | None) -> list[Metric]:
    """The same on an engine that drafts by itself, whose requests do not tell of their drafts. None: it does
    not count them."""
    return _metrics(total, model, drafts, {})


def _metrics(
    total: RequestMetrics, model: str, drafts: DraftTotals | None, more: Mapping[str, int]
) -> list[Metric]:
    labels = {"model_name": model}
    found: list[Metric] = [Counter("vllm:generation_tokens", labels, total.num_tokens)]
    if drafts is None:
        return found
    counts = {
        "vllm:spec_decode_num_drafts": drafts.num_drafts,
        "vllm:spec_decode_num_draft_tokens": drafts.num_draft_tokens,
        "vllm:spec_decode_num_accepted_tokens": drafts.num_accepted_tokens,
        **more,
    }
    found += [Counter(name, labels, value) for name, value in counts.items()]
    return [*found, Vector("vllm:spec_decode_num_accepted_tokens_per_pos", labels, list(drafts.per_position))]
