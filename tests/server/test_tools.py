"""Tool calls: found in text that arrives in pieces of any size, enforced by grammars, sent in OpenAI's
shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.grammar import Grammars
from outrider.models.text.tool_words import describe_in_words
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.tool_parser import ToolParser
from outrider.server.http.tools import Family, call_grammar, family_of, tool_use
from tests.server.http_support import MODEL, Running, running, toy_pipeline

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
HI = [{"role": "user", "content": "go"}]
NAMES = ("a", "b", "f", "now")
Found = tuple[str, list[tuple[str, str]]]

TEXTS: list[tuple[Family, str, Found]] = [
    ("hermes", "just text", ("just text", [])),
    ("hermes", "", ("", [])),
    ("hermes", '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>', ("", [("a", '{"x": 1}')])),
    (
        "hermes",
        'Well.\n\n<tool_call>{"name":"a","arguments":{"s":"}\\"</tool_call>"}}</tool_call>\n'
        '<tool_call>\n{"arguments": [], "name": "b"}\n</tool_call>\n',
        ("Well.", [("a", '{"s":"}\\"</tool_call>"}'), ("b", "[]")]),
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', ("", [("now", "{}")])),
    ("hermes", '<tool_call>{"name": "a", "arguments": null }</tool_call> then', ("then", [("a", "null")])),
    ("hermes", "1 < 2 <tool", ("1 < 2 <tool", [])),
    ("hermes", "a <tool_call>nothing</tool_call>", ("a<tool_call>nothing</tool_call>", [])),
    ("hermes", '<tool_call>{"what": 1}</tool_call>', ('<tool_call>{"what": 1}</tool_call>', [])),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"x": ', ("", [("a", '{"x": ')])),
    ("hermes", '<tool_call>{"na', ('<tool_call>{"na', [])),
    ("hermes", '{"name": "a", "arguments": {}}', ("", [("a", "{}")])),
    ("hermes", '\n```json\n{\n "name": "a",\n "arguments": {}\n}\n```\n', ("", [("a", "{}")])),
    ("hermes", '```\n{"name": "a", "arguments": {}}\n```', ("", [("a", "{}")])),
    ("hermes", '{"name": "Ann", "age": 3}', ('{"name": "Ann", "age": 3}', [])),
    ("hermes", '```json\n{"city": 1}\n```', ('```json\n{"city": 1}\n```', [])),
    ("hermes", "```python\nx = {}\n```", ("```python\nx = {}\n```", [])),
    ("hermes", "```", ("```", [])),
    ("hermes", 'so: {"name": "a", "arguments": {}}', ('so: {"name": "a", "arguments": {}}', [])),
    ("llama3_json", '{"name": "a", "parameters": {"x": [1, {}]}}', ("", [("a", '{"x": [1, {}]}')])),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "a", "parameters": {}}; {"name": "b", "parameters": {}}',
        ("", [("a", "{}"), ("b", "{}")]),
    ),
    ("llama3_json", "The answer is {}", ("The answer is {}", [])),
    ("llama3_json", '{"name": "Ann"}', ('{"name": "Ann"}', [])),
    ("llama3_json", '{"answer": 1}', ('{"answer": 1}', [])),
    ("llama3_json", "{not json", ("{not json", [])),
    ("llama3_json", " ", (" ", [])),
]


def parse(family: Family, pieces: list[str]) -> Found:
    """What deltas add up to, as a client adds them up."""
    parser, content, calls = ToolParser(family, NAMES), "", dict[int, dict[str, Any]]()
    for parsed in (*(parser.push(piece) for piece in pieces), parser.finish()):
        content += parsed.content
        assert len({delta["index"] for delta in parsed.deltas}) == len(parsed.deltas)
        for delta in parsed.deltas:
            call = calls.setdefault(delta["index"], {"arguments": "", **delta.get("function", {}), **delta})
            if call["function"] is not delta["function"]:
                call["arguments"] += delta["function"]["arguments"]
    found = [(call["name"], call["arguments"]) for _, call in sorted(calls.items())]
    assert found == [(call.name, call.arguments) for call in parser.calls]
    assert all(call["id"].startswith("call_") for call in calls.values())
    return content, found


@pytest.mark.parametrize(("family", "text", "expected"), TEXTS)
def test_calls_in_a_text(family: Family, text: str, expected: Found) -> None:
    content, calls = parse(family, [text])
    assert calls == expected[1]
    assert content.replace(" ", "") == expected[0].replace(" ", "")


@given(st.sampled_from(TEXTS), st.data())
def test_it_does_not_matter_how_a_text_is_cut(case: tuple[Family, str, Found], data: st.DataObject) -> None:
    family, text, _ = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    ends = [*cuts, len(text)]
    pieces = [text[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
    assert parse(family, pieces) == parse(family, [text]) == parse(family, list(text))


@given(
    st.sampled_from(["hermes", "llama3_json"]),
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", '{"name": "a"', '"', "{", "}", ",", ":", "\\", " x", "; "]
        )
    ),
)
def test_no_text_is_lost_or_fatal(family: Family, parts: list[str]) -> None:
    text = "".join(parts)
    content, calls = parse(family, parts)
    if not calls:
        assert content == text or content.replace(" ", "") == text.replace(" ", "")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_arguments_are_handed_on_as_they_are(value: Any) -> None:
    arguments = {"value": value}
    for family, key in (("hermes", "arguments"), ("llama3_json", "parameters")):
        for indent in (None, 1):
            text = json.dumps({"name": "f", key: arguments}, indent=indent)
            wrapped = f"<tool_call>\n{text}\n</tool_call>" if family == "hermes" else text
            content, calls = parse(family, [wrapped])  # type: ignore[arg-type]
            assert content == ""
            assert [(name, json.loads(found)) for name, found in calls] == [("f", arguments)]


def test_the_form_goes_by_the_template() -> None:
    assert family_of(None) == "hermes"
    assert family_of("… <tool_call> …") == "hermes"
    assert family_of('{"name": function name, "parameters": dictionary}') == "llama3_json"
    assert family_of("… <tool_call> …", "llama3_json") == "llama3_json"


@pytest.mark.parametrize("family", ["hermes", "llama3_json"])
def test_grammars_allow_calls_only(server: Running, family: Family) -> None:
    body = ChatRequest.model_validate({"messages": HI, "tools": [WEATHER, NOW], "tool_choice": "required"})
    form = StructuredOutputsParams(grammar=call_grammar(tool_use(body), family))
    key = "arguments" if family == "hermes" else "parameters"
    tokenizer = server.pipeline.tokenizer
    grammars = Grammars(tokenizer, tokenizer.vocab_size)

    def accepted(calls: list[dict[str, Any]]) -> bool:
        """Whether every token of the calls may follow those before it, and EOS the last one."""
        written = [json.dumps(call) for call in calls]
        if family == "hermes":
            whole = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)
        else:
            whole = "; ".join(written)
        constraint, context = grammars.constraint(form), TokenContext([])
        for token in [*tokenizer.encode(whole, add_special=False), min(tokenizer.eos_ids)]:
            mask = constraint.allowed(context)
            if mask is None or not mask[token]:
                return False
            context.append(token)
        return True

    paris = {"name": "weather", key: {"city": "Paris"}}
    assert accepted([paris])
    assert accepted([paris, {"name": "now", key: {}}])
    assert not accepted([])
    assert not accepted([{"name": "weather", key: {"city": "Oslo"}}])
    assert not accepted([{"name": "other", key: {}}])
    assert not accepted([{"name": "weather", key: {}}])


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
    assert parse("hermes", [found[2]["content"]]) == ("", [("now", '{"a": 1}')])
    assert found[3]["content"].count("<tool_response>") == 2
    kept = describe_in_words([{"role": "system", "content": "be"}, *messages[:1]], [NOW])
    assert kept[0]["content"].startswith("be\n\n")
    assert describe_in_words(messages[:1], []) == messages[:1]


NAMED_X = {"type": "function", "function": {"name": "x"}}

# --- Through the server ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["hermes", "llama3_json"])
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


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [], "tool_choice": NAMED_X}, "tool_choice", "needs tools"),
        ({"tools": [NOW], "tool_choice": NAMED_X}, "tool_choice", "are now"),
        ({"tools": [NOW, NOW]}, "tools", "same name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
        ({"tools": [{"type": "search"}]}, "tools.0.type", "'function'"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice", "'required'"),
        ({"tools": [NOW], "tool_choice": "required", "response_format": {"type": "json_object"}},
         "tool_choice", "contradict"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "x"}}}],
          "tool_choice": "required"}, None, "the grammar cannot be used"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
         "messages", "not JSON"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages", "function.name"),
    ],
)  # fmt: skip
def test_what_is_refused(server: Running, body: dict[str, Any], param: str | None, message: str) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 5, **body})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param
