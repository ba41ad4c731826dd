"""llama.cpp's own paths, and what is told of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from outrider.server.http.dialects.refused import REFUSED
from tests.server.dialect_support import scripted
from tests.server.http_support import MODEL, Running, running, toy_pipeline

FEW: dict[str, Any] = {"prompt": "the fox", "n_predict": 20, "seed": 4, "ignore_eos": True}


def ask(server: Running, **body: Any) -> Any:
    answer = server.post("/completion", {**FEW, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events_of(answer: httpx.Response) -> list[Any]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which must be in llama.cpp's form."""
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    assert set(found) == {"code", "message", "type"}
    assert found["code"] == status
    return found


def test_the_text_is_that_of_the_other_paths(server: Running) -> None:
    mine = {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.1}
    theirs = {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    found = ask(server, **mine)
    body = {"prompt": "the fox", "max_tokens": 20, "seed": 4, "ignore_eos": True, **theirs}
    other = server.post("/v1/completions", body).json()
    assert found["content"] == other["choices"][0]["text"]
    assert found["tokens_evaluated"] == other["usage"]["prompt_tokens"]
    assert (found["tokens_predicted"], found["stop_type"], found["stop"]) == (20, "limit", True)
    assert found["tokens"] == []
    assert found["generation_settings"]["repeat_penalty"] == 1.1
    assert found["timings"]["predicted_n"] == 20
    ids = server.pipeline.tokenizer.encode("the fox")
    assert ask(server, **mine, prompt=ids)["content"] == found["content"]
    tail = server.pipeline.tokenizer.encode(" fox", add_special=False)
    mixed = ask(server, **mine, prompt=["the", *tail], return_tokens=True)
    assert (mixed["content"], len(mixed["tokens"])) == (found["content"], 20)


def test_samplers_that_are_left_out_are_off(server: Running) -> None:
    narrow = {"temperature": 1.5, "top_p": 0.01, "min_p": 0.9, "top_k": 7}
    few = ask(server, **narrow, samplers=["top_k", "temperature"])["content"]
    assert few == ask(server, temperature=1.5, top_k=7, top_p=1.0, min_p=0.0)["content"]
    assert few == ask(server, **narrow, samplers="kt")["content"] != ask(server, **narrow)["content"]
    assert ask(server, **narrow, samplers=[])["content"] == ask(server, **narrow)["content"]


def test_names_of_the_other_paths(server: Running) -> None:
    body = {"prompt": "the fox", "seed": 4, "ignore_eos": True}
    found = server.post("/completion", {**body, "max_tokens": 20}).json()
    assert found["content"] == ask(server)["content"]
    assert [one["index"] for one in ask(server, n=2)] == [one["index"] for one in ask(server, n_cmpl=2)]


def test_no_drafts_at_all(server: Running) -> None:
    repeats = {"prompt": "the fox the fox the fox the fox", "n_predict": 40}
    drafted = ask(server, **repeats)
    assert drafted["timings"]["draft_n"] > 0
    plain = ask(server, **repeats, **{"speculative.n_max": 0})
    assert plain["timings"].get("draft_n", 0) == 0
    assert plain["content"] == drafted["content"]


def test_several_prompts(server: Running) -> None:
    ids = server.pipeline.tokenizer.encode("b")
    one, two = ask(server, prompt="a"), ask(server, prompt="b")
    found = ask(server, prompt=["a", "b"])
    assert [entry["content"] for entry in found] == [one["content"], two["content"]]
    assert [entry["index"] for entry in found] == [0, 1]
    assert [entry["content"] for entry in ask(server, prompt=[["a"], ids])] == [
        one["content"],
        two["content"],
    ]
    assert [entry["content"] for entry in ask(server, prompt=["a"])] == [one["content"]]
    texts = ["", ""]
    for event in events_of(server.post("/completion", {**FEW, "prompt": ["a", "b"], "stream": True})):
        texts[event["index"]] += event["content"]
    assert texts == [one["content"], two["content"]]


def test_a_stream_brings_the_same(server: Running) -> None:
    whole = ask(server, return_tokens=True)
    *parts, last = events_of(server.post("/completion", {**FEW, "stream": True}))
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert {part["stop"] for part in parts} == {False}
    same = ("tokens_predicted", "tokens_evaluated", "stop_type", "generation_settings", "prompt")
    assert {name: last[name] for name in same} == {name: whole[name] for name in same}
    assert (last["content"], last["stop"]) == ("", True)


def test_why_it_stopped(server: Running) -> None:
    text = ask(server)["content"]
    cut = ask(server, stop=[text[3:6]])
    assert (cut["stop_type"], cut["stopping_word"]) == ("word", text[3:6])
    assert cut["content"] == text[: text.index(text[3:6])]
    with scripted(server, "all"):
        assert ask(server)["stop_type"] == "eos"


def test_the_prompt_alone(server: Running) -> None:
    """Editors send it to fill the cache."""
    found = ask(server, n_predict=0)
    assert (found["content"], found["tokens_predicted"], found["stop_type"]) == ("", 0, "limit")
    (event,) = events_of(server.post("/completion", {**FEW, "n_predict": 0, "stream": True}))
    assert (event["content"], event["stop"]) == ("", True)


def test_without_a_limit_it_goes_on_to_the_end_of_the_context(target_file: Path) -> None:
    with running(toy_pipeline(target_file)) as server:
        for more in ({"n_predict": -1}, {"n_predict": None}):
            found = ask(server, **more)
            assert found["tokens_cached"] == 256


def test_probabilities(server: Running) -> None:
    whole = ask(server, n_probs=2)
    entries = whole["completion_probabilities"]
    assert len(entries) == 20
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert b"".join(bytes(e["bytes"]) for e in entries).decode(errors="replace") == whole["content"]
    parts = events_of(server.post("/completion", {**FEW, "n_probs": 2, "stream": True}))
    assert [e for part in parts for e in part.get("completion_probabilities", [])] == entries


def test_forms_and_biases(server: Running) -> None:
    schema = {"enum": [{"a": 1}, {"a": 2}]}
    free = {"ignore_eos": False, "n_predict": 200}
    assert json.loads(ask(server, json_schema=schema, **free)["content"]) in schema["enum"]
    assert ask(server, grammar='root ::= "ye" "s"', **free)["content"] == "yes"
    token = server.pipeline.tokenizer.encode("b", add_special=False)[0]
    for biases in ([[token, 100]], [["b", 100.0]], {"b": 100}, {str(token): 100}):
        assert ask(server, logit_bias=biases, temperature=0, n_predict=4)["content"] == "bbbb"
    first = ask(server, temperature=0, n_predict=1, return_tokens=True)["tokens"][0]
    other = ask(server, temperature=0, n_predict=1, return_tokens=True, logit_bias=[[first, False]])["tokens"]
    assert other != [first]


def test_what_changes_nothing_is_accepted(server: Running) -> None:
    neutral: dict[str, Any] = {
        **{
            "cache_prompt": True,
            "id_slot": -1,
            "n_keep": 0,
            "timings_per_token": True,
            "samplers": ["top_k"],
        },
        **{"typical_p": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "dry_multiplier": 0.0, "dry_base": 1.75},
        **{"xtc_probability": 0, "dynatemp_range": 0.0, "min_keep": 0, "repeat_last_n": 64, "lora": []},
        **{
            "seed": -1,
            "top_k": 40.0,
            "t_max_predict_ms": 0,
            "response_fields": None,
            "return_progress": True,
            "adaptive_target": -1.0,
            "n_probs": 0,
            "grammar": "",
        },
        "speculative.n_max": 8,
    }
    for name, value in neutral.items():
        answer = server.post("/completion", {"prompt": "a", "n_predict": 2, name: value})
        assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": ["a", ""]}, "the prompt is empty"),
        ({"prompt": [[1], []]}, "the prompt is empty"),
        ({"prompt": [999]}, "999"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["eA=="]}}, "text only"),
        ({"prompt": {"prompt_string": ""}}, "the prompt is empty"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [1, {"prompt_string": "a"}]}, "prompt.1: Input should be"),
        ({"prompt": ["a", {"prompt_string": "a", "b": 1}]}, "unknown field 'b'"),
        ({"mirostat": 2}, "mirostat is refused: this sampler is not built"),
        ({"image_data": [{"data": "", "id": 1}]}, "image_data is refused"),
        ({"n_predic": 2}, "did you mean 'n_predict'"),
        ({"max_tokens": 2}, "n_predict and max_tokens differ"),
        ({"n": 2, "n_cmpl": 3}, "n_cmpl and n differ"),
        ({"samplers": ["bogus"]}, '"bogus", which is none of'),
        ({"samplers": [1]}, "samplers"),
        ({"speculative.n_max": -1}, "speculative.n_max"),
        ({"grammar_lazy": True}, "grammar_lazy is refused"),
        ({"n_probs": 10**6}, "n_probs must be from 0 to 20"),
        ({"prompt": [[-1], "a"]}, "prompt"),
        ({"temperature": "hot"}, "temperature"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"grammar": 'root ::= "a"', "json_schema": {"type": "object"}}, "give one of"),
    ],
)
def test_what_is_refused(server: Running, body: dict[str, Any], message: str) -> None:
    error = error_of(server.post("/completion", {**FEW, **body}), 400)
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]


