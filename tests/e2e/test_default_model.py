"""The whole program on the default model and the native engine: speculation changes only the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.bench import workloads
from outrider.cli.main import main
from outrider.config.engine import EngineConfig
from outrider.config.speculative import NgramConfig, NoneConfig
from outrider.pipeline import Pipeline, build_all

pytestmark = pytest.mark.model

NGRAM = NgramConfig(num_speculative_tokens=5, prompt_lookup_max=3, prompt_lookup_min=1)
ITEMS = [workloads.load(name)[0] for name in workloads.BUILT_IN]


@pytest.fixture(scope="module")
def pipelines(default_model: Path) -> list[Pipeline]:
    return build_all(EngineConfig(str(default_model), max_num_seqs=2), [NoneConfig(), NGRAM])


@pytest.fixture(scope="module")
def llms(pipelines: list[Pipeline]) -> list[LLM]:
    return [LLM.from_pipeline(p) for p in pipelines]


PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=32),
    SamplingParams(temperature=0.7, top_p=0.95, min_p=0.05, repetition_penalty=1.1, max_tokens=32, seed=4),
]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "seeded"])
def test_the_same_tokens_with_and_without_speculation(llms: list[LLM], params: SamplingParams) -> None:
    plain, ngram = llms
    talks = [[{"role": "user", "content": item.prompt}] for item in ITEMS[:4]]
    expected = plain.chat(talks, params)
    found = ngram.chat(talks, params)
    for one, other in zip(expected, found, strict=True):
        assert other.outputs[0].token_ids == one.outputs[0].token_ids
        assert other.outputs[0].text == one.outputs[0].text
    assert sum(o.metrics.drafts.num_accepted_tokens for o in found) > 0  # it did speculate


def test_a_prompt_in_a_list_is_as_it_is_alone(llms: list[LLM]) -> None:
    prompts = [item.prompt for item in ITEMS[:3]]
    together = llms[1].generate(prompts, PARAMS[1])
    for prompt, output in zip(prompts, together, strict=True):
        assert llms[0].generate(prompt, PARAMS[1])[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_it_answers_a_question(llms: list[LLM]) -> None:
    (output,) = llms[1].generate("The capital of France is", PARAMS[0])
    assert "Paris" in output.outputs[0].text


def test_the_command_line(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents: list[dict[str, Any]] = []
    for spec in ("none", "ngram"):
        line = f"run -m {default_model} -p one,two,one,two,one -n 24 --temp 0.8 --seed 5 --json --spec {spec}"
        assert main([*line.split(), "--prompt-lookup-max", "2"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["token_ids"] == documents[1]["token_ids"]
    assert documents[1]["metrics"]["num_draft_tokens"] > 0


def test_bench_finds_the_tokens_identical(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"bench -m {default_model} --workload edit --limit 1 --runs 1 -n 8 --json"
    assert main(line.split()) == 0
    (workload,) = json.loads(capsys.readouterr().out)["workloads"]
    assert list(workload["methods"]) == ["none", "suffix", "auto"]
    for method in workload["methods"].values():
        assert method["identical"] is True
        assert method["tokens_per_s"] > 0
