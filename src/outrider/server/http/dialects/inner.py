"""From a dialect's request to the inner one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.server.http import chat, completions, sampling_fields
from outrider.server.http.disconnect import while_connected
from outrider.server.http.errors import invalid, json_response
from outrider.server.http.generation_request import Arrival, GenerationRequest
from outrider.server.http.protocol import ChatRequest, CompletionRequest
from outrider.server.http.sample_reader import BlockReader, SampleReader
from outrider.server.http.service import Service


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


def chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """The inner request of a conversation; fields that are None are left out. Raises ApiError for a value
    that it does not take."""
    try:
        return ChatRequest.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError as error:
        raise invalid(error.errors()) from None


def text_request(fields: Mapping[str, Any]) -> CompletionRequest:
    """The same for a text that is to be continued."""
    try:
        return CompletionRequest.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError as error:
        raise invalid(error.errors()) from None


async def prepare(
    service: Service,
    http: HttpRequest,
    body: ChatRequest | CompletionRequest,
    id_prefix: str,
    encode: Callable[[], list[list[int]]] | None = None,
    *,
    ends: Collection[int] = (),
) -> GenerationRequest:
    """The engine's requests for an inner request.

    id_prefix: of the answer's id.
    encode:    gives the token ids of the prompts, in place of the request's `prompt`; called in a worker.
    ends:      ids that end a text, besides those that end any text of the model.
    Raises ApiError and OutriderError.
    """
    arrival = service.arrival(http, body.model)

    def work() -> GenerationRequest:
        if isinstance(body, CompletionRequest):
            return _parse_text(service, arrival, body, encode, ends)
        return chat.parse(service, arrival, body)

    request = await while_connected(http, service.workers.run_in_worker(work))
    return dataclasses.replace(request, id=id_prefix + request.id.partition("-")[2])


async def count_tokens(service: Service, body: ChatRequest) -> int:
    """The tokens of the prompt that a conversation becomes. Raises ApiError and OutriderError."""
    ids = await service.workers.run_in_worker(
        lambda: service.encode(chat.prompt_text(service, body), add_special=False)
    )
    return len(ids)


async def input_tokens(service: Service, body: ChatRequest) -> Response:
    """The same as an answer in OpenAI's form. Raises as `count_tokens` does."""
    count = await count_tokens(service, body)
    return json_response({"object": "response.input_tokens", "input_tokens": count})


def _parse_text(
    service: Service,
    arrival: Arrival,
    body: CompletionRequest,
    encode: Callable[[], list[list[int]]] | None,
    ends: Collection[int],
) -> GenerationRequest:
    """As for /v1/completions, but without `max_tokens` a text may fill the context."""
    rules = service.sampling
    most = rules.defaults.values.get("max_tokens") if body.max_tokens is None else body.max_tokens
    params = sampling_fields.sampling_params(body, rules, max_tokens=most, logprobs=body.logprobs)
    ids = None if encode is None else encode()
    return completions.generation(service, arrival, body, params, ids, ends=ends)


def block_reader(service: Service, body: ChatRequest, request: GenerationRequest) -> BlockReader:
    """The reader of the first sample of a request. Raises ApiError."""
    prompt = request.samples[0].prompt
    return BlockReader(SampleReader.of(service.templates, body, service.tokenizer, prompt))


def thinking_variables(service: Service, on: bool | None) -> dict[str, Any] | None:
    """`chat_template_kwargs` that turn the reasoning of a model on or off, as far as its template knows a
    switch for it."""
    source = service.templates.source or ""
    if on is None or "enable_thinking" not in source:
        return None
    return {"enable_thinking": on}


def reasoning_effort(service: Service, effort: str | None) -> str | None:
    """An effort for the chat template; None where it does not read one."""
    return effort if "reasoning_effort" in (service.templates.source or "") else None
