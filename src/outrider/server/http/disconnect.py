"""Work that is cancelled when the client closes its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from outrider.server.http.errors import ApiError

T = TypeVar("T")


async def while_connected(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises ApiError (499, nginx's status for it; nobody reads the answer) when the
    client disconnects first."""
    if (result := await until_disconnect(http.receive, work)) is None:
        raise ApiError(499, "the client closed the connection")
    return result


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None when the client disconnects first, and `work` is then cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
