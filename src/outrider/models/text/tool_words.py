"""Describes tools in words, for chat templates that do not know them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.models.text.chat import content_text

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_PREFACE = """\
You can call functions. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
For each call write a JSON object with the function's name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": "FUNCTION", "arguments": {{…}}}}
</tool_call>"""


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


def _text(content: object) -> str:
    return content_text(content, "a message") or ""


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function.get("arguments", {})}
    return f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"
