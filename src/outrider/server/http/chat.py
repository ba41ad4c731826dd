"""/v1/chat/completions: conversations, through the model's chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.request import Request
from outrider.server.http import sampling_fields as prepare
from outrider.server.http import tools
from outrider.server.http.errors import bad
from outrider.server.http.generation import Answer, Choice, respond
from outrider.server.http.logprobs import Texts
from outrider.server.http.protocol import ChatRequest, Message, TokenizeRequest
from outrider.server.http.service import Service

_MARK = "\ue000outrider\ue001"  # stands for the end of a message that is to be continued


async def chat_completions(service: Service, http: HttpRequest, body: ChatRequest) -> Response:
    """Answer one request. Raises ApiError and OutriderError."""
    return await respond(service, http, body, ChatAnswer, lambda *who: _requests(service, body, *who))


def _requests(service: Service, body: ChatRequest, name: str, namespace: str) -> list[list[Request]]:
    params = prepare.chat_params(body, service.settings.max_logprobs, **_for_tools(service, body))
    fields = prepare.speculation(body, service.pipeline)
    text = render(service, body)
    ids = service.encode(text, add_special=bool(body.add_special_tokens))
    return service.samples(name, [ids], params, body, namespace, **fields)


def _for_tools(service: Service, body: ChatRequest) -> dict[str, Any]:
    """Arguments of SamplingParams that a request's tools ask for. Raises ApiError."""
    use = tools.use_of(body)
    if not use.tools:
        return {}
    found: dict[str, Any] = {}
    if use.forced:
        if prepare.form(body) is not None:
            raise bad("tool_choice and the form that is asked for contradict each other", "tool_choice")
        calls = tools.grammar(use, service.family(body.chat_template))
        prepare.check_size(calls, "tools")
        found["structured_outputs"] = {"grammar": calls}
    if service.marks_are_special:  # the text would come without the marks of calls
        found["skip_special_tokens"] = False
    return found


def render(service: Service, body: ChatRequest | TokenizeRequest) -> str:
    """A conversation's prompt. Raises ApiError, PromptError and ConfigError."""
    template = service.chat_template(body.chat_template)
    source = body.chat_template or service.template_source or ""
    variables = dict(body.chat_template_kwargs or {})
    reserved = {"messages", "tools", "add_generation_prompt", "documents", "chat_template"}
    for name in variables:
        if name in reserved or not name.isidentifier():
            raise bad(
                f"chat_template_kwargs has {name[:80]!r}, which is not its to set", "chat_template_kwargs"
            )
    if isinstance(body, ChatRequest):
        if body.documents is not None:
            variables["documents"] = body.documents
        if body.reasoning_effort not in (None, "none"):
            if "reasoning_effort" not in source:
                raise bad(
                    "reasoning_effort is refused: the model's chat template does not read it",
                    "reasoning_effort",
                )
            variables["reasoning_effort"] = body.reasoning_effort
    messages = [_message(m) for m in body.messages or ()]
    shown = tools.use_of(body).shown if isinstance(body, ChatRequest) else tuple(body.tools or ())
    known = [tool.model_dump(exclude_none=True) for tool in shown]
    if re.search(r"\btools\b", source):
        variables["tools"] = known or None
    else:
        messages = tools.with_tools_in_words(messages, known)
    goes_on, opens = bool(body.continue_final_message), body.add_generation_prompt
    if goes_on and opens:
        raise bad(
            "continue_final_message and add_generation_prompt contradict each other", "add_generation_prompt"
        )
    if not goes_on:
        return template.render(messages, add_generation_prompt=opens is not False, **variables)
    last = messages[-1]
    if not isinstance(last.get("content"), str):
        raise bad("continue_final_message needs a last message with text", "continue_final_message")
    messages[-1] = {**last, "content": last["content"].rstrip() + _MARK}
    text, mark, _ = template.render(messages, add_generation_prompt=False, **variables).rpartition(_MARK)
    if not mark:
        raise bad("the model's chat template leaves the last message out", "continue_final_message")
    return text


