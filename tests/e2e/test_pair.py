"""The Qwen pair with its draft model, where it is present."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.config.engine import EngineConfig
from outrider.config.speculative import DraftModelConfig, NoneConfig, SpeculativeConfig
from outrider.pipeline import build_all

pytestmark = pytest.mark.pair


def test_a_draft_model_changes_no_token(qwen_pair: tuple[Path, Path]) -> None:
    target, draft = map(str, qwen_pair)
    choices: list[SpeculativeConfig] = [NoneConfig(), DraftModelConfig(draft, num_speculative_tokens=4)]
    plain, paired = map(LLM.from_pipeline, build_all(EngineConfig(target, max_num_seqs=1), choices))
    messages = [{"role": "user", "content": "Write a Python function that reverses a string."}]
    for params in (
        SamplingParams(temperature=0.0, max_tokens=40),
        SamplingParams(temperature=0.8, seed=9, max_tokens=40),
    ):
        (expected,), (found,) = plain.chat(messages, params), paired.chat(messages, params)
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        counts = found.metrics.drafts
        assert counts.num_accepted_tokens > counts.num_draft_tokens / 4
