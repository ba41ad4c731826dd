"""Grammars of tool calls: what they accept, token by token, and that the parser finds what they enforce."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from outrider.errors import ConfigError
from outrider.models.text.tool_families import FAMILIES, Family
from outrider.server.http.errors import ApiError
from outrider.server.http.free_tool_grammar import free_grammar
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.tool_grammar import blamed, call_grammar, form_rule, formed_grammar
from outrider.server.http.tool_parser import ToolParser
from outrider.server.http.tools import ToolUse, tool_use

HI = [{"role": "user", "content": "go"}]
BYTES = LLTokenizer("byte")
CITY = {
    "$defs": {"City": {"enum": ["Paris", "Rome"]}},
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "next": {"$ref": "#"}},
    "required": ["city"],
}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, **more}
    return {
        "type": "function",
        "function": function if parameters is None else {**function, "parameters": parameters},
    }


def use_of(*tools: dict[str, Any], **fields: Any) -> ToolUse:
    return tool_use(ChatRequest.model_validate({"messages": HI, "tools": list(tools), **fields}))


def accepts(grammar: str, text: str) -> bool:
    """Whether a text can be written byte by byte and then end."""
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def written(family: Family, *calls: tuple[str, Any]) -> str:
    key = "parameters" if family == "llama3_json" else "arguments"
    texts = [json.dumps({"name": name, key: arguments}, ensure_ascii=False) for name, arguments in calls]
    if family == "hermes":
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)
    return "; ".join(texts) if family == "llama3_json" else f"[TOOL_CALLS] [{', '.join(texts)}]"


PARIS = ("weather", {"city": "Paris"})
NEXT = ("weather", {"city": "Paris", "next": {"city": "Rome"}})
OSLO = ("weather", {"city": "Oslo"})
NOW: tuple[str, Any] = ("now", {})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_answer_is_calls_whose_pointers_lead_where_they_led(family: Family) -> None:
    grammar = call_grammar(use_of(tool("weather", CITY), tool("now")), family)
    for calls in ([PARIS], [NOW, PARIS], [NEXT]):
        assert accepts(grammar, written(family, *calls))
    for calls in (
        [OSLO],
        [("other", {})],
        [("weather", {})],
        [("now", {"a": 1})],
        [(*PARIS[:1], {"city": "Rome", "z": 1})],
    ):
        assert not accepts(grammar, written(family, *calls))
    assert not accepts(grammar, "")
    alone = call_grammar(use_of(tool("weather", CITY), parallel_tool_calls=False), family)
    assert accepts(alone, written(family, PARIS))
    assert not accepts(alone, written(family, PARIS, PARIS))


def test_arguments_are_an_object_also_where_null_is_allowed() -> None:
    nullable = {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}}
    grammar = call_grammar(use_of(tool("t", nullable)), "hermes")
    assert accepts(grammar, written("hermes", ("t", {"a": 1})))
    assert not accepts(grammar, written("hermes", ("t", None)))


def test_definitions_of_two_tools_are_kept_apart() -> None:
    def pointing(value: str) -> dict[str, Any]:
        return {
            "$defs": {"X": {"const": value}},
            "properties": {"x": {"$ref": "#/$defs/X"}},
            "required": ["x"],
        }

    grammar = call_grammar(use_of(tool("one", pointing("1")), tool("two", pointing("2"))), "hermes")
    for name in ("one", "two"):
        for value in ("1", "2"):
            assert accepts(grammar, written("hermes", (name, {"x": value}))) == (
                (name, value) in (("one", "1"), ("two", "2"))
            )


NAMES = st.sampled_from(["a", "a/b", "c~d", "e f", "%41", "é", "0"])


def pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


@given(
    NAMES,
    NAMES,
    st.sampled_from(["$defs", "definitions", "elsewhere"]),
    st.sampled_from(["$ref", "allOf", "property", "root"]),
)
def test_every_pointer_of_a_schema_works_in_a_call(name: str, member: str, place: str, way: str) -> None:
    target = {"type": "object", "properties": {member: {"type": "integer"}}, "required": [member]}
    leads = {"$ref": f"#/{place}/{pointer(name)}"}
    if way == "property":
        leads = {"$ref": "#/properties/first"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"first": target, "second": {"allOf": [leads]} if way == "allOf" else leads},
        "required": ["second"],
        place: {name: target},
    }
    if way == "root":
        schema["properties"]["second"] = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    good: list[Any] = [{member: 3}] if way != "root" else [None, {"second": None}]
    grammar = call_grammar(use_of(tool("t", schema)), "hermes")
    for value in good:
        assert accepts(grammar, written("hermes", ("t", {"second": value})))
    for value in ({member: "x"}, {}, {**good[-1], "more": 1} if isinstance(good[-1], dict) else 5, 5):
        assert not accepts(grammar, written("hermes", ("t", {"second": value})))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"properties": {"k": {"$ref": "#/$defs/E"}}}, "'/$defs/E' does not exist"),
        ({"type": "x"}, "Invalid type: x"),
        ({"type": ["x", "object"], "minProperties": 2}, "minProperties: 2 cannot be enforced"),
        ({"type": "array"}, 'an object, not of the type "array"'),
        ({"type": ["string", "null"]}, 'an object, not of the type ["string", "null"]'),
        (
            {"properties": {"k": {"type": "array", "uniqueItems": True, "items": {}}}},
            "uniqueItems cannot be enforced",
        ),
        ({"type": "object", "minProperties": 2}, "minProperties: 2 cannot be enforced"),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "use anyOf"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told_with_its_tool(parameters: dict[str, Any], words: str) -> None:
    use = use_of(tool("now"), tool("weather", parameters), tool_choice="required")
    try:
        call_grammar(use, "hermes")
        found: Exception = blamed(use, None, ConfigError("the grammar cannot be used: at body1"))
    except ApiError as error:
        found = error
    assert isinstance(found, ApiError)
    assert found.message.startswith("the parameters of the tool 'weather' cannot be used: ")
    assert words in found.message
    assert (found.param, "\n" in found.message) == ("tools", False)


def test_other_errors_are_not_blamed_on_tools() -> None:
    use = use_of(tool("a", {"type": "x"}), tool_choice="required")
    other = ConfigError("too many")
    assert blamed(use, None, other) is other
    mine = ConfigError("the grammar cannot be used: at 5(13): too large 3 | call: call0 4 | call0: x")
    found = blamed(use_of(tool("a")), None, mine)
    assert isinstance(found, ApiError)
    assert (found.message, found.param) == ("the tools cannot be used together: too large", "tools")
    assert blamed(use_of(), None, mine) is mine
    formed = blamed(use_of(tool("a")), {"json": {"type": "objct"}}, mine)
    assert str(formed) == "the JSON schema cannot be used: Invalid type: objct"


# --- Under auto --------------------------------------------------------------------------------


STRICT = use_of(tool("weather", CITY, strict=True), tool("now"))
TEXTS = [
    "",
    "just text { } <b> <tool_call> [1]",
    "x\n" * 50,
    '{"name": "weather", "note": "kept?"}',
    '{"name": "Ann", "age": 3}',
    "[1, 2]",
    "é\n\u2028\x00",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_strict_arguments_are_enforced_within_free_text(family: Family) -> None:
    assert STRICT.enforced
    grammar = free_grammar(STRICT, family, {}, [])
    for text in TEXTS:
        assert accepts(grammar, text)
    for calls in ([PARIS], [NOW, NEXT], [("now", {"any": [1]})]):
        assert accepts(grammar, written(family, *calls))
    assert not accepts(grammar, written(family, OSLO))
    assert not accepts(grammar, written(family, NOW, OSLO))
    assert not accepts(grammar, written(family, ("weather", {"city": "Rome", "more": 1})))
    if family != "llama3_json":
        assert accepts(grammar, f"I ask. {written(family, PARIS)} Then. {written(family, NOW)}.")
        assert not accepts(grammar, f"I ask. {written(family, NOW)} Then. {written(family, OSLO)}")
        assert not accepts(grammar, written(family, ("other", {})))
    bare = json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})
    assert not accepts(grammar, bare)
    assert accepts(grammar, bare.replace("Oslo", "Rome"))
    assert accepts(grammar, f"An example: {bare}")


def test_tools_that_may_not_be_called_are_not() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("now")]}}
    use = use_of(tool("weather", CITY), tool("now"), tool_choice=allowed)
    assert (len(use.described), use.enforced) == (2, True)
    grammar = free_grammar(use, "hermes", {}, [])
    assert accepts(grammar, f"so {written('hermes', NOW)}")
    assert not accepts(grammar, written("hermes", PARIS))


PIECES = [
    "<tool_call>",
    "\n",
    "{",
    "{{",
    '"name": "weather"',
    '"name": "now"',
    ', "arguments": ',
    '"arguments": {}, ',
    "}",
    " ",
    ";",
    ",",
    "```",
    "```json",
]
PIECES += [
    '{"city": "Paris"}',
    '{"city": "Oslo"}',
    '{"x": 1}',
    "{}",
    "</tool_call>",
    "<tools>",
    "</tools>",
    "[",
    "]",
    "text",
    "[TOOL_CALLS]",
    "<|python_tag|>",
]
WHOLE = [f'{{"name": "weather", "arguments": {{"city": "{city}"}}}}' for city in ("Paris", "Oslo")]


@given(st.sampled_from(FAMILIES), st.lists(st.sampled_from([*PIECES, *WHOLE, *WHOLE]), max_size=10))
def test_every_call_that_is_found_was_enforced(family: Family, parts: list[str]) -> None:
    text = "".join(parts)
    if not accepts(free_grammar(STRICT, family, {}, []), text):
        return
    parser = ToolParser(family, ["weather", "now"], enforced=True)
    parser.push(text)
    parser.finish()
    for call in parser.calls:
        arguments = json.loads(call.arguments)
        assert isinstance(arguments, dict)
        assert call.name == "now" or arguments in ({"city": "Paris"}, {"city": "Rome"})


def test_special_tokens_as_marks() -> None:
    grammar = free_grammar(STRICT, "hermes", {"<tool_call>": 256 + 1}, [3, 4, 5, 9, 257])
    assert "TEXT <[257]>" in grammar
    assert "<[3-5,9]>" in grammar
    assert 'marked: <[7]> "\\n" call "\\n" <[8]>' in call_grammar(
        STRICT, "hermes", {"<tool_call>": 7, "</tool_call>": 8}
    )
    assert "<[7]>" in call_grammar(STRICT, "mistral", {"[TOOL_CALLS]": 7})


# --- With a form ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"json": {"properties": {"a": {"type": "integer"}}}}, ['{"a": 1}', "{\n}"], ['{"b": 1}', "1", ""]),
        ({"json": {"type": "array"}, "disable_any_whitespace": True}, ["[1,2]"], ["[1, 2]"]),
        ({"json_object": True}, ['{"b": 1}'], ["[]"]),
        ({"json": True}, ["5"], ["x"]),
        ({"regex": "a/b+"}, ["a/bb"], ["a"]),
        ({"regex": r"a\/b\nc"}, ["a/b\nc"], ["a"]),
        ({"choice": ["x", 'y "z"']}, ["x", 'y "z"'], ["y"]),
    ],
)
@pytest.mark.parametrize("family", ["hermes", "mistral"])
def test_an_answer_is_calls_or_has_the_form(
    family: Family, form: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    rule = form_rule(form)
    assert rule is not None
    grammar = formed_grammar(STRICT, family, {}, rule)
    for text in good:
        assert accepts(grammar, text)
    for text in (*bad, written(family, OSLO), f"{good[0]}{written(family, PARIS)}"):
        assert not accepts(grammar, text)
    for calls in ([PARIS], [NOW, PARIS], [("now", {"any": 1})]):
        assert accepts(grammar, written(family, *calls))


def test_a_grammar_is_not_combined_with_calls() -> None:
    assert form_rule({"grammar": 'root ::= "a"'}) is None
