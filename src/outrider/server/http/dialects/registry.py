"""All dialects, and which of them a path belongs to."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import Response

from outrider.server.http.dialects import anthropic, llama_cpp, ollama, responses
from outrider.server.http.dialects.base import Dialect
from outrider.server.http.dialects.refused import add_refused
from outrider.server.http.errors import ApiError, json_response
from outrider.server.http.service import Service

DIALECTS: tuple[Dialect, ...] = (anthropic.DIALECT, responses.DIALECT, ollama.DIALECT, llama_cpp.DIALECT)


def add_dialects(app: FastAPI, service: Service) -> None:
    """Add the routes of all dialects, and the paths that say why they are not there."""
    for dialect in DIALECTS:
        dialect.add(app, service)
    add_refused(app)


def dialect_of(path: str) -> Dialect | None:
    """The dialect of a path; None for OpenAI's and the server's own."""
    return next((dialect for dialect in DIALECTS if dialect.owns(path)), None)


def error_response(error: ApiError, path: str) -> Response:
    """An error in the form of the path's dialect."""
    dialect = dialect_of(path)
    document = error.document() if dialect is None else dialect.error_document(error)
    return json_response(document, error.status, error.headers)


def error_model(path: str) -> type[BaseModel] | None:
    """The schema of a path's errors; None for OpenAI's form."""
    dialect = dialect_of(path)
    return None if dialect is None else dialect.error_model
