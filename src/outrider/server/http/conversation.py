"""From a conversation to the text of a prompt, through a chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.models.text.chat import content_text
from outrider.models.text.tool_call_scanner import past_arguments
from outrider.models.text.tool_words import describe_in_words
from outrider.server.http.chat_templates import ChatTemplates, is_reserved
from outrider.server.http.errors import bad
from outrider.server.http.protocol import Message, Tool

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation, in the terms that all dialects are translated to.

    messages:  at least one.
    tools:     those that the prompt describes.
    template:  source of a chat template that the request brought.
    variables: further variables of the template.
    documents, reasoning_effort: variables of the template that have request fields of their own.
    add_generation_prompt:  end with the start of the assistant's message; None is true, except with
    continue_final_message: end within the last message, which the model continues.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    template: str | None = None
    variables: Mapping[str, Any] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


def render(templates: ChatTemplates, conversation: Conversation) -> str:
    """The prompt's text. Raises ApiError, PromptError and ConfigError."""
    with_tools = bool(conversation.tools)
    template = templates.get(conversation.template, tools=with_tools)
    source = templates.source_of(conversation.template, tools=with_tools) or ""
    variables = {**templates.variables, **_variables(conversation, source)}
    messages = [_message(message) for message in conversation.messages]
    described = [tool.model_dump(exclude_none=True) for tool in conversation.tools]
    if re.search(r"\btools\b", source):
        variables["tools"] = described or None
    else:
        messages = describe_in_words(messages, described)
    continues, opens = conversation.continue_final_message, conversation.add_generation_prompt
    if continues and opens:
        raise bad(
            "continue_final_message and add_generation_prompt contradict each other", "add_generation_prompt"
        )
    if not continues:
        return template.render(messages, add_generation_prompt=opens is not False, **variables)
    last = messages[-1]
    if (content := content_text(last.get("content"), "the last message")) is None:
        raise bad("continue_final_message needs a last message with text", "continue_final_message")
    messages[-1] = {**last, "content": content}
    text = template.render_unfinished(messages, **variables)
    if text is None:
        raise bad("the model's chat template leaves the last message out", "continue_final_message")
    return text


def _variables(conversation: Conversation, source: str) -> dict[str, Any]:
    """Variables for a template with this source. Raises ApiError for those that a request may not set."""
    variables = dict(conversation.variables or {})
    for name in variables:
        if is_reserved(name):
            raise bad(
                f"chat_template_kwargs has {name[:80]!r}, which is not its to set", "chat_template_kwargs"
            )
    if conversation.documents is not None:
        variables["documents"] = conversation.documents
    effort = conversation.reasoning_effort
    if effort is not None and effort not in EFFORTS and "reasoning_effort" not in source:
        raise bad(f"reasoning_effort must be one of {', '.join(EFFORTS)}", "reasoning_effort")
    if effort is not None:  # a template that knows no thoughts reads neither
        variables.setdefault("enable_thinking", effort != "none")
        if effort != "none":
            variables["reasoning_effort"] = effort
    return variables


def _message(message: Message) -> dict[str, Any]:
    """A message as templates expect it."""
    found = message.model_dump(exclude_none=True)
    thoughts = found.pop("reasoning", None)  # vLLM's name; templates know DeepSeek's
    if isinstance(thoughts, str):
        found.setdefault("reasoning_content", thoughts)
    past = found.pop("function_call", None)  # of OpenAI's older API, as is the role "function"
    if found["role"] == "function":
        found["role"] = "tool"
    if isinstance(past, Mapping) and not message.tool_calls:
        found["tool_calls"] = [_call({"type": "function", "function": past})]
    if found["role"] == "developer":  # OpenAI's newer name; templates know the older one
        found["role"] = "system"
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A past tool call as templates expect it."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad("a message has a tool call without function.name", "messages")
    arguments = past_arguments(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}
