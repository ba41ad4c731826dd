"""Thoughts in /v1/chat/completions: parted from the answer, counted, and in streams as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.dialect_support import THINKING, scripted
from tests.server.http_support import MODEL, Running, running, toy_pipeline

HI: Any = [{"role": "user", "content": "hi"}]
TEXT = "<think>\nhm, so\n</think>\n\nyes"
CHAT = "/v1/chat/completions"


def ask(server: Running, text: str, *, reason: Any = "stop", size: Any = 3, **fields: Any) -> dict[str, Any]:
    with scripted(server, text, reason=reason, size=size):
        answer = server.post(CHAT, {"model": MODEL, "messages": HI, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def streamed(server: Running, text: str, *, size: int, **fields: Any) -> tuple[str, str, list[Any]]:
    """Thoughts, content and chunks of a stream."""
    thoughts, content = "", ""
    with scripted(server, text, size=size):
        create: Any = server.client().chat.completions.create
        chunks = list(create(model=MODEL, messages=HI, stream=True, **fields))
    for chunk in chunks:
        for choice in chunk.choices:
            new = choice.delta.to_dict()
            assert new.get("reasoning") == new.get("reasoning_content")
            assert not (thoughts and content and new.get("reasoning")), "thoughts come first"
            thoughts += new.get("reasoning") or ""
            content += new.get("content") or ""
    return thoughts, content, chunks


def test_a_whole_answer(thinking: Running) -> None:
    found = ask(thinking, TEXT)
    message = found["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == (
        "hm, so",
        "hm, so",
        "yes",
    )
    # The text comes in pieces of three characters: from the one that ends <think> to that of </think>.
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}
    assert found["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_stream_in_pieces_of_any_size(thinking: Running, size: int) -> None:
    options = {"stream_options": {"include_usage": True}}
    thoughts, content, chunks = streamed(thinking, TEXT, size=size, **options)
    assert (thoughts, content) == ("hm, so", "yes")
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens > 0
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_an_answer_that_never_leaves_its_thoughts(thinking: Running) -> None:
    found = ask(thinking, "<think>hm, so", reason="length", max_tokens=5)
    choice = found["choices"][0]
    assert choice["message"]["reasoning"] == "hm, so"
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


def test_what_a_request_says_of_its_thoughts(thinking: Running) -> None:
    fields: dict[str, Any]
    for fields in ({"reasoning_format": "none"}, {"separate_reasoning": False}):
        found = ask(thinking, TEXT, **fields)
        message = found["choices"][0]["message"]
        assert (message["content"], message["reasoning"]) == (TEXT, None)
        assert "completion_tokens_details" not in found["usage"]
    for fields in ({"reasoning_format": "auto"}, {"reasoning_format": "deepseek"}):
        assert ask(thinking, TEXT, **fields)["choices"][0]["message"]["content"] == "yes"
    found = ask(thinking, TEXT, include_reasoning=False)
    message = found["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("yes", None, None)
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
    thoughts, content, _ = streamed(thinking, TEXT, size=3, extra_body={"include_reasoning": False})
    assert (thoughts, content) == ("", "yes")


def test_calls_within_thoughts_are_thoughts(thinking: Running) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "f"}}
    found = ask(thinking, f"<think>{call}?</think>{call}", tools=[tool])
    message = found["choices"][0]["message"]
    assert message["reasoning"] == f"{call}?"
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["f"]
    assert (message["content"], found["choices"][0]["finish_reason"]) == (None, "tool_calls")


def test_thoughts_that_the_prompt_has_opened(thinking: Running) -> None:
    begun = [*HI, {"role": "assistant", "content": "<think>\nlong thoughts that"}]
    found = ask(thinking, " end\n</think>\nyes", messages=begun, continue_final_message=True)
    message = found["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("end", "yes")
    asked = [{"role": "user", "content": "what is <think>"}]
    assert ask(thinking, "a mark", messages=asked)["choices"][0]["message"]["content"] == "a mark"


def test_the_thoughts_of_a_message_reach_the_template(thinking: Running) -> None:
    for name in ("reasoning_content", "reasoning"):
        past = [*HI, {"role": "assistant", "content": "a", name: "why"}, *HI]
        with scripted(thinking, "b") as prompts:
            thinking.post(CHAT, {"messages": past})
        assert "[assistant|(why)a]" in prompts[0]


@pytest.fixture(scope="module")
def channels(roomy_file: Path) -> Iterator[Running]:
    """A server of harmony's format by name, whatever the template says."""
    with running(toy_pipeline(roomy_file), chat_template=THINKING, reasoning_parser="openai_gptoss") as made:
        yield made


