"""One request handed to the server behind, and its answer handed back as it comes."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.engines.vllm.upstream import Answer, UpstreamError, whole
from outrider.server.http.dialects import registry
from outrider.server.http.disconnect import until_disconnect
from outrider.server.http.errors import ApiError
from outrider.server.http.guard import path_of
from outrider.server.http.sse import MEDIA_TYPE, event, named_event
from outrider.server.proxy.backend import Backend

logger = logging.getLogger("outrider")

# Of a request and of an answer; the rest is of one connection, of keys, or the body's form.
_ASKED = (b"content-type", b"accept", b"x-request-id", b"traceparent", b"tracestate", b"x-session-id")
_ANSWERED = (b"content-type", b"cache-control", b"retry-after", b"x-request-id")
MOST_WHOLE = 64 << 20  # bytes of an answer that is not a stream
_MOST_ERROR = 1 << 20


class Forwarded(Response):
    """The answer of the server behind to a request.

    path:    where it is asked. body: of the request.
    on_done: called when the whole answer was sent.

    An error of the server behind is sent in the form of the path's dialect; so is its end in the middle of an
    answer, as the last event of a stream. A client that disconnects ends its request.
    """

    def __init__(
        self, backend: Backend, request: Request, path: str, body: bytes, on_done: Callable[[], object]
    ) -> None:
        super().__init__()
        self._backend, self._path, self._body, self._on_done = backend, path, body, on_done
        query = request.url.query
        self._target = f"{path}?{query}" if query else path
        self._method = request.method
        self._asked = [(key, value) for key, value in request.headers.raw if key in _ASKED]
        self._started = self._streams = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def work() -> bool:
            try:
                await self._forward(send)
            except UpstreamError as error:
                await self._failed(ApiError(502, f"the engine: {error}", code="engine_failed"), scope, send)
            except ApiError as error:
                await self._failed(error, scope, send)
            return True

        await until_disconnect(receive, work())

    async def _forward(self, send: Send) -> None:
        async with (
            self._backend.admitted() as upstream,
            upstream.ask(self._method, self._target, self._body, self._asked) as answer,
        ):
            if answer.status >= 400:
                raise await translated(answer)
            self._streams = answer.header(b"content-type").startswith(MEDIA_TYPE)
            headers = [(key, value) for key, value in answer.headers if key in _ANSWERED]
            if self._streams:
                await self._start(send, answer.status, headers)
                async for part in answer.body:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                body = await whole(answer, MOST_WHOLE)
                headers.append((b"content-length", str(len(body)).encode()))
                await self._start(send, answer.status, headers)
                await send({"type": "http.response.body", "body": body, "more_body": False})
        self._on_done()

    async def _start(self, send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": status, "headers": headers})

    async def _failed(self, error: ApiError, scope: Scope, send: Send) -> None:
        """Send an error: as an answer, or as the last event of one that has begun."""
        if not self._started:
            await registry.error_response(error, path_of(scope))(scope, _nothing, send)
            return
        dialect = registry.dialect_of(path_of(scope))
        document = error.document() if dialect is None else dialect.error_document(error)
        # Anthropic's and the Responses API name their events.
        last = event(document) if dialect is None else named_event("error", document)
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": last, "more_body": False})


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}


async def translated(answer: Answer) -> ApiError:
    """The error of an answer of vLLM (or of another server of OpenAI's API) as one of ours."""
    raw = await whole(answer, _MOST_ERROR)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    fields = document if isinstance(document, dict) else {}
    inner = fields.get("error", fields)
    inner = inner if isinstance(inner, dict) else {"message": inner}
    message = inner.get("message") or inner.get("detail") or f"the engine answered {answer.status}"
    if not isinstance(message, str):
        message = json.dumps(message)
    if answer.status == 401:  # its key is ours, not the client's
        return ApiError(502, "the engine refused the key of the server in front of it", code="engine_failed")
    param, code = inner.get("param"), inner.get("code")
    wait = answer.header(b"retry-after")
    return ApiError(
        answer.status,
        " ".join(message.split())[:2000],
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
        headers={"Retry-After": wait} if wait else None,
    )
