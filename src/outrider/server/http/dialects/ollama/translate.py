"""From a request of Ollama's API to the inner one."""

from __future__ import annotations

from typing import Any

from outrider.server.http.dialects import inner
from outrider.server.http.dialects.ollama.fields import (
    Generating,
    Message,
    OllamaChatRequest,
    OllamaGenerateRequest,
    Options,
)
from outrider.server.http.errors import ApiError, bad
from outrider.server.http.protocol import ChatRequest, CompletionRequest
from outrider.server.http.service import Service

_LATEST = ":latest"


def model_name(service: Service, name: str | None) -> str:
    """The served model that a name means; `NAME:latest` is NAME. Raises ApiError (404)."""
    try:
        return service.model.check_name(name)
    except ApiError:
        if name is None or not name.endswith(_LATEST):
            raise
        return service.model.check_name(name.removesuffix(_LATEST))


def chat_request(service: Service, body: OllamaChatRequest) -> ChatRequest:
    """The inner request of /api/chat, which has messages. Raises ApiError."""
    tools = [
        {"type": "function", "function": t.function.model_dump(exclude_none=True)} for t in body.tools or ()
    ]
    fields = {"messages": [_message(m) for m in body.messages or ()], "tools": tools or None}
    return inner.chat_request({**_shared(service, body), **_thinking(service, body), **fields})


def generate_request(service: Service, body: OllamaGenerateRequest) -> ChatRequest | CompletionRequest:
    """The inner request of /api/generate, which has a prompt or a suffix: a conversation, a text as it is for
    `raw`, or for a suffix what stands between the two. Raises ApiError."""
    if body.suffix:
        for name in ("system", "think"):
            if getattr(body, name):
                raise bad(f"{name} is refused with suffix: no chat template is used for filling in", name)
        return inner.text_request(
            {**_shared(service, body), "prompt": body.prompt or "", "suffix": body.suffix}
        )
    if body.raw:
        if body.system:
            raise bad("system is refused with raw: write it into the prompt", "system")
        return inner.text_request({**_shared(service, body), "prompt": body.prompt})
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": body.prompt or ""})
    return inner.chat_request({**_shared(service, body), **_thinking(service, body), "messages": messages})


def _shared(service: Service, body: Generating) -> dict[str, Any]:
    drafting = body.speculative
    return {
        "model": model_name(service, body.model),
        "stream": body.stream is not False,
        "response_format": _format(body),
        "speculative": drafting
        if isinstance(drafting, bool | None)
        else drafting.model_dump(exclude_none=True),
        **_options(body.options or Options.model_validate({})),
    }


def _options(given: Options) -> dict[str, Any]:
    most = given.num_predict
    if most == 0:
        raise bad("num_predict must be at least 1, or -1 for no limit", "options.num_predict")
    return {
        "max_tokens": None if most is None or most < 0 else most,
        "temperature": given.temperature,
        "top_k": given.top_k,
        "top_p": given.top_p,
        "min_p": given.min_p,
        "seed": None if given.seed is None or given.seed < 0 else given.seed,
        "stop": given.stop,
        "repetition_penalty": None if given.repeat_last_n == 0 else given.repeat_penalty,
        "presence_penalty": given.presence_penalty,
        "frequency_penalty": given.frequency_penalty,
    }


def _format(body: Generating) -> dict[str, Any] | None:
    if not body.format:
        return None
    if body.format == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": body.format}}


def _thinking(service: Service, body: Generating) -> dict[str, Any]:
    if body.think and service.templates.reasoning_format() is None:
        raise bad(f"{model_name(service, body.model)!r} does not support thinking: leave think out", "think")
    on = None if body.think is None else body.think is not False
    effort = body.think if isinstance(body.think, str) else None
    return {
        "chat_template_kwargs": inner.thinking_variables(service, on),
        "reasoning_effort": inner.reasoning_effort(service, effort),
    }


def _message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        found["reasoning_content"] = message.thinking
    if message.tool_name:
        found["name"] = message.tool_name
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["content"] = message.content or None
        found["tool_calls"] = [
            {
                "type": "function",
                **({"id": call.id} if call.id else {}),
                "function": {
                    "name": call.function.name,
                    "arguments": call.function.arguments,
                },
            }
            for call in message.tool_calls
        ]
    return found
