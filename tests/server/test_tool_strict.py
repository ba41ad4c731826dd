"""Strict tools in free text, in each family's own form: what the grammar accepts, byte by byte and with marks
that are special tokens, and that the parser finds it however it is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from outrider.models.text.tool_families import Family
from outrider.server.http.errors import ApiError
from outrider.server.http.free_tool_grammar import free_grammar
from outrider.server.http.tool_forms import is_enforced
from outrider.server.http.tool_parser import ToolParser
from outrider.server.http.tools import ToolUse
from tests.server.test_tool_families import ARGUMENTS, TEMPLATES, cuts, rendered, thoughts_of
from tests.server.test_tool_grammar import BYTES, accepts, tool, use_of

OWN: tuple[Family, ...] = tuple(family for family in TEMPLATES if family not in ("hermes", "llama3_json"))
LOOK = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "near": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "box": {"$ref": "#/$defs/Box"},
    },
    "required": ["place", "days"],
    "$defs": {
        "Box": {
            "type": "object",
            "properties": {"w": {"type": "number"}, "h": {"type": "number"}},
            "required": ["w"],
        }
    },
}
STRICT = use_of(tool("look_up", LOOK, strict=True), tool("now"))
NAMES = ("look_up", "now")
GOOD: list[dict[str, Any]] = [
    ARGUMENTS,
    {"place": "", "days": -7},
    {"place": "a, b) ]}\t", "days": 0, "near": None, "box": {"w": -1.5e3}},
    {"place": "é", "days": 12, "tags": [], "box": {"w": 0, "h": 2}},
]
BAD: list[dict[str, Any]] = [
    {},
    {"place": "x"},
    {"place": "x", "days": "two"},
    {"place": "x", "days": 1.5},
    {"place": "x", "days": 1, "more": 1},
    {"place": "x", "days": 1, "exact": None},
    {"place": "x", "days": 1, "tags": [1]},
    {"place": "x", "days": 1, "box": {"h": 1}},
    {"place": "x", "days": 1, "box": {"w": 1, "d": 1}},
]
ANY = {"a": [1, {"b": "c"}, None], "d": "e"}


def grammar_of(family: Family, use: ToolUse = STRICT) -> str:
    return free_grammar(use, family, {}, [])


def read(family: Family, pieces: Sequence[str], names: Sequence[str] = NAMES) -> tuple[str, list[Any], int]:
    """The text, the calls that the deltas add up to, and how many deltas had arguments."""
    schemas = {"look_up": LOOK}
    parser, thoughts = ToolParser(family, names, enforced=True, schemas=schemas), thoughts_of(family)
    found = []
    for piece in pieces:
        found.append(parser.push(piece if thoughts is None else thoughts.push(piece)[1]))
    if thoughts is not None:
        found.append(parser.push(thoughts.finish()[1]))
    found.append(parser.finish())
    calls: list[list[str]] = []
    for delta in (delta for each in found for delta in each.deltas):
        if "id" in delta:
            calls.append([delta["function"]["name"], ""])
        calls[delta["index"]][1] += delta["function"]["arguments"]
    grown = sum(1 for each in found for delta in each.deltas if delta["function"]["arguments"])
    return "".join(each.content for each in found), [(n, json.loads(a)) for n, a in calls], grown


@pytest.mark.parametrize("family", TEMPLATES)
def test_golden_transcripts_are_accepted_and_read_however_they_are_cut(family: Family) -> None:
    grammar = grammar_of(family)
    for arguments in GOOD:
        calls = [("look_up", arguments), ("now", {})]
        text = rendered(family, calls)
        assert accepts(grammar, text), text
        whole = read(family, [text])
        assert whole[:2] == ("", calls)
        for pieces in cuts(text):
            assert read(family, pieces)[:2] == whole[:2]
    long = rendered(family, [("look_up", {"place": "north of it, " * 20, "days": 1})])
    assert read(family, list(long))[2] > 200  # arguments come as they are written


@pytest.mark.parametrize("family", OWN)
def test_arguments_that_do_not_match_cannot_be_written(family: Family) -> None:
    grammar = grammar_of(family)
    for arguments in BAD:
        assert not accepts(grammar, rendered(family, [("look_up", arguments)])), arguments
    for arguments in ({}, ANY):  # a tool that is not strict takes any
        assert accepts(grammar, rendered(family, [("now", arguments)]))
        assert not accepts(grammar, rendered(family, [("now", arguments), ("look_up", {"place": "x"})]))


@pytest.mark.parametrize("family", [family for family in OWN if family not in ("pythonic", "openai")])
def test_text_around_calls_is_free(family: Family) -> None:
    grammar = grammar_of(family)
    good, bad = (rendered(family, [("look_up", arguments)]).strip() for arguments in (GOOD[1], BAD[1]))
    assert accepts(grammar, f"I look. {good} And {{then}} <b>[1]. {good}")
    assert not accepts(grammar, f"I look. {good} And then. {bad}")
    assert read(family, list(f"I look. {good}"))[:2] == ("I look.", [("look_up", GOOD[1])])
    if family == "mistral":
        return
    json_call = f'<tool_call>\n{{"name": "look_up", "arguments": {json.dumps(BAD[1])}}}\n</tool_call>'
    assert not accepts(grammar, f"So: {json_call}")


def test_lists_of_calls_in_python_are_calls_at_the_start_only() -> None:
    grammar = grammar_of("pythonic")
    assert accepts(grammar, "An example: [look_up(place=1)]")
    assert accepts(grammar, "[1, 2, 3]")
    assert accepts(grammar, "[other(a=1)]")
    assert accepts(grammar, '<|python_start|>[look_up(place="it\'s", days=3)]<|python_end|>')
    assert not accepts(grammar, "<|python_start|>[look_up(place='x')]<|python_end|>")
    assert not accepts(grammar, "[now(), look_up(place='x')]")
    assert not accepts(grammar, '{"name": "look_up", "parameters": {"place": "x"}}')


def test_messages_in_channels() -> None:
    grammar = grammar_of("openai")
    final = "<|channel|>final<|message|>hello {} to=functions.look_up"
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    bad = " to=functions.look_up<|channel|>commentary json<|message|>{}"
    good = bad.replace("{}", '{"place": "x", "days": 1}')
    for text in (
        final,
        thought + final,
        thought + good,
        "goes on",
        f"goes on<|end|><|start|>assistant{final}",
    ):
        assert accepts(grammar, text)
    for text in (bad, thought + bad, final + "<|end|><|start|>assistant" + bad, "on <|channel|>final"):
        assert not accepts(grammar, text)
    for text in ("<|channel|>commentary to=python<|message|>{}", "<|channel|>commentary to=functions.other "):
        assert not accepts(grammar, text)


# --- Schemas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", OWN)
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["a b", "c"]}, ["a b", "c"], ["d", "", 1]),
        ({"type": "string", "enum": ["a", "b"]}, ["a"], ["ab", "c"]),
        ({"const": 3}, [3], [4, "3"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["éa", "abc"], ["a", "abcd"]),
        ({"type": "integer", "minimum": 2, "maximum": 12}, [2, 12], [1, 13]),
        ({"type": ["integer", "null"]}, [2, None], ["2", True]),
        ({"type": "number"}, [2, -0.5, 1e-7], [None]),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
            [[1], [1, 2]],
            [[], [1, 2, 3]],
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            [{}, {"x": 1, "y": 2}],
            [{"x": "y"}],
        ),
        ({"anyOf": [{"type": "boolean"}, {"type": "integer"}]}, [True, 3], ["x", None]),
        ({"allOf": [{"$ref": "#/$defs/Text"}]}, ["t"], [1]),
        ({}, [1, "x", None, [True], {"k": [1]}], []),
    ],
)
def test_values_of_a_schema(family: Family, schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    document = {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "$defs": {"Text": {"type": "string"}},
    }
    grammar = grammar_of(family, use_of(tool("look_up", document, strict=True)))
    texts = family == "qwen3_coder" and schema.get("type") != "string"  # texts are JSON there
    for value, expected in [*((value, True) for value in good), *((value, False) for value in bad)]:
        text = rendered(family, [("look_up", {"v": value})])
        if texts and isinstance(value, str):
            text = re.sub(r">\n(.*)\n</p", lambda m: f">\n{json.dumps(m[1], ensure_ascii=False)}\n</p", text)
        assert accepts(grammar, text) is expected, text


def test_schemas_may_lead_back_to_themselves() -> None:
    tree = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}},
        "required": ["name"],
    }
    for family in ("gemma4", "pythonic", "granite", "openai"):
        grammar = grammar_of(family, use_of(tool("look_up", tree, strict=True)))
        nested: dict[str, Any] = {"name": "a", "next": {"name": "b", "next": {"name": "c"}}}
        assert accepts(grammar, rendered(family, [("look_up", nested)]))
        nested["next"]["next"] = {"nam": "c"}
        assert not accepts(grammar, rendered(family, [("look_up", nested)]))


@pytest.mark.parametrize(
    ("family", "schema", "words"),
    [
        ("gemma4", {"properties": {"a": {"type": "string", "pattern": "x"}}}, "pattern"),
        ("gemma4", {"properties": {"a:b": {}}}, 'the property "a:b"'),
        ("gemma4", {"properties": {"a": {"enum": ['<|"|>']}}}, "the text"),
        ("gemma4", {"properties": {"a": {"enum": [[1]]}}}, "an enum of arrays or objects"),
        ("gemma4", {"properties": {"a": {"type": "string", "format": "date"}}}, "format"),
        ("gemma4", {"properties": {"a": {"$ref": "#/x"}}}, 'the pointer "#/x"'),
        ("pythonic", {"properties": {"from": {}}}, 'the property "from"'),
        ("pythonic", {"properties": {"a": {"enum": []}}}, "a schema that no value matches"),
        ("qwen3_coder", {"properties": {"<x>": {}}}, 'the property "<x>"'),
        ("qwen3_coder", {"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "the pointer"),
        ("qwen3_coder", {"anyOf": [{"type": "object"}, {"type": "object", "properties": {}}]}, "a choice"),
    ],
)
def test_what_a_form_cannot_hold_to_is_told(family: Family, schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match="the parameters of the tool 'look_up' cannot be used: ") as caught:
        grammar_of(family, use_of(tool("look_up", {"type": "object", **schema}, strict=True)))
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert (caught.value.status, caught.value.param) == (400, "tools")


# --- The parser and the grammar see the same calls ----------------------------------------------------


PIECES = [
    *("<tool_call>", "</tool_call>", "<function=look_up>", "<function=now>", "</function>", "\n", " ", ","),
    *("<parameter=place>\nx\n</parameter>\n", "<parameter=days>\n1\n</parameter>\n", "[", "]", "{", "}", ")"),
    *("<|tool_call>", "call:look_up{", "call:now{", 'place:<|"|>x<|"|>', "days:1", "<tool_call|>", ";"),
    *("now(", "look_up(", "place='x'", ", days=1", "<|python_start|>", "<|python_end|>", "functools"),
    *("[TOOL_CALLS]", "look_up", "now", "[ARGS]", '{"place": "x"}', '{"place": "x", "days": 1}'),
    *("<|tool_call|>", "<|/tool_call|>", '{"name": "now", "arguments": {}}', "text", "```", "```json"),
    '{"name": "look_up", "arguments": {"place": "x"}}',
    '{"name": "look_up", "arguments": {"place": "x", "days": 1}}',
    *("<function=look_up>\n<parameter=place>\nx\n</parameter>\n</function>", "[look_up(place='x')]"),
    *('<|tool_call>call:look_up{place:<|"|>x<|"|>}', "<|channel|>commentary", " to=functions.look_up"),
    *("<|message|>", "<|end|>", "<|start|>assistant", "<|call|>", "<|channel|>final<|message|>"),
]


@given(st.sampled_from(OWN), st.lists(st.sampled_from(PIECES), max_size=9))
def test_every_call_that_is_found_was_enforced(family: Family, parts: list[str]) -> None:
    text = "".join(parts)
    if not accepts(grammar_of(family), text):
        return
    for name, arguments in read(family, [text])[1]:
        assert name == "now" or (type(arguments["place"]), type(arguments["days"])) == (str, int)


def test_a_parser_that_takes_any_call_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'x <function name="look_up">{"place": "x"}'
    assert accepts(grammar_of("qwen3_coder"), text)
    assert read("qwen3_coder", [text])[1] == []
    assert not is_enforced("qwen3_coder", '<function name="look_up">', NAMES)
    monkeypatch.setattr("outrider.server.http.tool_parser.is_enforced", lambda *_: True)
    assert read("qwen3_coder", [text])[1] == [("look_up", {"place": "x"})]


class _Marked:
    """Bytes, and marks that are special tokens from 257 on; 256 ends a text."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.tokens = [bytes([n]) for n in range(256)] + [b"<eos>", *(mark.encode() for mark in marks)]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id, self.bos_token_id = 256, None

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


MARKS: dict[Family, tuple[str, ...]] = {
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "granite": ("<|tool_call|>", "<tool_call>"),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "openai": ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
}


@pytest.mark.parametrize("family", MARKS)
def test_marks_that_are_special_tokens(family: Family) -> None:
    marks = {mark: 257 + n for n, mark in enumerate(MARKS[family])}
    grammar = free_grammar(STRICT, family, marks, sorted(marks.values()))
    table = LLTokenizer(TokenizerWrapper(_Marked(MARKS[family])))

    def taken(text: str) -> bool:
        parts = re.split("(" + "|".join(map(re.escape, marks)) + ")", text)
        ids = [i for part in parts for i in ([marks[part]] if part in marks else part.encode())]
        matcher = LLMatcher(table, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    before = "" if family in ("pythonic", "openai") else "I look. "
    for arguments in GOOD:
        assert taken(before + rendered(family, [("look_up", arguments), ("now", {})]))
    for arguments in BAD:
        assert not taken(before + rendered(family, [("look_up", arguments)]))


def test_the_byte_tokenizer_of_these_tests_has_no_marks() -> None:
    assert len(BYTES.tokenize_str("<|tool_call>")) == 12