def _message(message: Message) -> dict[str, Any]:
    """A message as templates expect it."""
    found = message.model_dump(exclude_none=True)
    if found["role"] == "developer":  # OpenAI's newer name; templates know the older
        found["role"] = "system"
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A past tool call with its arguments as an object, which templates write as JSON."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad("a message has a tool call without function.name", "messages")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise bad("a message has a tool call whose arguments are not JSON", "messages") from None
    return {**call, "function": {**function, "arguments": arguments}}


class ChatAnswer(Answer):
    prefix = "chatcmpl"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"
    body: ChatRequest

    def __init__(self, service: Service, body: ChatRequest, *more: Any) -> None:
        super().__init__(service, body, *more)
        self._texts = Texts(service.tokenizer, bool(body.return_tokens_as_token_ids))
        echo = body.messages[-1].content if body.echo and body.continue_final_message else ""
        self._echo = echo if isinstance(echo, str) else ""
        self._use = tools.use_of(body)
        family = service.family(body.chat_template)
        names = [tool.function.name for tool in self._use.tools]
        choices = self.choices.values() if names else ()
        self._parsers = {choice.index: tools.ToolParser(family, names) for choice in choices}

    def _calls(self, choice: Choice) -> list[dict[str, Any]]:
        """A choice's tool calls so far, as far as there may be several."""
        parser = self._parsers.get(choice.index)
        calls = [] if parser is None else [call.document() for call in parser.calls]
        return calls if self._use.parallel else calls[:1]

    def _reason(self, choice: Choice) -> str:
        """Why a choice ended; a call that was named ends with "stop", as OpenAI has it."""
        assert choice.end is not None
        called = choice.end.finish_reason == "stop" and self._calls(choice) and not self._use.named
        return "tool_calls" if called else choice.end.finish_reason

    def _delta(self, choice: Choice, text: str) -> dict[str, Any]:
        parser = self._parsers.get(choice.index)
        if parser is None:
            return {"content": text} if text else {}
        parsed = parser.push(text)
        if choice.end is not None:
            last = parser.finish()
            parsed.content += last.content
            parsed.deltas += last.deltas
        deltas = [d for d in parsed.deltas if self._use.parallel or d["index"] == 0]
        found: dict[str, Any] = {"content": parsed.content} if parsed.content else {}
        return {**found, "tool_calls": deltas} if deltas else found

    def _logprobs(self, tokens: Sequence[TokenEvent]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        entries = [self._texts.chat(t.logprobs) for t in tokens if t.logprobs is not None]
        return {"content": entries, "refusal": None}

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": self._echo}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def nothing(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "delta": {}, "logprobs": None, "finish_reason": None}

    def piece(
        self, choice: Choice, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any] | None:
        text = "".join(token.text for token in tokens) + (end.text_tail if end is not None else "")
        ids = bool(self.body.return_token_ids)
        delta = self._delta(choice, text)
        if not delta and end is None and not self.body.logprobs and not ids:
            return None
        found: dict[str, Any] = {
            "index": choice.index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": None if end is None else self._reason(choice),
        }
        if end is not None:
            found["stop_reason"] = end.stop_reason
        if ids:
            found["token_ids"] = [token.token_id for token in tokens]
        return found

    def whole(self, choice: Choice) -> dict[str, Any]:
        assert choice.end is not None
        text = self._delta(choice, "".join(choice.text)).get("content", "")
        calls = self._calls(choice)
        content = None if calls and not text else f"{self._echo}{text}"
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        found: dict[str, Any] = {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": self._reason(choice),
            "stop_reason": choice.end.stop_reason,
        }
        if self.body.return_token_ids:
            found["token_ids"] = [token.token_id for token in choice.tokens]
        return found

    def document(self) -> dict[str, Any]:
        found = super().document()
        first = next(iter(self.choices.values()))
        if self.body.prompt_logprobs is not None and first.prompt_logprobs is not None:
            found["prompt_logprobs"] = self._texts.prompt(first.prompt_logprobs)
        if self.body.return_token_ids:
            found["prompt_token_ids"] = list(first.request.prompt)
        return found
