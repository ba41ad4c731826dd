"""The server's sampling defaults, and who wins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.server.http.served_model import ServedModel
from tests.server.http_support import Running, running, toy_pipeline

PROMPT = "the quick brown fox"
DEFAULTS = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def server(roomy_file: Path) -> Iterator[Running]:
    pipeline = toy_pipeline(roomy_file, override_generation_config=json.dumps(DEFAULTS))
    with running(pipeline) as made:
        yield made


def completion(server: Running, **body: Any) -> str:
    answer = server.post("/v1/completions", {"prompt": PROMPT, "seed": 3, "max_tokens": 20, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def library(server: Running, **params: Any) -> str:
    llm = LLM.from_pipeline(server.pipeline)
    return llm.generate(PROMPT, SamplingParams(**{"seed": 3, "max_tokens": 20, **params}))[0].outputs[0].text


def test_what_a_request_leaves_out_comes_from_the_defaults(server: Running) -> None:
    assert completion(server) == library(server, **DEFAULTS) != library(server)


def test_what_a_request_says_wins(server: Running) -> None:
    own = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    assert completion(server, **own) == library(server)
    assert completion(server, temperature=0) == library(server, **{**DEFAULTS, "temperature": 0})
    assert completion(server, top_k=None) == library(server, **DEFAULTS)
    assert completion(server, samplers=["temperature"]) == library(server, temperature=0.7)


def test_chats_have_them_too(server: Running) -> None:
    messages = [{"role": "user", "content": "the fox"}]
    body = {"messages": messages, "seed": 3, "max_tokens": 20}
    found = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    llm = LLM.from_pipeline(server.pipeline)
    (own,) = llm.chat(messages, SamplingParams(seed=3, max_tokens=20, **DEFAULTS))  # type: ignore[arg-type]
    assert found == own.outputs[0].text


def test_the_status_tells_them(server: Running) -> None:
    with server.http() as http:
        found = http.get("/v1/outrider/status").json()["sampling_defaults"]
    assert found == {"values": {**DEFAULTS}, "origin": "set at start"}


def test_other_defaults_are_another_fingerprint(roomy_file: Path) -> None:
    plain, same = (toy_pipeline(roomy_file) for _ in range(2))
    warm = toy_pipeline(roomy_file, override_generation_config=DEFAULTS)
    prints = [ServedModel(pipeline, ("m",)).fingerprint for pipeline in (plain, same, warm)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("given", "completions", "chats"),
    [({}, 16, 60), ({"max_tokens": 9}, 9, 9), ({"max_tokens": None}, 60, 60)],
)
def test_a_default_length(roomy_file: Path, given: dict[str, Any], completions: int, chats: int) -> None:
    with running(toy_pipeline(roomy_file, override_generation_config=given, max_model_len=61)) as server:
        text = {"prompt": [5], "ignore_eos": True}
        found = server.post("/v1/completions", text).json()["usage"]["completion_tokens"]
        assert found == completions
        talk = {"messages": [{"role": "user", "content": ""}], "chat_template_kwargs": {}, "ignore_eos": True}
        usage = server.post("/v1/chat/completions", talk).json()["usage"]
        assert usage["completion_tokens"] == min(chats, 61 - usage["prompt_tokens"])
        assert (
            server.post("/v1/completions", {**text, "max_tokens": 5}).json()["usage"]["completion_tokens"]
            == 5
        )
