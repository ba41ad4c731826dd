"""The schemas of the server's answers in its OpenAPI document. The answers themselves are built elsewhere:
these models only describe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, RootModel

from outrider.server.http.guard import KEY_HEADER

STATUSES = {
    400: "The request is at fault.",
    401: "An API key is needed.",
    403: "The Host header names another machine.",
    404: "There is no such model or path.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not sent as JSON.",
    429: "Too many requests wait; Retry-After says when to come back.",
    500: "The server made a mistake, or its engine failed.",
    503: "The server is stopping.",
}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """Of a request with a prediction: tokens of it in the output, and others that were drafted from it."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class CalledFunction(BaseModel):
    name: str
    arguments: str


class Call(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[Call] | None = None


class ChatLogprobs(BaseModel):
    content: list[dict[str, Any]]
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]
    has_more: Literal[False]
    first_id: str
    last_id: str


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class LlamaTokens(BaseModel):
    """The form of llama.cpp; with pieces an element has id and piece."""

    tokens: list[int | dict[str, Any]]


class TokenizeAnswer(RootModel[Tokens | LlamaTokens]):
    """vLLM's form, or llama.cpp's for its fields."""


class Text(BaseModel):
    """The text under vLLM's name and llama.cpp's."""

    prompt: str
    content: str


class TokenizerInformation(BaseModel):
    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    chat_template: str | None


class Version(BaseModel):
    version: str


class Load(BaseModel):
    server_load: int


Responses: TypeAlias = dict[int | str, dict[str, Any]]


def answers(model: type[BaseModel], media: str = "application/json") -> Responses:
    """FastAPI's `responses` of a path whose answers have the schema of a model."""
    content: dict[str, Any] = {} if media == "application/json" else {"content": {media: {}}}
    return {200: {"description": "Done.", "model": model, **content}}


def describe(
    app: FastAPI, *, keys: bool, error_model: Callable[[str], type[BaseModel] | None] = lambda _: None
) -> dict[str, Any]:
    """The OpenAPI document: FastAPI's, with STATUSES in place of its 422, and how keys are sent if they
    are needed. error_model: the schema of a path's errors; None for OpenAI's form."""
    if app.openapi_schema:
        return app.openapi_schema
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, operations in made["paths"].items():
        model = error_model(path) or Error
        error = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(error.pop("$defs", {}))
        schemas[model.__name__] = error
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
        for operation in operations.values():
            responses = operation["responses"]
            responses.pop("422", None)
            for status, text in STATUSES.items():
                responses[str(status)] = {"description": text, "content": content}
    if keys:
        made["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": KEY_HEADER},
        }
        made["security"] = [{"bearer": []}, {"header": []}]  # either
    app.openapi_schema = made
    return made
