"""Pairs of requests, with speculation and without: what is measured while the server serves.

A small share of the clients' requests is asked twice more in the background, once of each kind, one right
after the other and the order changing from pair to pair. Clients get their ordinary answers. One pair runs at
a time, and it counts only when both servers ran about as many requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from typing import Any

from outrider.engines.vllm.metrics import counts
from outrider.engines.vllm.upstream import Upstream, UpstreamError, events, text_of, tokens_of
from outrider.server.proxy.requests import measured_copy
from outrider.server.proxy.worth import SpeedUp, alike

logger = logging.getLogger("outrider")

LEAST_TOKENS = 16  # of a text, for its speed to be seen
SECONDS = 300.0  # for one text


class Measurer:
    """Measures pairs of requests that pass by.

    plain:    a server of the same model without speculation; None measures nothing.
    share:    of requests, 0 to 1.
    on_pair:  called after each pair that counts.
    """

    def __init__(
        self,
        server: Callable[[], Upstream],
        plain: Upstream | None,
        share: float,
        on_pair: Callable[[], object] = lambda: None,
        choose: Callable[[], float] = random.random,
    ) -> None:
        self._server, self.plain, self.share = server, plain, share
        self.on_pair, self._choose = on_pair, choose
        self.speedup = SpeedUp()
        self.left_out: dict[str, int] = {}  # pairs that do not count, by reason
        self._task: asyncio.Task[None] | None = None
        self._first = False
        self.paused = False

    @property
    def busy(self) -> bool:
        """Whether a pair is being measured."""
        return self._task is not None and not self._task.done()

    def consider(self, path: str, fields: dict[str, Any] | None) -> None:
        """Perhaps measure a request that has been answered. Returns at once."""
        if self.plain is None or self.paused or fields is None or self._choose() >= self.share:
            return
        if not self.busy and (copy := measured_copy(path, fields)) is not None:
            self._task = asyncio.create_task(self._pair(self.plain, path, copy))

    async def close(self) -> None:
        """End the pair that runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _pair(self, plain: Upstream, path: str, fields: dict[str, Any]) -> None:
        server = self._server()
        loads: list[float] = []
        seconds: dict[bool, float | None] = {}
        self._first = not self._first
        try:
            for speculates in (self._first, not self._first):
                loads += [await load(server), await load(plain)]
                seconds[speculates] = await token_seconds(server if speculates else plain, path, fields)
            loads += [await load(server), await load(plain)]
        except (UpstreamError, TimeoutError) as error:
            self._leave_out(f"an error: {error}"[:100])
            return
        one, two = seconds[False], seconds[True]
        if one is None or two is None:
            self._leave_out("a short text")
        elif not alike(loads):
            self._leave_out("unlike loads")
        elif not self.paused and server is self._server():
            self.speedup.add(one, two)
            self.on_pair()

    def _leave_out(self, why: str) -> None:
        if why in self.left_out or len(self.left_out) < 8:
            self.left_out[why] = self.left_out.get(why, 0) + 1


async def load(server: Upstream) -> float:
    """Requests that run or wait at a server."""
    _, page = await server.read("GET", "/metrics", seconds=10)
    found = counts(page.decode("utf-8", "replace"))
    return found.running + found.waiting


async def token_seconds(server: Upstream, path: str, fields: dict[str, Any]) -> float | None:
    """Seconds for each token after the first of a streamed text; None for a text that is too short or has no
    usage. Raises UpstreamError and TimeoutError."""
    first = last = 0.0
    tokens = 0
    headers = [(b"content-type", b"application/json")]
    async with (
        asyncio.timeout(SECONDS),
        server.ask("POST", path, json.dumps(fields).encode(), headers) as answer,
    ):
        if answer.status != 200:
            raise UpstreamError(f"{server} answered {answer.status}")
        async for now, event in events(answer, server):
            if text_of(event):
                first, last = first or now, now
            tokens = tokens_of(event) or tokens
    return (last - first) / (tokens - 1) if tokens >= LEAST_TOKENS and last > first else None
