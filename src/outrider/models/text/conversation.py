"""From a conversation to the text of a prompt, with the options of vLLM's `chat`."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.errors import ConfigError, PromptError
from outrider.models.text.chat import RESERVED, ChatTemplate, content_text
from outrider.models.text.tokenizer import Tokenizer
from outrider.models.text.tool_call_scanner import past_arguments
from outrider.models.text.tool_words import describe_in_words

CONTENT_FORMATS = ("auto", "string", "openai")
MAX_TEMPLATES = 4  # compiled templates that are kept, besides the model's own


class Conversations:
    """Renders conversations with a model's chat template, or with another one.

    source: the model's template; None if it has none.
    named:  the model's further templates by name; "tool_use" is taken where there are tools.

    Templates run in processes of their own, which start when they are first needed.
    """

    def __init__(
        self, source: str | None, tokenizer: Tokenizer, named: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self._with_tools = (named or {}).get("tool_use", source)
        self._tokenizer = tokenizer
        self._templates: OrderedDict[str, ChatTemplate] = OrderedDict()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. It contains special tokens, so encode it with `add_special=False`.

        messages:       as `ChatTemplate.render` takes them; the arguments of tool calls may be JSON text.
        chat_template:  the source of a template to use in place of the model's.
        content_format: "openai" gives the template contents as lists of parts; the others as text.
        tools:          OpenAI's `{"type": "function", "function": {…}}`. They are put into the system message
                        in words when the template does not read them.
        variables:      further variables of the template.
        Raises PromptError for messages or tools that are malformed or refused by the template, ConfigError
        for options that contradict each other, without a template, or when it fails.
        """
        if content_format not in CONTENT_FORMATS:
            known = ", ".join(CONTENT_FORMATS)
            raise ConfigError(f"chat_template_content_format must be one of {known}, not {content_format!r}")
        source = chat_template or (self._with_tools if tools else self.source)
        template = self._template(source)
        given = _variables(variables)
        if documents is not None:
            given["documents"] = documents
        made = _messages(messages)
        described = _tools(tools)
        if re.search(r"\btools\b", source or ""):
            given["tools"] = described or None
        elif described or any(m.get("tool_calls") or m["role"] == "tool" for m in made):
            made = describe_in_words(made, described)
        given["content_parts"] = content_format == "openai"
        if not continue_final_message:
            return template.render(made, add_generation_prompt=add_generation_prompt, **given)
        if add_generation_prompt:
            raise ConfigError(
                "continue_final_message and add_generation_prompt contradict each other: "
                "add add_generation_prompt=False"
            )
        last = made[-1] if made else {}
        if (content := content_text(last.get("content"), "the last message")) is None:
            raise PromptError("continue_final_message needs a last message with text")
        made[-1] = {**last, "content": content}
        text = template.render_unfinished(made, **given)
        if text is None:
            raise PromptError("the chat template leaves the last message out, so it cannot be continued")
        return text

    def close(self) -> None:
        """End the processes of the templates."""
        while self._templates:
            self._templates.popitem()[1].close()

    def _template(self, source: str | None) -> ChatTemplate:
        if not source:
            raise ConfigError(
                "the model has no chat template: give a plain prompt instead of messages, or a chat_template"
            )
        if not isinstance(source, str) or not re.search(r"[{}\n]", source):
            raise ConfigError(f"chat_template must be the text of a jinja2 template, not {source!r:.80}")
        if source not in self._templates:
            while len(self._templates) > MAX_TEMPLATES:
                self._templates.popitem(last=False)  # its process ends with the last rendering
            self._templates[source] = ChatTemplate(source, self._tokenizer)
        self._templates.move_to_end(source)
        return self._templates[source]


def _variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    if variables is not None and not isinstance(variables, Mapping):
        raise ConfigError(f"chat_template_kwargs must be a mapping, not {type(variables).__name__}")
    for name in variables or ():
        if not isinstance(name, str) or name in RESERVED or not name.isidentifier():
            raise ConfigError(f"chat_template_kwargs has {name!r}, which is not its to set")
    return dict(variables or {})


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    if tools is not None and (isinstance(tools, str | Mapping) or not isinstance(tools, Sequence)):
        raise PromptError("tools must be a list of {'type': 'function', 'function': {…}}")
    for number, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise PromptError(
                f"tool {number} is not of the form {{'type': 'function', 'function': {{'name': …}}}}"
            )
    return list(tools or ())


def _messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as templates expect them: roles and tool calls; `ChatTemplate` checks the contents."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise PromptError("messages must be a list of {'role': …, 'content': …}")
    found = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise PromptError(
                f"message {number} is a {type(message).__name__}, not a dict with role and content"
            )
        made = {key: value for key, value in message.items() if value is not None}
        content = made.setdefault("content", None)
        if not isinstance(made.get("role"), str) or not made["role"]:
            raise PromptError(f"message {number} has no role (system, user, assistant or tool)")
        if not isinstance(content, str | Sequence | None) or isinstance(content, bytes):
            raise PromptError(f"message {number} has content of type {type(content).__name__}; use a text")
        if made["role"] == "developer":  # OpenAI's newer name; templates know the older one
            made["role"] = "system"
        calls = made.get("tool_calls")
        if calls:
            if not isinstance(calls, Sequence) or isinstance(calls, str):
                raise PromptError(f"message {number} has tool_calls that are not a list")
            made["tool_calls"] = [_call(call, number) for call in calls]
        found.append(made)
    return found


def _call(call: Any, number: int) -> dict[str, Any]:
    """A past tool call as templates expect it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise PromptError(f"message {number} has a tool call without function.name")
    arguments = past_arguments(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}
