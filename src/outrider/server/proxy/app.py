"""The application in front of a child server: its own paths, and all others handed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from outrider.engines.vllm.upstream import UpstreamError
from outrider.errors import OutriderError
from outrider.server.http.app import add_middleware
from outrider.server.http.dialects import registry
from outrider.server.http.errors import ApiError, api_error, json_response
from outrider.server.http.guard import OPEN, path_of
from outrider.server.http.metrics import CONTENT_TYPE
from outrider.server.proxy.forward import Forwarded
from outrider.server.proxy.guarded import Guarded
from outrider.server.proxy.requests import generates, read_body, samples, target_path
from outrider.server.settings import Settings
from outrider.version import __version__

_METHODS = ["GET", "POST", "DELETE"]


def create_proxy(guarded: Guarded, settings: Settings) -> Starlette:
    """The application for a child server that is ready. It watches the child while it runs."""
    backend = guarded.backend

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        watching = asyncio.create_task(backend.watch())
        yield
        watching.cancel()
        await guarded.close()
        await asyncio.gather(watching, return_exceptions=True)

    async def health(_: Request) -> Response:
        if backend.healthy:
            return PlainTextResponse()
        raise ApiError(503, backend.failure or "the server is stopping", code="engine_failed")

    async def version(_: Request) -> Response:
        return json_response({"version": __version__, "vllm": guarded.version})

    async def load(_: Request) -> Response:
        return json_response({"server_load": backend.in_flight})

    async def metrics(_: Request) -> Response:
        return Response(await guarded.metrics(), media_type=CONTENT_TYPE)

    async def status(_: Request) -> Response:
        return json_response(await guarded.status())

    async def forward(request: Request) -> Response:
        path = target_path(path_of(request.scope))
        body = await request.body()
        fields = read_body(body) if request.method == "POST" and generates(path) else None
        if fields is not None and samples(fields) and (why := guarded.sampling_refusal()):
            raise ApiError(400, why, param="temperature", code="sampling_is_broken")
        return Forwarded(backend, request, path, body, lambda: guarded.measurer.consider(path, fields))

    async def failed(request: Request, error: Exception) -> Response:
        shown = error
        if isinstance(error, UpstreamError):
            shown = ApiError(502, f"the engine: {error}", code="engine_failed")
        return registry.error_response(api_error(shown), path_of(request.scope))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} is not possible at {request.url.path[:200]}"
        shown = ApiError(error.status_code, message if error.status_code == 405 else str(error.detail))
        return registry.error_response(shown, path_of(request.scope))

    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/ping", health, methods=["GET", "POST"]),
            Route("/version", version, methods=["GET"]),
            Route("/load", load, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/v1/outrider/status", status, methods=["GET"]),
            Route("/{path:path}", forward, methods=_METHODS),
        ],
        exception_handlers={ApiError: failed, OutriderError: failed, HTTPException: http, Exception: failed},
        lifespan=lifespan,
    )
    add_middleware(app, settings, frozenset(OPEN))
    return app
