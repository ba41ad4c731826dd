"""Anthropic's Messages API, through the official client and by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.server.dialect_support import TEMPLATE, scripted
from tests.server.http_support import MODEL, Running, running, toy_pipeline
from tests.support.lazy import Lazy

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = Lazy("anthropic")

HI: Any = [{"role": "user", "content": "the fox"}]
WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
NOW: Any = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def client_of(server: Running, **arguments: Any) -> anthropic.Anthropic:
    given = {"api_key": "none", "max_retries": 0, "timeout": 30, **arguments}
    return anthropic.Anthropic(base_url=server.url, **given)


def ask(server: Running, **arguments: Any) -> Any:
    with client_of(server) as client:
        return client.messages.create(**{"model": MODEL, "messages": HI, "max_tokens": 20, **arguments})


def stream(server: Running, **arguments: Any) -> tuple[list[Any], Any]:
    """The events and the message that the client adds up."""
    given = {"model": MODEL, "messages": HI, "max_tokens": 20, **arguments}
    with client_of(server) as client, client.messages.stream(**given) as events:
        found = list(events)
        return found, events.get_final_message()


def plain(message: Any) -> list[Any]:
    """The content of a message, without what the client adds to that of a stream."""
    return [block.model_dump(exclude={"parsed_output"}) for block in message.content]


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which must be in Anthropic's form."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert set(document) == {"type", "error", "request_id"}
    assert document["type"] == "error"
    assert set(document["error"]) == {"type", "message"}
    found: dict[str, Any] = document["error"]
    return found


def test_the_text_is_that_of_the_other_paths(server: Running) -> None:
    params = {"seed": 4, "temperature": 0.8, "top_p": 0.95, "top_k": 30}
    found = ask(server, extra_body=params)
    chat = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 20, **params}).json()
    (block,) = found.content
    assert (block.type, block.text) == ("text", chat["choices"][0]["message"]["content"])
    assert (found.role, found.type, found.model, found.id[:4]) == ("assistant", "message", MODEL, "msg_")
    usage = found.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]
    assert usage.output_tokens == chat["usage"]["completion_tokens"]
    assert ask(server, extra_body={**params, "speculative": False}).content == found.content


def test_a_stream_brings_the_same_message(server: Running) -> None:
    seed = {"seed": 6}
    whole = ask(server, extra_body=seed)
    events, message = stream(server, extra_body=seed)
    assert plain(message) == plain(whole)
    assert (message.stop_reason, message.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )
    assert (
        message.usage.input_tokens + message.usage.cache_read_input_tokens
        == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    )
    assert "".join(e.text for e in events if e.type == "text") == whole.content[0].text


def test_the_events_of_a_stream(templated: Running) -> None:
    with scripted(templated, f"Well.\n{CALL}"):
        body = {"messages": HI, "max_tokens": 9, "stream": True, "tools": [WEATHER]}
        answer = templated.post("/v1/messages", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = [part.split("\n") for part in answer.text.split("\n\n") if part]
    names = [part[0].removeprefix("event: ") for part in parts]
    events = [json.loads(part[1].removeprefix("data: ")) for part in parts]
    assert names == [event["type"] for event in events]
    kept = [name for number, name in enumerate(names) if name != names[number - 1]]
    assert kept == [
        *("message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop", "message_delta"),
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["output_tokens"] == 0
    started = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert started == ["text", "tool_use"]
    assert [e["index"] for e in events if e["type"] == "content_block_stop"] == [0, 1]
    delta = next(e for e in events if e["type"] == "message_delta")
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["cache_read_input_tokens"] == 2


def test_why_it_stopped(server: Running) -> None:
    text = ask(server, extra_body={"seed": 8}).content[0].text
    assert ask(server, extra_body={"seed": 8}).stop_reason == "max_tokens"
    word = text[2:5]
    cut = ask(server, extra_body={"seed": 8}, stop_sequences=[word, "\x00"])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)
    assert "".join(b.text for b in cut.content) == text[: text.index(word)]
    with scripted(server, "all"):
        assert ask(server).stop_reason == "end_turn"


def test_the_prompt_alone(server: Running) -> None:
    found = ask(server, max_tokens=0)
    assert (found.content, found.stop_reason, found.usage.output_tokens) == ([], "max_tokens", 0)
    assert stream(server, max_tokens=0)[1].content == []
    assert ask(server, max_tokens=0).usage.cache_read_input_tokens > 0


def test_what_the_template_is_given(templated: Running) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "zz"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "12"}, {"type": "text", "text": "h"}],
                },
                {"type": "text", "text": "and?"},
                {
                    "type": "document",
                    "title": "T",
                    "source": {"type": "text", "media_type": "text/plain", "data": "D"},
                },
            ],
        },
    ]
    system = [{"type": "text", "text": "be"}, {"type": "text", "text": "good"}]
    with scripted(templated, "ok", "ok", "ok") as prompts:
        ask(templated, messages=messages, system=system, tools=[WEATHER, NOW])
        ask(templated, messages=messages[:1], system="be", tools=[WEATHER], tool_choice={"type": "none"})
        ask(templated, messages=[*messages[:1], {"role": "assistant", "content": "half a"}])
    assert prompts == [
        "tools weather,now;[system|be\ngood][user|a\nb]"
        '[assistant|(hm)c{weather {"city": "Rome"}}{now {}}]'
        "[tool|sun][tool|12\nh][user|and?\nT\nD][assistant|",
        "[system|be][user|a][assistant|",
        "[user|a][assistant|half a",
    ]


def test_an_agent_with_a_tool(templated: Running) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is Paris?"}]
    answer: Any = None
    with (
        scripted(templated, f"Let me see.\n{CALL}", "Sunny.") as prompts,
        client_of(templated) as client,
    ):
        for _ in range(5):
            with client.messages.stream(
                model=MODEL, max_tokens=99, messages=messages, tools=[WEATHER], tool_choice={"type": "auto"}
            ) as events:
                answer = events.get_final_message()
            messages.append({"role": "assistant", "content": answer.content})
            if answer.stop_reason != "tool_use":
                break
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": f"sun in {b.input['city']}"}
                for b in answer.content
                if b.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
    assert answer.stop_reason == "end_turn"
    assert answer.content[0].text == "Sunny."
    assert prompts[1].endswith(
        '[assistant|Let me see.{weather {"city": "Paris"}}][tool|sun in Paris][assistant|'
    )
    assert messages[1]["content"][1].id.startswith("toolu_")


@pytest.mark.parametrize("streamed", [False, True])
def test_forced_tools(server: Running, streamed: bool) -> None:
    def calls(**arguments: Any) -> list[Any]:
        given = {"tools": [NOW, WEATHER], "max_tokens": 300, "extra_body": {"seed": 3}, **arguments}
        found = stream(server, **given)[1] if streamed else ask(server, **given)
        assert found.stop_reason == "tool_use"
        assert {block.type for block in found.content} == {"tool_use"}
        return [(block.name, block.input) for block in found.content]

    ((name, given),) = calls(tool_choice={"type": "tool", "name": "weather"})
    assert name == "weather"
    assert given["city"] in ("Paris", "Rome")
    assert calls(tool_choice={"type": "any"})
    assert len(calls(tool_choice={"type": "any", "disable_parallel_tool_use": True})) == 1


def test_arguments_that_are_no_object_are_text(templated: Running) -> None:
    bad = '<tool_call>{"name": "weather", "arguments": [1, 2]}</tool_call>'
    with scripted(templated, bad, CALL[:58], reason="length"):
        found = ask(templated, tools=[WEATHER])
        assert "tool_use" not in [block.type for block in found.content]
        assert "[1, 2]" in found.content[0].text
        cut = ask(templated, tools=[WEATHER])
    assert cut.stop_reason == "max_tokens"
    assert cut.content[0].input == {}


def test_reasoning(thinking: Running) -> None:
    text = "<think>\nhm\n</think>\n\nyes"
    with scripted(thinking, text, text, "no", text) as prompts:
        whole = ask(thinking, thinking={"type": "enabled", "budget_tokens": 1024})
        events, streamed = stream(thinking, thinking={"type": "adaptive"})
        ask(thinking, thinking={"type": "disabled"})
        back = [*HI, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "sure?"}]
        ask(thinking, messages=back)
    assert [(b.type, getattr(b, "thinking", None) or b.text) for b in whole.content] == [
        ("thinking", "hm"),
        ("text", "yes"),
    ]
    assert plain(streamed) == plain(whole)
    assert "thinking" in [event.type for event in events]
    assert [prompt[-5:] for prompt in prompts] == ["|True", "|True", "False", "tant|"]
    assert "[assistant|(hm)yes]" in prompts[3]


def test_a_prompt_that_opens_the_reasoning(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file), chat_template=TEMPLATE + "<think>\n") as server:
        with scripted(server, "hm\n</think>\nyes"):
            found = ask(server)
        assert [block.type for block in found.content] == ["thinking", "text"]
        cut = ask(server, extra_body={"seed": 2})
        assert {block.type for block in cut.content} == {"thinking"}


def test_structured_output(server: Running) -> None:
    schema = {"enum": [{"a": 1}, {"a": 2}]}
    form = {"type": "json_schema", "schema": schema}
    found = ask(server, max_tokens=200, extra_body={"seed": 1, "output_config": {"format": form}})
    assert json.loads(found.content[0].text) in schema["enum"]


def test_tokens_are_counted(server: Running) -> None:
    given: Any = {"messages": HI, "system": "be", "tools": [WEATHER], "model": MODEL}
    with client_of(server) as client:
        counted = client.messages.count_tokens(**given).input_tokens
    usage = ask(server, **given).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    answer = server.post("/v1/messages/count_tokens", {"messages": HI, "max_tokens": 1})
    assert "unknown field 'max_tokens'" in error_of(answer, 400)["message"]


def test_what_changes_nothing_is_accepted(server: Running) -> None:
    neutral = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "stop_sequences": [],
        "mcp_servers": [],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "high"},
        "top_k": 0,
        "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}, "type": "custom"}],
        "tool_choice": {"type": "auto"},
        "max_tokens": 4.0,
        "container": None,
    }
    for name, value in neutral.items():
        answer = server.post("/v1/messages", {"messages": HI, "max_tokens": 4, name: value})
        assert answer.status_code == 200, (name, answer.text)


def block(**members: Any) -> Any:
    return [{"role": "user", "content": [members]}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": None}, "max_tokens: "),
        ({"max_tokens": -1}, "max_tokens: "),
        ({"messages": []}, "messages: "),
        ({"messages": block(type="image", source={"type": "url", "url": "file:///x"})},
         "messages.0.content.0.type: content of type 'image' is refused: this server reads text only"),
        ({"messages": block(type="document", source={"type": "base64", "data": ""})}, "of type 'base64'"),
        ({"messages": block(type="tool_result", tool_use_id="a", content=[{"type": "image"}])},
         "content of type 'image'"),
        ({"messages": block(type="tool_use", id="a", name="b", input={})}, "messages.0.content.0: a block"),
        ({"messages": block(type="text", text="a", texts="b")}, "did you mean 'text'"),
        ({"messages": block(text="a")}, "messages.0.content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages are empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "needs a name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "the tools are weather"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is refused: this server calls no tools"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "edits no conversations"),
        ({"stop": ["x"]}, "unknown field 'stop'"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences.1: "),
        ({"temperature": "1"}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_refused(server: Running, body: dict[str, Any], message: str) -> None:
    answer = server.post("/v1/messages", {"messages": HI, "max_tokens": 5, **body})
    error = error_of(answer, 400)
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert "\n" not in error["message"]


def test_errors_have_anthropics_form(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file), api_keys=("one", "two"), max_body_bytes=3000) as server:
        for headers in ({}, {"x-api-key": "three"}, {"Authorization": "Bearer three"}):
            answer = server.post("/v1/messages", {}, headers=headers)
            assert error_of(answer, 401)["type"] == "authentication_error"
            assert "x-api-key" in answer.json()["error"]["message"]
        key = {"x-api-key": "one"}
        models = anthropic.Anthropic(base_url=server.url, api_key="one").models
        assert [model.id for model in models.list(limit=1)] == [MODEL, "other"]
        found = models.retrieve("other")
        assert (found.type, found.display_name, found.max_input_tokens) == ("model", "other", 4096)
        assert found.created_at.timestamp() == server.client(api_key="one").models.retrieve("other").created
        for path in ("/v1/messages/nothing", "/v1/messages/batches"):
            assert error_of(server.post(path, {}, headers=key), 404)["type"] == "not_found_error"
        big = {"messages": [{"role": "user", "content": "a" * 4000}], "max_tokens": 1}
        assert error_of(server.post("/v1/messages", big, headers=key), 413)["type"] == "request_too_large"
        body = {"messages": HI, "max_tokens": 1}
        assert server.post("/v1/messages", body, headers={"authorization": "Bearer two"}).status_code == 200
        assert (
            server.post("/v1/messages", body, headers={**key, "Authorization": "Bearer x"}).status_code == 401
        )
        with server.http() as http:
            assert error_of(http.get("/v1/messages", headers=key), 405)
            bare = http.post(
                "/v1/messages", content=b"{", headers={**key, "content-type": "application/json"}
            )
            assert "not JSON" in error_of(bare, 400)["message"]
        with client_of(server, api_key="one") as client:
            with pytest.raises(anthropic.NotFoundError, match="not served here"):
                client.messages.create(model="claude", max_tokens=1, messages=HI)
            assert client.messages.create(model=MODEL, max_tokens=1, messages=HI).content
        with client_of(server, api_key="three") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(model=MODEL, max_tokens=1, messages=HI)
        with client_of(server, api_key=None, auth_token="two") as client:
            assert client.messages.create(model=MODEL, max_tokens=1, messages=HI).content


def test_a_stream_that_fails(templated: Running) -> None:
    with scripted(templated, "some text", "x", fails=True):
        answer = templated.post("/v1/messages", {"messages": HI, "max_tokens": 9, "stream": True})
        *_, last = [part for part in answer.text.split("\n\n") if part]
        name, data = last.split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"] == {
            "type": "api_error",
            "message": "the engine broke",
        }
        with pytest.raises(anthropic.APIStatusError, match="the engine broke"):
            stream(templated)
