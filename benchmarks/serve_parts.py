"""What serve.py measures on one server: load, a long prefill beside running streams, and the prefix cache."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import httpx

from outrider.bench import workloads
from outrider.bench.stats import median
from serve_client import Answer, ask, client, follow, spread
from serve_servers import Served

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
LONG_PROMPT, SYSTEM_PROMPT = 4096, 1024  # tokens
STREAMS = 4
WATCHED = 3.0  # seconds before the prompt, and after it
SETTLED = 24  # events of each stream before the measurement begins


def prompts(limit: int, salt: str) -> list[str]:
    """`limit` prompts of every built-in workload, shuffled, with unique beginnings that are in no prefix
    cache."""
    items = [item for name in workloads.BUILT_IN for item in workloads.load(name)[:limit]]
    random.Random(salt).shuffle(items)
    return [f"[{salt}-{n}] {item.prompt}" for n, item in enumerate(items)]


def warm_up(server: Served) -> None:
    """Request one short answer. Raises SystemExit when it is not complete."""

    async def work() -> Answer:
        async with client(server.url) as http:
            return await ask(http, CHAT, {**_short("Answer in one word.", "Ready?"), **server.fields})

    answer = asyncio.run(work())
    if not (answer.whole and answer.tokens):
        raise SystemExit(f"{server.name} does not answer:\n{server.log()[-2000:]}")


def load(server: Served, clients: int, limit: int, max_tokens: int, salt: str) -> dict[str, Any]:
    """Send all prompts from `clients` clients, each of which sends its next one when it has an answer.

    The limits of the answers vary from half of `max_tokens` to all of it. With equal lengths, streams of
    plain decoding, which advance in lockstep, would end at the same time, and all clients would send their
    next requests at once.
    """
    waiting = [(prompt, max_tokens * (4 + i % 5) // 8) for i, prompt in enumerate(prompts(limit, salt))]
    asked = len(waiting)
    fields = {"temperature": 0, **server.fields}
    if not server.peer:
        fields["cache_salt"] = salt  # so that outputs of other levels do not help lookups
    answers: dict[str, Answer] = {}

    async def work() -> float:
        async with client(server.url) as http:

            async def one() -> None:
                while waiting:
                    prompt, most = waiting.pop()
                    message = {"role": "user", "content": prompt}
                    body = {**fields, "max_tokens": most, "messages": [message]}
                    answers[prompt] = await ask(http, CHAT, body)

            began = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(clients)))
            return time.perf_counter() - began

    seconds = asyncio.run(work())
    whole = [a for a in answers.values() if a.whole and a.times]
    tokens = sum(a.tokens for a in whole)
    return {
        "requests": asked,
        "answered": len(whole),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 2),
        "ttft_ms": spread([a.ttft for a in whole]),
        "itl_ms": spread([gap for a in whole for gap in a.gaps()]),
        "tpot_ms": spread([a.tpot for a in whole if a.tpot is not None]),
        "texts": {prompt: a.text for prompt, a in sorted(answers.items())},
    }


def prefill(server: Served, salt: str) -> dict[str, Any]:
    """The times between events of running streams before, during and after the prefill of a long prompt.

    They grow with the streams' own lengths, so the ratio is that of "during" to the mean of "before" and
    "after". Events are counted instead of tokens, as they are what a reader waits for; tokens per second are
    given too.
    """

    async def work() -> dict[str, Any]:
        async with client(server.url) as http:
            text = "\n\n".join(item.prompt for name in workloads.BUILT_IN for item in workloads.load(name))
            prompt = (2 * await _tokenized(server, http, f"{salt} {text}"))[:LONG_PROMPT]
            streams = [Answer(0.0) for _ in range(STREAMS)]
            events: list[list[tuple[float, int]]] = [[] for _ in streams]  # when, and the tokens so far

            async def run(index: int) -> None:
                body = {"prompt": f"{salt} {index}. {text[index * 400 :][:200]}", "max_tokens": 3000,
                        "temperature": 1.0, "seed": index, "ignore_eos": True, **server.fields}  # fmt: skip
                streams[index].began = time.perf_counter()
                async with aclosing(follow(http, PLAIN, body, streams[index])) as counts:  # type: ignore[type-var]
                    async for tokens in counts:
                        events[index].append((time.perf_counter(), tokens))

            tasks = [asyncio.create_task(run(i)) for i in range(STREAMS)]
            try:
                while min(len(e) for e in events) < SETTLED:
                    await asyncio.sleep(0.02)
                    if failed := next((t for t in tasks if t.done()), None):
                        await failed
                start = time.perf_counter()
                await asyncio.sleep(WATCHED)
                middle = time.perf_counter()
                one = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **server.fields}
                long = await ask(http, PLAIN, one)
                end = time.perf_counter()
                await asyncio.sleep(WATCHED)
                last = time.perf_counter()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            edges = (start, middle, end, last)
            before, during, after = (_window(events, a, b) for a, b in itertools.pairwise(edges))

            def ratio(key: str) -> float:
                alone: float = (before["gap_ms"][key] + after["gap_ms"][key]) / 2.0
                return round(float(during["gap_ms"][key]) / alone, 2)

            return {
                "ttft_ms": round(long.ttft * 1e3, 1),
                "before": before,
                "during": during,
                "after": after,
                "ratio": ratio("mean"),
                "ratio_p50": ratio("p50"),
            }

    return asyncio.run(work())


def _window(events: Sequence[Sequence[tuple[float, int]]], start: float, end: float) -> dict[str, Any]:
    """The times between events and the tokens per second of all streams within a span of time."""
    gaps: list[float] = []
    tokens = 0
    for mine in events:
        inside = [(at, n) for at, n in mine if start <= at < end]
        gaps += [b[0] - a[0] for a, b in itertools.pairwise(inside)]
        tokens += inside[-1][1] - inside[0][1] if inside else 0
    return {"gap_ms": spread(gaps), "tokens_per_s": round(tokens / (end - start), 2)}


async def _tokenized(server: Served, http: httpx.AsyncClient, text: str) -> list[int]:
    answer = await http.post("/tokenize", json={"content" if server.peer else "prompt": text})
    answer.raise_for_status()
    return list(answer.json()["tokens"])


def prefix(server: Served, salt: str, repeats: int) -> dict[str, Any]:
    """Times to the first token of two requests with the same system prompt, which is new to the server."""

    async def work() -> dict[str, Any]:
        first: list[float] = []
        second: list[float] = []
        async with client(server.url) as http:
            text = "\n\n".join(item.prompt for item in workloads.load("summary"))
            size = SYSTEM_PROMPT * len(text) // len(await _tokenized(server, http, text))  # characters
            for number in range(repeats):
                system = f"{salt}-{number}. {text[:size]}"
                for times, question in ((first, "What is it about?"), (second, "Who is in it?")):
                    times.append((await ask(http, CHAT, {**_short(system, question), **server.fields})).ttft)
        return {
            "first_ms": round(median(first) * 1e3, 2),
            "second_ms": round(median(second) * 1e3, 2),
            "ratio": round(median(b / a for a, b in zip(first, second, strict=True)), 4),
        }

    return asyncio.run(work())


def _short(system: str, question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": 4, "temperature": 0}
