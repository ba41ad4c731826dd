"""Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from outrider.server.http.dialects import inner
from outrider.server.http.dialects.anthropic.answer import MessageAnswer, error_document
from outrider.server.http.dialects.anthropic.fields import CountRequest, MessagesRequest
from outrider.server.http.dialects.anthropic.translate import chat_request
from outrider.server.http.dialects.base import Dialect
from outrider.server.http.errors import json_response
from outrider.server.http.generation import respond
from outrider.server.http.openapi import answers
from outrider.server.http.service import Service


class AnthropicMessage(BaseModel):
    """The schema of an answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, int]


class CountedTokens(BaseModel):
    input_tokens: int


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: None


def _add(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/messages",
        tags=["Anthropic"],
        summary="Answer a conversation",
        responses=answers(AnthropicMessage, "text/event-stream"),
    )
    async def messages(request: Request, body: MessagesRequest) -> Response:
        chat = chat_request(service, body)
        prepared = await inner.prepare(service, request, chat, "msg_")
        answer = MessageAnswer(service, chat, prepared, silent=body.max_tokens == 0)
        return await respond(service, request, prepared, answer)

    @app.post(
        "/v1/messages/count_tokens",
        tags=["Anthropic"],
        summary="The number of tokens of a prompt",
        responses=answers(CountedTokens),
    )
    async def count_tokens(body: CountRequest) -> Response:
        service.model.check_name(body.model)
        return json_response({"input_tokens": await inner.count_tokens(service, chat_request(service, body))})


DIALECT = Dialect(
    paths=("/v1/messages",),
    error_document=error_document,
    error_model=AnthropicError,
    add=_add,
)
