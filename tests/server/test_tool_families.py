"""Golden transcripts of tool calls in each family's own form, whole and cut at every place."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from llguidance import LLMatcher, LLTokenizer

from outrider.models.text.native_calls import GemmaScanner, PythonScanner, XmlScanner
from outrider.models.text.reasoning import PARSERS, ThoughtReader, reader_after
from outrider.models.text.tool_families import TOOL_PARSERS, Family
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.tool_forms import family_of
from outrider.server.http.tool_grammar import call_grammar
from outrider.server.http.tool_parser import HELD_CHARS, ToolParser
from outrider.server.http.tools import ToolUse, tool_use

ARGUMENTS: dict[str, Any] = {
    "place": 'Łódź "north"\n\\ 7',
    "days": 3,
    "exact": True,
    "near": None,
    "tags": ["a, b", "c}"],
    "box": {"w": 1.5, "h": -2},
}
CALLS: list[tuple[str, dict[str, Any]]] = [("look.up", ARGUMENTS), ("now", {})]
PYTHON_CALLS = [("look_up", ARGUMENTS), ("now", {})]
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
NAMES = ("look.up", "look_up", "now")

# How each family's model writes calls, as its template writes past ones.
_EACH, _END = "{% for n, a in calls %}", "{% endfor %}"
_ARGUMENTS_OF = "{% for k, v in a.items() %}"
_COMMA = "{{ ', ' if not loop.last }}"
TEMPLATES: dict[Family, str] = {
    "hermes": f"{_EACH}<tool_call>\n{{{{ {{'name': n, 'arguments': a}} | json }}}}\n</tool_call>\n{_END}",
    "qwen3_coder": (
        f"{_EACH}<tool_call>\n<function={{{{ n }}}}>\n{_ARGUMENTS_OF}<parameter={{{{ k }}}}>\n"
        f"{{{{ v if v is string else v | json }}}}\n</parameter>\n{_END}</function>\n</tool_call>\n{_END}"
    ),
    "llama3_json": (
        f"{_EACH}{{{{ {{'name': n, 'parameters': a}} | json }}}}{{{{ '; ' if not loop.last }}}}{_END}"
    ),
    "pythonic": (
        f"[{_EACH}{{{{ n }}}}({_ARGUMENTS_OF}{{{{ k }}}}={{{{ v | python }}}}{_COMMA}{_END}){_COMMA}{_END}]"
    ),
    "mistral": f"{_EACH}[TOOL_CALLS]{{{{ n }}}}[ARGS]{{{{ a | json }}}}{_END}",
    "granite": (
        f"<|tool_call|>[{_EACH}{{{{ {{'name': n, 'arguments': a}} | json }}}}{_COMMA}{_END}]<|/tool_call|>"
    ),
    "gemma4": f"{_EACH}<|tool_call>call:{{{{ n }}}}{{{{ a | gemma }}}}<tool_call|>{_END}",
    "openai": (
        f"{_EACH}<|channel|>commentary to=functions.{{{{ n }}}} <|constrain|>json<|message|>"
        f"{{{{ a | json }}}}<|call|>{{{{ '<|start|>assistant' if not loop.last }}}}{_END}"
    ),
}


def gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(part)}" for key, part in value.items()) + "}"
    return "[" + ",".join(map(gemma, value)) + "]" if isinstance(value, list) else json.dumps(value)


def rendered(family: Family, calls: list[tuple[str, dict[str, Any]]]) -> str:
    environment = Environment(autoescape=False)
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters |= {"python": repr, "gemma": gemma}
    return environment.from_string(TEMPLATES[family]).render(calls=calls)


def written(family: Family) -> str:
    return rendered(family, PYTHON_CALLS if family == "pythonic" else CALLS)


def thoughts_of(family: Family) -> ThoughtReader | None:
    class NoText:
        def decode(self, *_: Any, **__: Any) -> str:
            return ""

    return reader_after(PARSERS["openai_gptoss"], NoText(), []) if family == "openai" else None  # type: ignore[arg-type]


def parsed(family: Family, pieces: list[str], *, schema: Any = SCHEMA) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls that the deltas add up to."""
    parser = ToolParser(family, NAMES, schemas={"look.up": schema, "look_up": schema})
    thoughts = thoughts_of(family)
    content, calls = "", list[list[str]]()
    found = []
    for piece in pieces:
        found.append(parser.push(piece if thoughts is None else thoughts.push(piece)[1]))
    if thoughts is not None:
        found.append(parser.push(thoughts.finish()[1]))
    for read in [*found, parser.finish()]:
        content += read.content
        for delta in read.deltas:
            if "id" in delta:
                calls.append([delta["function"]["name"], ""])
            calls[delta["index"]][1] += delta["function"]["arguments"]
    assert [[call.name, call.arguments] for call in parser.calls] == calls
    return content, [(name, arguments) for name, arguments in calls]


