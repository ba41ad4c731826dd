"""Tools of a request: which may be called, the grammar of their calls, and their description in a prompt.

Two forms of calls are supported. Hermes (Qwen, Hermes and others):
`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call, between ordinary text. Llama 3's
JSON: the whole answer is `{"name": …, "parameters": {…}}`, several with `;` between them, optionally after
`<|python_tag|>`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from outrider.models.text import tool_words
from outrider.models.text.tokenizer import Tokenizer
from outrider.server.http.errors import bad
from outrider.server.http.protocol import ChatRequest, NamedTool, Tool

Family: TypeAlias = Literal["hermes", "llama3_json"]

OPEN, CLOSE = tool_words.OPEN, tool_words.CLOSE
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def family_of(template: str | None, parser: str | None = None) -> Family:
    """The form of calls: `parser` if given, else the one that a chat template's source mentions, else
    Hermes'."""
    if parser is not None:
        return "llama3_json" if parser == "llama3_json" else "hermes"
    source = template or ""
    return "llama3_json" if OPEN not in source and '"parameters"' in source else "hermes"


def call_marks_are_special(tokenizer: Tokenizer) -> bool:
    """Whether the opening mark of Hermes' calls is one special token."""
    ids = tokenizer.encode(OPEN, add_special=False)
    return len(ids) == 1 and tokenizer.is_special(ids[0])


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request allows.

    tools:     those that may be called; () for none.
    described: those that the prompt describes.
    forced:    the answer is calls and nothing else.
    named:     forced, and of one tool that the request names.
    parallel:  there may be several calls.
    """

    tools: tuple[Tool, ...] = ()
    described: tuple[Tool, ...] = ()
    forced: bool = False
    named: bool = False
    parallel: bool = True


def tool_use(body: ChatRequest) -> ToolUse:
    """What a request's `tools`, `tool_choice` and `parallel_tool_calls` allow. Raises ApiError."""
    tools, choice = tuple(body.tools or ()), body.tool_choice
    if choice is None or choice == "none" or not tools:
        if not tools and choice not in (None, "none", "auto"):
            raise bad("tool_choice needs tools", "tool_choice")
        if choice == "none" or not tools:
            return ToolUse()
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad("two tools have the same name", "tools")
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedTool):
        wanted = tuple(tool for tool in tools if tool.function.name == choice.function.name)
        if not wanted:
            there = ", ".join(names)
            raise bad(
                f"tool_choice names {choice.function.name[:80]!r}; the tools are {there}", "tool_choice"
            )
        return ToolUse(wanted, tools, forced=True, named=True, parallel=False)
    return ToolUse(tools, tools, forced=choice == "required", parallel=parallel)


def call_grammar(use: ToolUse, family: Family) -> str:
    """The calls that a forced answer consists of, as a Lark grammar with llguidance's extensions."""
    key = "arguments" if family == "hermes" else "parameters"
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": t.function.name}, key: t.function.parameters or _NO_ARGUMENTS},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for t in use.tools
    ]
    bodies = [json.dumps({**call, "x-guidance": _COMPACT}) for call in calls]
    rules = [f"body{n}: %json {body}" for n, body in enumerate(bodies)]
    body = "body: " + " | ".join(f"body{n}" for n in range(len(bodies)))
    if family == "hermes":
        call = f'call: "{OPEN}\\n" body "\\n{CLOSE}"'
        start = 'start: call ("\\n" call)*' if use.parallel else "start: call"
    else:
        call = "call: body"
        start = 'start: call ("; " call)*' if use.parallel else "start: call"
    return "\n".join([start, call, body, *rules])
