"""The FastAPI application: routes, middleware and error handlers. Endpoints of some length have files of
their own."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from outrider.errors import OutriderError
from outrider.pipeline import Pipeline
from outrider.server.engine.async_engine import ServerEngine
from outrider.server.http.chat import chat_completions
from outrider.server.http.completions import completions
from outrider.server.http.conversation import Conversation, render
from outrider.server.http.dialects import registry
from outrider.server.http.errors import (
    ApiError,
    api_error,
    bad,
    elsewhere,
    invalid,
    json_response,
    unreadable,
)
from outrider.server.http.guard import (
    OPEN,
    BodyLimit,
    Guard,
    HeadAsGet,
    Keys,
    RequestIds,
    WithPrefix,
    path_of,
)
from outrider.server.http.metrics import CONTENT_TYPE
from outrider.server.http.openapi import (
    ChatCompletion,
    Completion,
    Load,
    ModelCard,
    ModelList,
    Text,
    TokenizeAnswer,
    TokenizerInformation,
    Version,
    answers,
    describe,
)
from outrider.server.http.page import add_page
from outrider.server.http.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from outrider.server.http.service import Service
from outrider.server.http.status import status
from outrider.server.http.tokens import tokenizer_information, tokens_with_pieces
from outrider.server.settings import Settings
from outrider.version import __version__

logger = logging.getLogger(__name__)


# Origins of pages on this machine, whatever serves them.
_OWN_PAGES = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?"


def create_app(pipeline: Pipeline, engine: ServerEngine, settings: Settings | None = None) -> FastAPI:
    """The application for a pipeline and its engine, which the caller starts and stops.

    `app.state.service` is the Service. Raises ConfigError.
    """
    settings = settings or Settings()
    service = Service(pipeline, engine, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        yield
        service.close()

    app = FastAPI(
        title="Outrider",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # the page would load scripts from another host
        redoc_url=None,
        description="OpenAI's API, with vLLM's fields, over speculative decoding that changes no text.",
    )
    app.state.service = service
    _errors(app)
    _models(app, service)
    _generation(app, service)
    _about(app, service)
    registry.add_dialects(app, service)
    app.openapi = lambda: describe(  # type: ignore[method-assign]
        app, keys=bool(settings.api_keys), error_model=registry.error_model
    )
    pages = add_page(app, settings.static)
    add_middleware(app, settings, frozenset(OPEN) | pages)
    return app


def add_middleware(app: Starlette, settings: Settings, is_open: frozenset[str]) -> None:
    """Keys, names of hosts, limits of bodies, CORS and the like. is_open: paths that need no key."""
    # The middleware that is added last runs first.
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        BodyLimit,
        most=settings.max_body_bytes,
        seconds=settings.body_seconds,
        error_form=registry.error_response,
    )
    app.add_middleware(
        Guard,
        keys=Keys(settings.api_keys),
        hosts=settings.hosts(),
        is_open=is_open,
        error_form=registry.error_response,
    )
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_origin_regex=_OWN_PAGES if "localhost" in settings.allowed_origins else None,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            allow_credentials=settings.allow_credentials,
        )
    if settings.root_path.rstrip("/"):
        app.add_middleware(WithPrefix, prefix=settings.root_path)
    if settings.request_ids:
        app.add_middleware(RequestIds)


def _errors(app: FastAPI) -> None:
    """Send every error in the form of its path."""

    def answer(request: Request, error: ApiError) -> Response:
        return registry.error_response(error, path_of(request.scope))

    async def error_response(request: Request, error: Exception) -> Response:
        return answer(request, api_error(error))

    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(request, invalid(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = {
            404: f"there is nothing at {request.url.path[:200]}{elsewhere(request.url.path, app.routes)}",
            405: f"{request.method} is not possible at {request.url.path[:200]}",
        }.get(error.status_code, unreadable(error.__cause__) or str(error.detail))
        return answer(request, ApiError(error.status_code, message, headers=error.headers))

    app.add_exception_handler(ApiError, error_response)
    app.add_exception_handler(OutriderError, error_response)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, error_response)


def _generation(app: FastAPI, service: Service) -> None:
    # Clients whose base address lacks /v1 find the same endpoints.
    @app.post("/chat/completions", include_in_schema=False)
    @app.post(
        "/v1/chat/completions",
        tags=["generation"],
        summary="Answer a conversation",
        responses=answers(ChatCompletion, "text/event-stream"),
    )
    async def chat(request: Request, body: ChatRequest) -> Response:
        return await chat_completions(service, request, body)

    @app.post("/completions", include_in_schema=False)
    @app.post(
        "/v1/completions",
        tags=["generation"],
        summary="Go on with a text",
        responses=answers(Completion, "text/event-stream"),
    )
    async def complete(request: Request, body: CompletionRequest) -> Response:
        return await completions(service, request, body)

    @app.post("/tokenize", tags=["tokens"], summary="A text's token ids", responses=answers(TokenizeAnswer))
    async def tokenize(body: TokenizeRequest) -> Response:
        service.model.check_name(body.model)
        if sum(given is not None for given in (body.prompt, body.messages, body.content)) != 1:
            raise bad("give one of prompt, messages and content", "prompt")

        def work() -> list[int]:
            if body.content is not None:
                special = bool(body.add_special), body.parse_special is not False
                return service.encode(body.content, add_special=special[0], parse_special=special[1])
            if body.prompt is not None:
                return service.encode(body.prompt, add_special=body.add_special_tokens is not False)
            text = render(service.templates, _conversation(body))
            return service.encode(text, add_special=bool(body.add_special_tokens))

        ids = await service.workers.run_in_worker(work)
        if body.content is not None:
            return json_response(tokens_with_pieces(service, ids) if body.with_pieces else {"tokens": ids})
        texts = [service.tokenizer.pieces.texts[i] for i in ids] if body.return_token_strs else None
        document = {"count": len(ids), "max_model_len": service.engine.context, "tokens": ids}
        return json_response({**document, "token_strs": texts})

    @app.post("/detokenize", tags=["tokens"], summary="Token ids' text", responses=answers(Text))
    async def detokenize(body: DetokenizeRequest) -> Response:
        service.model.check_name(body.model)
        if any(token >= service.vocab_size for token in body.tokens):
            raise bad(f"token ids must be in 0..{service.vocab_size - 1}", "tokens")
        text = await service.workers.run_in_worker(
            lambda: service.tokenizer.decode(body.tokens, skip_special=False)
        )
        return json_response({"prompt": text, "content": text})

    @app.get(
        "/tokenizer_info", tags=["tokens"], summary="The tokenizer", responses=answers(TokenizerInformation)
    )
    async def tokenizer_info() -> Response:
        return json_response(tokenizer_information(service))


def _conversation(body: TokenizeRequest) -> Conversation:
    return Conversation(
        messages=body.messages or (),
        tools=body.tools or (),
        template=body.chat_template,
        variables=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )


def _models(app: FastAPI, service: Service) -> None:
    def card(name: str) -> dict[str, Any]:
        """In the form of OpenAI and vLLM, with the members of Anthropic's besides."""
        context = service.engine.context
        return {
            "id": name,
            "object": "model",
            "created": service.model.created,
            "owned_by": "outrider",
            "root": service.pipeline.source.display_name,
            "parent": None,
            "max_model_len": context,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(service.model.created, UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": context,
            "max_tokens": context,
        }

    @app.get("/models/", include_in_schema=False)
    @app.get("/models", include_in_schema=False)
    @app.get("/v1/models/", include_in_schema=False)
    @app.get("/v1/models", tags=["models"], summary="The names of the model", responses=answers(ModelList))
    async def models() -> Response:
        names = service.model.names
        pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}  # of Anthropic's
        return json_response({"object": "list", "data": [card(name) for name in names], **pages})

    @app.get("/models/{name:path}", include_in_schema=False)
    @app.get(
        "/v1/models/{name:path}", tags=["models"], summary="One of the names", responses=answers(ModelCard)
    )
    async def model(name: str) -> Response:
        return json_response(card(service.model.check_name(name)))


def _about(app: FastAPI, service: Service) -> None:
    async def health() -> Response:
        if service.engine.healthy:
            return PlainTextResponse()
        raise ApiError(503, "the engine has failed; the server must be started again", code="engine_failed")

    for path, method in (("/health", "GET"), ("/ping", "GET"), ("/ping", "POST")):
        app.add_api_route(
            path,
            health,
            methods=[method],
            tags=["server"],
            summary="Whether the engine runs",
            operation_id=f"{path[1:]}_{method.lower()}",
            response_class=PlainTextResponse,
        )

    @app.get("/version", tags=["server"], summary="Outrider's version", responses=answers(Version))
    async def version() -> Response:
        return json_response({"version": __version__})

    @app.get("/load", tags=["server"], summary="Samples that run or wait", responses=answers(Load))
    async def load() -> Response:
        stats = service.engine.stats
        return json_response({"server_load": stats.running + stats.waiting})

    @app.get(
        "/metrics",
        tags=["server"],
        summary="Metrics for Prometheus",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/v1/outrider/status", tags=["server"], summary="The engine, its drafters and their use")
    async def state() -> Response:
        return json_response(status(service))
