"""From a request of the Messages API to the inner one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from outrider.server.http.dialects import inner
from outrider.server.http.dialects.anthropic.fields import (
    Block,
    ContextManagement,
    CountRequest,
    DocumentBlock,
    Message,
    MessagesRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from outrider.server.http.errors import bad
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.service import Service

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NEUTRAL_EDITS = ("clear_thinking_20251015",)  # chat templates leave earlier reasoning out by themselves


def chat_request(service: Service, body: CountRequest) -> ChatRequest:
    """The inner request. Raises ApiError."""
    fields: dict[str, Any] = {"model": body.model, **_conversation(service, body)}
    if isinstance(body, MessagesRequest):
        fields |= {
            "max_tokens": max(1, body.max_tokens),
            "stop": body.stop_sequences,
            "stream": body.stream,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "seed": body.seed,
            "speculative": body.speculative
            if isinstance(body.speculative, bool | None)
            else body.speculative.model_dump(exclude_none=True),
        }
    return inner.chat_request(fields)


def _conversation(service: Service, body: CountRequest) -> dict[str, Any]:
    _check_edits(body.context_management)
    messages = _messages(body)
    last = messages[-1]
    continues = last["role"] == "assistant" and not last.get("tool_calls")
    thinking = None if body.thinking is None else body.thinking.type != "disabled"
    config = body.output_config
    return {
        "messages": messages,
        "continue_final_message": continues or None,
        "add_generation_prompt": False if continues else None,
        "chat_template_kwargs": inner.thinking_variables(service, thinking),
        "reasoning_effort": inner.reasoning_effort(service, config.effort if config else None),
        "response_format": _format(body),
        **_tools(body),
    }


def _check_edits(management: ContextManagement | None) -> None:
    for edit in (management.edits or ()) if management else ():
        if (kind := edit.get("type")) not in _NEUTRAL_EDITS:
            raise bad(
                f"the edit {str(kind)[:60]!r} is refused: this server edits no conversations",
                "context_management.edits",
            )


def _format(body: CountRequest) -> dict[str, Any] | None:
    wanted = body.output_format or (body.output_config.format if body.output_config else None)
    if wanted is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted.schema_}}


def _tools(body: CountRequest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if body.tools:
        found["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                    "strict": tool.strict,
                },
            }
            for tool in body.tools
        ]
    if (choice := body.tool_choice) is not None:
        found["tool_choice"] = _choice(choice)
        if choice.disable_parallel_tool_use:
            found["parallel_tool_calls"] = False
    return found


def _choice(choice: ToolChoice) -> Any:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise bad("tool_choice of type tool needs a name", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _messages(body: CountRequest) -> list[dict[str, Any]]:
    """The conversation in OpenAI's shape. Turns of one role that follow each other are one, as in
    Anthropic's API."""
    found: list[dict[str, Any]] = []
    if body.system:
        given = body.system
        text = given if isinstance(given, str) else "\n".join(block.text for block in given)
        found.append({"role": "system", "content": text})
    for number, message in enumerate(body.messages):
        content = message.content
        blocks = [TextBlock(type="text", text=content)] if isinstance(content, str) else content
        _add(found, message, blocks, number)
    if not found or all(message["role"] == "system" for message in found):
        raise bad("the messages are empty", "messages")
    return found


def _add(found: list[dict[str, Any]], message: Message, blocks: Sequence[Block], number: int) -> None:
    for at, block in enumerate(blocks):
        wrong = isinstance(block, ToolUseBlock | ThinkingBlock | RedactedThinkingBlock)
        if (message.role != "assistant" and wrong) or (
            message.role != "user" and isinstance(block, ToolResultBlock)
        ):
            raise bad(
                f"a block of type {block.type} cannot be in a message of the {message.role}",
                f"messages.{number}.content.{at}",
            )
        if isinstance(block, ToolResultBlock):
            content = _result(block)
            found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
            continue
        if not found or found[-1]["role"] != message.role:
            found.append({"role": message.role, "content": None})
        _add_block(found[-1], block)
    for made in found[-1:]:
        if made["content"] is None and not made.get("tool_calls"):
            made["content"] = ""


def _add_block(message: dict[str, Any], block: Block) -> None:
    if isinstance(block, TextBlock | DocumentBlock):
        text = _text(block)
        message["content"] = f"{message['content']}\n{text}" if message["content"] else text
    elif isinstance(block, ThinkingBlock):
        before = message.get("reasoning_content")
        message["reasoning_content"] = f"{before}\n{block.thinking}" if before else block.thinking
    elif isinstance(block, ToolUseBlock):
        function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
        call = {"id": block.id, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)


def _result(block: ToolResultBlock) -> str:
    content = block.content or ""
    return content if isinstance(content, str) else "\n".join(map(_text, content))


def _text(block: TextBlock | DocumentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    return "\n".join(part for part in (block.title, block.context, block.source.data) if part)
