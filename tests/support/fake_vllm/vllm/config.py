"""The double's configuration of speculation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass
class SpeculativeConfig:
    """Some of vLLM's keys."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"] | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
    draft_tensor_parallel_size: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    rejection_sample_method: Literal["standard", "block"] = "standard"
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None = None
