"""/v1/chat/completions through the official client, and the paths about models and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from tests.server.http_support import MODEL, Running, running, toy_pipeline

HI = [{"role": "system", "content": "be"}, {"role": "user", "content": "the fox"}]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
    "{% if tools %}tools {{ tools | length }}{% endif %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }}{% endif %}{{ extra }}"
    "{% for d in documents or [] %}doc {{ d.text }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant|{% endif %}"
)


def chat(server: Running, *, extra: Any = None, messages: Any = HI, **arguments: Any) -> Any:
    with server.client() as client:
        given: dict[str, Any] = {"model": MODEL, "messages": messages, "extra_body": extra, **arguments}
        found = client.chat.completions.create(**given)
        return list(found) if arguments.get("stream") else found


@pytest.fixture(scope="module")
def templated(roomy_file: Path) -> Iterator[Running]:
    """A server with a template of its own, which requests may replace."""
    pipeline = toy_pipeline(roomy_file)
    with running(pipeline, chat_template=TEMPLATE, trust_request_chat_template=True) as made:
        yield made


def prompt_of(server: Running, body: dict[str, Any]) -> str:
    """A conversation's prompt, by way of its tokens."""
    answer = server.post("/v1/chat/completions", {"max_tokens": 1, "return_token_ids": True, **body})
    assert answer.status_code == 200, answer.text
    ids = answer.json()["prompt_token_ids"]
    return server.pipeline.tokenizer.decode(ids, skip_special=False)


def test_the_text_is_that_of_the_library(server: Running) -> None:
    params: dict[str, Any] = {"seed": 5, "temperature": 0.9, "max_tokens": 20}
    llm = LLM.from_pipeline(server.pipeline)
    expected = llm.chat(HI, SamplingParams(ignore_eos=True, **params))[0]
    found = chat(server, extra={"ignore_eos": True}, **params)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.outputs[0].text)
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "length"
    assert found.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert (found.object, found.id[:9]) == ("chat.completion", "chatcmpl-")


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_brings_the_same_text(server: Running, n: int) -> None:
    params: dict[str, Any] = {"n": n, "seed": 6, "max_completion_tokens": 25, "extra": {"ignore_eos": True}}
    whole = chat(server, **params)
    texts, roles, reasons = [""] * n, [0] * n, [None] * n
    chunks = chat(server, stream=True, stream_options={"include_usage": True}, **params)
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        roles[choice.index] += choice.delta.role == "assistant"
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [c.message.content for c in whole.choices]
    assert roles == [1] * n
    assert reasons == ["length"] * n
    assert chunks[-1].usage == whole.usage


def test_without_a_limit_it_goes_on_to_the_end_of_the_context(target_file: Path) -> None:
    with running(toy_pipeline(target_file)) as server:
        found = chat(server, extra={"ignore_eos": True}, seed=1)
        assert found.usage.total_tokens == server.pipeline.context == 256


