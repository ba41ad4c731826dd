"""The dialect of /v1/chat/completions: conversations, through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.structured import StructuredOutputsParams
from outrider.errors import ConfigError
from outrider.models.text.reasoning import ReasoningFormat, stage_of
from outrider.server.http import free_tool_grammar, sampling_fields, thought_grammar, tool_grammar, tools
from outrider.server.http.conversation import Conversation, render
from outrider.server.http.disconnect import while_connected
from outrider.server.http.generation import Sample, respond
from outrider.server.http.generation_request import Arrival, GenerationRequest
from outrider.server.http.openai_answer import OpenAIAnswer
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.sample_reader import SampleReader, continued_text
from outrider.server.http.service import Service
from outrider.server.http.tool_forms import calls_are_marked
from outrider.server.http.tools import ToolUse


async def chat_completions(service: Service, http: HttpRequest, body: ChatRequest) -> Response:
    """Answer one request. Raises ApiError and OutriderError."""
    arrival = service.arrival(http, body.model)
    parsing = service.workers.run_in_worker(lambda: parse(service, arrival, body))
    request = await while_connected(http, parsing)
    return await respond(service, http, request, ChatAnswer(service, body, request))


def parse(service: Service, arrival: Arrival, body: ChatRequest) -> GenerationRequest:
    """The inner request. Raises ApiError and OutriderError."""
    made = service.templates.parted_format(body)
    params = sampling_fields.chat_params(body, service.sampling, **_form_params(service, body, made))
    drafting = sampling_fields.draft_fields(body, service.pipeline)
    ids = service.encode(prompt_text(service, body), add_special=bool(body.add_special_tokens))
    if made is not None:
        _defer(service, body, params, made, ids)
    try:
        return service.generation_request(
            arrival,
            "chatcmpl",
            [ids],
            params,
            stream=bool(body.stream),
            cache_salt=body.cache_salt,
            **drafting,
        )
    except ConfigError as error:
        raise tool_grammar.blamed(tools.tool_use(body), sampling_fields.output_format(body), error) from None


def prompt_text(service: Service, body: ChatRequest) -> str:
    """The prompt that a request's conversation becomes. Raises ApiError, PromptError and ConfigError."""
    conversation = Conversation(
        messages=body.messages,
        tools=tools.tool_use(body).described,
        template=body.chat_template,
        variables=body.chat_template_kwargs,
        documents=body.documents,
        reasoning_effort=body.reasoning_effort,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )
    return render(service.templates, conversation)


def _form_params(service: Service, body: ChatRequest, made: ReasoningFormat | None) -> dict[str, Any]:
    """Arguments of SamplingParams that the thoughts and the tools of a request need. Raises ApiError."""
    use = tools.tool_use(body)
    found: dict[str, Any] = {}
    if made is not None and service.templates.thought_marks(made):  # thoughts are parted by their marks
        found["skip_special_tokens"] = False
    if not use.tools:
        return found
    family = service.templates.tool_family(body.chat_template)
    marks = service.templates.special_marks(family)
    if (grammar := _grammar(service, body, use)) is not None:
        sampling_fields.check_size(grammar, "tools")
        found["structured_outputs"] = {"grammar": grammar}
    if marks:  # the parser needs them in the text
        found["skip_special_tokens"] = False
    return found


def _grammar(service: Service, body: ChatRequest, use: ToolUse) -> str | None:
    """The grammar that a request's tools need. It includes the form that the request asks for, which is that
    of content; an answer may be calls instead. Raises ApiError and ConfigError."""
    family = service.templates.tool_family(body.chat_template)
    marks = service.templates.special_marks(family)
    form = sampling_fields.output_format(body)
    if use.forced:
        return tool_grammar.call_grammar(use, family, marks)
    if form is not None:
        rule = tool_grammar.form_rule(form) if calls_are_marked(family) else None
        if rule is not None and family == "openai":
            rule = f"{thought_grammar.final_head(marks)} ({rule})"
        return None if rule is None else tool_grammar.formed_grammar(use, family, marks, rule)
    if not use.enforced:
        return None
    return free_tool_grammar.free_grammar(use, family, marks, service.templates.special_ids)


def _defer(
    service: Service, body: ChatRequest, params: SamplingParams, made: ReasoningFormat, prompt: Sequence[int]
) -> None:
    """Let the form of the output begin after the thoughts. Raises ApiError and ConfigError."""
    form = params.structured
    if form is None:
        return
    from outrider.grammar import lark_grammar

    stage = stage_of(made, service.tokenizer, prompt, continued_text(body))
    marks = service.templates.thought_marks(made)
    grammar = lark_grammar(form)
    if made.channels and stage != "answer" and not tools.tool_use(body).tools:
        grammar = thought_grammar.in_final(grammar, marks)
    later = thought_grammar.deferred(grammar, made, stage, marks, service.templates.special_ids)
    params.structured_outputs = StructuredOutputsParams(grammar=later)


class ChatAnswer(OpenAIAnswer):
    """`choices` of a chat completion: messages, or in a stream deltas, with tool calls found in the text."""

    object_name, chunk_object_name = "chat.completion", "chat.completion.chunk"
    body: ChatRequest

    def __init__(self, service: Service, body: ChatRequest, request: GenerationRequest) -> None:
        super().__init__(service, body, request)
        self._texts = self.token_texts()
        echo = body.messages[-1].content if body.echo and body.continue_final_message else ""
        self._echo = echo if isinstance(echo, str) else ""
        self._named = tools.tool_use(body).named
        prompt = request.samples[0].prompt
        self._readers = [
            SampleReader.of(service.templates, body, service.tokenizer, prompt) for _ in self.samples
        ]

    def _calls(self, sample: Sample) -> list[dict[str, Any]]:
        """A sample's tool calls so far."""
        return [call.document() for call in self._readers[sample.index].calls]

    def _reason(self, sample: Sample) -> str:
        """`finish_reason`. The call of a named tool ends with "stop", as in OpenAI's API."""
        assert sample.end is not None
        called = sample.end.finish_reason == "stop" and self._calls(sample) and not self._named
        return "tool_calls" if called else sample.end.finish_reason

    def token_details(self) -> dict[str, int]:
        if not any(reader.parts_thoughts for reader in self._readers):
            return {}
        return {"reasoning_tokens": sum(reader.reasoning_tokens for reader in self._readers)}

    def _delta(self, sample: Sample, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
        """What new tokens bring. Thoughts have vLLM's name, and the one that DeepSeek gave them."""
        read = self._readers[sample.index].read(tokens, sample.end)
        found: dict[str, Any] = {"content": read.content} if read.content else {}
        if read.reasoning and self.body.include_reasoning is not False:
            found |= {"reasoning": read.reasoning, "reasoning_content": read.reasoning}
        return {**found, "tool_calls": read.deltas} if read.deltas else found

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
        ids = bool(self.body.return_token_ids)
        delta = self._delta(sample, tokens)
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
        read = self._delta(sample, sample.tokens)
        text = read.get("content", "")
        calls = self._calls(sample)
        content = None if calls and not text else f"{self._echo}{text}"
        absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
        thoughts = {name: read.get("reasoning") for name in ("reasoning", "reasoning_content")}
        message: dict[str, Any] = {"role": "assistant", "content": content, **absent, **thoughts}
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
