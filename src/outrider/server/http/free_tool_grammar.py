"""Grammars of free text with tool calls in it, in Lark's syntax with llguidance's extensions.

Text is free until a call begins, which lazy regexes see (tool_forms.py has them, for the parser too): a lazy
token ends where it first matches, before the free text around it does. Then the call must go on as its tool's
schema says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from outrider.errors import ConfigError
from outrider.models.text.harmony import CALL, CHANNEL, CONSTRAIN, END, MARKS, MESSAGE, START
from outrider.models.text.tool_families import Family
from outrider.models.text.tool_words import OPEN
from outrider.server.http.argument_rules import GemmaRules, MemberRules, PythonRules, TagRules
from outrider.server.http.protocol import Tool
from outrider.server.http.thought_grammar import mark_of, ranges
from outrider.server.http.tool_forms import (
    AFTER_CALL,
    ARGUMENTS_KEY,
    BLANKS,
    BRACKET_OPEN,
    CONTINUED,
    ENFORCED_MARKS,
    ENFORCED_STARTS,
    GEMMA_OPEN,
    MISTRAL_ARGUMENTS,
    MISTRAL_OPEN,
    NAME_KEY,
    OWN_STARTS,
)
from outrider.server.http.tool_grammar import (
    ANY_ARGUMENTS,
    arguments_schema,
    enforced_schema,
    refused,
    schemas,
)
from outrider.server.http.tools import ToolUse

_TEXT = r"(.|\n)*"
_COLON = ARGUMENTS_KEY.removesuffix(BLANKS)  # a lazy regex would match none of the blanks
# Marks that may be special tokens, and what is between each and a call in JSON; None: no JSON follows.
_LIST = BLANKS + r"\["
_AFTER_TOKEN = {OPEN: "", MISTRAL_OPEN: _LIST, BRACKET_OPEN: _LIST + "?", GEMMA_OPEN: None}


def free_grammar(use: ToolUse, family: Family, marks: Mapping[str, int], special: Iterable[int]) -> str:
    """Any text with calls in it, whose arguments match the schemas of those tools that are strict.

    marks:   the ids of marks that are special tokens.
    special: ids of the special tokens but for those that end a text; any of them may be in it.
    Raises ApiError for a schema that cannot be enforced.
    """
    strict = [tool for tool in use.tools if tool.function.strict]
    if family == "openai":
        return _messages(use, marks, strict)
    rules = ["call: " + " | ".join(f"call{n}" for n in range(len(use.tools)))]
    starts = []
    rules.append("blanks: " + _regex(r"[ \t\r\n]+"))
    for n, tool in enumerate(use.tools):
        name = re.escape(tool.function.name)
        rules.append(f"call{n}: {json.dumps(tool.function.name)} key{n} {_end(n)}")
        rules.append(f"key{n}: {_regex(ARGUMENTS_KEY)}")
        begin = f"{AFTER_CALL[family]}{ENFORCED_STARTS[family]}{NAME_KEY}{name}{_COLON}"
        rules.append(f"start{n}[lazy]: {_regex(begin)}")
        rules.append(f"first{n}: start{n} blanks? {_end(n)}")
        starts.append(f"first{n}")
    rules.append(f"next[lazy]: {_regex(CONTINUED[family] + NAME_KEY)}")
    if family == "mistral":
        rules += [f"opened[lazy]: {_regex(_TEXT + re.escape(MISTRAL_OPEN))}", *_named_calls(use, marks)]
        rules.append(f"listed: {_regex(_LIST + NAME_KEY)} call (next call)*")
        starts.append("opened (own_after_token | listed)")
    elif ENFORCED_MARKS[family]:
        rules.append(f"mark[lazy]: {_regex(_TEXT + ENFORCED_MARKS[family] + NAME_KEY)}")
        rules.append("marked: mark call (next call)*")
        starts.append("marked")
    if family in OWN_STARTS:
        rules += _own_calls(use, family, marks, strict)
        starts.append("own")
    tokens = {mark: marks[mark] for mark in _AFTER_TOKEN if mark in marks}
    for n, (mark, token) in enumerate(tokens.items()):
        ways = []
        if (between := _AFTER_TOKEN[mark]) is not None:
            rules.append(f"name_key{n}: {_regex(between + NAME_KEY)}")
            ways.append(f"name_key{n} call")
        if family in ("mistral", "qwen3_coder", "gemma4"):
            ways.append("own_after_token")
        rules.append(f"special{n}: TEXT <[{token}]> ({' | '.join(ways)}) (next call)*")
        starts.append(f"special{n}")
    if others := sorted({*special} - {*tokens.values()}):
        rules.append(f"other: TEXT <[{ranges(others)}]>")
        starts.append("other")
    text = [f"start: ({' | '.join(starts)})* TEXT", f"TEXT: {_regex(_TEXT)}"]
    return "\n".join([*text, *rules, *schemas(use, strict)])


def _named_calls(use: ToolUse, marks: Mapping[str, int]) -> list[str]:
    """The rule `own_after_token` for a name and its arguments in JSON."""
    args = mark_of(MISTRAL_ARGUMENTS, marks)
    calls = (f"{json.dumps(tool.function.name)} {args}? arguments{n}" for n, tool in enumerate(use.tools))
    return [f'own_after_token: " "? ({" | ".join(calls)})']


def _own_calls(use: ToolUse, family: Family, marks: Mapping[str, int], strict: Sequence[Tool]) -> list[str]:
    """The rules `own`, for calls in a form that is not JSON, and `own_after_token`, for the same after the
    special token that is their mark."""
    before, after = OWN_STARTS[family]
    anywhere = AFTER_CALL[family] if family == "pythonic" else _TEXT
    rules, own, own_after_token, calls = [], [], [], []
    for n, tool in enumerate(use.tools):
        members = _members(family, n, tool, strict, marks)
        rules += members.rules
        name = re.escape(tool.function.name)
        rules.append(f"own{n}[lazy]: {_regex(f'{anywhere}{before}{name}[{after}]')}")
        head, end = f"own{n}", f"members{n} {_ENDS[family]}"
        own.append(f"{head} {end}")
        last = before.rpartition(BLANKS)[2]
        rules.append(f"own_name{n}: {_regex(f'{BLANKS}{last}{name}[{after}]')}")
        own_after_token.append(f"own_name{n} {end}")
        calls.append(f"{json.dumps(tool.function.name + after)} {end}")
    if family == "pythonic":
        rules.append(f"listed: {' | '.join(calls)}")
        return [*rules, f'own: ({" | ".join(own)}) (", " listed)* "]" (next call)*']
    rules.append(f"own_after_token: {' | '.join(own_after_token)}")
    return [*rules, f"own: ({' | '.join(own)}) (next call)*"]


_ENDS = {"qwen3_coder": '"</function>"', "gemma4": '"}"', "pythonic": '")"'}


def _members(
    family: Family, n: int, tool: Tool, strict: Sequence[Tool], marks: Mapping[str, int]
) -> MemberRules:
    """The rule `members0` and so on, for a tool's arguments without what is around them. Raises ApiError."""
    prefix, schema = f"value{n}", enforced_schema(tool) if tool in strict else ANY_ARGUMENTS
    made: MemberRules
    if family == "gemma4":
        made = GemmaRules(prefix, schema, marks)
    elif family == "pythonic":
        made = PythonRules(prefix, schema)
    else:
        made = TagRules(prefix, schema, arguments_schema(tool))
    gap = '"\\n" ' if family == "qwen3_coder" else ""
    try:
        made.rules.append(f"members{n}: {gap}{made.arguments()}")
    except ConfigError as error:
        raise refused(tool, str(error)) from None
    except RecursionError:
        raise refused(tool, "it is nested too deeply") from None
    return made