def test_logprobs(server: Running) -> None:
    params: dict[str, Any] = {"seed": 3, "max_tokens": 6, "extra": {"ignore_eos": True}}
    choice = chat(server, logprobs=True, top_logprobs=2, **params).choices[0]
    content = choice.logprobs.content
    assert len(content) == 6
    assert b"".join(bytes(c.bytes) for c in content).decode(errors="replace") == choice.message.content
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.logprob <= entry.top_logprobs[0].logprob
    chunks = chat(server, logprobs=True, top_logprobs=2, stream=True, **params)
    streamed = [e for c in chunks for e in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert streamed == content
    alone = chat(server, logprobs=True, **params).choices[0].logprobs.content
    assert [e.top_logprobs for e in alone] == [[]] * 6
    told = chat(server, max_tokens=1, extra={"prompt_logprobs": 0}).prompt_logprobs
    assert told[0] is None
    assert all(len(entry) == 1 for entry in told[1:])


def test_structured_output(server: Running) -> None:
    schema = {"enum": [{"a": 1}, {"a": 2}]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for extra in (
        {"structured_outputs": {"json": schema, "disable_any_whitespace": True}},
        {"guided_json": schema, "guided_whitespace_pattern": " ?"},
        {"response_format": form, "guided_whitespace_pattern": " ?"},
    ):
        choice = chat(server, seed=1, max_tokens=40, extra=extra).choices[0]
        assert json.loads(choice.message.content) in schema["enum"]
        assert choice.finish_reason == "stop"


def test_what_templates_are_given(templated: Running) -> None:
    hi = {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]}
    assert prompt_of(templated, hi) == "[system|a][assistant|"
    assert prompt_of(templated, {**hi, "add_generation_prompt": False}) == "[system|a]"
    more = {**hi, "chat_template_kwargs": {"extra": "more"}}
    assert prompt_of(templated, more) == "[system|a]more[assistant|"
    assert prompt_of(templated, {**hi, "reasoning_effort": "low"}) == "[system|a]effort low[assistant|"
    assert prompt_of(templated, {**hi, "documents": [{"text": "d"}]}) == "[system|a]doc d[assistant|"
    brought = {**hi, "chat_template": "{{ messages[0].content }}!"}
    assert prompt_of(templated, brought) == "a!"
    last = {"messages": [{"role": "assistant", "content": "half a "}], "continue_final_message": True}
    assert prompt_of(templated, last) == "[assistant|half a "
    lines = {"messages": [{"role": "assistant", "content": "one\n"}], "continue_final_message": True}
    assert prompt_of(templated, lines) == "[assistant|one\n"
    lines["messages"] = [{"role": "assistant", "content": [{"type": "text", "text": "one\n"}]}]
    assert prompt_of(templated, lines) == "[assistant|one\n"
    nothing = [{"role": "assistant", "content": None}, {"role": "user", "content": "a"}]
    assert prompt_of(templated, {"messages": nothing}) == "[assistant|][user|a][assistant|"
    answer = templated.post("/v1/chat/completions", {**last, "echo": True, "max_tokens": 2, "seed": 1}).json()
    assert answer["choices"][0]["message"]["content"].startswith("half a ")


def test_templates_that_fail_do_not_affect_other_requests(templated: Running) -> None:
    for template, message in (
        ("{% for x in range(10**9) %}{% for y in range(10**9) %}{% endfor %}{% endfor %}", "failed"),
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
        ("{% if %}", "failed"),
    ):
        body = {"messages": HI, "chat_template": template, "max_tokens": 1}
        answer = templated.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    assert prompt_of(templated, {"messages": [{"role": "user", "content": "b"}]}) == "[user|b][assistant|"


def test_logprobs_of_chosen_tokens(server: Running) -> None:
    given: dict[str, Any] = {"logprob_token_ids": [5], "return_tokens_as_token_ids": True}
    for allowed, top in ((5, 0), (42, 0), (42, 3)):
        extra = {**given, "allowed_token_ids": [allowed]}
        found = chat(server, extra=extra, logprobs=True, top_logprobs=top, max_tokens=2).choices[0]
        for entry in found.logprobs.content:
            assert entry.token == f"token_id:{allowed}"
            names = [part.token for part in entry.top_logprobs]
            assert sorted(names) == sorted({f"token_id:{allowed}", "token_id:5"})


DEFAULTS: dict[str, Any] = {
    "template_variables": {"extra": "quick"},
    "usage_in_streams": True,
    "tokens_as_ids": True,
}


def test_what_a_server_says_for_requests_that_do_not(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file), chat_template=TEMPLATE, **DEFAULTS) as made:
        body: dict[str, Any] = {"messages": HI}
        assert "quick" in prompt_of(made, body)
        assert "quick" not in prompt_of(made, {**body, "chat_template_kwargs": {"extra": "?"}})
        tokens = made.post("/tokenize", body).json()["tokens"]
        assert "quick" in made.pipeline.tokenizer.decode(tokens, skip_special=False)
        scored = {"logprobs": True, "max_tokens": 2}
        assert chat(made, **scored).choices[0].logprobs.content[0].token.startswith("token_id:")
        plain = chat(made, extra={"return_tokens_as_token_ids": False}, **scored).choices[0]
        assert not plain.logprobs.content[0].token.startswith("token_id:")
        chunks = chat(made, stream=True, max_tokens=4, extra={"ignore_eos": True})
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (0, 4), "the opening chunk has no token yet"
        assert not chunks[-1].choices
        texts = list(made.client().completions.create(model=MODEL, prompt="a", max_tokens=3, stream=True))
        assert all(chunk.usage is not None for chunk in texts)


@pytest.mark.parametrize("most", [-1, 320, 5000])
def test_all_logprobs_where_the_limit_is_no_less(roomy_file: Path, most: int) -> None:
    with running(toy_pipeline(roomy_file), max_logprobs=most) as made:
        size = made.pipeline.vocab_size
        assert size <= 320
        for top in (-1, size):
            found = chat(made, logprobs=True, top_logprobs=top, max_tokens=1, extra={"prompt_logprobs": top})
            assert len(found.choices[0].logprobs.content[0].top_logprobs) == size
            assert len(found.prompt_logprobs[1]) == size


