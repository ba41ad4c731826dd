"""Answers while the client may go away: server-sent events, and work that ends with the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.server.http.errors import json_bytes

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


def event(document: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(document) + b"\n\n"


class EventStream(Response):
    """Sends what a generator makes, as it comes, and closes the generator when the client has gone."""

    def __init__(self, parts: AsyncGenerator[bytes, None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if await unless_gone(receive, self._send(send)):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._parts.aclose()

    async def _send(self, send: Send) -> bool:
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        return True


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's result; None when the client went first, and the work is then cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The work's response, or one that nobody will read when the client has gone."""
    return await unless_gone(request.receive, work) or Response(status_code=499)
