"""Structured output and log-probabilities on the default model and the native engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.config.engine import EngineConfig
from outrider.config.speculative import NgramConfig, NoneConfig
from outrider.outputs import RequestOutput
from outrider.pipeline import build_all

pytestmark = pytest.mark.model

NGRAM = NgramConfig(num_speculative_tokens=6, prompt_lookup_max=3, prompt_lookup_min=1)
SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20},
        "family_name": {"type": "string", "maxLength": 20},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 150},
        "occupation": {"enum": ["mathematician", "programmer", "physician"]},
    },
    "required": ["first_name", "family_name", "age_in_years", "occupation"],
    "additionalProperties": False,
}
TALKS = [
    [{"role": "user", "content": f"Describe {name} as JSON."}]
    for name in ("Ada Lovelace", "a physician from Lyon")
]


@pytest.fixture(scope="module")
def llms(default_model: Path) -> list[LLM]:
    config = EngineConfig(str(default_model), max_num_seqs=2)
    return [LLM.from_pipeline(p) for p in build_all(config, [NoneConfig(), NGRAM])]


def visible(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (o.prompt_logprobs, *((s.token_ids, s.text, s.finish_reason, s.logprobs) for s in o.outputs))
        for o in outputs
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_schema_gives_json_the_same_in_fewer_passes(llms: list[LLM], temperature: float) -> None:
    form = {"json": SCHEMA, "disable_any_whitespace": True}
    params = SamplingParams(
        temperature=temperature,
        seed=3,
        max_tokens=120,
        structured_outputs=form,
        logprobs=3,
        prompt_logprobs=1,
    )
    plain, found = (llm.chat(TALKS, params) for llm in llms)
    assert visible(found) == visible(plain)
    for one, other in zip(plain, found, strict=True):
        sample = other.outputs[0]
        value = json.loads(sample.text)
        assert list(value) == SCHEMA["required"]
        assert 0 <= value["age_in_years"] <= 150
        assert sample.finish_reason == "stop"
        forced = other.metrics.by_drafter["constraint"]
        assert forced.num_accepted_tokens == forced.num_draft_tokens > 8
        assert other.metrics.num_passes <= one.metrics.num_passes - forced.num_accepted_tokens
        assert one.metrics.num_passes == len(sample.token_ids)


@pytest.mark.parametrize(
    "arguments",
    [
        {"choice": ["definitely not", "I am not so sure", "yes"]},
        {"regex": r"[A-Z][a-z]+ is [0-9]{2} years old\."},
        {"grammar": 'root ::= ("tic " | "tac ")+ "toe"', "max_tokens": 30},
        {"bad_words": ["the", "of course", "Paris"], "max_tokens": 30, "prompt_logprobs": 2},
        {"logits_processors": [lambda output, logits: logits - (len(output) % 2) * logits / 3]},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_the_same_with_and_without_speculation(llms: list[LLM], arguments: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 0.8, "seed": 5, "max_tokens": 40, "logprobs": 2, **arguments})
    plain, found = (llm.chat(TALKS, params) for llm in llms)
    assert visible(found) == visible(plain)


def test_log_probabilities_of_the_prompt_are_those_of_writing_it(llms: list[LLM]) -> None:
    """What the model says of its own text does not depend on whether it is prompt or output."""
    params = SamplingParams(temperature=0.0, max_tokens=40, logprobs=3)
    (written,) = llms[1].generate("The capital of France is", params)
    sample = written.outputs[0]
    ids = [*written.prompt_token_ids, *sample.token_ids]
    (read,) = llms[0].generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=3))
    assert read.prompt_logprobs is not None
    assert read.prompt_logprobs[len(written.prompt_token_ids) :] == sample.logprobs
