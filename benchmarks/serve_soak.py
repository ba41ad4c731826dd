"""The soak test of serve.py: many kinds of clients on one server, with a check of every answer.

Every answer is compared with that of a reference server, which has neither speculation nor a prefix cache and
is sent one request at a time.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import psutil

import serve_pool
from serve_pool import Case, Refused, Said

SLACK_BYTES = 8 << 20  # by which memory may grow after the warm-up
WARM_UP = 0.3  # of the requests
TIMEOUT = 180.0  # seconds, after which an answer counts as lost
KEYS = ("key-0", "key-1", "key-2")
HABITS = {  # what a client does with its request: percentages
    **{"whole": 32, "stream": 30, "slow": 3, "leave": 9, "cancel": 6, "hang up": 4},
    **{"malformed": 8, "oversize": 3, "stranger": 2, "look": 3},
}
CONNECTION_ERRORS = (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError)


async def expected(url: str, cases: Sequence[Case]) -> list[Said]:
    """The answer of the reference server to each case. Raises httpx.HTTPStatusError."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:
        for case in cases:
            answer = await client.post(case.path, json=case.body)
            answer.raise_for_status()
            found.append(Said())
            found[-1].add(answer.json())
    return found


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@dataclass(slots=True)
class Tally:
    """The results of a soak.

    outcomes: the number of requests by (habit, outcome).
    faults:   the number of faults by kind: lost, mixed up, changed, wrong status, ….
    told:     the first faults in full.
    memory:   samples of (requests so far, bytes of the server).
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    requests: int = 0
    compared: int = 0
    seconds: float = 0.0

    def fault(self, kind: str, detail: str) -> None:
        self.faults[kind] += 1
        if len(self.told) < 20:
            self.told.append(f"{kind}: {detail[:600]}")

    def growth(self) -> tuple[float, float]:
        """(bytes per request, bytes in all) by which memory grows after the warm-up, by linear regression."""
        start = WARM_UP * self.requests
        kept = [(done, size) for done, size in self.memory if done >= start]
        if len({done for done, _ in kept}) < 3:
            return 0.0, 0.0
        done, size = np.array(kept, np.float64).T
        slope = float(np.polyfit(done, size, 1)[0])
        return slope, slope * float(done[-1] - done[0])

    @property
    def flat(self) -> bool:
        return len(self.memory) >= 3 and self.growth()[1] <= SLACK_BYTES

    @property
    def passed(self) -> bool:
        return self.compared > 0 and not self.faults and self.flat

    def verdict(self) -> str:
        slope, _ = self.growth()
        rest = ", ".join(f"{n} {kind}" for kind, n in self.faults.items() if kind not in ("lost", "mixed up"))
        return (
            f"soak: {self.requests} requests, {self.compared} answers compared, {self.faults['lost']} lost, "
            f"{self.faults['mixed up']} mixed up, {rest or 'no other fault'}, "
            f"memory {slope * 1000 / 1e6:+.2f} MB per 1000 requests ({'flat' if self.flat else 'NOT flat'}): "
            f"{'PASSED' if self.passed else 'FAILED'}"
        )

    def document(self) -> dict[str, Any]:
        slope, growth = self.growth()
        sizes = [size for _, size in self.memory]
        return {
            "requests": self.requests,
            "compared": self.compared,
            "seconds": round(self.seconds, 1),
            "outcomes": {f"{habit}: {came}": n for (habit, came), n in sorted(self.outcomes.items())},
            "faults": dict(self.faults),
            "told": self.told,
            "memory": {
                "slope_bytes_per_request": round(slope, 1),
                "growth_bytes": round(growth),
                "first_bytes": sizes[0] if sizes else None,
                "last_bytes": sizes[-1] if sizes else None,
                "flat": self.flat,
            },
            "passed": self.passed,
            "verdict": self.verdict(),
        }


class Soak:
    """Runs the clients of the soak.

    url, pid:            of the server; its memory is that of the process and its children.
    answers:             the reference answers, in the order of the cases.
    clients:             the number of concurrent clients.
    context, body_bytes: the server's limits.
    """

    def __init__(
        self,
        url: str,
        pid: int,
        cases: Sequence[Case],
        answers: Sequence[Said],
        *,
        clients: int,
        context: int,
        body_bytes: int,
        seed: int = 0,
    ) -> None:
        self.url, self.cases, self.answers, self.clients, self.seed = url, cases, answers, clients, seed
        self.tally = Tally()
        self._server = psutil.Process(pid)
        self._malformed = serve_pool.malformed()
        self._oversize = serve_pool.oversize(context, body_bytes)
        self._seen: set[str] = set()  # ids of answers
        self._next = 0

    async def run(self, requests: int, seconds: float = 0.0) -> Tally:
        """Send at least `requests` requests for at least `seconds` seconds."""
        began = time.monotonic()
        watch = asyncio.create_task(self._watch(began))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.clients)
        hasty = httpx.AsyncHTTPTransport(limits=limits)
        slow = httpx.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)])
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT, transport=hasty) as self._client,
            httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT, transport=slow) as self._slow,
        ):

            async def client() -> None:
                while self._next < requests or time.monotonic() - began < seconds:
                    self._next += 1
                    await self._request(self._next)
                    self.tally.requests += 1

            await asyncio.gather(*(client() for _ in range(self.clients)))
            watch.cancel()
            self._sample()
            await self._check_idle()
        self.tally.seconds = time.monotonic() - began
        return self.tally

    async def _watch(self, began: float) -> None:
        told = began
        while True:
            self._sample()
            if time.monotonic() - told > 30:
                told = time.monotonic()
                print(f"{told - began:.0f} s: {self.tally.verdict()}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.5)

    def _sample(self) -> None:
        size = 0
        for process in (self._server, *self._server.children(recursive=True)):
            try:
                size += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self.tally.memory.append((self.tally.requests, size))

    async def _check_idle(self) -> None:
        """Check that no request is left in the server after the last answer."""
        left: dict[str, Any] = {}
        for _ in range(100):
            left = (await self._client.get("/load", headers=_bearer(KEYS[0]))).json()
            if left["server_load"] == 0:
                return
            await asyncio.sleep(0.1)
        self.tally.fault("place not freed", json.dumps(left))

    # --- One request ---------------------------------------------------------------------------------

    async def _request(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        habit = rng.choices(list(HABITS), list(HABITS.values()))[0]
        index = rng.randrange(len(self.cases))
        try:
            came = await self._do(habit, index, rng)
        except httpx.TimeoutException:
            came = "no answer"
            self.tally.fault("lost", f"{habit}: no answer within {TIMEOUT:g} s: {self.cases[index].body}")
        except (httpx.HTTPError, OSError) as error:
            came = type(error).__name__
            self.tally.fault("lost", f"{habit}: {error!r}: {self.cases[index].body}")
        except (ValueError, KeyError, TypeError) as error:
            came = type(error).__name__
            self.tally.fault("unreadable", f"{habit}: {error!r}: {self.cases[index].body}")
        self.tally.outcomes[habit, came] += 1

    async def _do(self, habit: str, index: int, rng: random.Random) -> str:
        match habit:
            case "stream" | "slow" | "leave":
                came = self._stream(index, rng, habit)
            case "cancel":
                came = self._cancel(index, rng)
            case "hang up":
                came = self._hang_up(index, rng)
            case "malformed":
                came = self._refused(rng.choice(self._malformed), rng)
            case "oversize":
                came = self._refused(rng.choice(self._oversize), rng)
            case "stranger":
                came = self._stranger(index, rng)
            case "look":
                came = self._look(rng)
            case _:
                came = self._whole(index, rng)
        return await came

    async def _cancel(self, index: int, rng: random.Random) -> str:
        try:
            return await asyncio.wait_for(self._whole(index, rng), rng.random() ** 2 * 2)
        except TimeoutError:
            return "cancelled"

    async def _stranger(self, index: int, rng: random.Random) -> str:
        case, headers = self.cases[index], rng.choice(list(serve_pool.strangers()))
        content = json.dumps(case.body).encode()
        return await self._refused(Refused("no key", (401,), case.path, content, headers=headers), rng)

    async def _look(self, rng: random.Random) -> str:
        path = rng.choice(("/health", "/metrics", "/v1/models", "/v1/outrider/status", "/load", "/"))
        answer = await self._client.get(path, headers=self._key(rng))
        return self._status(answer.status_code, (200,), path)

    def _key(self, rng: random.Random) -> dict[str, str]:
        return _bearer(rng.choice(KEYS))

    def _body(self, index: int, rng: random.Random) -> dict[str, Any]:
        """The body of the case, with random fields that must not change the text."""
        body = dict(self.cases[index].body)
        if rng.random() < 0.3:
            limit = rng.choice((0, 1, 3))
            body["speculative"] = rng.choice((False, {"method": "none"}, {"num_speculative_tokens": limit}))
        if rng.random() < 0.2:
            body["cache_salt"] = rng.choice("abc")
        if rng.random() < 0.1:
            body["outrider"] = True
        return body

    async def _whole(self, index: int, rng: random.Random) -> str:
        answer = await self._client.post(
            self.cases[index].path, json=self._body(index, rng), headers=self._key(rng)
        )
        if answer.status_code != 200:
            return await self._busy(answer, rng)
        said = Said()
        said.add(answer.json())
        self._compare(index, said, "a whole answer")
        return "200"

    async def _stream(self, index: int, rng: random.Random, habit: str) -> str:
        body = {**self._body(index, rng), "stream": True, "stream_options": {"include_usage": True}}
        client = self._slow if habit == "slow" else self._client
        leave_after = rng.randint(0, 4) if habit == "leave" else None
        said = Said()
        async with client.stream("POST", self.cases[index].path, json=body, headers=self._key(rng)) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return await self._busy(answer, rng)
            chunks, done = 0, False
            async for data in _events(answer):
                if chunks == leave_after:
                    if not said.begins(self.answers[index]):
                        self._differs(index, said, "the beginning of an answer")
                    return "left"
                if data == "[DONE]":
                    done = True
                    break
                document = json.loads(data)
                if "error" in document:
                    self.tally.fault("error", f"{data}: {body}")
                    return "error"
                said.add(document)
                chunks += 1
                if habit == "slow":
                    await asyncio.sleep(rng.random() * 0.3)
        if not (done and said.whole):
            self.tally.fault("lost", f"{habit}: the stream broke off: {body}")
            return "broken off"
        self._compare(index, said, f"a stream ({habit})")
        return "200"

    async def _hang_up(self, index: int, rng: random.Random) -> str:
        """Send a request or a part of it, and close the connection."""
        content = json.dumps({**self._body(index, rng), "stream": rng.random() < 0.5}).encode()
        place = httpx.URL(self.url)
        head = "\r\n".join((
            f"POST {self.cases[index].path} HTTP/1.1",
            f"Host: {place.host}:{place.port}",
            f"Authorization: Bearer {rng.choice(KEYS)}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        ))  # fmt: skip
        request = head.encode() + b"\r\n\r\n" + content
        part = request if rng.random() < 0.5 else request[: rng.randrange(len(request))]
        _, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(rng.random() ** 2 * 0.5)
        if rng.random() < 0.5:
            writer.transport.abort()
        writer.close()
        return "hung up"

    async def _refused(self, bad: Refused, rng: random.Random) -> str:
        headers = {
            "Content-Type": "application/json",
            **(self._key(rng) if 401 not in bad.statuses else bad.headers),
        }
        try:
            answer = await self._client.request(bad.method, bad.path, content=bad.content, headers=headers)
        except CONNECTION_ERRORS:
            if (
                413 in bad.statuses
            ):  # the server may close the connection before it has read a body that is too large
                return "cut off"
            raise
        found = self._status(answer.status_code, bad.statuses, f"{bad.why}: {bad.content[:200]!r}")
        if not answer.json()["error"]["message"]:
            self.tally.fault("refused without a word", bad.why)
        return found

    async def _busy(self, answer: httpx.Response, rng: random.Random) -> str:
        """Check an answer whose status should be 429, and wait a little."""
        found = self._status(answer.status_code, (429,), answer.text)
        if answer.status_code == 429 and not 1 <= int(answer.headers.get("retry-after", 0)) <= 60:
            self.tally.fault("429 without Retry-After", str(answer.headers))
        await asyncio.sleep(rng.random() * 0.3)
        return found

    def _status(self, found: int, wanted: Sequence[int], why: str) -> str:
        if found not in wanted:
            self.tally.fault("wrong status", f"{found}, not {' or '.join(map(str, wanted))}: {why}")
        return str(found)

    # --- Comparison ----------------------------------------------------------------------------------

    def _compare(self, index: int, said: Said, what: str) -> None:
        self.tally.compared += 1
        if len(said.ids) != 1 or said.ids & self._seen:
            self.tally.fault("mixed up", f"{what} has the ids {said.ids}")
        self._seen |= said.ids
        if said != self.answers[index]:
            self._differs(index, said, what)

    def _differs(self, index: int, said: Said, what: str) -> None:
        other = any(said.begins(answer) for answer in self.answers)
        case, right = self.cases[index], self.answers[index]
        self.tally.fault(
            "mixed up" if other else "changed",
            f"{what} to {case.body} is {said.choices} ({said.tokens} tokens), "
            f"not {right.choices} ({right.tokens} tokens)",
        )


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    """The data of server-sent events."""
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield line[6:]