@pytest.mark.parametrize("size", [1, 4, 100])
def test_channels(channels: Running, size: int) -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes"
    assert streamed(channels, text, size=size)[:2] == ("hm", "yes")
    message = ask(channels, text)["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "yes")


def test_a_server_that_leaves_thoughts_in_the_text(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file), chat_template=THINKING, reasoning_parser="none") as made:
        found = ask(made, TEXT)
        assert found["choices"][0]["message"]["content"] == TEXT
        assert found["choices"][0]["message"]["reasoning"] is None


def test_samples_are_read_apart(thinking: Running) -> None:
    body = {"messages": HI, "n": 2, "max_tokens": 4, "seed": 1}
    found = thinking.post(CHAT, body).json()
    assert len(found["choices"]) == 2
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def grammar_of(server: Running, **fields: Any) -> str:
    """The grammar that a request's engine gets; "" for none."""
    service = server.server.config.app.state.service  # type: ignore[union-attr]
    seen: list[Any] = []
    submit = service.submit

    def noted(requests: Any) -> Any:
        seen.extend(requests)
        return submit(requests)

    service.submit = noted
    try:
        answer = server.post(CHAT, {"messages": HI, "max_tokens": 1, **fields})
    finally:
        del service.submit
    assert answer.status_code == 200, answer.text
    form = seen[0].params.structured
    return "" if form is None else str(form.grammar or "")


def test_forms_hold_for_the_answer(thinking: Running) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    opened = [*HI, {"role": "assistant", "content": "<think>\nso"}]
    going_on = {"messages": opened, "continue_final_message": True}
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"choice": ["yes", "no"]},
        {"grammar": 'root ::= "yes"'},
        {"tools": [tool], "tool_choice": "required"},
        {"tools": [tool], "response_format": {"type": "json_object"}},
        {"tools": [{**tool, "function": {"name": "f", "strict": True}}]},
    ):
        asked: dict[str, Any] = fields
        either = "outrider_thoughts outrider_blanks? outrider_answer | outrider_answer"
        assert either in grammar_of(thinking, **asked)
        assert "start: outrider_thoughts" in grammar_of(thinking, **asked, **going_on)
        assert "outrider" not in grammar_of(thinking, **asked, reasoning_format="none")
    assert grammar_of(thinking) == grammar_of(thinking, tools=[tool]) == ""


def test_an_answer_in_a_form(thinking: Running) -> None:
    """Without thoughts, as they may be left out."""
    opening = thinking.pipeline.tokenizer.encode("<", add_special=False)
    banned = {str(token): -100.0 for token in opening}
    for fields in ({}, {"stream": False, "speculative": False}):
        body = {"messages": HI, "choice": ["yes"], "logit_bias": banned, "max_tokens": 40, **fields}
        found = thinking.post(CHAT, body).json()["choices"][0]
        assert (found["message"]["content"], found["finish_reason"]) == ("yes", "stop")


def test_a_form_that_cannot_be_used_is_named_as_the_client_knows_it(thinking: Running) -> None:
    answer = thinking.post(CHAT, {"messages": HI, "regex": "("})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the regex cannot be used")
    assert "outrider_" not in answer.text


def test_drafts_change_nothing_where_a_form_begins_after_thoughts(roomy_file: Path) -> None:
    lookup = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, "num_speculative_tokens": 4}
    begun = {
        "messages": [*HI, {"role": "assistant", "content": "<think>\nso"}],
        "continue_final_message": True,
    }
    with running(toy_pipeline(roomy_file, lookup), chat_template=THINKING) as made:
        for seed in range(3):
            for fields in ({"messages": HI}, begun):
                body = {**fields, "regex": "[ab]{20}", "seed": seed, "max_tokens": 60, "outrider": True}
                drafted, plain = (
                    made.post(CHAT, {**body, "speculative": on}).json()["choices"][0] for on in (True, False)
                )
                assert drafted["message"] == plain["message"]
                ids = [[token["id"] for token in each["outrider"]["tokens"]] for each in (drafted, plain)]
                assert ids[0] == ids[1]


def test_every_dialect_parts_thoughts_in_any_familys_marks(roomy_file: Path) -> None:
    text = "<|channel>thought\nhm<channel|>yes"
    with running(toy_pipeline(roomy_file), chat_template=THINKING, reasoning_parser="gemma4") as made:
        with scripted(made, text):
            found = made.post("/v1/messages", {"messages": HI, "max_tokens": 9}).json()
        assert [block.get("thinking", block.get("text")) for block in found["content"]] == ["hm", "yes"]
        with scripted(made, text):
            found = made.post("/v1/responses", {"input": "hi"}).json()
        assert [item["type"] for item in found["output"]] == ["reasoning", "message"]
        assert [item["content"][0]["text"] for item in found["output"]] == ["hm", "yes"]
        assert found["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        with scripted(made, text):
            found = made.post("/api/chat", {"messages": HI, "stream": False, "think": True}).json()
        assert (found["message"]["thinking"], found["message"]["content"]) == ("hm", "yes")
