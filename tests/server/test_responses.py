"""OpenAI's Responses API, through the official client and by itself."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from outrider.server.http.dialects.responses.store import ResponseStore
from outrider.server.http.errors import ApiError
from tests.server.dialect_support import scripted
from tests.server.http_support import MODEL, Running, running, toy_pipeline

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def ask(server: Running, **arguments: Any) -> Any:
    with server.client() as client:
        return client.responses.create(
            **{"model": MODEL, "input": "the fox", "max_output_tokens": 20, **arguments}
        )


def stream(server: Running, **arguments: Any) -> tuple[list[Any], Any]:
    """The events and the response that the client adds up."""
    given = {"model": MODEL, "input": "the fox", "max_output_tokens": 20, **arguments}
    with server.client() as client, client.responses.stream(**given) as events:
        found = list(events)
        last: Any = getattr(found[-1], "response")  # noqa: B009
        return found, events.get_final_response() if last.status == "completed" else last


def test_the_text_is_that_of_the_other_paths(server: Running) -> None:
    params: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}
    found = ask(server, **params, extra_body={"seed": 4, "top_k": 30})
    body = {"messages": [{"role": "user", "content": "the fox"}], "seed": 4, "top_k": 30, "max_tokens": 20}
    chat = server.post("/v1/chat/completions", {**body, **params}).json()
    assert found.output_text == chat["choices"][0]["message"]["content"]
    (item,) = found.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")
    assert (found.object, found.id[:5], found.model) == ("response", "resp_", MODEL)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.temperature, found.top_p, found.max_output_tokens) == (0.8, 0.95, 20)
    usage = found.usage
    assert (usage.input_tokens, usage.output_tokens) == (chat["usage"]["prompt_tokens"], 20)
    assert usage.total_tokens == usage.input_tokens + 20
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_bases_without_v1(server: Running) -> None:
    with server.http() as http:
        made = http.post("/responses", json={"input": "a", "max_output_tokens": 2}).json()
        path = f"/responses/{made['id']}"
        assert http.get(path).json() == made
        assert http.get(path + "/input_items").json() == http.get(f"/v1{path}/input_items").json()
        counted = http.post("/responses/input_tokens", json={"input": "a"}).json()
        assert counted["input_tokens"] == made["usage"]["input_tokens"]
        assert http.delete(path).json()["deleted"] is True
        assert http.get(f"/v1{path}").status_code == 404


@pytest.mark.parametrize("text", ["Well, yes.", f"Well.\n{CALL}", f"{CALL}\n{CALL}"])
def test_a_stream_brings_the_same_response(templated: Running, text: str) -> None:
    with scripted(templated, text, text):
        whole = ask(templated, tools=[WEATHER])
        events, streamed = stream(templated, tools=[WEATHER])
    assert whole.status == streamed.status == "completed"

    def plain(response: Any) -> list[Any]:
        items = [item.model_dump(exclude={"id", "call_id", "parsed_arguments"}) for item in response.output]
        for item in items:
            for part in item.get("content") or ():
                part.pop("parsed", None)
        return items

    assert plain(streamed) == plain(whole)
    assert streamed.usage == whole.usage
    ids = {item.id for item in streamed.output}
    assert len(ids) == len(streamed.output)
    assert {event.item_id for event in events if hasattr(event, "item_id")} <= ids


def test_the_events_of_a_stream(thinking: Running) -> None:
    with scripted(thinking, f"<think>hm</think>Well.\n{CALL}"):
        answer = thinking.post("/v1/responses", {"input": "a", "stream": True, "tools": [WEATHER]})
    parts = [part.split("\n") for part in answer.text.split("\n\n") if part]
    events = [json.loads(part[1].removeprefix("data: ")) for part in parts]
    assert [part[0] for part in parts] == ["event: " + event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    assert [name for number, name in enumerate(names) if name != names[number - 1]] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    done = {event["type"]: event for event in events}
    assert done["response.reasoning_text.done"]["text"] == "hm"
    assert done["response.output_text.done"]["text"] == "Well."
    assert json.loads(done["response.function_call_arguments.done"]["arguments"]) == {"city": "Paris"}
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == output
    assert {item["status"] for item in output} == {"completed"}
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_what_the_template_is_given(templated: Running) -> None:
    items = [
        {"role": "developer", "content": "short"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {
            "type": "function_call",
            "call_id": "2",
            "name": "now",
            "arguments": "{}",
            "id": "fc",
            "status": None,
        },
        {"type": "function_call_output", "call_id": "1", "output": "sun"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "12"}]},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    ]
    with scripted(templated, "ok", "ok") as prompts:
        ask(templated, input=items, instructions="be", tools=[WEATHER, NOW])
        ask(
            templated,
            tools=[WEATHER, NOW],
            tool_choice={
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "now"}],
            },
        )
    assert prompts == [
        "tools weather,now;[system|be\n\nshort][user|a\nb]"
        '[assistant|(hm)c{weather {"city": "Rome"}}{now {}}]'
        "[tool|sun][tool|12][assistant|d][user|e][assistant|",
        "tools now;[user|the fox][assistant|",
    ]


def test_a_conversation_goes_on_from_a_stored_response(thinking: Running) -> None:
    with scripted(thinking, f"<think>hm</think>{CALL}", "fine", "ok", "ok") as prompts:
        first = ask(thinking, input="a", instructions="be", tools=[WEATHER])
        call = first.output[1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        second = ask(thinking, previous_response_id=first.id, input=[result])
        ask(thinking, previous_response_id=second.id, input="b", store=False)
        # As clients do that refer to stored items.
        reference = {"type": "item_reference", "id": call.id}
        ask(thinking, input=[{"role": "user", "content": "a"}, reference, result])
    history = '[user|a][assistant|(hm){weather {"city": "Paris"}}][tool|sun]'
    assert prompts[1] == history + "[assistant|"
    assert prompts[2] == history + "[assistant|fine][user|b][assistant|"
    assert prompts[3] == history.replace("(hm)", "") + "[assistant|"


def test_stored_responses(server: Running) -> None:
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with server.client() as client:
        made = ask(server, input=items, metadata={"k": "v"})
        assert client.responses.retrieve(made.id) == made
        listed: Any = client.responses.input_items.list(made.id, order="asc", limit=1)
        assert [item.content[0].text for item in listed] == ["a", "b"]
        page: Any = client.responses.input_items.list(made.id, limit=1)
        assert (page.data[0].content[0].text, page.has_more) == ("b", True)
        with pytest.raises(openai.BadRequestError, match="only background"):
            client.responses.cancel(made.id)
        client.responses.delete(made.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError, match="there is no response"):
                gone(made.id)
        with pytest.raises(openai.BadRequestError, match="there is no response"):
            ask(server, previous_response_id=made.id)
        unkept = ask(server, store=False)
        assert unkept.model_dump()["store"] is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(unkept.id)
        streamed = stream(server)[1]
        assert client.responses.retrieve(streamed.id).output == streamed.output


def test_no_key_sees_what_another_stored(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file), api_keys=("one", "two")) as server:
        with server.client(api_key="one") as one, server.client(api_key="two") as two:
            made = one.responses.create(model=MODEL, input="secret", max_output_tokens=3)
            item = {"type": "item_reference", "id": made.output[0].id}
            for call in (two.responses.retrieve, two.responses.delete, two.responses.input_items.list):
                with pytest.raises(openai.NotFoundError):
                    call(made.id)
            for given in ({"previous_response_id": made.id, "input": "b"}, {"input": [item]}):
                with pytest.raises(openai.BadRequestError):
                    two.responses.create(model=MODEL, max_output_tokens=1, **given)
                assert one.responses.create(model=MODEL, max_output_tokens=1, **given)
            assert one.responses.retrieve(made.id) == made
        with server.http() as http:
            assert http.get(f"/v1/responses/{made.id}").status_code == 401


# --- The store -------------------------------------------------------------------------------------


def kept(store: ResponseStore, space: str, ids: str) -> str:
    """Those of these ids that a store still has."""
    found = ""
    for name in ids:
        with contextlib.suppress(ApiError):
            store.get(space, name)
            found += name
    return found


def fill(store: ResponseStore, space: str, ids: str, size: int = 0) -> None:
    for name in ids:
        store.add(space, {"id": name}, [{"id": name, "text": "x" * size}], [])


def test_the_number_of_stored_responses_is_bounded() -> None:
    store = ResponseStore(most=3, most_bytes=10_000, seconds=60)
    fill(store, "s", "abcde")
    assert kept(store, "s", "abcde") == "cde"
    assert len(store) == 3
    store.delete("s", "d")
    fill(store, "s", "f")
    assert kept(store, "s", "abcdef") == "cef"
    none = ResponseStore(most=0, most_bytes=10_000, seconds=60)
    fill(none, "s", "a")
    assert len(none) == none.size == 0


def test_their_bytes_are_bounded() -> None:
    store = ResponseStore(most=99, most_bytes=1000, seconds=60)
    fill(store, "s", "abc", size=300)
    assert kept(store, "s", "abc") == "bc"
    assert 600 < store.size <= 1000
    fill(store, "s", "d", size=1000)  # too large alone: it drives out nothing
    assert kept(store, "s", "bcd") == "bc"
    for name in "bc":
        store.delete("s", name)
    assert store.size == len(store) == 0


def test_one_client_cannot_drive_out_another() -> None:
    store = ResponseStore(most=99, most_bytes=2000, seconds=60)
    fill(store, "small", "ab", size=100)
    fill(store, "large", "cdefghij", size=300)
    assert kept(store, "small", "ab") == "ab"
    assert kept(store, "large", "cdefghij") == "fghij"
    assert kept(store, "large", "ab") == kept(store, "other", "abj") == ""


def test_their_time_is_bounded() -> None:
    now = [0.0]
    store = ResponseStore(most=9, most_bytes=10_000, seconds=10, clock=lambda: now[0])
    fill(store, "s", "a")
    now[0] = 6.0
    fill(store, "s", "b")
    now[0] = 10.5
    assert kept(store, "s", "ab") == "b"
    now[0] = 20.0
    assert kept(store, "s", "ab") == ""
    assert store.size == 0


# --- Tools and forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_forced_tools(server: Running, streamed: bool) -> None:
    def calls(**arguments: Any) -> list[Any]:
        given = {"tools": [NOW, WEATHER], "max_output_tokens": 300, "extra_body": {"seed": 3}, **arguments}
        found = stream(server, **given)[1] if streamed else ask(server, **given)
        assert {item.type for item in found.output} == {"function_call"}
        return [(item.name, json.loads(item.arguments)) for item in found.output]

    ((name, given),) = calls(tool_choice={"type": "function", "name": "weather"})
    assert name == "weather"
    assert given["city"] in ("Paris", "Rome")
    assert calls(tool_choice="required")
    assert len(calls(tool_choice="required", parallel_tool_calls=False)) == 1
    assert ask(server, tools=[NOW], tool_choice="none").output[0].type == "message"


def test_an_agent_with_a_tool(templated: Running) -> None:
    """Without stored responses: everything is sent again."""
    items: list[Any] = [{"role": "user", "content": "How is Paris?"}]
    with scripted(templated, f"Let me see.\n{CALL}", "Sunny.") as prompts:
        for _ in range(5):
            answer = ask(templated, input=items, tools=[WEATHER], store=False)
            items += [item.model_dump() for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                output = f"sun in {json.loads(call.arguments)['city']}"
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    assert answer.output_text == "Sunny."
    assert prompts[1].endswith(
        '[assistant|Let me see.{weather {"city": "Paris"}}][tool|sun in Paris][assistant|'
    )


class Found(BaseModel):
    a: int


def test_structured_output(server: Running) -> None:
    schema = {"enum": [{"a": 1}, {"a": 2}]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    found = ask(server, max_output_tokens=200, text={"format": form}, extra_body={"seed": 1})
    assert json.loads(found.output_text) in schema["enum"]
    assert found.text.format.type == "json_schema"
    found = ask(server, max_output_tokens=400, text={"format": {"type": "json_object"}}, temperature=0.1)
    assert found.output_text.startswith("{")
    with server.client() as client, scripted(server, '{"a": 3}'):
        parsed = client.responses.parse(model=MODEL, input="go", text_format=Found).output_parsed
    assert parsed == Found(a=3)


def test_a_cut_answer(templated: Running) -> None:
    with scripted(templated, f"Well.\n{CALL[:48]}", reason="length"):
        found = stream(templated, tools=[WEATHER])[1]
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [item.status for item in found.output] == ["completed", "incomplete"]


def test_effort_turns_reasoning_off(thinking: Running) -> None:
    with scripted(thinking, "a", "a") as prompts:
        ask(thinking, reasoning={"effort": "none"})
        ask(thinking, reasoning={"effort": "low", "summary": "auto"})
    assert [prompt[-5:] for prompt in prompts] == ["False", "tant|"]


def test_tokens_are_counted(server: Running) -> None:
    given: Any = {"input": "the fox", "instructions": "be", "tools": [WEATHER]}
    with server.client() as client:
        counted = client.responses.input_tokens.count(model=MODEL, **given)
    assert counted.input_tokens == ask(server, **given).usage.input_tokens


def test_a_stream_that_fails(templated: Running) -> None:
    with scripted(templated, "some text", fails=True):
        events, response = stream(templated)
    assert events[-1].type == "response.failed"
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert response.error.message == "the engine broke"
    with templated.client() as client, pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


@pytest.mark.parametrize("depth", [480, 700, 990, 5000])
def test_deep_nesting_breaks_nothing(server: Running, depth: int) -> None:
    deep, list_ = '{"a":' * depth + "1" + "}" * depth, "[" * depth + "]" * depth
    with server.http() as http:
        for path, body in (
            (
                "/v1/responses",
                f'"input": "a", "tools": [{{"type": "function", "name": "a", "parameters": {deep}}}]',
            ),
            ("/v1/responses", f'"input": [{{"role": "user", "content": {list_}}}]'),
            ("/v1/messages", f'"messages": [{{"role": "user", "content": "a"}}], "metadata": {deep}'),
            ("/v1/messages", f'"messages": [{{"role": "user", "content": {list_}}}]'),
            ("/api/chat", f'"stream": false, "messages": [], "format": {deep}'),
            ("/completion", f'"prompt": {list_}'),
        ):
            limits = {"/v1/responses": '"max_output_tokens": 1, ', "/v1/messages": '"max_tokens": 1, '}
            text = "{" + limits.get(path, "") + body + "}"
            answer = http.post(path, content=text, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400), answer.text
            assert len(answer.text) < 100_000
    assert server.engine.healthy


def test_what_changes_nothing_is_accepted(server: Running) -> None:
    neutral: dict[str, Any] = {
        "background": False,
        "include": ["reasoning.encrypted_content"],
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "high", "summary": "auto"},
        "safety_identifier": "s",
        "service_tier": "auto",
        "stream_options": {"include_obfuscation": False},
        "text": {"verbosity": "medium"},
        "tool_choice": "auto",
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": "u",
        "max_output_tokens": 4.0,
        "prompt": None,
        "priority": 0,
        "request_id": "r",
        "enable_response_messages": False,
    }
    for name, value in neutral.items():
        answer = server.post("/v1/responses", {"input": "a", "max_output_tokens": 4, name: value})
        assert answer.status_code == 200, (name, answer.text)


def test_the_fields_of_vllm_mean_what_they_mean_in_chats(templated: Running) -> None:
    """Each has the text of the same chat, which is another one than without it."""
    talk = [{"role": "user", "content": "the fox"}]

    def text(path: str, **fields: Any) -> str:
        body = {"input": talk, "max_output_tokens": 24} if path == "/v1/responses" else {"messages": talk}
        body = {"max_tokens": 24, **body} if "messages" in body else body
        answer = templated.post(path, {**body, "seed": -7, **fields})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        if path == "/v1/responses":
            return "".join(part["text"] for part in found["output"][0]["content"]) if found["output"] else ""
        return str(found["choices"][0]["message"]["content"])

    plain = text("/v1/responses")
    cases: list[dict[str, Any]] = [
        {"min_p": 0.9},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 1.8},
        {"logit_bias": {"70": 50}},
        {"stop": list("aeiou")},
        {"stop": list("aeiou"), "include_stop_str_in_output": True},
        {"stop_token_ids": list(range(3, 300, 2))},
        {"structured_outputs": {"choice": ["dog", "fox"]}},
        {"chat_template_kwargs": {"add": 1}, "ignore_eos": True, "min_p": 0.9},
    ]
    for fields in cases:
        found = text("/v1/responses", **fields)
        assert found == text("/v1/chat/completions", **fields), fields
        assert found != plain, fields
    refused = templated.post("/v1/responses", {"input": talk, "chat_template_kwargs": {"messages": []}})
    assert refused.status_code == 400
    assert "not its to set" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": None}, "input", "the input is empty"),
        ({"input": []}, "input", "the input is empty"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}]},
         "input.0.message.content.0.type", "content of type 'input_image' is refused"),
        ({"input": [{"type": "web_search_call", "id": "a"}]},
         "input.0.type", "an item of type 'web_search_call'"),
        ({"input": [{"id": "nothing"}]}, "input", "no stored item 'nothing'"),
        ({"input": [{"type": "function_call", "name": "a", "call_id": "b"}]},
         "input.0.function_call.arguments", "required"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "a tool of type 'web_search' is refused"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name", "pattern"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "are now"),
        ({"tools": [NOW], "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                          "tools": [{"type": "function", "name": "x"}]}},
         "tool_choice", "'x', which tools does not have"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"background": True}, "background", "background is refused: answer in the request"),
        ({"conversation": "c"}, "conversation", "use previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "use instructions"),
        ({"truncation": "auto"}, "truncation", "nothing is left out"),
        ({"top_logprobs": 3}, "top_logprobs", "/v1/chat/completions"),
        ({"include": ["message.output_text.logprobs"]}, "include.0", "Input should be"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "say it in the instructions"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "needs a schema"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "there is no response 'resp_x'"),
        ({"max_tokens": 4}, "max_tokens", "did you mean 'max_output_tokens'"),
        ({"messages": []}, "messages", "unknown field"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
    ],
)  # fmt: skip
def test_what_is_refused(server: Running, body: dict[str, Any], param: str, message: str) -> None:
    answer = server.post("/v1/responses", {"input": "a", **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert message in error["message"]
    assert error["param"] == param
