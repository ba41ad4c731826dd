"""OpenAI's Responses API: /v1/responses and what is below it."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from outrider.server.http.dialects import inner
from outrider.server.http.dialects.base import Dialect
from outrider.server.http.dialects.responses.answer import ResponseAnswer
from outrider.server.http.dialects.responses.fields import PromptRequest, ResponsesRequest
from outrider.server.http.dialects.responses.store import ResponseStore
from outrider.server.http.dialects.responses.translate import chat_request, input_items
from outrider.server.http.errors import ApiError, bad, json_response
from outrider.server.http.generation import respond
from outrider.server.http.guard import namespace_of
from outrider.server.http.openapi import Error, answers
from outrider.server.http.service import Service


class OpenAIResponse(BaseModel):
    """The schema of a response."""

    id: str
    object: Literal["response"]
    created_at: float
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(BaseModel):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


def _add(app: FastAPI, service: Service) -> None:
    settings = service.settings
    store = ResponseStore(
        most=settings.max_stored_responses,
        most_bytes=settings.max_stored_bytes,
        seconds=settings.stored_seconds,
    )
    _add_creation(app, service, store)
    _add_stored(app, store)


def _add_creation(app: FastAPI, service: Service, store: ResponseStore) -> None:
    @app.post("/responses", include_in_schema=False)
    @app.post(
        "/v1/responses",
        tags=["responses"],
        summary="Answer a conversation",
        responses=answers(OpenAIResponse, "text/event-stream"),
    )
    async def create(request: Request, body: ResponsesRequest) -> Response:
        space = namespace_of(request.state)
        history = store.history(space, body.previous_response_id)
        inputs = input_items(store, space, body)
        chat = chat_request(service, body, [*history, *inputs])
        prepared = await inner.prepare(service, request, chat, "resp_")
        answer = ResponseAnswer(
            service, chat, prepared, store=store, body=body, inputs=inputs, history=history
        )
        return await respond(service, request, prepared, answer)

    @app.post("/responses/input_tokens", include_in_schema=False)
    @app.post(
        "/v1/responses/input_tokens",
        tags=["responses"],
        summary="The number of tokens of a prompt",
        responses=answers(inner.InputTokens),
    )
    async def input_tokens(request: Request, body: PromptRequest) -> Response:
        service.model.check_name(body.model)
        space = namespace_of(request.state)
        history = store.history(space, body.previous_response_id)
        chat = chat_request(service, body, [*history, *input_items(store, space, body)])
        return await inner.input_tokens(service, chat)


def _add_stored(app: FastAPI, store: ResponseStore) -> None:
    @app.get("/responses/{response_id}", include_in_schema=False)
    @app.get(
        "/v1/responses/{response_id}",
        tags=["responses"],
        summary="A stored response",
        responses=answers(OpenAIResponse),
    )
    async def retrieve(request: Request, response_id: str) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            raise bad("stream is refused: the response has ended; leave stream out", "stream")
        return json_response(store.get(namespace_of(request.state), response_id).document)

    @app.delete("/responses/{response_id}", include_in_schema=False)
    @app.delete(
        "/v1/responses/{response_id}",
        tags=["responses"],
        summary="Forget a stored response",
        responses=answers(DeletedResponse),
    )
    async def delete(request: Request, response_id: str) -> Response:
        store.delete(namespace_of(request.state), response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @app.get("/responses/{response_id}/input_items", include_in_schema=False)
    @app.get(
        "/v1/responses/{response_id}/input_items",
        tags=["responses"],
        summary="The items of a stored response's own input",
        responses=answers(InputItems),
    )
    async def items(
        request: Request,
        response_id: str,
        limit: int = Query(20, ge=1, le=100),
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        found = list(store.get(namespace_of(request.state), response_id).inputs)
        if order == "desc":
            found.reverse()
        if after is not None:
            places = [n for n, item in enumerate(found) if item["id"] == after]
            if not places:
                raise bad(f"there is no item {after[:80]!r}", "after")
            found = found[places[0] + 1 :]
        page = found[:limit]
        return json_response(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(found) > limit,
            }
        )

    @app.post(
        "/v1/responses/{response_id}/cancel", tags=["responses"], summary="Refused: none runs in background"
    )
    async def cancel(request: Request, response_id: str) -> Response:
        store.get(namespace_of(request.state), response_id)
        raise bad("only background responses can be cancelled, and there are none here", "response_id")


DIALECT = Dialect(paths=("/v1/responses",), error_document=ApiError.document, error_model=Error, add=_add)
