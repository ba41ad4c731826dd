"""Ollama's API, through its official client and by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from tests.server.dialect_support import scripted
from tests.server.http_support import MODEL, Running, running, toy_pipeline

HI: Any = [{"role": "user", "content": "the fox"}]
FEW = {"num_predict": 20, "seed": 4}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "a city"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


_CLIENTS: list[Any] = []


@pytest.fixture(autouse=True)
def clients() -> Iterator[None]:
    """Closes the clients of a test."""
    yield
    while _CLIENTS:
        _CLIENTS.pop().close()


def client_of(server: Running, **headers: str) -> Any:
    _CLIENTS.append(ollama.Client(host=server.url, timeout=30, headers=headers))
    return _CLIENTS[-1]


def error_of(answer: httpx.Response, status: int) -> str:
    """The message of an error, which must be in Ollama's form."""
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert set(document) == {"error"}
    message = document["error"]
    assert isinstance(message, str)
    assert "\n" not in message
    return message


def test_the_text_is_that_of_the_other_paths(server: Running) -> None:
    options = {
        **FEW,
        "temperature": 0.8,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "num_ctx": 2048,
    }
    body = {
        "seed": 4,
        "temperature": 0.8,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "max_tokens": 20,
    }
    chat = server.post("/v1/chat/completions", {"messages": HI, **body}).json()
    text, usage = chat["choices"][0]["message"]["content"], chat["usage"]
    client = client_of(server)
    found = client.chat(MODEL, HI, options=options)
    assert found.message.content == text
    assert (found.message.role, found.model, found.done) == ("assistant", MODEL, True)
    assert found.done_reason == chat["choices"][0]["finish_reason"]
    assert (found.prompt_eval_count, found.eval_count) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert found.total_duration >= found.eval_duration > 0
    assert client.generate(MODEL, "the fox", options=options).response == text
    plain = server.post("/v1/completions", {"prompt": "the fox", **body}).json()["choices"][0]["text"]
    assert client.generate(MODEL, "the fox", raw=True, options=options).response == plain
    assert datetime.fromisoformat(found.created_at)


def test_a_stream_brings_the_same(server: Running) -> None:
    client = client_of(server)
    whole = client.chat(MODEL, HI, options=FEW)
    parts = list(client.chat(MODEL, HI, options=FEW, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].eval_count, parts[-1].done_reason) == (whole.eval_count, "length")
    pieces = list(client.generate(MODEL, "the fox", options=FEW, stream=True))
    assert "".join(piece.response for piece in pieces) == whole.message.content
    answer = server.post("/api/chat", {"messages": HI, "options": FEW})  # a stream unless told otherwise
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["done"] for line in answer.text.splitlines()][-1] is True


def test_stops(server: Running) -> None:
    client = client_of(server)
    text = client.chat(MODEL, HI, options={**FEW, "seed": 8}).message.content or ""
    for stop in ([text[2:5]], text[2:5]):
        cut = client.chat(MODEL, HI, options={**FEW, "seed": 8, "stop": stop})
        assert cut.message.content == text[: text.index(text[2:5])]
        assert cut.done_reason == "stop"


def test_without_a_limit_it_goes_on_to_the_end_of_the_context(target_file: Path) -> None:
    with running(toy_pipeline(target_file)) as server, scripted(server, "a", "a", "a", "a"):
        service = server.server.config.app.state.service  # type: ignore[union-attr]
        limits: list[int | None] = []
        submit = service.submit

        def watched(requests: Any) -> Any:
            limits.append(requests[0].params.max_tokens)
            return submit(requests)

        service.submit = watched
        client = client_of(server)
        client.generate(MODEL, "x", raw=True)
        client.generate(MODEL, "x", raw=True, options={"num_predict": -1})
        client.chat(MODEL, HI, options={"num_predict": -2})
        client.chat(MODEL, HI, options={"num_predict": 3})
    assert limits == [None, None, None, 3]


def test_arguments_of_past_calls_may_be_text(templated: Running) -> None:
    for arguments, shown in (('{"city": "Rome"}', '{"city": "Rome"}'), (None, "{}"), ("{", '"{"')):
        call = {"function": {"name": "weather", "arguments": arguments}}
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
        with scripted(templated, "ok") as prompts:
            body = {"messages": messages, "stream": False}
            assert templated.post("/api/chat", body).status_code == 200
        assert prompts == [f"[user|a][assistant|{{weather {shown}}}][assistant|"]


