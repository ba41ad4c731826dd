"""/v1/completions through the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from outrider import LLM, SamplingParams
from tests.server.http_support import MODEL, Running, running, toy_pipeline

PROMPT = "the quick brown fox"


def complete(server: Running, **arguments: Any) -> Any:
    extra = {k: arguments.pop(k) for k in list(arguments) if k in EXTRA}
    with server.client() as client:
        found = client.completions.create(
            **{"model": MODEL, "prompt": PROMPT, "extra_body": extra, **arguments}
        )
        return list(found) if arguments.get("stream") else found


EXTRA = (
    *(
        "ignore_eos",
        "top_k",
        "min_p",
        "repetition_penalty",
        "return_token_ids",
        "prompt_logprobs",
        "speculative",
    ),
    *(
        "outrider",
        "guided_regex",
        "guided_choice",
        "regex",
        "min_tokens",
        "stop_token_ids",
        "allowed_token_ids",
    ),
    *("logprob_token_ids", "truncation_side"),
    *("bad_words", "truncate_prompt_tokens", "include_stop_str_in_output", "return_tokens_as_token_ids"),
    *(
        "guided_json",
        "guided_grammar",
        "json_schema",
        "structured_outputs",
        "response_format",
        "cache_salt",
        "skip_special_tokens",
    ),
)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0, "max_tokens": 20},
        {"seed": 7, "max_tokens": 30, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "ignore_eos": True},
        {"seed": 8, "max_tokens": 20, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"seed": 9, "max_tokens": 12, "repetition_penalty": 1.3, "bad_words": ["a"], "min_tokens": 12},
        {"seed": 10, "max_tokens": 40, "stop": ["e", "x"], "include_stop_str_in_output": True},
        {"seed": 11, "max_tokens": 40, "allowed_token_ids": [70, 71, 72], "stop_token_ids": [72]},
        {"seed": 12, "max_tokens": 12, "regex": "[a-c]{8}"},
        {"seed": 13, "max_tokens": 4, "truncate_prompt_tokens": 3, "skip_special_tokens": False},
    ],
)
def test_the_text_is_that_of_the_library(server: Running, params: dict[str, Any]) -> None:
    llm = LLM.from_pipeline(server.pipeline)
    expected = llm.generate(PROMPT, SamplingParams(**params))[0].outputs[0]
    choice = complete(server, return_token_ids=True, **params).choices[0]
    assert choice.token_ids == expected.token_ids
    assert choice.text == expected.text
    assert (choice.finish_reason, choice.stop_reason) == (expected.finish_reason, expected.stop_reason)


def test_usage_and_what_stands_around_a_choice(server: Running) -> None:
    found = complete(server, max_tokens=9, ignore_eos=True, seed=1)
    size = len(server.pipeline.tokenizer.encode(PROMPT))
    assert (found.object, found.model, found.id[:5]) == ("text_completion", MODEL, "cmpl-")
    assert found.system_fingerprint.startswith("fp_")
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (size, 9, size + 9)
    assert complete(server, model="other", max_tokens=1).model == "other"


def test_usage_reports_cached_prompt_tokens(server: Running) -> None:
    """Whole blocks of 16; not what samples of one request find of each other."""
    prompt = [9, *range(40, 139)]

    def cached(prompts: Any, **params: Any) -> int:
        usage = complete(server, prompt=prompts, max_tokens=1, seed=1, **params).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    assert cached(prompt, n=2) == 0
    assert cached(prompt) == 96
    assert cached([prompt, [8, *prompt]], n=2) == 96


def test_all_kinds_of_prompts(server: Running) -> None:
    ids = server.pipeline.tokenizer.encode(PROMPT)
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    one = complete(server, **params).choices[0].text
    assert complete(server, prompt=ids, **params).choices[0].text == one
    for several in ([PROMPT, "dog"], [ids, server.pipeline.tokenizer.encode("dog")]):
        found = complete(server, prompt=several, n=2, **params)
        assert [c.index for c in found.choices] == [0, 1, 2, 3]
        assert [c.text for c in found.choices[:2]] == [one, one]
        assert found.choices[2].text == found.choices[3].text != one


def test_samples_differ_and_each_can_be_had_again(server: Running) -> None:
    found = complete(server, n=3, seed=4, max_tokens=12, ignore_eos=True, outrider=True)
    texts = [c.text for c in found.choices]
    assert len(set(texts)) == 3
    seeds = [c.outrider["seed"] for c in found.choices]
    assert seeds[0] == 4
    again = [complete(server, seed=s, max_tokens=12, ignore_eos=True).choices[0].text for s in seeds]
    assert again == texts


def test_unseeded_requests_differ(server: Running) -> None:
    texts = {complete(server, max_tokens=12, ignore_eos=True).choices[0].text for _ in range(3)}
    assert len(texts) == 3


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_brings_the_same_text(server: Running, n: int) -> None:
    params: dict[str, Any] = {"n": n, "seed": 6, "max_tokens": 25, "ignore_eos": True}
    whole = complete(server, **params)
    texts, reasons = [""] * n, [None] * n
    chunks = list(complete(server, stream=True, stream_options={"include_usage": True}, **params))
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [c.text for c in whole.choices]
    assert reasons == ["length"] * n
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_in_every_chunk(server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        complete(server, stream=True, max_tokens=6, ignore_eos=True, seed=1, stream_options=options)
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_server_sent_events_as_bytes(server: Running) -> None:
    answer = server.post("/v1/completions", {"prompt": PROMPT, "stream": True, "max_tokens": 3, "seed": 1})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all("usage" not in json.loads(event.removeprefix("data: ")) for event in events)


def test_logprobs(server: Running) -> None:
    params: dict[str, Any] = {"seed": 3, "max_tokens": 6, "ignore_eos": True}
    expected = LLM.from_pipeline(server.pipeline).generate(PROMPT, SamplingParams(logprobs=3, **params))
    choice = complete(server, logprobs=3, **params).choices[0]
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert found.text_offset == [len("".join(found.tokens[:i])) for i in range(6)]
    entries = expected[0].outputs[0].logprobs
    assert entries is not None
    for token, entry, logprob, top in zip(
        expected[0].outputs[0].token_ids, entries, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert logprob == entry[token].logprob
        assert next(iter(top.values())) == logprob
        assert 1 <= len(top) <= 4  # tokens that are no UTF-8 may have the same text
        assert set(top.values()) <= {part.logprob for part in entry.values()}
    streamed = [c.choices[0] for c in complete(server, logprobs=3, stream=True, **params)]
    assert [t for c in streamed for t in c.logprobs.tokens] == found.tokens
    assert [o for c in streamed for o in c.logprobs.text_offset] == found.text_offset
    by_id = complete(server, logprobs=0, return_tokens_as_token_ids=True, **params).choices[0].logprobs
    assert by_id.tokens == [f"token_id:{t}" for t in expected[0].outputs[0].token_ids]
    assert by_id.text_offset == found.text_offset


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_chosen_tokens(server: Running, stream: bool) -> None:
    """Each position has those, and the token that was written, whatever number `logprobs` says."""
    params: dict[str, Any] = {"seed": 3, "max_tokens": 6, "ignore_eos": True}
    expected = LLM.from_pipeline(server.pipeline).generate(
        PROMPT, SamplingParams(logprob_token_ids=[70, 5], **params)
    )
    (sample,) = expected[0].outputs
    assert sample.logprobs is not None
    wanted = [
        {f"token_id:{token}": entry.logprob for token, entry in entries.items()}
        for entries in sample.logprobs
    ]
    names = {"return_tokens_as_token_ids": True, "logprob_token_ids": [70, 5]}
    found = complete(server, logprobs=1, stream=stream, **names, **params)
    chunks = [c.choices[0].logprobs for c in (found if stream else [found])]
    assert [top for logprobs in chunks for top in logprobs.top_logprobs] == wanted
    for entries, token in zip(sample.logprobs, sample.token_ids, strict=True):
        assert entries.keys() == {70, 5, token}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"logprob_token_ids": [5]}, "needs logprobs"),
        ({"logprob_token_ids": [5000], "logprobs": 1}, "the id 5000"),
        ({"logprob_token_ids": [5] * 129, "logprobs": 1}, "has 129 ids"),
    ],
)
def test_chosen_tokens_that_are_refused(server: Running, body: dict[str, Any], message: str) -> None:
    answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, **body})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_echo_scores_the_prompt(server: Running) -> None:
    expected = LLM.from_pipeline(server.pipeline).generate(
        PROMPT, SamplingParams(prompt_logprobs=1, max_tokens=1)
    )
    scores = expected[0].prompt_logprobs
    assert scores is not None
    found = complete(server, echo=True, logprobs=1, max_tokens=0)
    (choice,) = found.choices
    assert choice.text == PROMPT == "".join(choice.logprobs.tokens)
    ids = server.pipeline.tokenizer.encode(PROMPT)
    own = [None if e is None else e[i].logprob for i, e in zip(ids, scores, strict=True)]
    assert choice.logprobs.token_logprobs == own
    assert found.usage.completion_tokens == 0
    more = complete(server, echo=True, logprobs=1, max_tokens=4, n=2, seed=1)
    for choice in more.choices:
        assert choice.text.startswith(PROMPT)
        assert choice.logprobs.token_logprobs[: len(ids)] == own
        assert len(choice.logprobs.tokens) == len(ids) + 4
    chunks = list(complete(server, echo=True, logprobs=1, max_tokens=4, seed=1, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == more.choices[0].text
    scores = [score for chunk in chunks for score in chunk.choices[0].logprobs.token_logprobs]
    assert scores == more.choices[0].logprobs.token_logprobs


def test_prompt_logprobs_by_token_id(server: Running) -> None:
    choice = complete(server, prompt_logprobs=2, max_tokens=1).choices[0]
    first, *rest = choice.prompt_logprobs
    ids = server.pipeline.tokenizer.encode(PROMPT)
    assert first is None
    assert len(rest) == len(ids) - 1
    for token, entry in zip(ids[1:], rest, strict=True):
        assert {"logprob", "rank", "decoded_token"} == set(entry[str(token)])
        assert len(entry) in (2, 3)


ONE = {"enum": [1, 2]}
SCHEMA = {"properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "form",
    [
        {"guided_json": {"enum": [1, 2]}},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json": {**SCHEMA, "type": "object"}, "disable_any_whitespace": True}},
        {"guided_choice": ["true", "12"]},
        {"response_format": {"type": "json_object", "schema": ONE}},
        {"response_format": {"type": "json_schema", "schema": ONE}},
        {"guided_json": json.dumps(ONE), "structured_outputs": {"json": ONE}, "json_schema": ONE},
        {"guided_grammar": 'start: "5"', "structured_outputs": {"grammar": 'start: "5"'}},
        {"response_format": {"type": "json_object", "schema": {}}},
    ],
)
def test_structured_output(server: Running, form: dict[str, Any]) -> None:
    choice = complete(server, **{"seed": 1, "max_tokens": 100, "temperature": 0.5, **form}).choices[0]
    schema = form.get("response_format", {"schema": SCHEMA}).get("schema")
    if not schema:  # an object of any length: it may not end
        assert choice.text.startswith("{")
    else:
        assert choice.finish_reason == "stop"
        json.loads(choice.text)


def test_how_tokens_came_about(server: Running) -> None:
    params: dict[str, Any] = {"prompt": "abc abc abc", "seed": 1, "temperature": 0.4, "max_tokens": 60}
    params["ignore_eos"] = True
    choice = complete(server, outrider=True, **params).choices[0]
    told = choice.outrider
    assert "".join(t["text"] for t in told["tokens"]) == choice.text
    kinds = [t["kind"] for t in told["tokens"]]
    assert set(kinds) <= {"accepted", "recovered", "bonus"}
    assert kinds.count("accepted") == told["metrics"]["num_accepted_tokens"] > 0
    accepted = [t for t in told["tokens"] if t["kind"] == "accepted"]
    assert {t.get("source") for t in accepted} == {"ngram"}
    streamed = list(complete(server, stream=True, stream_options={"include_outrider": True}, **params))
    assert [t for c in streamed for t in c.outrider["tokens"]] == told["tokens"]
    assert streamed[-1].outrider["metrics"]["num_drafts"] == told["metrics"]["num_drafts"]


def test_speculation_by_request(server: Running) -> None:
    params: dict[str, Any] = {"prompt": "abc abc abc", "seed": 1, "temperature": 0.4, "max_tokens": 60}
    params["ignore_eos"] = True
    drafted = complete(server, outrider=True, **params).choices[0]
    for off in (False, {"method": "none"}, {"num_speculative_tokens": 0}):
        plain = complete(server, outrider=True, speculative=off, **params).choices[0]
        assert plain.text == drafted.text
        assert {t["kind"] for t in plain.outrider["tokens"]} == {"plain"}
        assert plain.outrider["metrics"]["num_drafts"] == 0
    for on in (
        True,
        {"method": "auto"},
        {"method": "ngram"},
        {"method": "ngram", "num_speculative_tokens": 1},
    ):
        again = complete(server, outrider=True, speculative=on, **params).choices[0]
        assert again.text == drafted.text
        metrics = again.outrider["metrics"]
        assert metrics["num_draft_tokens"] > 0
    assert metrics["num_draft_tokens"] == metrics["num_drafts"]
    with pytest.raises(openai.BadRequestError, match="'draft_model' is not available: this server has ngram"):
        complete(server, speculative={"method": "draft_model"})


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt", "empty"),
        ({"prompt": [1, 320]}, "prompt", "0..319"),
        ({"prompt": [[-1]]}, "prompt.0.0", "greater than or equal to 0"),
        ({"prompt": "a" * 100_000}, "prompt", "cannot hold more than"),
        ({"guided_choice": ["a" * 60_000, "b" * 60_000]}, "guided_choice", "at most 100000"),
        ({"suffix": "x"}, "suffix", "suffix is refused"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": [5] * 4096}, "prompt", "maximum context length is 4096"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "from 0 to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not streamed"),
        ({"echo": True, "logprobs": 1, "n": 2, "stream": True}, "echo", "not streamed"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"best_of": 3}, "best_of", "must equal n"),
        ({"n": 129}, "n", "129 samples are too many"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"seed": 2**64}, "seed", "less than or equal"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "by token id"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100"),
        ({"min_tokens": 9, "max_tokens": 8}, None, "min_tokens"),
        ({"stop": [""]}, None, "stop"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "two forms"),
        ({"guided_regex": "("}, None, "the regex cannot be used"),
        ({"guided_json": {"type": "strin"}}, None, "the JSON schema cannot be used"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, None, "json and regex"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "needs guided_json"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "did you mean 'include_usage'"),
        ({"logits_processors": ["x"]}, "logits_processors", "no code of a request"),
        ({"max_tokens": -2}, "max_tokens", "greater than or equal to -1"),
        ({"seed": -(2**63) - 1}, "seed", "greater than or equal"),
        ({"logit_bias": [["a"]]}, "logit_bias", 'pairs of a token and a bias; ["a"] is none'),
        ({"logit_bias": [[True, 1]]}, "logit_bias", "by token id"),
        ({"logit_bias": [[1, True]]}, "logit_bias", "a number or false, not true"),
        ({"logit_bias": {"7": True}}, "logit_bias", "a number or false, not true"),
        ({"mirostat": 2}, "mirostat", "mirostat=2 is refused"),
        ({"n_predict": 3}, "n_predict", "n_predict and max_tokens differ"),
        ({"use_beam_search": True}, "use_beam_search", "no beam search"),
        ({"prompt": "\ud800"}, None, "surrogate"),
    ],
)
def test_what_is_refused(server: Running, body: dict[str, Any], param: str | None, message: str) -> None:
    text = json.dumps({"prompt": "a", "max_tokens": 1, **body})
    with server.http() as http:
        answer = http.post("/v1/completions", content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == param


def test_the_names_of_llama_cpp(server: Running) -> None:
    def text(**body: Any) -> str:
        answer = server.post("/v1/completions", {"prompt": PROMPT, "seed": 3, **body})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    penalty = text(max_tokens=12, repetition_penalty=1.5)
    assert text(n_predict=12, repeat_penalty=1.5, repeat_last_n=-1) == penalty != text(max_tokens=12)
    ids = server.pipeline.tokenizer.encode(PROMPT, add_special=False)
    banned = text(max_tokens=12, logit_bias=[[ids[0], False], [float(ids[1]), -100], ["dog", 5.5]])
    assert banned == text(max_tokens=12, logit_bias=[["dog", 5.5], [ids[0], False], [ids[1], -100]])
    assert banned != text(max_tokens=12)
    assert text(max_tokens=12, cache_prompt=False) == text(max_tokens=12)
    assert text(max_tokens=12, top_k=1, samplers=["penalties", "temperature"]) == text(max_tokens=12)


def test_a_prompt_that_is_not_to_be_cached_finds_nothing(server: Running) -> None:
    prompt = [7, *range(40, 139)]
    for body, cached in (({}, 0), ({}, 96), ({"cache_prompt": False}, 0), ({"cache_prompt": True}, 96)):
        answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "seed": 1, **body})
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_token_that_is_banned_is_not_written(server: Running) -> None:
    params: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1, "return_token_ids": True}

    def token(**more: Any) -> int:
        answer = server.post("/v1/completions", {**params, **more})
        return int(answer.json()["choices"][0]["token_ids"][0])

    first = token()
    assert token(logit_bias=[[first, False]]) != first
    assert token(logit_bias={str(first): False}) != first
    assert token(logit_bias=[[first, 100]]) == first


def test_negative_seeds_are_seeds(server: Running) -> None:
    params: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    texts = [complete(server, seed=seed, **params).choices[0].text for seed in (-2, 2**64 - 2, -2, -3)]
    assert texts[0] == texts[1] == texts[2] != texts[3]
    told = complete(server, seed=-2, outrider=True, **params).choices[0].outrider["seed"]
    assert told == 2**64 - 2
    assert LLM.from_pipeline(server.pipeline).generate(PROMPT, SamplingParams(seed=-2, **params))[0].outputs[
        0
    ].text == texts[0]  # fmt: skip


def test_more_than_the_context_holds_ends_with_length(server: Running) -> None:
    prompt = [5] * 4090
    params: dict[str, Any] = {"prompt": prompt, "seed": 1, "ignore_eos": True}
    found = complete(server, max_tokens=100_000, outrider=True, **params)
    (choice,) = found.choices
    assert (choice.finish_reason, found.usage.completion_tokens) == ("length", 6)
    (warning,) = choice.outrider["warnings"]
    assert warning == (
        "max_tokens is 100000, and after the prompt's 4090 tokens the context of 4096 has room for 6: "
        "the text ends there"
    )
    streamed = list(complete(server, max_tokens=7, stream=True, outrider=True, **params))
    assert streamed[-1].choices[0].finish_reason == "length"
    assert streamed[-1].outrider["warnings"][0].startswith("max_tokens is 7")
    for fits in (6, -1):
        exact = complete(server, max_tokens=fits, outrider=True, **params)
        assert exact.usage.completion_tokens == 6
        assert "warnings" not in exact.choices[0].outrider
    llm = LLM.from_pipeline(server.pipeline)
    own = llm.generate({"prompt_token_ids": prompt}, SamplingParams(seed=1, max_tokens=99, ignore_eos=True))
    assert (own[0].outputs[0].text, own[0].outputs[0].finish_reason) == (choice.text, "length")


def test_a_prompt_that_fills_the_context_has_a_code(server: Running) -> None:
    for prompt in ([5] * 4096, [5] * 5000, "a" * 100_000):
        error = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).json()["error"]
        assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("most", [None, 1, 100])
def test_a_truncated_prompt_leaves_room(server: Running, most: int | None) -> None:
    body = {"prompt": [5] * 4200, "truncate_prompt_tokens": -1, "seed": 1, "ignore_eos": True}
    usage = server.post("/v1/completions", {**body, "max_tokens": most}).json()["usage"]
    wanted = 16 if most is None else most
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4096 - wanted, wanted)


@pytest.mark.parametrize(("side", "kept"), [("left", [6, 7, 8]), ("right", [4, 5, 6]), (None, [6, 7, 8])])
def test_a_prompt_is_truncated_on_one_side(server: Running, side: str | None, kept: list[int]) -> None:
    body = {"prompt": [4, 5, 6, 7, 8], "truncate_prompt_tokens": 3, "truncation_side": side, "max_tokens": 1}
    choice = server.post("/v1/completions", {**body, "return_token_ids": True}).json()["choices"][0]
    assert choice["prompt_token_ids"] == kept


def test_two_bos_tokens_are_told(roomy_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(toy_pipeline(roomy_file)) as server:
        bos = server.pipeline.tokenizer.bos_id
        assert bos is not None
        body = {"prompt": [bos, bos, 9], "max_tokens": 1, "outrider": True, "seed": 1}
        for _ in range(2):
            choice = server.post("/v1/completions", body).json()["choices"][0]
            assert "two BOS tokens" in choice["outrider"]["warnings"][0]
        once = server.post("/v1/completions", {**body, "prompt": [bos, 9]}).json()["choices"][0]
        assert "warnings" not in once["outrider"]
    warned = [r for r in caplog.records if r.levelname == "WARNING" and "two BOS" in r.getMessage()]
    assert len(warned) == 1


def test_fields_that_change_nothing_are_accepted(server: Running) -> None:
    text = complete(server, seed=1, max_tokens=5).choices[0].text
    body = {
        **{
            "prompt": PROMPT,
            "seed": 1,
            "max_tokens": 5,
            "user": "me",
            "metadata": {"a": "b"},
            "store": False,
        },
        **{"service_tier": "auto", "priority": 0, "use_beam_search": False, "best_of": 1, "suffix": None},
        **{"length_penalty": 1.0, "guided_decoding_backend": "auto", "logits_processors": None},
        **{"request_id": "x", "cache_prompt": True, "logit_bias": {}, "stop": None, "n": None, "echo": False},
    }
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == text


def test_a_special_token_that_is_hidden_stops_where_its_text_is_a_stop_string(server: Running) -> None:
    tokenizer = server.pipeline.tokenizer
    special = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i))
    text = tokenizer.decode([special], skip_special=False)
    forced: dict[str, Any] = {"logit_bias": {str(special): 100}, "max_tokens": 5}
    bare: dict[str, Any] = {"ignore_eos": True, "stop": [text]}
    (choice,) = complete(server, **forced, **bare).choices
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("", "stop", text)
    (choice,) = complete(server, **forced, **bare, min_tokens=3, include_stop_str_in_output=True).choices
    assert (choice.text, choice.finish_reason) == (text, "stop")
    *_, last = complete(server, **forced, **bare, stream=True)
    assert (last.choices[0].finish_reason, last.choices[0].stop_reason) == ("stop", text)
    params = SamplingParams(
        logit_bias={special: 100.0}, max_tokens=5, ignore_eos=True, stop=text, temperature=0.0
    )
    (found,) = LLM.from_pipeline(server.pipeline).generate(PROMPT, params)
    assert (found.outputs[0].finish_reason, found.outputs[0].stop_reason) == ("stop", text)
    assert found.outputs[0].token_ids == [special]


def test_offsets_count_the_characters_that_are_sent(server: Running) -> None:
    tokenizer = server.pipeline.tokenizer
    special = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i))
    written = tokenizer.decode([special], skip_special=False)
    params: dict[str, Any] = {"logit_bias": {str(special): 100}, "ignore_eos": True, "max_tokens": 2}
    hidden = complete(server, logprobs=0, **params).choices[0]
    assert (hidden.text, hidden.logprobs.text_offset) == ("", [0, 0])
    shown = complete(server, logprobs=0, skip_special_tokens=False, **params).choices[0]
    assert (shown.text, shown.logprobs.text_offset) == (written * 2, [0, len(written)])
    echoed = complete(server, echo=True, logprobs=0, max_tokens=1, seed=1).choices[0].logprobs
    ids = tokenizer.encode(PROMPT)
    by_id = complete(
        server, echo=True, logprobs=0, max_tokens=1, seed=1, return_tokens_as_token_ids=True
    ).choices[0]
    assert by_id.logprobs.text_offset == echoed.text_offset
    assert echoed.text_offset[len(ids)] == len(PROMPT)
