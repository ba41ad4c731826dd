"""Tools of a request: which may be called, and their description in a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.server.http.errors import bad
from outrider.server.http.protocol import AllowedTools, ChatRequest, NamedTool, Tool
from outrider.server.http.tool_forms import CLOSE, OPEN

_PREFACE = """\
You can call functions. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
For each call write a JSON object with the function's name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": "FUNCTION", "arguments": {{…}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request allows.

    tools:      those that may be called; () for none.
    described:  those that the prompt describes.
    forced:     the answer is calls and nothing else.
    named:      forced, and of one tool that the request names.
    parallel:   there may be several calls.
    restricted: some of the described tools may not be called.
    """

    tools: tuple[Tool, ...] = ()
    described: tuple[Tool, ...] = ()
    forced: bool = False
    named: bool = False
    parallel: bool = True
    restricted: bool = False

    @property
    def enforced(self) -> bool:
        """Whether a grammar is needed for what a model may call of its own accord."""
        return not self.forced and (self.restricted or any(tool.function.strict for tool in self.tools))


def tool_use(body: ChatRequest) -> ToolUse:
    """What a request's `tools`, `tool_choice` and `parallel_tool_calls` allow. Raises ApiError."""
    tools, choice = tuple(body.tools or ()), body.tool_choice
    if not tools and choice not in (None, "none", "auto"):
        raise bad("tool_choice needs tools", "tool_choice")
    if not tools or choice == "none":
        return ToolUse()
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad("two tools have the same name", "tools")
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedTool):
        return ToolUse(_chosen(tools, {choice.called}), tools, forced=True, named=True, parallel=False)
    if isinstance(choice, AllowedTools):
        allowed, mode = choice.called
        chosen = _chosen(tools, set(allowed))
        if not chosen:
            raise bad('tool_choice allows no tool; use "none"', "tool_choice")
        restricted = len(chosen) < len(tools)
        return ToolUse(chosen, tools, mode == "required", parallel=parallel, restricted=restricted)
    return ToolUse(tools, tools, forced=choice == "required", parallel=parallel)


def _chosen(tools: Sequence[Tool], names: set[str]) -> tuple[Tool, ...]:
    """The tools of these names, each of which must be there. Raises ApiError."""
    there = {tool.function.name: tool for tool in tools}
    for name in sorted(names):
        if name not in there:
            raise bad(f"tool_choice names {name[:80]!r}; the tools are {', '.join(there)}", "tool_choice")
    return tuple(tool for tool in tools if tool.function.name in names)


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
