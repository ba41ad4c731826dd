"""Threads for work that would block the event loop: chat templates, tokenization, grammars."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from outrider.server.http.errors import bad

T = TypeVar("T")

THREADS = 4


class WorkerPool:
    """A few threads.

    timeout: seconds after which a request is refused whose work has not finished.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(THREADS, "outrider-worker")

    async def run_in_worker(self, work: Callable[[], T]) -> T:
        """What `work` returns, run in a thread. Raises ApiError (400) after the timeout, and what `work`
        raises."""
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise bad(
                f"the request could not be prepared within {self._timeout:g} seconds: make it simpler"
            ) from None

    def close(self) -> None:
        """Cancel what has not started; running work finishes in the background."""
        self._threads.shutdown(wait=False, cancel_futures=True)
