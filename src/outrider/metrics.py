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


def metrics_of(total: RequestMetrics, model: str) -> list[Metric]:
    """The counts of `total`. They are of requests that have ended."""
    labels = {"model_name": model}
    counts = {
        "vllm:generation_tokens": total.num_tokens,
        "vllm:spec_decode_num_drafts": total.num_drafts,
        "vllm:spec_decode_num_draft_tokens": total.num_draft_tokens,
        "vllm:spec_decode_num_accepted_tokens": total.num_accepted_tokens,
        "outrider:spec_decode_num_draft_tokens_earlier_outputs": total.earlier_outputs.num_draft_tokens,
        "outrider:spec_decode_num_accepted_tokens_earlier_outputs": total.earlier_outputs.num_accepted_tokens,
    }
    found: list[Metric] = [Counter(name, labels, value) for name, value in counts.items()]
    return [*found, Vector("vllm:spec_decode_num_accepted_tokens_per_pos", labels, total.accepted_per_pos)]
