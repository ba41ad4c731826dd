"""Tool calls in generated text: every form that is read, in pieces of any size, and what stays text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.models.text.tool_call_scanner import CallScanner, decoded, repaired
from outrider.models.text.tool_families import Family
from outrider.server.http.tool_forms import family_of
from outrider.server.http.tool_parser import HELD_CHARS, ToolParser

NAMES = ("a", "b", "f", "now")
Found = tuple[str, list[tuple[str, str]]]

CALL = '{"name": "a", "arguments": {"x": 1}}'
ONE = [("a", '{"x": 1}')]
MARKED = f"<tool_call>\n{CALL}\n</tool_call>"
LLAMA = '{"name": "a", "parameters": {"x": 1}}'


def kept(text: str) -> Found:
    """The text holds no call."""
    return text, []


TEXTS: list[tuple[Family, str, Found]] = [
    ("hermes", "just text", kept("just text")),
    ("hermes", "", kept("")),
    ("hermes", " ", kept(" ")),
    ("hermes", MARKED, ("", ONE)),
    (
        "hermes",
        'Well.\n\n<tool_call>{"name":"a","arguments":{"s":"}\\"</tool_call>"}}</tool_call>\n'
        '<tool_call>\n{"arguments": [], "name": "b"}\n</tool_call>\n',
        ("Well.", [("a", '{"s":"}\\"</tool_call>"}'), ("b", "[]")]),
    ),
    # No arguments, null, and arguments that were encoded twice.
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', ("", [("now", "{}")])),
    ("hermes", '<tool_call>{"name": "a", "arguments": null }</tool_call> then', ("then", [("a", "{}")])),
    ("hermes", '<tool_call>{"name": "a", "arguments": ""}</tool_call>', ("", [("a", "{}")])),
    ("hermes", '{"name": "a", "arguments": "{\\"x\\": 1}"}', ("", ONE)),
    ("hermes", '{"name": "a", "arguments": "{\\"x\\": 1,}"}', ("", ONE)),
    ("hermes", '{"name": "a", "arguments": "x is 1"}', kept('{"name": "a", "arguments": "x is 1"}')),
    (
        "hermes",
        '<tool_call>{"name": "a", "arguments": "{"}',
        kept('<tool_call>{"name": "a", "arguments": "{"}'),
    ),
    # Marks in prose.
    ("hermes", "1 < 2 <tool", kept("1 < 2 <tool")),
    ("hermes", "a <tool_call>nothing</tool_call>", kept("a <tool_call>nothing</tool_call>")),
    (
        "hermes",
        "Use <tool_call> tags, <tools> or  <tool_call>",
        kept("Use <tool_call> tags, <tools> or  <tool_call>"),
    ),
    ("hermes", '<tool_call>{"what": 1}</tool_call>', kept('<tool_call>{"what": 1}</tool_call>')),
    ("hermes", f"see <tool_call> {MARKED} there", ("see <tool_call> there", ONE)),
    ("hermes", f"before\n{MARKED}\nafter", ("before\nafter", ONE)),
    # Not JSON: repaired where that is safe, text otherwise.
    ("hermes", '<tool_call>{"name":"a","arguments":{"x": [1,],}}</tool_call>', ("", [("a", '{"x": [1]}')])),
    (
        "hermes",
        '<tool_call>{"name":"a","arguments":{"x": "1\n\t2"}}</tool_call>',
        ("", [("a", '{"x": "1\\n\\t2"}')]),
    ),
    ("hermes", '<tool_call>{"name":"a","arguments":{"x": True}}</tool_call>', ("", [("a", '{"x": true}')])),
    (
        "hermes",
        '<tool_call>{"name":"a","arguments":{"x": "it\\\'s"}}</tool_call>',
        ("", [("a", '{"x": "it\'s"}')]),
    ),
    ("hermes", "<tool_call>{'name': 'a'}</tool_call>", kept("<tool_call>{'name': 'a'}</tool_call>")),
    (
        "hermes",
        '<tool_call>{"name":"a","arguments":{x: 1}}</tool_call>',
        kept('<tool_call>{"name":"a","arguments":{x: 1}}</tool_call>'),
    ),
    (
        "hermes",
        '<tool_call>{"name":"a","arguments":{"x": 01}}</tool_call>',
        kept('<tool_call>{"name":"a","arguments":{"x": 01}}</tool_call>'),
    ),
    (
        "hermes",
        '<tool_call>{"name":"a","arguments":{"x": NaN}}</tool_call>',
        kept('<tool_call>{"name":"a","arguments":{"x": NaN}}</tool_call>'),
    ),
    (
        "hermes",
        '<tool_call>{"name":"a","arguments":{"x": }}</tool_call>',
        kept('<tool_call>{"name":"a","arguments":{"x": }}</tool_call>'),
    ),
    # The closing mark ends a call.
    ("hermes", '<tool_call>{"name":"a","arguments":{"x":1}\n</tool_call> more', ("more", [("a", '{"x":1}')])),
    ("hermes", '<tool_call>{"name":"a","arguments":{"x":[1\n</tool_call>', ("", [("a", '{"x":[1\n]}')])),
    ("hermes", f"<tool_call>{CALL}}}\n</tool_call>", ("", ONE)),
    ("hermes", f"<tool_call>{CALL}</tool_c", ("", ONE)),
    ("hermes", f"<tool_call>{CALL[:-1]}", ("", ONE)),
    ("hermes", f"{CALL[:-1]}\n", ("", ONE)),
    ("hermes", CALL[:-2], kept(CALL[:-2])),
    ("hermes", f"{CALL[:-1]}\n{CALL}", ("", ONE * 2)),
    ("hermes", f"<tool_call>\n{CALL[:-1]}\n{CALL[:-1]}\n</tool_call>", ("", ONE * 2)),
    ("hermes", f"{CALL[:-1]} so", kept(f"{CALL[:-1]} so")),
    (
        "hermes",
        '<tool_call>{"name":"a","arguments":{"x":"open}\n</tool_call> then ' + MARKED,
        ('<tool_call>{"name":"a","arguments":{"x":"open}\n</tool_call> then', ONE),
    ),
    (
        "hermes",
        '<tool_call>{"name": "a", "arguments": {"x": ',
        kept('<tool_call>{"name": "a", "arguments": {"x": '),
    ),
    ("hermes", '<tool_call>{"na', kept('<tool_call>{"na')),
    # Other marks, code blocks, and calls without marks.
    ("hermes", CALL, ("", ONE)),
    ("hermes", f"{{{CALL}", ("", ONE)),
    ("hermes", f"{{{CALL}}}", ("", ONE)),
    ("hermes", f"<tool_call>{{{CALL}}}</tool_call>", ("", ONE)),
    ("hermes", f"<tools>\n{CALL}\n</tools>", ("", ONE)),
    ("hermes", f"I ask. <function_call>{CALL}</function_call> So.", ("I ask. So.", ONE)),
    ("hermes", f"<response>{CALL}</response>", ("", ONE)),
    ("hermes", f"<tool>{CALL}</tool><json>{CALL}</json>", ("", ONE * 2)),
    ("hermes", "<response>{}</response>", kept("<response>{}</response>")),
    ("hermes", '<function=a>{"x": 1}</function>', ("", ONE)),
    ("hermes", '<function name="a">\n{"x": 1}\n</function> z', ("z", ONE)),
    ("hermes", "<function=zz>{}</function>", kept("<function=zz>{}</function>")),
    ("hermes", f"\n```json\n{CALL}\n```\n", ("", ONE)),
    ("hermes", f"```\n{CALL}\n```", ("", ONE)),
    ("hermes", f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>", ("", ONE)),
    ("hermes", f"<tool_call>[{CALL}, {CALL}]</tool_call>", ("", ONE * 2)),
    ("hermes", f"<tool_call>\n{CALL}\n{CALL}\n</tool_call> t", ("t", ONE * 2)),
    ("hermes", f"{CALL}\n{CALL}", ("", ONE * 2)),
    ("hermes", f"[{CALL},{CALL}]", ("", ONE * 2)),
    ("hermes", '<tool_call>{"name":"zz","arguments":{}}</tool_call>', ("", [("zz", "{}")])),
    (
        "hermes",
        '<tools>{"name":"zz","arguments":{}}</tools>',
        kept('<tools>{"name":"zz","arguments":{}}</tools>'),
    ),
    # JSON that only looks like a call.
    ("hermes", '{"name": "a", "note": "kept?"}', kept('{"name": "a", "note": "kept?"}')),
    ("hermes", '{"name": "now"}', kept('{"name": "now"}')),
    ("hermes", '<tools>{"name": "now"}</tools>', kept('<tools>{"name": "now"}</tools>')),
    ("hermes", '{"name": "Ann", "age": 3}', kept('{"name": "Ann", "age": 3}')),
    ("hermes", '```json\n{"city": 1}\n```', kept('```json\n{"city": 1}\n```')),
    ("hermes", "```python\nx = {}\n```", kept("```python\nx = {}\n```")),
    ("hermes", "```", kept("```")),
    ("hermes", "[1, 2]", kept("[1, 2]")),
    ("hermes", f"so: {CALL}", kept(f"so: {CALL}")),
    # Llama 3.
    ("llama3_json", '{"name": "a", "parameters": {"x": [1, {}]}}', ("", [("a", '{"x": [1, {}]}')])),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "a", "parameters": {}}; {"name": "b", "parameters": {}}',
        ("", [("a", "{}"), ("b", "{}")]),
    ),
    ("llama3_json", '<|python_tag|>{"name": "now"}', ("", [("now", "{}")])),
    ("llama3_json", '<function=a>{"x": 1}</function>', ("", ONE)),
    ("llama3_json", f"{LLAMA};{LLAMA}", ("", ONE * 2)),
    ("llama3_json", "The answer is {}", kept("The answer is {}")),
    ("llama3_json", '{"name": "Ann"}', kept('{"name": "Ann"}')),
    ("llama3_json", '{"answer": 1}', kept('{"answer": 1}')),
    ("llama3_json", "{not json", kept("{not json")),
    ("llama3_json", " ", kept(" ")),
    # Mistral.
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", ("", ONE * 2)),
    ("mistral", f'Yes. [TOOL_CALLS][{CALL[:-1]}, "id": "abcdefghi"}}]', ("Yes.", ONE)),
    ("mistral", '[TOOL_CALLS]a{"x": 1}[TOOL_CALLS]b[ARGS]{}', ("", [*ONE, ("b", "{}")])),
    ("mistral", '[TOOL_CALLS]a[CALL_ID]x1[ARGS]{"x": 1}', ("", ONE)),
    ("mistral", "[TOOL_CALLS] is a mark", kept("[TOOL_CALLS] is a mark")),
    ("mistral", "[1] and [2]", kept("[1] and [2]")),
    ("mistral", f"[{CALL}]", ("", ONE)),
]


def parse(family: Family, pieces: list[str], *, cut: bool = False, **modes: Any) -> Found:
    """What deltas add up to, as a client adds them up."""
    parser, content, calls = ToolParser(family, NAMES, **modes), "", dict[int, dict[str, Any]]()
    for parsed in (*(parser.push(piece) for piece in pieces), parser.finish(cut=cut)):
        content += parsed.content
        assert len({delta["index"] for delta in parsed.deltas}) == len(parsed.deltas)
        for delta in parsed.deltas:
            call = calls.setdefault(delta["index"], {"arguments": "", **delta.get("function", {}), **delta})
            if call["function"] is not delta["function"]:
                call["arguments"] += delta["function"]["arguments"]
    found = [(call["name"], call["arguments"]) for _, call in sorted(calls.items())]
    assert found == [(call.name, call.arguments) for call in parser.calls]
    size = 9 if family == "mistral" else 29
    assert all(len(call["id"]) == size for call in calls.values())
    return content, found


def cut_up(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize(("family", "text", "expected"), TEXTS)
def test_calls_in_a_text(family: Family, text: str, expected: Found) -> None:
    assert parse(family, [text]) == parse(family, list(text)) == expected
    for _, arguments in expected[1]:
        json.loads(arguments)


@given(st.sampled_from(TEXTS), st.data())
def test_it_does_not_matter_how_a_text_is_cut(case: tuple[Family, str, Found], data: st.DataObject) -> None:
    family, text, expected = case
    assert parse(family, cut_up(text, data)) == expected


WORDS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "a"',
    ', "arguments": {',
    "<tools>",
    "[TOOL_CALLS]",
    "```json",
    "<function=a>",
]
WORDS += [
    '"',
    "{",
    "}",
    ",",
    ":",
    "\\",
    " x",
    "; ",
    "[",
    "]",
    "\n",
    "1",
    "true",
    "a" * 60,
    CALL,
    "<",
    "`",
    "</",
]


@given(
    st.sampled_from(["hermes", "llama3_json", "mistral"]),
    st.lists(st.sampled_from(WORDS), max_size=30),
    st.booleans(),
    st.sampled_from([{}, {"enforced": True}, {"formed": True}, {"forced": True}]),
    st.data(),
)
def test_no_text_is_lost_or_fatal(
    family: Family, parts: list[str], cut: bool, modes: dict[str, bool], data: st.DataObject
) -> None:
    text = "".join(parts)
    found = parse(family, [text], cut=cut, **modes)
    assert parse(family, cut_up(text, data), cut=cut, **modes) == found
    content, calls = found
    if not calls:
        assert content == text
    if not cut and not modes:
        for _, arguments in calls:
            json.loads(arguments)


@pytest.mark.parametrize(
    ("rest", "arguments", "content"),
    [
        ('"}}\n</tool_call> end', '"}', "end"),
        ('" 5}\n</tool_call> end', '" 5}\n', "end"),
        ("", "", ""),
    ],
)
def test_a_long_call_is_sent_as_it_is_written(rest: str, arguments: str, content: str) -> None:
    value = "y" * (HELD_CHARS + 500)
    begun = '<tool_call>{"name": "a", "arguments": {"x": "' + value
    parser = ToolParser("hermes", NAMES)
    assert parser.push(begun).deltas[0]["function"]["arguments"] == '{"x": "' + value
    for pieces in ([begun, rest], [begun + rest], list(begun + rest)):
        assert parse("hermes", pieces) == (content, [("a", '{"x": "' + value + arguments)])


def test_a_call_that_is_cut_off_is_a_call_as_far_as_it_came() -> None:
    begun = '<tool_call>{"name": "a", "arguments": {"x": '
    assert parse("hermes", [begun], cut=True) == ("", [("a", '{"x": ')])
    assert parse("hermes", list(begun), cut=True) == ("", [("a", '{"x": ')])
    unnamed = '<tool_call>{"name": "a'
    assert parse("hermes", [unnamed], cut=True) == kept(unnamed)


def test_forced_calls_are_sent_as_they_are_written() -> None:
    parser = ToolParser("hermes", NAMES, forced=True)
    sent = [delta["function"]["arguments"] for c in MARKED for delta in parser.push(c).deltas]
    assert len(sent) > 5
    assert "".join(sent) == '{"x": 1}'


@pytest.mark.parametrize(
    "text", [CALL, f"<tools>{CALL}</tools>", f'{{"s": "{{}} <tool_call>"}} {MARKED}', f"see {MARKED}"]
)
def test_where_the_request_has_a_form_only_marks_at_the_start_count(text: str) -> None:
    assert parse("hermes", [text], formed=True) == kept(text)
    assert parse("hermes", list(text), formed=True) == kept(text)
    assert parse("hermes", [f"{MARKED}\n{MARKED}"], formed=True) == ("", ONE * 2)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (MARKED, True),
        (CALL, True),
        (f"```json\n{CALL}\n```", True),
        (f"<tools>{{{CALL}}}</tools>", True),
        ('<tool_call>{"arguments": {"x": 1}, "name": "a"}</tool_call>', False),
        ('<tool_call>{"name": "\\u0061", "arguments": {"x": 1}}</tool_call>', False),
        ('<tool_call>{"id": 1, "name": "a", "arguments": {"x": 1}}</tool_call>', False),
        ('<function=a>{"x": 1}</function>', False),
        (f"<response>{CALL}</response>", False),
        ('<tool_call>{"name": "zz", "arguments": {}}</tool_call>', False),
        ('<tool_call>{"name": "a"}</tool_call>', False),
    ],
)
def test_where_a_grammar_enforces_arguments_no_other_calls_count(text: str, counts: bool) -> None:
    assert parse("hermes", [text], enforced=True) == (("", ONE) if counts else kept(text))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    ),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_arguments_are_handed_on_as_they_are(value: Any, indent: int | None, ascii_only: bool) -> None:
    arguments = {"value": value}
    for family, key in (("hermes", "arguments"), ("llama3_json", "parameters"), ("mistral", "arguments")):
        text = json.dumps({"name": "f", key: arguments}, indent=indent, ensure_ascii=ascii_only)
        marks = {"hermes": f"<tool_call>\n{text}\n</tool_call>", "mistral": f"[TOOL_CALLS] [{text}]"}
        content, calls = parse(family, [marks.get(family, text)])  # type: ignore[arg-type]
        assert content == ""
        assert [(name, json.loads(found)) for name, found in calls] == [("f", arguments)]
        twice = json.dumps({"name": "f", key: json.dumps(arguments)}, indent=indent)
        ((_, found),) = parse(family, [marks.get(family, twice).replace(text, twice)])[1]  # type: ignore[arg-type]
        assert json.loads(found) == arguments


@given(
    st.lists(st.sampled_from([*'{}[],:"\\ 1eE.-+\n', "tru", "true", "None", "\\u00e9", "ab"]), max_size=20)
)
def test_what_is_repaired_is_json(parts: list[str]) -> None:
    text = "{" + "".join(parts)
    found = repaired(text)
    assert found is None or isinstance(json.loads(found), dict)
    try:
        value = json.loads(text, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return
    assert found is not None
    assert json.loads(found) == value


def test_closing_what_is_open() -> None:
    for text, closed in (
        ('{"a": [1', '{"a": [1]}'),
        ('{"a": {"b": 1,', '{"a": {"b": 1}}'),
        ('{"a": ', None),
        ('{"a": "x', None),
    ):
        scanner = CallScanner("")
        scanner.push(text)
        assert scanner.close_all() == (closed is not None)
        assert closed is None or scanner.arguments == closed


def test_arguments_in_a_string() -> None:
    assert decoded(None) == decoded(" null ") == decoded('"null"') == decoded('""') == "{}"
    assert decoded('"[1]"') == '"[1]"'
    assert decoded("[1] ") == "[1] "


def test_the_form_goes_by_the_template() -> None:
    assert family_of(None) == "hermes"
    assert family_of("… <tool_call> …") == "hermes"
    assert family_of('{"name": function name, "parameters": dictionary}') == "llama3_json"
    assert family_of('[TOOL_CALLS] … "parameters"') == "mistral"
    assert family_of("… <tool_call> …", "llama3_json") == "llama3_json"
    assert family_of('"parameters"', "hermes") == "hermes"