def test_variables_that_are_not_a_templates_to_set_are_refused(roomy_file: Path) -> None:
    for name in ("messages", "a-b"):
        with (
            pytest.raises(ConfigError, match=f"--chat-template-kwargs has '{name}'"),
            running(toy_pipeline(roomy_file), template_variables={name: 1}),
        ):
            pass


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": "hello"}, "messages", "valid list"),
        ({"messages": [{"role": "user"}]}, None, "has no content"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens must be"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages.0.role", "'system'"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
         None, "'image_url'; only text"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
         None, "'input_audio'; only text"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        ({"top_logprobs": 1}, "top_logprobs", "needs logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 30}, "top_logprobs", "from 0 to 20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "from 0 to 20"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "by token id; 'a' is none"),
        ({"logit_bias": {"a": 1, "5": 1, "b": 2}}, "logit_bias", "2 keys are none: 'a', 'b'"),
        ({"chat_template": "x"}, "chat_template", "--trust-request-chat-template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages'"),
        ({"reasoning_effort": "much"}, "reasoning_effort", "must be one of none, minimal, low"),
        ({"continue_final_message": True, "add_generation_prompt": True},
         "add_generation_prompt", "contradict"),
        ({"functions": [{"name": "x"}]}, "functions", 'functions=[{"name": "x"}] is refused: use tools'),
        ({"function_call": {"name": "x"}}, "function_call", "use tool_choice"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"response_format": {"type": "json_schema", "json_schema": {"shema": {}}}},
         "response_format.json_schema.shema", "did you mean 'schema'"),
        ({"message": []}, "message", "did you mean 'messages'"),
    ],
)  # fmt: skip
def test_what_is_refused(server: Running, body: dict[str, Any], param: str | None, message: str) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1, **body})
    if "max_completion_tokens" in body and "max_tokens" not in body:
        answer = server.post("/v1/chat/completions", {"messages": HI, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        {"store": True, "metadata": {"a": "b"}},
        {"functions": [], "function_call": "none"},
        {"reasoning_effort": "low"},
        {"reasoning_effort": "none"},
        {"max_tokens": -1, "stop_token_ids": list(range(320))},
        {"max_completion_tokens": 8.0, "seed": -3.0},
        {"stream_options": {"include_usage": False}},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"messages": [{**HI[1], "cache_control": {"type": "ephemeral"}}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "fox", "cache_control": {"type": "ephemeral"}}],
                }
            ]
        },
    ],
)
def test_what_changes_nothing_is_accepted(server: Running, body: dict[str, Any]) -> None:
    given = {"messages": HI, "max_tokens": 8, "seed": 1, **body}
    if "max_completion_tokens" in body:
        del given["max_tokens"]
    answer = server.post("/v1/chat/completions", given)
    assert answer.status_code == 200, answer.text


def test_reasoning_effort_turns_thoughts_off(templated: Running) -> None:
    thinks = (
        "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
    )
    body: dict[str, Any] = {"messages": [HI[1]], "chat_template": thinks}
    for effort, text in ((None, "the fox"), ("none", "the fox!"), ("low", "the fox")):
        assert prompt_of(templated, {**body, "reasoning_effort": effort}) == text
    assert prompt_of(templated, {**body, "thinking": {"type": "disabled"}}) == "the fox!"
    assert prompt_of(templated, {**body, "enable_thinking": False}) == "the fox!"
    kept = {**body, "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    assert prompt_of(templated, kept) == "the fox"


def test_a_model_without_a_template_is_reported(tmp_path: Path) -> None:
    from tests.support.models import tiny_gguf

    bare = tiny_gguf(tmp_path / "bare.gguf", keys={"tokenizer.chat_template": None})
    with running(toy_pipeline(bare)) as server:
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            chat(server)
        answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert answer.status_code == 200


def test_models(server: Running) -> None:
    with server.client() as client:
        assert [m.id for m in client.models.list().data] == [MODEL, "other"]
        assert client.models.retrieve("other").id == "other"
        with server.http() as http:
            for path in ("/models", "/models/", "/v1/models/"):
                assert [model["id"] for model in http.get(path).json()["data"]] == [MODEL, "other"]
        with pytest.raises(openai.NotFoundError, match="not served here"):
            client.models.retrieve("gpt/5")
        with pytest.raises(openai.NotFoundError, match="'tiny', 'other'"):
            client.completions.create(model="gpt", prompt="a")


def test_tokens_there_and_back(server: Running) -> None:
    tokenizer = server.pipeline.tokenizer
    found = server.post("/tokenize", {"prompt": "the fox", "return_token_strs": True}).json()
    ids = tokenizer.encode("the fox")
    assert found == {
        "count": len(ids),
        "max_model_len": 4096,
        "tokens": ids,
        "token_strs": [tokenizer.pieces.texts[i] for i in ids],  # as the vocabulary writes them
    }
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": "the fox", "content": "the fox"}
    talk = server.post("/tokenize", {"messages": HI}).json()
    assert tokenizer.decode(talk["tokens"], skip_special=False).endswith("<|im_start|>assistant\n")
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": HI}),
        ("/detokenize", {"tokens": [320]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
    ):
        assert server.post(path, body).status_code == 400