def test_apply_template(templated: Running) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [tool]}
    assert templated.post("/apply-template", body).json() == {"prompt": "tools now;[user|a][assistant|"}
    ended = {**body, "add_generation_prompt": False}
    assert templated.post("/apply-template", ended).json() == {"prompt": "tools now;[user|a]"}
    assert "messages" in error_of(templated.post("/apply-template", {"messages": []}), 400)["message"]


def test_the_server(roomy_file: Path) -> None:
    with (
        running(toy_pipeline(roomy_file, "ngram", slow=True, max_num_seqs=2)) as server,
        server.http() as http,
    ):
        props = http.get("/props").json()
        assert (props["total_slots"], props["model_alias"]) == (2, MODEL)
        assert props["default_generation_settings"]["n_ctx"] == 4096
        assert props["chat_template"] == server.pipeline.source.chat_template
        assert not Path(props["model_path"]).is_absolute()
        slots = http.get("/slots").json()
        assert [(slot["id"], slot["is_processing"], slot["speculative"]) for slot in slots] == [
            (0, False, True),
            (1, False, True),
        ]
        body = {"prompt": ["a", "b"], "n_predict": 2000, "stream": True, "ignore_eos": True}
        with http.stream("POST", "/completion", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.until(lambda: server.engine.stats.running == 2)
            with server.http() as other:
                assert all(slot["is_processing"] for slot in other.get("/slots").json())
                assert error_of(other.get("/slots?fail_on_no_slot=1"), 503)["type"] == "unavailable_error"
        assert error_of(server.post("/props", {}), 405)


def test_llama_cpps_tokens(server: Running) -> None:
    tokenizer = server.pipeline.tokenizer
    ids = tokenizer.encode("the fox", add_special=False)
    assert server.post("/tokenize", {"content": "the fox"}).json() == {"tokens": ids}
    special = server.post("/tokenize", {"content": "the fox", "add_special": True}).json()["tokens"]
    assert special == tokenizer.encode("the fox")
    mark = "<|im_end|>"
    assert len(server.post("/tokenize", {"content": mark}).json()["tokens"]) == 1
    plain = server.post("/tokenize", {"content": mark, "parse_special": False}).json()["tokens"]
    assert plain == tokenizer.encode(mark, add_special=False, parse_special=False)
    assert len(plain) > 1
    pieces = server.post("/tokenize", {"content": "aé", "with_pieces": True}).json()["tokens"]
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert raw.decode() == "aé"
    assert [p["id"] for p in pieces] == tokenizer.encode("aé", add_special=False)
    assert server.post("/tokenize", {"content": ""}).json() == {"tokens": []}
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": "the fox", "content": "the fox"}
    assert server.post("/tokenize", {"content": "a", "prompt": "a"}).status_code == 400


def test_tokenizer_info(server: Running) -> None:
    tokenizer = server.pipeline.tokenizer
    with server.http() as http:
        found = http.get("/tokenizer_info").json()
    assert found["vocab_size"] == tokenizer.vocab_size
    assert found["model_max_length"] == 4096
    assert found["eos_token"] == tokenizer.named_tokens["eos_token"]
    assert found["chat_template"] == server.pipeline.source.chat_template


def test_the_eos_token_is_the_tokenizers_own(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first id that ends a text, which generation_config.json chooses."""
    tokenizer = server.pipeline.tokenizer
    assert tokenizer.eos_id is not None
    monkeypatch.setattr(tokenizer, "eos_ids", (tokenizer.eos_id + 1, tokenizer.eos_id))
    own = tokenizer.pieces.texts[tokenizer.eos_id]
    with server.http() as http:
        assert [http.get(path).json()["eos_token"] for path in ("/props", "/tokenizer_info")] == [own, own]


@pytest.mark.parametrize("path", REFUSED)
def test_paths_of_other_servers_say_why_not(server: Running, path: str) -> None:
    answer = server.post(path, {"input": "a"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["message"].startswith(f"{path} is not there: ")
    assert error["code"] == "not_supported"


def test_the_client_is_told_that_there_are_no_embeddings(server: Running) -> None:
    with server.client() as client, pytest.raises(openai.NotFoundError, match="computes no embeddings"):
        client.embeddings.create(model=MODEL, input="a")


def test_head_is_answered_as_get(server: Running) -> None:
    with server.http() as http:
        for path in ("/health", "/ping", "/v1/models", "/version", "/props", "/"):
            head, get = http.head(path), http.get(path)
            assert head.status_code == get.status_code == 200
            assert not head.content
            assert head.headers["content-length"] == get.headers["content-length"]
        assert http.head("/nothing").status_code == 404
        assert http.head("/v1/completions").status_code == 405
