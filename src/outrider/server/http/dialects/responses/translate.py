"""From a request of the Responses API to the inner one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from outrider.server.http.dialects import inner
from outrider.server.http.dialects.responses.fields import (
    ITEMS,
    SAME_IN_CHATS,
    AllowedTools,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemReference,
    MessageItem,
    NamedFunction,
    PromptRequest,
    ReasoningItem,
    RefusalPart,
    ResponsesRequest,
    TextPart,
)
from outrider.server.http.dialects.responses.store import ResponseStore
from outrider.server.http.errors import bad, invalid
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.service import Service

_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}


def new_id(kind: str) -> str:
    """An id for an item of this type."""
    return _PREFIXES[kind] + secrets.token_hex(16)


def input_items(store: ResponseStore, space: str, body: PromptRequest) -> list[dict[str, Any]]:
    """The items of a request's own input as they are stored: complete, each with an id. Raises ApiError."""
    if body.input is None or isinstance(body.input, str):
        given: Sequence[Item] = [MessageItem(type="message", role="user", content=body.input or "")]
        given = given if body.input else []
    else:
        given = body.input
    found = []
    for item in given:
        if isinstance(item, ItemReference):
            found.append(dict(store.item(space, item.id)))
            continue
        document = item.model_dump(exclude_none=True)
        document.setdefault("type", "message")
        if isinstance(document.get("content"), str):
            kind = "output_text" if document["role"] == "assistant" else "input_text"
            document["content"] = [{"type": kind, "text": document["content"]}]
        document.setdefault("id", new_id(document["type"]))
        found.append({"id": document.pop("id"), **document})
    return found


def chat_request(service: Service, body: PromptRequest, items: Sequence[Mapping[str, Any]]) -> ChatRequest:
    """The inner request. items: of the whole conversation. Raises ApiError."""
    effort = body.reasoning.effort if body.reasoning else None
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body.instructions, items),
        "reasoning_effort": inner.reasoning_effort(service, effort),
        "chat_template_kwargs": inner.thinking_variables(service, False if effort == "none" else None),
        "response_format": _format(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        **_tools(body),
    }
    if isinstance(body, ResponsesRequest):
        drafting = body.speculative
        fields |= {
            "max_tokens": body.max_output_tokens,
            **{name: getattr(body, name) for name in SAME_IN_CHATS},
            "chat_template_kwargs": {
                **(fields["chat_template_kwargs"] or {}),
                **(body.chat_template_kwargs or {}),
            },
            "speculative": drafting
            if isinstance(drafting, bool | None)
            else drafting.model_dump(exclude_none=True),
        }
    return inner.chat_request(fields)


def _format(body: PromptRequest) -> dict[str, Any] | None:
    wanted = body.text.format if body.text else None
    if wanted is None or wanted.type != "json_schema":
        return None if wanted is None else {"type": wanted.type}
    if wanted.schema_ is None:
        raise bad("text.format of type json_schema needs a schema", "text.format.schema")
    schema = {"name": wanted.name, "schema": wanted.schema_, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": {k: v for k, v in schema.items() if v is not None}}


def _tools(body: PromptRequest) -> dict[str, Any]:
    tools, choice = body.tools or [], body.tool_choice
    wanted: Any = choice
    if isinstance(choice, NamedFunction):
        wanted = {"type": "function", "function": {"name": choice.name}}
    elif isinstance(choice, AllowedTools):
        names = {tool.name for tool in choice.tools}
        if unknown := names - {tool.name for tool in tools}:
            raise bad(f"tool_choice allows {min(unknown)[:80]!r}, which tools does not have", "tool_choice")
        tools, wanted = [tool for tool in tools if tool.name in names], choice.mode
    made = [
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in tools
    ]
    return {"tools": made or None, "tool_choice": wanted}


def _messages(instructions: str | None, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A conversation in OpenAI's older shape: an assistant's reasoning, text and calls are one message."""
    try:
        given = ITEMS.validate_python([dict(item) for item in items])
    except ValidationError as error:
        raise invalid(error.errors()) from None
    found: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    for item in given:
        _add(found, item)
    for message in found:
        if message["role"] == "assistant" and message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
    if all(message["role"] == "system" for message in found):
        raise bad("the input is empty: give a text or items", "input")
    return found


def _add(found: list[dict[str, Any]], item: Item) -> None:
    if isinstance(item, MessageItem):
        text = _text(item.content)
        role = "system" if item.role == "developer" else item.role
        if role == "system" and len(found) == 1 and found[0]["role"] == "system":
            found[0]["content"] += "\n\n" + text  # many templates take one system message, at the beginning
        elif role == "assistant":
            _turn(found, fresh=("content", "tool_calls"))["content"] = text
        else:
            found.append({"role": role, "content": text})
    elif isinstance(item, ReasoningItem):
        parts = [*(item.content or ()), *(() if item.content else item.summary or ())]
        if text := "\n".join(part.text for part in parts):
            _turn(found, fresh=("content", "tool_calls", "reasoning_content"))["reasoning_content"] = text
    elif isinstance(item, FunctionCallItem):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        _turn(found, fresh=()).setdefault("tool_calls", []).append(call)
    elif isinstance(item, FunctionCallOutputItem):
        found.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})


def _turn(found: list[dict[str, Any]], fresh: Sequence[str]) -> dict[str, Any]:
    """The assistant's message that an item belongs to: the last one, unless it has one of these already."""
    last = found[-1] if found else {}
    if last.get("role") != "assistant" or any(last.get(name) is not None for name in fresh):
        found.append({"role": "assistant", "content": None})
    return found[-1]


def _text(content: str | Sequence[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