def cuts(text: str) -> list[list[str]]:
    return [[text], *([text[:at], text[at:]] for at in range(1, len(text))), list(text)]


@pytest.mark.parametrize("family", TEMPLATES)
def test_calls_are_found_however_the_text_is_cut(family: Family) -> None:
    expected = PYTHON_CALLS if family == "pythonic" else CALLS
    text = written(family)
    whole = parsed(family, [text])
    assert whole[0] == ""
    assert [(name, json.loads(arguments)) for name, arguments in whole[1]] == expected
    for pieces in cuts(text):
        assert parsed(family, pieces) == whole


@pytest.mark.parametrize("family", [f for f in TEMPLATES if f not in ("llama3_json", "pythonic", "openai")])
def test_text_before_and_after_calls(family: Family) -> None:
    text = f"I look it up.\n{written(family).strip()}\nDone."
    for pieces in ([text], list(text)):
        content, calls = parsed(family, pieces)
        assert content == "I look it up.\nDone."
        assert len(calls) == 2


@pytest.mark.parametrize("family", ["qwen3_coder", "gemma4", "openai", "hermes"])
def test_long_arguments_come_as_they_are_written(family: Family) -> None:
    long = [("look.up", {"place": "north of it, " * 400})]
    text = rendered(family, long)
    parser, thoughts, parts = ToolParser(family, NAMES, schemas={"look.up": SCHEMA}), thoughts_of(family), []
    for char in text:
        shown = char if thoughts is None else thoughts.push(char)[1]
        parts += [d["function"]["arguments"] for d in parser.push(shown).deltas]
    parser.finish()
    assert len(parts) > (len(text) - HELD_CHARS) / 2
    assert json.loads("".join(parts)) == long[0][1]


class _Sloppy(XmlScanner):
    """A broken twin that does not wait for a value's end."""

    def _value(self) -> None:
        self._out.append(self._held)
        self._held = ""


def test_a_scanner_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.server.http.tool_opening.XmlScanner", _Sloppy)
    assert parsed("qwen3_coder", [written("qwen3_coder")])[1] != [
        (name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in CALLS
    ]


def test_values_of_parameters_in_tags() -> None:
    def read(text: str, schema: Any = SCHEMA) -> tuple[str, list[tuple[str, str]]]:
        return parsed(
            "hermes",
            list(f"<tool_call>\n<function=look.up>\n{text}\n</function>\n</tool_call>"),
            schema=schema,
        )

    def one(value: str, key: str = "place") -> str:
        return f"<parameter={key}>{value}</parameter>"

    for value, key, expected in (
        ("\n12\n", "place", '"12"'),
        ("12", "place", '"12"'),
        ("\n\n a \n\n", "place", '"\\n a \\n"'),
        ("\n</param\n", "place", '"</param"'),
        ("\n12\n", "days", "12"),
        ("\nTrue\n", "days", "true"),
        ("\nNaN\n", "days", '"NaN"'),
        ("\ntwo days\n", "days", '"two days"'),
        ('\n{"a": [1]}\n', "other", '{"a": [1]}'),
    ):
        assert read(one(value, key)) == ("", [("look.up", f'{{"{key}": {expected}}}')])
    text = "<tool_call>\n<function=look.up>\nno parameter\n</function>\n</tool_call>"
    assert parsed("hermes", list(text)) == (text, [])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("gemma4", "<|tool_call>call:look.up{a:1]}<tool_call|>"),
        ("gemma4", "<|tool_call>call look.up{}<tool_call|>"),
        ("gemma4", '<|tool_call>call:look.up{a:<|"|>x'),
        ("pythonic", "[look_up(1)]"),
        ("pythonic", "[look_up(a=b)]"),
        ("pythonic", "[look_up(a=__import__('os'))]"),
        ("pythonic", "[look_up(a=1"),
        ("pythonic", "[other(a=1)]"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[see below]"),
        ("granite", "functools is a module"),
        ("granite", "<|tool_call|> none"),
        ("qwen3_coder", "<tool_call><functional"),
    ],
)
def test_what_is_no_call_stays_text(family: Family, text: str) -> None:
    for pieces in cuts(text):
        assert parsed(family, pieces) == (text, [])


