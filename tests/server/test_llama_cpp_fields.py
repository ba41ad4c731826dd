"""Fields of llama.cpp's requests, and what its answers tell of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.server.http.dialects.llama_cpp.fields import LlamaCompletionRequest, LlamaInfillRequest
from outrider.server.http.request_fields import LLAMA, UNUSED
from tests.server.http_support import Running, running, toy_pipeline
from tests.server.test_llama_cpp import FEW, ask, error_of, events_of


@pytest.fixture(scope="module")
def small(target_file: Path) -> Any:
    """A server with a context of 64."""
    with running(toy_pipeline(target_file, max_model_len=64)) as server:
        yield server


def test_a_prompt_may_be_an_object(server: Running) -> None:
    text, ids = ask(server)["content"], server.pipeline.tokenizer.encode("the fox")
    wrapped: dict[str, Any] = {"prompt_string": "the fox"}
    for prompt in (wrapped, {**wrapped, "multimodal_data": []}, {**wrapped, "multimodal_data": None}):
        assert ask(server, prompt=prompt)["content"] == text
    found = ask(server, prompt=["the fox", wrapped, ids])
    assert [entry["content"] for entry in found] == [text] * 3
    assert [entry["content"] for entry in ask(server, prompt=[wrapped])] == [text]


def test_only_the_members_that_are_asked_for(server: Running) -> None:
    whole = ask(server)
    fields = ["content", "generation_settings/n_predict", "timings/no_such", "no/such", "content/deeper"]
    chosen = {"content": whole["content"], "generation_settings/n_predict": 20}
    assert ask(server, response_fields=fields) == chosen
    assert [len(entry) for entry in ask(server, response_fields=fields, prompt=["a", "b"])] == [2, 2]
    body = {**FEW, "response_fields": fields, "stream": True}
    *parts, last = events_of(server.post("/completion", body))
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert last == {**chosen, "content": ""}
    assert ask(server, response_fields=[]).keys() == whole.keys()


def test_the_seed_that_is_told_gives_the_same_text(server: Running) -> None:
    first = ask(server, seed=-1, n_cmpl=2, temperature=1.0)
    for entry in first:
        seed = entry["generation_settings"]["seed"]
        assert ask(server, seed=seed, temperature=1.0)["content"] == entry["content"]
    assert first[0]["content"] != first[1]["content"]
    assert ask(server, seed=9)["generation_settings"]["seed"] == 9


def test_truncated_is_what_the_context_cut(small: Running) -> None:
    full = ask(small, n_predict=-1)
    assert (full["truncated"], full["stop_type"], full["tokens_cached"]) == (True, "limit", 64)
    assert ask(small, n_predict=500)["truncated"]
    exact = 64 - full["tokens_evaluated"]
    assert not ask(small, n_predict=exact)["truncated"]
    assert not ask(small, n_predict=4)["truncated"]
    *_, last = events_of(small.post("/completion", {**FEW, "n_predict": -1, "stream": True}))
    assert last["truncated"]


def test_a_prompt_that_is_too_long(small: Running) -> None:
    answer = small.post("/completion", {"prompt": [1] * 80})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (80, 64)
    longer = small.post("/completion", {"prompt": "a" * 100_000}).json()["error"]
    assert (longer["type"], longer["n_ctx"]) == ("exceed_context_size_error", 64)
    assert "n_prompt_tokens" not in longer  # nothing was tokenized
    chat = small.post("/v1/completions", {"prompt": [1] * 80}).json()["error"]
    assert set(chat) == {"message", "type", "param", "code"}


def test_with_ignore_eos_no_text_ends(server: Running) -> None:
    """The tokens that end a text are not written at all, unlike on OpenAI's paths."""
    ends = sorted(server.pipeline.tokenizer.eos_ids)
    likely = {str(token): 50.0 for token in ends}
    sure = {"n_predict": 8, "temperature": 0, "return_tokens": True}
    for ignored in (False, None):
        assert ask(server, **sure, ignore_eos=ignored, logit_bias=likely)["stop_type"] == "eos"
    found = ask(server, **sure, ignore_eos=True)
    assert (len(found["tokens"]), found["stop_type"]) == (8, "limit")
    assert not set(found["tokens"]) & set(ends)
    biases = found["generation_settings"]["logit_bias"]
    assert sorted(entry["token"] for entry in biases) == ends
    assert {entry["bias"] for entry in biases} == {-100.0}
    assert ask(server, ignore_eos=False)["generation_settings"]["logit_bias"] == []
    own = ask(server, **sure, ignore_eos=True, logit_bias=likely)["generation_settings"]["logit_bias"]
    assert {entry["bias"] for entry in own} == {50.0}  # the request's own word counts


