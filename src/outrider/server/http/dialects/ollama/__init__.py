"""Ollama's API: /api/chat, /api/generate, and what is told of the model."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from outrider.server.http.dialects import inner
from outrider.server.http.dialects.base import Dialect
from outrider.server.http.dialects.ollama import models
from outrider.server.http.dialects.ollama.answer import OllamaAnswer, error_document, now
from outrider.server.http.dialects.ollama.fields import (
    Generating,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from outrider.server.http.dialects.ollama.translate import chat_request, generate_request, model_name
from outrider.server.http.dialects.refused import NO_EMBEDDINGS
from outrider.server.http.errors import ApiError, elsewhere, json_response
from outrider.server.http.generation import respond
from outrider.server.http.openapi import answers
from outrider.server.http.service import Service
from outrider.version import __version__

_FIXED = "the model is chosen when the server starts"
_REFUSED = {
    **dict.fromkeys(("embed", "embeddings"), NO_EMBEDDINGS),
    **dict.fromkeys(("pull", "push", "create", "copy", "delete", "blobs"), _FIXED),
}


class OllamaError(BaseModel):
    error: str


class OllamaChat(BaseModel):
    model: str
    created_at: str
    message: dict[str, Any]
    done: bool


class OllamaGenerated(BaseModel):
    model: str
    created_at: str
    response: str
    done: bool


class OllamaModels(BaseModel):
    models: list[dict[str, Any]]


class OllamaModel(BaseModel):
    details: dict[str, Any]
    model_info: dict[str, Any]
    template: str
    capabilities: list[str]


class OllamaVersion(BaseModel):
    version: str
    outrider: str


def _add(app: FastAPI, service: Service) -> None:
    _add_generation(app, service)
    _add_models(app, service)

    @app.api_route("/api", methods=["GET", "POST"], include_in_schema=False)
    @app.api_route(
        "/api/{path:path}", methods=["GET", "POST", "DELETE", "PUT", "PATCH"], include_in_schema=False
    )
    async def other(request: Request, path: str = "") -> Response:
        full, shown = f"/api/{path}", f"/api/{path[:100]}"
        methods: set[str] = set()
        for route in app.routes:
            methods |= getattr(route, "methods", set()) if getattr(route, "path", "") == full else set()
        if methods:
            allowed = ", ".join(sorted(methods))
            raise ApiError(
                405, f"{request.method} is not possible at {shown}; use {allowed}", headers={"Allow": allowed}
            )
        nothing = f"there is nothing{elsewhere(full, app.routes)}"
        raise ApiError(404, f"{shown}: {_REFUSED.get(path.partition('/')[0], nothing)}")


def _add_generation(app: FastAPI, service: Service) -> None:
    media = OllamaAnswer.media_type

    @app.post(
        "/api/chat", tags=["Ollama"], summary="Answer a conversation", responses=answers(OllamaChat, media)
    )
    async def chat(request: Request, body: OllamaChatRequest) -> Response:
        if not body.messages:  # clients load a model like that
            return _loaded(service, body, {"message": {"role": "assistant", "content": ""}})
        made = chat_request(service, body)
        prepared = await inner.prepare(service, request, made, "chat-")
        answer = OllamaAnswer(service, made, prepared, model=body.model, chat=True)
        return await respond(service, request, prepared, answer)

    @app.post(
        "/api/generate", tags=["Ollama"], summary="Answer a prompt", responses=answers(OllamaGenerated, media)
    )
    async def generate(request: Request, body: OllamaGenerateRequest) -> Response:
        if not body.prompt and not body.suffix:
            return _loaded(service, body, {"response": ""})
        made = generate_request(service, body)
        prepared = await inner.prepare(service, request, made, "generate-")
        answer = OllamaAnswer(service, made, prepared, model=body.model, chat=False)
        return await respond(service, request, prepared, answer)


def _loaded(service: Service, body: Generating, empty: dict[str, Any]) -> Response:
    """The answer to a request that only loads the model, which is loaded always."""
    name = model_name(service, body.model)
    head = {"model": body.model or name, "created_at": now()}
    return json_response({**head, **empty, "done": True, "done_reason": "load"})


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/api/tags", tags=["Ollama"], summary="The names of the model", responses=answers(OllamaModels))
    async def tags() -> Response:
        return json_response({"models": [models.described(service, name) for name in service.model.names]})

    @app.get("/api/ps", tags=["Ollama"], summary="The model that is loaded", responses=answers(OllamaModels))
    async def ps() -> Response:
        return json_response({"models": [models.loaded(service, service.model.names[0])]})

    @app.post("/api/show", tags=["Ollama"], summary="What the model is", responses=answers(OllamaModel))
    async def show(body: OllamaShowRequest) -> Response:
        model_name(service, body.model or body.name)
        return json_response(models.shown(service))

    @app.get("/api/version", tags=["Ollama"], summary="The API's version", responses=answers(OllamaVersion))
    async def version() -> Response:
        return json_response({"version": models.API_VERSION, "outrider": __version__})


DIALECT = Dialect(paths=("/api",), error_document=error_document, error_model=OllamaError, add=_add)
