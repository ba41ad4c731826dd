"""Tools of a request: which may be called, the grammar of their calls, and their description in a prompt.

Two forms of calls are supported. Hermes (Qwen, Hermes and others):
`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call, between ordinary text. Llama 3's
JSON: the whole answer is `{"name": …, "parameters": {…}}`, several with `;` between them, optionally after
`<|python_tag|>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from outrider.models.text.tokenizer import Tokenizer
from outrider.server.http.errors import bad
from outrider.server.http.protocol import ChatRequest, NamedTool, Tool

Family: TypeAlias = Literal["hermes", "llama3_json"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_PREFACE = """\
You can call functions. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
For each call write a JSON object with the function's name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": "FUNCTION", "arguments": {{…}}}}
</tool_call>"""


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


def describe_in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages for a chat template without support for tools, in Hermes' form: the tools' signatures are in
    the system message, past calls and results are text."""
    found: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            text = f"<tool_response>\n{_text(content)}\n</tool_response>"
            if found and found[-1].get("responses"):
                found[-1]["content"] += "\n" + text
            else:
                found.append({"role": "user", "content": text, "responses": True})
        elif role == "assistant" and message.get("tool_calls"):
            calls = [_written(call["function"]) for call in message["tool_calls"]]
            parts = [_text(content), *calls] if content else calls
            found.append({"role": "assistant", "content": "\n".join(parts)})
        else:
            found.append(dict(message))
    for message in found:
        message.pop("responses", None)
    if not tools:
        return found
    preface = _PREFACE.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if found and found[0]["role"] == "system":
        first = {**found[0], "content": f"{_text(found[0].get('content') or '')}\n\n{preface}"}
        return [first, *found[1:]]
    return [{"role": "system", "content": preface}, *found]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    if len(parts) < len(content) or not all(isinstance(part, str) for part in parts):
        raise bad("a message has a content part that is not text; only text is supported", "messages")
    return "\n".join(str(part) for part in parts)


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function.get("arguments", {})}
    return f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"
