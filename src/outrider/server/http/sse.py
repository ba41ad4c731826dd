"""Server-sent events (the WHATWG HTML standard, section 9.2), and the response that sends a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.server.http.disconnect import until_disconnect
from outrider.server.http.errors import json_bytes

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"  # OpenAI's last event


def event(document: object) -> bytes:
    """One server-sent event with a JSON document as its data."""
    return b"data: " + json_bytes(document) + b"\n\n"


def named_event(name: str, document: object) -> bytes:
    """The same with a name, which a client's listeners are chosen by."""
    return b"event: " + name.encode() + b"\n" + event(document)


class StreamResponse(Response):
    """Sends each part as soon as the generator yields it, and closes the generator at the end, or as soon as
    the client disconnects."""

    def __init__(self, parts: AsyncGenerator[bytes, None], media_type: str = MEDIA_TYPE) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if await until_disconnect(receive, self._send(send)):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._parts.aclose()

    async def _send(self, send: Send) -> bool:
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        return True
