"""Tools through the server: calls enforced by grammars, found in texts and sent in OpenAI's shape, and past
calls in conversations."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.grammar import Grammars
from outrider.models.text.tool_families import FAMILIES, Family
from outrider.models.text.tool_words import describe_in_words
from outrider.server.http.free_tool_grammar import free_grammar
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.tool_grammar import call_grammar
from outrider.server.http.tools import tool_use
from tests.server.http_support import MODEL, Running, running, toy_pipeline
from tests.support.models import Dims, tiny_gguf, tiny_tokenizer
from tests.support.past_arguments import PAST_ARGUMENTS

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "$defs": {"City": {"enum": ["Paris", "Rome"]}},
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
HI = [{"role": "user", "content": "go"}]
NAMED_X = {"type": "function", "function": {"name": "x"}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    names = [{"type": "function", "function": {"name": tool["function"]["name"]}} for tool in tools]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}


@pytest.mark.parametrize("family", FAMILIES)
def test_grammars_over_a_models_tokens(server: Running, family: Family) -> None:
    use = tool_use(
        ChatRequest.model_validate({"messages": HI, "tools": [STRICT, NOW], "tool_choice": "auto"})
    )
    key = "parameters" if family == "llama3_json" else "arguments"
    tokenizer = server.pipeline.tokenizer
    grammars = Grammars(tokenizer, tokenizer.vocab_size)

    def written(calls: list[dict[str, Any]]) -> str:
        texts = [json.dumps(call) for call in calls]
        if family == "hermes":
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in texts)
        return "; ".join(texts) if family == "llama3_json" else f"[TOOL_CALLS] [{', '.join(texts)}]"

    def accepted(grammar: str, text: str) -> bool:
        """Whether every token of the text may follow those before it, and EOS the last one."""
        constraint, context = grammars.constraint(StructuredOutputsParams(grammar=grammar)), TokenContext([])
        for token in [*tokenizer.encode(text, add_special=False), min(tokenizer.eos_ids)]:
            mask = constraint.allowed(context)
            if mask is None or not mask[token]:
                return False
            context.append(token)
        return True

    paris, now = {"name": "weather", key: {"city": "Paris"}}, {"name": "now", key: {}}
    oslo = {"name": "weather", key: {"city": "Oslo"}}
    forced = call_grammar(use, family)
    for calls in ([paris], [paris, now]):
        assert accepted(forced, written(calls))
    for wrong in ([], [oslo], [{"name": "other", key: {}}], [{"name": "weather", key: {}}]):
        assert not accepted(forced, written(wrong))
    free = free_grammar(use, family, {}, server_special(server))
    for text in ("", "the fox says", written([paris]), written([now, paris])):
        assert accepted(free, text)
    assert not accepted(free, written([oslo]))


def server_special(server: Running) -> list[int]:
    tokenizer = server.pipeline.tokenizer
    ids = range(tokenizer.vocab_size)
    return [i for i in ids if tokenizer.is_special(i) and i not in tokenizer.eos_ids]


def test_tools_in_words_for_templates_that_know_none() -> None:
    call = {"function": {"name": "now", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "when"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12", "tool_call_id": "x"},
        {"role": "tool", "content": [{"type": "text", "text": "13"}]},
    ]
    found = describe_in_words(messages, [NOW])
    assert [m["role"] for m in found] == ["system", "user", "assistant", "user"]
    assert json.dumps(NOW) in found[0]["content"]
    assert '{"name": "now", "arguments": {"a": 1}}' in found[2]["content"]
    assert found[3]["content"].count("<tool_response>") == 2
    kept = describe_in_words([{"role": "system", "content": "be"}, *messages[:1]], [NOW])
    assert kept[0]["content"].startswith("be\n\n")
    assert describe_in_words(messages[:1], []) == messages[:1]


# --- Through the server ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=FAMILIES)
def tooled(roomy_file: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(toy_pipeline(roomy_file, "ngram"), tool_call_parser=request.param) as made:
        yield made


def chat(server: Running, stream: bool = False, **arguments: Any) -> Any:
    with server.client() as client:
        given: dict[str, Any] = {"model": MODEL, "messages": HI, "seed": 3, "max_tokens": 300, **arguments}
        if not stream:
            return client.chat.completions.create(**given).choices[0]
        with client.chat.completions.stream(**given) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0]


def calls_of(choice: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or ()]


def test_a_named_tool_is_called(tooled: Running) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    whole = chat(tooled, tools=[NOW, WEATHER], tool_choice=named)
    ((name, arguments),) = calls_of(whole)
    assert name == "weather"
    assert arguments["city"] in ("Paris", "Rome")
    assert (whole.finish_reason, whole.message.content) == ("stop", None)
    streamed = chat(tooled, stream=True, tools=[NOW, WEATHER], tool_choice=named)
    assert calls_of(streamed) == calls_of(whole)
    assert streamed.finish_reason == "stop"


def test_a_call_is_required(tooled: Running) -> None:
    for parallel in (True, False):
        whole = chat(tooled, tools=[NOW, WEATHER], tool_choice="required", parallel_tool_calls=parallel)
        calls = calls_of(whole)
        assert calls
        assert parallel or len(calls) == 1
        assert {name for name, _ in calls} <= {"now", "weather"}
        assert whole.finish_reason == "tool_calls"
        streamed = chat(
            tooled, stream=True, tools=[NOW, WEATHER], tool_choice="required", parallel_tool_calls=parallel
        )
        assert calls_of(streamed) == calls
        assert streamed.finish_reason == "tool_calls"


def test_no_call_is_made_of_ordinary_text(tooled: Running) -> None:
    params: dict[str, Any] = {"max_tokens": 30, "extra_body": {"ignore_eos": True}}
    found = chat(tooled, tools=[NOW], tool_choice="auto", **params)
    assert found.message.tool_calls is None
    assert found.finish_reason == "length"
    plain = chat(tooled, **params)
    assert chat(tooled, tools=[NOW], tool_choice="none", **params).message.content == plain.message.content


def test_a_schema_with_definitions_is_enforced(tooled: Running) -> None:
    """As pydantic writes enums and nested models."""
    for choice in ("required", {"type": "function", "name": "weather"}, allowed("required", WEATHER)):
        for name, arguments in calls_of(chat(tooled, tools=[WEATHER], tool_choice=choice)):
            assert name == "weather"
            assert set(arguments) == {"city"}


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Place(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]


class Forecast(pydantic.BaseModel):
    """As agents describe tools: an enum and a nested model, by pointers."""

    unit: Unit
    place: Place
    also: list[Place] = pydantic.Field(max_length=1)


def test_a_pydantic_model_as_a_tool(tooled: Running) -> None:
    with tooled.client() as client:
        found = client.chat.completions.parse(
            model=MODEL,
            messages=HI,
            tools=[openai.pydantic_function_tool(Forecast)],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=1,
        )
    calls = found.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Forecast)


def test_allowed_tools(tooled: Running) -> None:
    for _ in range(3):
        found = chat(tooled, tools=[NOW, WEATHER], tool_choice=allowed("required", NOW))
        assert {name for name, _ in calls_of(found)} == {"now"}
        assert found.finish_reason == "tool_calls"
    free = chat(tooled, tools=[NOW, WEATHER], tool_choice=allowed("auto", NOW), max_tokens=20)
    assert {name for name, _ in calls_of(free)} <= {"now"}
    plain = chat(tooled, tools=[NOW, WEATHER], tool_choice=allowed("auto", NOW, WEATHER), max_tokens=20)
    assert plain.message.content == chat(tooled, tools=[NOW, WEATHER], max_tokens=20).message.content


def test_strict_tools_leave_other_texts_as_they_are(tooled: Running) -> None:
    params: dict[str, Any] = {"max_tokens": 40, "extra_body": {"ignore_eos": True}, "tool_choice": "auto"}
    free = chat(tooled, tools=[WEATHER, NOW], **params).message.content
    strict = chat(tooled, tools=[STRICT, NOW], **params).message.content
    assert free
    assert len(strict) > 20


FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "f",
        "schema": {
            "properties": {"name": {"const": "now"}, "note": {"const": "kept?"}},
            "required": ["name", "note"],
        },
    },
}


def test_a_forced_call_comes_with_a_form_too(tooled: Running) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        found = chat(tooled, tools=[NOW], tool_choice=choice, response_format=FORM)
        assert {name for name, _ in calls_of(found)} == {"now"}
        assert found.message.content is None


def test_content_has_the_form_and_is_no_call(tooled: Running) -> None:
    schema = FORM["json_schema"]["schema"]  # type: ignore[index]
    form = {"structured_outputs": {"json": schema, "disable_any_whitespace": True}}
    for stream in (False, True):
        for seed in range(4):
            found = chat(tooled, stream=stream, tools=[NOW], extra_body=form, seed=seed)
            if found.message.tool_calls:
                assert {name for name, _ in calls_of(found)} == {"now"}
                assert not found.message.content
            else:
                assert json.loads(found.message.content) == {"name": "now", "note": "kept?"}
    none = chat(tooled, tools=[NOW], tool_choice="none", extra_body=form)
    assert json.loads(none.message.content) == {"name": "now", "note": "kept?"}


def test_text_that_looks_like_a_call(tooled: Running) -> None:
    """A regex stands for what a model might write."""
    text = '{"name": "now", "note": "kept?"}'
    given: dict[str, Any] = {"tools": [NOW], "extra_body": {"structured_outputs": {"choice": [text]}}}
    found = [chat(tooled, seed=seed, **given) for seed in range(4)]
    assert {f.message.content for f in found if not f.message.tool_calls} <= {text}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [], "tool_choice": NAMED_X}, "tool_choice", "needs tools"),
        ({"tools": [NOW], "tool_choice": NAMED_X}, "tool_choice", "are now"),
        ({"tools": [NOW], "tool_choice": allowed("auto", NAMED_X)}, "tool_choice", "are now"),
        ({"tools": [NOW], "tool_choice": allowed("auto")}, "tool_choice", 'use "none"'),
        (
            {"tools": [NOW], "tool_choice": allowed("often", NOW)},
            "tool_choice.allowed_tools.mode",
            "'required'",
        ),
        (
            {"tools": [NOW], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools",
            "mode and tools",
        ),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice.function", "function.name"),
        ({"tools": [NOW, NOW]}, "tools", "same name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
        ({"tools": [{"type": "search"}]}, "tools.0.type", "'function'"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice", "'required'"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "x"}}}],
                "tool_choice": "required",
            },
            "tools",
            "the parameters of the tool 'a' cannot be used: Invalid type: x",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "a",
                            "strict": True,
                            "parameters": {"type": "object", "minProperties": 2},
                        },
                    }
                ]
            },
            "tools",
            "minProperties",
        ),
        (
            {"tools": [NOW], "response_format": {"type": "json_object", "schema": {"type": "objct"}}},
            None,
            "the JSON schema cannot be used: Invalid type: objct",
        ),
        *(
            (
                {
                    "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": kind}}}],
                    "tool_choice": "required",
                },
                "tools",
                f"the tool 'a' cannot be used: a call's arguments are an object, not of the type {words}",
            )
            for kind, words in (("array", '"array"'), (["string", "null"], '["string", "null"]'))
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages", "function.name"),
    ],
)
def test_what_is_refused(server: Running, body: dict[str, Any], param: str | None, message: str) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 5, **body})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param


# --- Past calls -------------------------------------------------------------------------------------


def prompt_of(server: Running, messages: list[dict[str, Any]], **fields: Any) -> str:
    answer = server.post("/tokenize", {"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    return server.pipeline.tokenizer.decode(answer.json()["tokens"], skip_special=False)


@pytest.mark.parametrize(("arguments", "shown"), PAST_ARGUMENTS)
def test_any_arguments_of_a_past_call_are_taken(server: Running, arguments: Any, shown: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    talk: list[dict[str, Any]] = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "error"},
    ]
    text = prompt_of(server, talk, tools=[NOW])
    assert f'{{"name": "now", "arguments": {shown}}}' in text


def test_past_calls_of_the_older_api(server: Running) -> None:
    talk: list[dict[str, Any]] = [
        *HI,
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
        {"role": "function", "name": "now", "content": "12"},
    ]
    text = prompt_of(server, talk, tools=[NOW])
    assert '{"name": "now", "arguments": {}}' in text
    assert "<tool_response>\n12" in text


def test_with_tools_the_template_of_that_name_is_used(tmp_path: Path) -> None:
    keys = {
        "tokenizer.chat_template": "plain{{ messages[0].content }}",
        "tokenizer.chat_template.tool_use": "with {{ tools | length }}{{ messages[0].content }}",
        "tokenizer.chat_template.rag": "rag{{ messages[0].content }}",
    }
    with running(toy_pipeline(tiny_gguf(tmp_path / "named.gguf", keys=keys))) as server:
        assert prompt_of(server, HI) == "plaingo"
        assert prompt_of(server, HI, tools=[NOW]) == "with 1go"
        assert prompt_of(server, HI, chat_template="rag") == "raggo"
        answer = server.post("/v1/chat/completions", {"messages": HI, "chat_template": "other"})
        assert "--trust-request-chat-template" in answer.json()["error"]["message"]
    with running(
        toy_pipeline(tmp_path / "named.gguf"), chat_template="mine{{ messages[0].content }}"
    ) as server:
        assert "mine" in prompt_of(server, HI, tools=[NOW])


def test_a_mistral_models_calls_come_back_with_ids_that_its_template_takes(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('length 9') }}{% endif %}[TOOL_CALLS]{{ c.id }}"
        "{% endfor %}{{ m.content }}{% endfor %}{{ tools | length }}"
    )
    file = tiny_gguf(tmp_path / "mistral.gguf", keys={"tokenizer.chat_template": template})
    with running(toy_pipeline(file)) as server:
        found = chat(server, tools=[NOW], tool_choice="required", parallel_tool_calls=False, max_tokens=90)
        (call,) = found.message.tool_calls
        assert len(call.id) == 9
        back = {"role": "assistant", "content": "", "tool_calls": [call.model_dump()]}
        assert call.id in prompt_of(server, [*HI, back], tools=[NOW])


@pytest.mark.parametrize(
    ("family", "marks"),
    [("hermes", ["<tool_call>", "</tool_call>"]), ("mistral", ["[TOOL_CALLS]", "[ARGS]"])],
)
def test_marks_that_are_special_tokens(tmp_path: Path, family: Family, marks: list[str]) -> None:
    """The grammar writes the tokens, and the parser finds them though texts leave special tokens out."""
    vocabulary = json.loads(tiny_tokenizer().to_str())["model"]
    pieces = [*sorted(vocabulary["vocab"], key=vocabulary["vocab"].__getitem__)][:-2] + marks
    keys = {
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3 if n < 3 or piece in marks else 1 for n, piece in enumerate(pieces)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in vocabulary["merges"][:-2]],
    }
    file = tiny_gguf(tmp_path / "marks.gguf", keys=keys, dims=Dims(context=4096))
    with running(toy_pipeline(file, "ngram"), tool_call_parser=family) as server:
        ids = [server.pipeline.tokenizer.encode(mark, add_special=False) for mark in marks]
        assert all(len(found) == 1 for found in ids)
        body: dict[str, Any] = {"messages": HI, "tools": [WEATHER], "seed": 1, "max_tokens": 200}
        for choice in ("required", {"type": "function", "name": "weather"}):
            forced = {**body, "tool_choice": choice, "return_token_ids": True, "parallel_tool_calls": False}
            answer = server.post("/v1/chat/completions", forced).json()["choices"][0]
            assert answer["message"]["tool_calls"][0]["function"]["name"] == "weather"
            assert answer["message"]["content"] is None
            assert ids[0][0] in answer["token_ids"]
        blank = [
            i for i in range(320) if not server.pipeline.tokenizer.decode([i], skip_special=False).strip()
        ]
        biases = {str(ids[0][0]): 100, **{str(token): -100 for token in blank}}
        strict = {**body, "tools": [STRICT], "logit_bias": biases, "temperature": 0}
        answer = server.post("/v1/chat/completions", strict).json()["choices"][0]
        call = answer["message"]["tool_calls"][0]["function"]
        assert call["name"] == "weather"
        assert json.loads(call["arguments"])["city"] in ("Paris", "Rome")