@given(
    st.text(alphabet='ab{}[]()<>|",:=\\\n', max_size=60),
    st.sampled_from([GemmaScanner, PythonScanner, XmlScanner]),
)
def test_scanners_take_any_text(text: str, kind: type[Any]) -> None:
    whole, by_character = kind("f"), kind("f")
    taken = whole.push(text)
    assert taken == sum(by_character.push(char) for char in text)
    assert (whole.done, whole.failed, whole.arguments) == (
        by_character.done,
        by_character.failed,
        by_character.arguments,
    )
    if whole.done:
        assert isinstance(json.loads(whole.arguments), dict)


PYTHON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(alphabet="a'\"\\\n\t\x07é)],(", max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("k'", max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.dictionaries(st.sampled_from(["a", "b_c", "d1"]), PYTHON_VALUES),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_arguments_in_python_become_json_however_they_are_cut(
    arguments: dict[str, Any], sizes: list[int]
) -> None:
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) + ")"
    scanner, at, taken = PythonScanner("f"), 0, ""
    for size in itertools.cycle(sizes):
        at += scanner.push(text[at : at + size])
        taken += scanner.take()
        if scanner.done or scanner.failed:
            break
    assert (scanner.done, scanner.failed, at) == (True, False, len(text))
    assert json.loads(taken) == json.loads(str(scanner.arguments)) == arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a='x' 'y')", {"a": "xy"}),
        ("a='''xy''')", {"a": "xy"}),
        ("a='\\x41\\u00e9b',)", {"a": "Aéb"}),
        ("a=r'\\n')", {"a": "\\n"}),
        ("a='x'.upper())", None),
        ("a='x' + b)", None),
        ("a='x', a='y')", None),
        ("a='x',, b='y')", None),
        ("a='\n')", None),
    ],
)
def test_a_text_in_python_may_be_more_than_it_seems(text: str, expected: Any) -> None:
    scanner = PythonScanner("f")
    scanner.push(text)
    assert (scanner.done, scanner.failed) == (expected is not None, expected is None)
    if expected is not None:
        assert json.loads(str(scanner.arguments)) == expected


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_family_is_chosen_by_the_template(family: Family) -> None:
    source = TEMPLATES[family].replace("'parameters'", '"parameters"')
    source += "<|python_start|>" if family == "pythonic" else ""
    assert family_of(source) == family_of(source, "auto") == family
    for name, chosen in TOOL_PARSERS.items():
        assert family_of(source, name) == chosen


def use() -> ToolUse:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    body = {"messages": [{"role": "user", "content": "?"}], "tools": tools, "tool_choice": "required"}
    return tool_use(ChatRequest.model_validate(body))


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_forced_call_is_one_that_the_parser_reads(family: Family) -> None:
    """A grammar writes JSON, in the family's own marks where it uses JSON."""
    ids = LLTokenizer("byte")
    matcher = LLMatcher(ids, LLMatcher.grammar_from_lark(call_grammar(use(), family)), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    call = '"name": "now", "arguments": {"days": 3}'
    text = {
        "mistral": f"[TOOL_CALLS] [{{{call}}}]",
        "granite": f"<|tool_call|> [{{{call}}}]",
        "llama3_json": f"{{{call.replace('arguments', 'parameters')}}}",
        "pythonic": f"{{{call.replace('arguments', 'parameters')}}}",
        "openai": '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"days": 3}',
    }.get(family, f"<tool_call>\n{{{call}}}\n</tool_call>")
    tokens = ids.tokenize_str(text)
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()
    for pieces in ([text], list(text)):
        assert parsed(family, pieces) == ("", [("now", '{"days": 3}')])
