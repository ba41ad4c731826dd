"""Paths of other servers for what this one does not do: one line that says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from outrider.server.http.errors import ApiError

NO_EMBEDDINGS = "this server writes text; it computes no embeddings"
_RANKS = "this server writes text; it ranks and scores no documents"
_TEXT = "this server reads and writes text only"
_CHOSEN = "the model and its adapters are chosen when the server starts"
REFUSED = {
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/embedding", "/pooling"), NO_EMBEDDINGS),
    **dict.fromkeys(
        ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking", "/v1/score", "/score"), _RANKS
    ),
    "/classify": _RANKS,
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"), _TEXT),
    **dict.fromkeys(("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"), _TEXT),
    "/v1/moderations": "this server judges nothing",
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters"), _CHOSEN),
}


def add_refused(app: FastAPI) -> None:
    """Add these paths."""
    for path, reason in REFUSED.items():
        app.add_api_route(path, _refusal(reason), methods=["POST"], include_in_schema=False)


def _refusal(reason: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise ApiError(404, f"{request.url.path} is not there: {reason}", code="not_supported")

    return refuse
