"""The dialect of /v1/chat/completions: conversations, through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.server.http import sampling_fields, tools
from outrider.server.http.conversation import Conversation, render
from outrider.server.http.disconnect import while_connected
from outrider.server.http.errors import bad
from outrider.server.http.generation import Sample, respond
from outrider.server.http.generation_request import Arrival, GenerationRequest
from outrider.server.http.logprobs import TokenTexts
from outrider.server.http.openai_answer import OpenAIAnswer
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.service import Service
from outrider.server.http.tool_parser import ToolParser


async def chat_completions(service: Service, http: HttpRequest, body: ChatRequest) -> Response:
    """Answer one request. Raises ApiError and OutriderError."""
    arrival = service.arrival(http, body.model)
    parsing = service.workers.run_in_worker(lambda: parse(service, arrival, body))
    request = await while_connected(http, parsing)
    return await respond(service, http, request, ChatAnswer(service, body, request))


def parse(service: Service, arrival: Arrival, body: ChatRequest) -> GenerationRequest:
    """The inner request. Raises ApiError and OutriderError."""
    params = sampling_fields.chat_params(body, service.settings.max_logprobs, **_tool_params(service, body))
    drafting = sampling_fields.draft_fields(body, service.pipeline)
    text = render(service.templates, _conversation(body))
    ids = service.encode(text, add_special=bool(body.add_special_tokens))
    return service.generation_request(
        arrival,
        "chatcmpl",
        [ids],
        params,
        stream=bool(body.stream),
        cache_salt=body.cache_salt,
        **drafting,
    )


def _conversation(body: ChatRequest) -> Conversation:
    return Conversation(
        messages=body.messages,
        tools=tools.tool_use(body).described,
        template=body.chat_template,
        variables=body.chat_template_kwargs,
        documents=body.documents,
        reasoning_effort=body.reasoning_effort,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )


def _tool_params(service: Service, body: ChatRequest) -> dict[str, Any]:
    """Arguments of SamplingParams that a request's tools need. Raises ApiError."""
    use = tools.tool_use(body)
    if not use.tools:
        return {}
    found: dict[str, Any] = {}
    if use.forced:
        if sampling_fields.output_format(body) is not None:
            raise bad("tool_choice and the form that is asked for contradict each other", "tool_choice")
        grammar = tools.call_grammar(use, service.templates.tool_family(body.chat_template))
        sampling_fields.check_size(grammar, "tools")
        found["structured_outputs"] = {"grammar": grammar}
    if service.templates.call_marks_are_special:  # the parser needs the marks in the text
        found["skip_special_tokens"] = False
    return found


class ChatAnswer(OpenAIAnswer):
    """`choices` of a chat completion: messages, or in a stream deltas, with tool calls found in the text."""

    object_name, chunk_object_name = "chat.completion", "chat.completion.chunk"
    body: ChatRequest

    def __init__(self, service: Service, body: ChatRequest, request: GenerationRequest) -> None:
        super().__init__(service, body, request)
        self._texts = TokenTexts(service.tokenizer, bool(body.return_tokens_as_token_ids))
        echo = body.messages[-1].content if body.echo and body.continue_final_message else ""
        self._echo = echo if isinstance(echo, str) else ""
        self._use = tools.tool_use(body)
        family = service.templates.tool_family(body.chat_template)
        names = [tool.function.name for tool in self._use.tools]
        samples = self.samples if names else ()
        self._parsers = {sample.index: ToolParser(family, names) for sample in samples}

    def _calls(self, sample: Sample) -> list[dict[str, Any]]:
        """A sample's tool calls so far; of several the first, when parallel calls are off."""
        parser = self._parsers.get(sample.index)
        calls = [] if parser is None else [call.document() for call in parser.calls]
        return calls if self._use.parallel else calls[:1]

    def _reason(self, sample: Sample) -> str:
        """`finish_reason`. The call of a named tool ends with "stop", as in OpenAI's API."""
        assert sample.end is not None
        called = sample.end.finish_reason == "stop" and self._calls(sample) and not self._use.named
        return "tool_calls" if called else sample.end.finish_reason

    def _delta(self, sample: Sample, text: str) -> dict[str, Any]:
        parser = self._parsers.get(sample.index)
        if parser is None:
            return {"content": text} if text else {}
        parsed = parser.push(text)
        if sample.end is not None:
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

    def opening_choice(self, sample: Sample) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": self._echo}
        return {**self.empty_choice(sample), "delta": delta}

    def opening_members(self, sample: Sample) -> dict[str, Any]:
        return {"prompt_token_ids": list(sample.request.prompt)} if self.body.return_token_ids else {}

    def empty_choice(self, sample: Sample) -> dict[str, Any]:
        nothing = {"logprobs": None, "finish_reason": None, "stop_reason": None}
        return {"index": sample.index, "delta": {}, **nothing}

    def choice(
        self, sample: Sample, tokens: Sequence[TokenEvent], end: FinishEvent | None
    ) -> dict[str, Any] | None:
        text = "".join(token.text for token in tokens) + (end.text_tail if end is not None else "")
        ids = bool(self.body.return_token_ids)
        delta = self._delta(sample, text)
        if not delta and end is None and not self.body.logprobs and not ids:
            return None
        found: dict[str, Any] = {
            "index": sample.index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": None if end is None else self._reason(sample),
        }
        found["stop_reason"] = None if end is None else end.stop_reason
        if ids:
            found["token_ids"] = [token.token_id for token in tokens]
        return found

    def whole_choice(self, sample: Sample) -> dict[str, Any]:
        assert sample.end is not None
        text = self._delta(sample, "".join(sample.text)).get("content", "")
        calls = self._calls(sample)
        content = None if calls and not text else f"{self._echo}{text}"
        absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message: dict[str, Any] = {"role": "assistant", "content": content, **absent}
        if calls:
            message["tool_calls"] = calls
        found: dict[str, Any] = {
            "index": sample.index,
            "message": message,
            "logprobs": self._logprobs(sample.tokens),
            "finish_reason": self._reason(sample),
            "stop_reason": sample.end.stop_reason,
            "token_ids": None,
        }
        if self.body.return_token_ids:
            found["token_ids"] = [token.token_id for token in sample.tokens]
        return found

    def document(self) -> dict[str, Any]:
        found = {**super().document(), "prompt_logprobs": None, "prompt_token_ids": None}
        first = self.samples[0]
        if self.body.prompt_logprobs is not None and first.prompt_logprobs is not None:
            found["prompt_logprobs"] = self._texts.prompt(first.prompt_logprobs)
        if self.body.return_token_ids:
            found["prompt_token_ids"] = list(first.request.prompt)
        return found