def test_what_the_template_is_given(templated: Running) -> None:
    messages: Any = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a", "images": []},
        {
            "role": "assistant",
            "content": "b",
            "thinking": "hm",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "tool_name": "weather", "content": "sun"},
    ]
    with scripted(templated, "ok", "ok", "ok") as prompts:
        client = client_of(templated)
        client.chat(MODEL, messages, tools=[WEATHER])
        client.generate(MODEL, "a", system="be")
        client.generate(MODEL, "a", raw=True)
    assert prompts == [
        'tools weather;[system|be][user|a][assistant|(hm)b{weather {"city": "Rome"}}][tool|sun][assistant|',
        "[system|be][user|a][assistant|",
        "a",
    ]


def test_tools(templated: Running) -> None:
    def weather(city: str) -> str:
        """Tells the weather of a city.

        Args:
            city: a city
        """
        return f"sun in {city}"

    messages: Any = [{"role": "user", "content": "How is Paris?"}]
    client = client_of(templated)
    with scripted(templated, f"Let me see.\n{CALL}\n{CALL}", "Sunny.", f"Well.\n{CALL}") as prompts:
        answer = client.chat(MODEL, messages, tools=[weather])
        messages.append(answer.message)
        for call in answer.message.tool_calls or ():
            result = weather(**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
        assert client.chat(MODEL, messages, tools=[weather]).message.content == "Sunny."
        parts = list(client.chat(MODEL, messages, tools=[WEATHER], stream=True))
    assert len(answer.message.tool_calls or ()) == 2
    call = '{weather {"city": "Paris"}}'
    assert prompts[1].endswith(
        f"[assistant|Let me see.{call}{call}][tool|sun in Paris][tool|sun in Paris][assistant|"
    )
    assert "".join(part.message.content or "" for part in parts) == "Well."
    (streamed,) = [call for part in parts for call in part.message.tool_calls or ()]
    assert (streamed.function.name, streamed.function.arguments) == ("weather", {"city": "Paris"})


def test_arguments_that_are_no_object_are_text(templated: Running) -> None:
    with scripted(templated, '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'):
        found = client_of(templated).chat(MODEL, HI, tools=[WEATHER])
    assert not found.message.tool_calls
    assert "[1]" in (found.message.content or "")


def test_thinking(thinking: Running) -> None:
    text = "<think>\nhm\n</think>\n\nyes"
    client = client_of(thinking)
    with scripted(thinking, text, text, "yes", text) as prompts:
        whole = client.chat(MODEL, HI, think=True)
        parts = list(client.chat(MODEL, HI, think="high", stream=True))
        client.chat(MODEL, HI, think=False)
        made = client.generate(MODEL, "a")
    assert (whole.message.thinking, whole.message.content) == ("hm", "yes")
    assert "".join(part.message.thinking or "" for part in parts) == "hm"
    assert "".join(part.message.content or "" for part in parts) == "yes"
    assert (made.thinking, made.response) == ("hm", "yes")
    assert [prompt[-5:] for prompt in prompts] == ["|True", "|True", "False", "tant|"]


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_structured_output(server: Running, path: str) -> None:
    schema: Any = {"enum": [{"a": 1}, {"a": 2}]}
    client = client_of(server)
    options = {"num_predict": 200, "seed": 1}

    def text(form: Any) -> str:
        if path == "chat":
            return str(client.chat(MODEL, HI, format=form, options=options).message.content)
        return str(client.generate(MODEL, "go", format=form, options=options).response)

    assert json.loads(text(schema)) in schema["enum"]
    assert text("json").lstrip().startswith("{")


def test_the_model(server: Running) -> None:
    client = client_of(server)
    names = [model.model for model in client.list().models]
    assert names == [MODEL, "other"]
    (entry,) = client.ps().models
    assert (entry.model, entry.context_length) == (MODEL, 4096)
    for name in (MODEL, MODEL + ":latest", "other"):
        shown = client.show(name)
    assert shown.details is not None
    assert shown.details.family == "llama"
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 4096
    assert shown.capabilities == ["completion", "tools"]
    listed = client.list().models[0]
    assert listed.details is not None
    assert (listed.details.format, listed.size) == ("gguf", server.pipeline.source.weights_bytes)
    with server.http() as http:
        version = http.get("/api/version").json()["version"]
        assert tuple(map(int, version.split("."))) > (0, 6, 4)
        assert http.head("/").status_code == 200
        assert http.head("/api/tags").status_code == 200
        assert not http.head("/api/tags").content
    assert client.chat(MODEL + ":latest", HI, options=FEW).model == MODEL + ":latest"


def test_clients_that_load_the_model(server: Running) -> None:
    client = client_of(server)
    assert client.generate(MODEL, "").done_reason == "load"
    assert client.generate(MODEL, keep_alive=-1).response == ""
    assert client.chat(MODEL, []).done
    assert error_of(server.post("/api/generate", {"model": "none"}), 404)


def test_what_changes_nothing_is_accepted(server: Running) -> None:
    neutral = {
        "keep_alive": "5m",
        "truncate": True,
        "format": "",
        "think": False,
        "tools": [],
        "options": {
            **{
                "num_thread": 4,
                "num_gpu": 99,
                "num_batch": 512,
                "use_mmap": True,
                "num_keep": 4,
                "mirostat": 0,
            },
            **{
                "mirostat_tau": 5.0,
                "typical_p": 1.0,
                "tfs_z": 1,
                "repeat_last_n": 64,
                "penalize_newline": True,
            },
            **{"seed": -1, "top_k": 40.0, "low_vram": False, "num_predict": 2},
        },
    }
    for name, value in neutral.items():
        body = {"messages": HI, "options": {"num_predict": 2}, "stream": False, name: value}
        answer = server.post("/api/chat", body)
        assert answer.status_code == 200, (name, answer.text)
    empties: list[Any] = [{"context": []}, {"template": ""}, {"images": []}, {"suffix": ""}]
    for extra in empties:
        body = {"prompt": "a", "options": {"num_predict": 2}, "stream": False, **extra}
        assert server.post("/api/generate", body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat", {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, "images is refused"),
        ("chat", {"messages": [{"role": "boss", "content": "a"}]}, "messages.0.role"),
        ("chat", {"think": True}, "'tiny' does not support thinking"),
        ("chat", {"format": "xml"}, "format"),
        ("chat", {"options": {"mirostat": 2}}, "mirostat is refused: use min_p"),
        ("chat", {"options": {"num_predic": 2}}, "did you mean 'num_predict'"),
        ("chat", {"options": {"num_predict": 0}}, "at least 1"),
        ("chat", {"options": {"temperature": "1"}}, "options.temperature"),
        ("chat", {"logprobs": True}, "use /v1/chat/completions"),
        ("chat", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ("chat", {"message": []}, "did you mean 'messages'"),
        ("generate", {"suffix": "x"}, "suffix is refused"),
        ("generate", {"context": [1]}, "send the conversation to /api/chat"),
        ("generate", {"template": "{{ .Prompt }}"}, "raw: true"),
        ("generate", {"raw": True, "system": "a"}, "system is refused with raw"),
        ("generate", {"prompt": 5}, "prompt"),
        ("show", {"model": "none"}, "not served here"),
    ],
)
def test_what_is_refused(server: Running, path: str, body: dict[str, Any], message: str) -> None:
    given = {"chat": {"messages": HI}, "generate": {"prompt": "a"}, "show": {}}[path]
    answer = server.post(f"/api/{path}", {**given, **body})
    assert message in error_of(answer, 404 if path == "show" else 400)


def test_what_there_is_not(server: Running) -> None:
    for path, why in (
        ("pull", "chosen when the server starts"),
        ("blobs/sha256:0", "chosen when the server starts"),
        ("embed", "computes no embeddings"),
        ("embeddings", "computes no embeddings"),
        ("nothing", "there is nothing"),
    ):
        assert why in error_of(server.post(f"/api/{path}", {"model": MODEL}), 404)
    with pytest.raises(ollama.ResponseError, match="chosen when the server starts"):
        client_of(server).pull(MODEL)
    with server.http() as http:
        assert "did you mean" not in error_of(http.get("/api"), 404)
        answer = http.get("/api/show")
        assert error_of(answer, 405) == "GET is not possible at /api/show; use POST"
        assert answer.headers["allow"] == "POST"
        assert "use GET" in error_of(http.post("/api/tags", json={}), 405)


def test_keys_are_obeyed(target_file: Path) -> None:
    with running(toy_pipeline(target_file), api_keys=("one",)) as server, server.http() as http:
        for method, path in (("GET", "tags"), ("GET", "version"), ("POST", "chat"), ("POST", "pull")):
            assert "API key" in error_of(http.request(method, f"/api/{path}", json={}), 401)
        with pytest.raises(ollama.ResponseError, match="API key"):
            client_of(server).list()
        assert client_of(server, Authorization="Bearer one").list().models
        assert http.get("/api/tags", headers={"x-api-key": "one"}).status_code == 200


def test_a_stream_that_fails(templated: Running) -> None:
    with scripted(templated, "some text", "x", fails=True):
        with pytest.raises(ollama.ResponseError, match="the engine broke"):
            list(client_of(templated).chat(MODEL, HI, stream=True))
        assert error_of(templated.post("/api/chat", {"messages": HI, "stream": False}), 500)
