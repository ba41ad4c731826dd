"""The child server as the server in front sees it: requests are let in and counted, it can be started anew
with other settings when they have ended, and its death is noticed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, Protocol, TypeAlias

from outrider.engines.vllm.upstream import Upstream
from outrider.errors import OutriderError
from outrider.server.http.errors import ApiError

logger = logging.getLogger("outrider")

WATCH_SECONDS = 0.25
MOST_HELD = 1024  # requests that wait while it starts anew

State: TypeAlias = Literal["running", "restarting", "stopping", "failed"]


class ChildServer(Protocol):
    """A server as a child process (`engines.vllm.process.Child`)."""

    @property
    def port(self) -> int: ...

    @property
    def key(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""

    def start(self) -> None: ...

    def wait_until_ready(self, seconds: float, cancelled: Callable[[], bool] = ...) -> None: ...

    def death(self, when: str) -> str: ...

    def stop(self) -> None: ...


class Backend:
    """A child server that runs and is ready.

    start_seconds: in which a new one must be ready.
    drain_seconds: for which requests may run on before it is started anew.
    """

    def __init__(self, child: ChildServer, *, start_seconds: float, drain_seconds: float) -> None:
        self._child = child
        self._start_seconds, self._drain_seconds = start_seconds, drain_seconds
        self.upstream = _upstream(child)
        self.state: State = "running"
        self.failure: str | None = None  # one line, once it has failed
        self.restarts = 0
        self.served = 0
        self.on_failure: Callable[[], object] = lambda: None
        self._in_flight = 0
        self._held = 0
        self._changed = asyncio.Condition()
        self._ender: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def in_flight(self) -> int:
        """Requests that run or wait."""
        return self._in_flight + self._held

    @property
    def healthy(self) -> bool:
        return self.state in ("running", "restarting")

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[Upstream]:
        """The server to ask, for as long as the block runs. Waits while it starts anew. Raises ApiError (503)
        when no request is let in any more."""
        async with self._changed:
            if self.state == "restarting" and self._held >= MOST_HELD:
                raise ApiError(503, "the engine is being started anew", headers={"Retry-After": "10"})
            self._held += 1
            try:
                await self._changed.wait_for(lambda: self.state != "restarting")
            finally:
                self._held -= 1
            if self.state == "failed":
                raise ApiError(503, f"the engine has failed: {self.failure}", code="engine_failed")
            if self.state == "stopping":
                raise ApiError(503, "the server is stopping")
            self._in_flight += 1
            self.served += 1
        try:
            yield self.upstream
        finally:
            self._in_flight -= 1
            await self._tell()

    async def relaunch(self, child: ChildServer) -> None:
        """Let running requests end, then have another child in the place of this one; new requests wait. A
        child that does not start is a failure."""
        async with self._changed:
            if self.state != "running":
                return
            self.state = "restarting"
        until = time.monotonic() + self._drain_seconds
        while self._in_flight and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(self._child.stop)
        if self._is_over():
            return
        self._child = child
        try:
            child.start()
            stopped: Callable[[], bool] = self._is_over
            await asyncio.to_thread(child.wait_until_ready, self._start_seconds, stopped)
        except OutriderError as error:
            if not self._is_over():
                await self._fail(str(error))
            return
        self.upstream = _upstream(child)
        self.restarts += 1
        if not self._is_over():
            self.state = "running"
        await self._tell()

    async def watch(self) -> None:
        """Notice when the child ends by itself; runs until then or until it is cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self.state == "running" and self._child.ended:
                words = await asyncio.to_thread(self._child.death, "while it served")
                await self._fail(words)
                return

    # --- What `server.run.Server` calls -------------------------------------------------------------

    def start(self) -> None:
        """Nothing: the child runs already."""

    async def drain(self, seconds: float) -> None:
        """Let no more requests in, and the others run for at most `seconds`; then end the child. Cancelling
        this coroutine ends it at once. What runs then gets an error as answer."""
        if self.state != "failed":
            self.state = "stopping"
        await self._tell()
        try:
            until = time.monotonic() + seconds
            while self._in_flight and time.monotonic() < until:
                await asyncio.sleep(0.02)
        finally:
            self._ender = threading.Thread(target=self._child.stop, name="vllm-end")
            self._ender.start()

    def stop(self) -> None:
        """End the child and wait until it has."""
        if self.state != "failed":
            self.state = "stopping"
        if self._ender is not None:
            self._ender.join()
        self._child.stop()

    def _is_over(self) -> bool:
        return self.state in ("stopping", "failed")

    async def _fail(self, why: str) -> None:
        self.failure, self.state = why, "failed"
        await self._tell()
        self.on_failure()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _upstream(child: ChildServer) -> Upstream:
    return Upstream(f"http://127.0.0.1:{child.port}", child.key)