def _messages(use: ToolUse, marks: Mapping[str, int], strict: Sequence[Tool]) -> str:
    """The same in harmony's format: messages, the last of which may be a call. An answer that goes on with a
    message of the prompt begins with text."""
    channel, message, constrain = (mark_of(mark, marks) for mark in (CHANNEL, MESSAGE, CONSTRAIN))
    channels = f'{channel} ("analysis" | "commentary" | "final")'
    rules, calls = [], []
    for n, tool in enumerate(use.tools):
        to = json.dumps(f" to=functions.{tool.function.name}")
        kind = f'(" "? {constrain} "json" | " json")?'
        head = f'{channel} ("analysis" | "commentary") {to} {kind} | {to} {channels} {kind}'
        rules.append(f"call{n}: ({head}) {message} arguments{n}")
        calls.append(f"call{n}")
    text, ended = "TEXT", f"TEXT {mark_of(END, marks)}"
    if END not in marks:
        others, more = "|".join(map(re.escape, MARKS)), r"(.|\n)+"
        rules.append(f"ENDED: {_regex(_TEXT + re.escape(END))} & ~{_regex(f'{_TEXT}({others}){more}')}")
        rules.append("ended[lazy]: ENDED")
        rules.append(f"PLAIN: {_regex(_TEXT)} & ~{_regex(f'{_TEXT}({others}){_TEXT}')}")
        text, ended = "PLAIN", "ended"
    else:
        rules.append(f"TEXT: {_regex(_TEXT)}")
    begin = f'{mark_of(START, marks)} "assistant"'
    rules.append(f"said: {channels} {message} {ended} | call {mark_of(CALL, marks)}")
    rules.append(f"call: {' | '.join(calls)}")
    first = f"({ended} {begin})? (said {begin})*"
    last = f"(said | call | {channels} {message} {text})"
    return "\n".join([f"start: {first} {last} | {text} | {ended}", *rules, *schemas(use, strict)])


def _end(number: int) -> str:
    return f"arguments{number} {_regex(BLANKS + '[}]')}"


def _regex(pattern: str) -> str:
    return "/" + re.sub(r"\\?/", r"\\/", pattern) + "/"