def test_openais_names_of_the_same(server: Running) -> None:
    found = ask(server, n_predict=None, max_tokens=3, n=2, logprobs=2, prompt="a")
    assert [len(entry["completion_probabilities"]) for entry in found] == [3, 3]
    assert ask(server, n_predict=5, max_tokens=5)["tokens_predicted"] == 5
    both = {**FEW, "n_predict": 5, "max_tokens": 3}
    assert "max_tokens differ" in error_of(server.post("/completion", both), 400)["message"]
    wrong = {**FEW, "n_predict": None, "max_tokens": "many"}
    assert "n_predict" in error_of(server.post("/completion", wrong), 400)["message"]


def test_samplers_that_are_left_out_are_off(server: Running) -> None:
    warm = {"temperature": 0.1, "top_k": 1}
    plain = ask(server, temperature=1.0, top_k=0)["content"]
    assert ask(server, **warm)["content"] != plain
    assert ask(server, **warm, samplers=["top_p"])["content"] == plain
    assert ask(server, **warm, samplers="kt")["content"] == ask(server, **warm)["content"]
    for samplers, message in ((["top_q"], "top_q"), (["temperature", "top_k", "penalties"], "order")):
        error = error_of(server.post("/completion", {**FEW, "samplers": samplers}), 400)
        assert message in error["message"]


def test_drafts_may_be_turned_off(server: Running) -> None:
    plain = ask(server, prompt="a a a a a a", **{"speculative.n_max": 0})
    assert plain["timings"]["draft_n"] == 0
    error = error_of(server.post("/completion", {**FEW, "speculative.n_max": -1}), 400)
    assert "speculative.n_max" in error["message"]


def test_a_cached_prefix_may_be_left_alone(server: Running) -> None:
    prompt = "a prompt of some length that the next request begins with as well, word by word, to its end"
    ask(server, prompt=prompt)
    assert ask(server, prompt=prompt)["timings"]["cache_n"] > 0
    assert ask(server, prompt=prompt, cache_prompt=False)["timings"]["cache_n"] == 0


@pytest.mark.parametrize("model", [LlamaCompletionRequest, LlamaInfillRequest])
def test_what_means_nothing_elsewhere_means_nothing_here(
    model: type[LlamaCompletionRequest] | type[LlamaInfillRequest],
) -> None:
    known = {info.alias or name for name, info in model.model_fields.items()}
    for name, (whose, _, _) in UNUSED.items():
        assert LLAMA not in whose or name in known or name in model.neutral, name


def test_rates_are_of_the_tokens_that_took_the_time(server: Running) -> None:
    """The first token is there when the time of the others begins."""
    times = ask(server, n_predict=9)["timings"]
    assert times["predicted_n"] == 9
    assert times["predicted_per_second"] == pytest.approx(8e3 / times["predicted_ms"])
    assert times["predicted_per_token_ms"] == pytest.approx(times["predicted_ms"] / 8)
    one = ask(server, n_predict=1)["timings"]
    assert (one["predicted_n"], one["predicted_per_second"], one["predicted_per_token_ms"]) == (1, 0, 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
def test_the_tokens_of_a_conversation(templated: Running, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    chat = templated.post("/v1/chat/completions", body).json()
    found = templated.post(path, body).json()
    assert found == {"object": "response.input_tokens", "input_tokens": chat["usage"]["prompt_tokens"]}
    assert templated.post(path, {"messages": []}).status_code == 400
