"""A client for serve.py that records when the tokens of a stream arrive."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

TIMEOUT = 600.0  # seconds for an answer


@dataclass(slots=True)
class Answer:
    """A streamed answer. Times are seconds of `time.perf_counter`.

    times:  when each token arrived; tokens of one event have the same time.
    tokens: their number, as counted by the server.
    whole:  whether the stream is complete.
    """

    began: float
    text: str = ""
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    whole: bool = False

    @property
    def ttft(self) -> float:
        return self.times[0] - self.began

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else None

    def gaps(self) -> list[float]:
        """Seconds between a token and the next."""
        return [b - a for a, b in itertools.pairwise(self.times)]


def client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT, limits=limits)


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Answer:
    """Request an answer and read it to its end. Raises httpx.HTTPError and httpx.HTTPStatusError."""
    answer = Answer(time.perf_counter())
    async for _ in follow(http, path, body, answer):
        pass
    return answer


async def follow(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], answer: Answer
) -> AsyncIterator[int]:
    """Fill an answer as its events arrive; yields the number of tokens so far after each of them."""
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            await response.aread()
            raise httpx.HTTPStatusError(response.text, request=response.request, response=response)
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            now = time.perf_counter()
            if line == "data: [DONE]":
                answer.whole = True
                return
            _take(answer, json.loads(line[6:]), now)
            yield answer.tokens


def _take(answer: Answer, document: dict[str, Any], now: float) -> None:
    if "error" in document:
        raise httpx.HTTPError(str(document["error"]))
    text = ""
    for choice in document["choices"]:
        part = choice.get("delta") or choice
        text += part.get("content") or part.get("text") or ""
    answer.text += text
    if usage := document.get("usage"):
        answer.tokens = usage["completion_tokens"]
    elif timings := document.get("timings"):
        answer.tokens = timings["predicted_n"]
    elif text:
        answer.tokens += 1
    answer.times += [now] * (answer.tokens - len(answer.times))


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and mean, in ms."""
    array = np.array(seconds or [float("nan")]) * 1e3
    p50, p99 = np.percentile(array, [50, 99])
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2), "mean": round(float(array.mean()), 2)}
