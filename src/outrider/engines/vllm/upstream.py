"""HTTP requests to the server behind: one connection each, in h11, streamed both ways.

Connections are not kept: on the same machine a new one costs a fraction of a millisecond, and none can turn
out to be stale in the middle of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11

from outrider.errors import ConfigError, OutriderError

CONNECT_SECONDS = 5.0
MOST_HEAD = 64 << 10
MOST_DOCUMENT = 16 << 20
MOST_EVENT = 1 << 20
_CHUNK = 64 << 10
T = TypeVar("T")


class UpstreamError(OutriderError):
    """The server behind cannot be reached, breaks off, or answers what is not HTTP."""


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; by another thread where this one has a running loop, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer, and its body as it comes."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: AsyncGenerator[bytes, None]

    def header(self, name: bytes) -> str:
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


class Upstream:
    """A server, and the key that it asks for.

    url: http://HOST:PORT, or https. key: "" for none.
    Raises ConfigError for a url that is none.
    """

    def __init__(self, url: str, key: str = "") -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        plain = url.isascii() and url.isprintable()
        if parts.scheme not in ("http", "https") or not host or not plain or parts.username:
            raise ConfigError(f"{url!r} is not the URL of a server: it should be like http://127.0.0.1:8000")
        self._host, self._tls = host, parts.scheme == "https"
        self._port = port or (443 if self._tls else 80)
        self._name = parts.netloc.encode()
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.key = key

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> AsyncIterator[Answer]:
        """Send a request; the answer's body is read as it is asked for. Leaving the block closes the
        connection, by which vLLM ends a request that has not ended.

        Raises UpstreamError, also from the body.
        """
        reader, writer = await self._connect()
        try:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
            sent = [(b"host", self._name), *headers]
            if self.key:
                sent.append((b"authorization", b"Bearer " + self.key.encode()))
            if body or method not in ("GET", "HEAD"):
                sent.append((b"content-length", str(len(body)).encode()))
            sent.append((b"connection", b"close"))
            try:
                head = h11.Request(method=method, target=(self._prefix + path).encode("ascii"), headers=sent)
                for event in (head, *([h11.Data(data=body)] if body else ()), h11.EndOfMessage()):
                    writer.write(connection.send(event) or b"")
                await writer.drain()
                found = await _next(connection, reader)
                while isinstance(found, h11.InformationalResponse):
                    found = await _next(connection, reader)
            except (OSError, h11.ProtocolError, UnicodeEncodeError) as error:
                raise self._broke_off(error) from None
            if not isinstance(found, h11.Response):
                raise UpstreamError(f"{self} closed the connection without an answer")
            body_parts = self._body(connection, reader)
            async with contextlib.aclosing(body_parts):
                yield Answer(found.status_code, tuple(found.headers), body_parts)
        finally:
            writer.close()

    async def document(
        self, method: str, path: str, body: Any = None, *, seconds: float = 60.0
    ) -> tuple[int, Any]:
        """(status, JSON of the answer or None where it is none) within so many seconds. Raises
        UpstreamError."""
        status, raw = await self.read(method, path, body, seconds=seconds)
        try:
            return status, json.loads(raw)
        except (ValueError, RecursionError):
            return status, None

    async def read(
        self, method: str, path: str, body: Any = None, *, seconds: float = 60.0
    ) -> tuple[int, bytes]:
        """(status, body), the body whole. Raises UpstreamError."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = [] if body is None else [(b"content-type", b"application/json")]
        try:
            async with asyncio.timeout(seconds), self.ask(method, path, data, headers) as answer:
                return answer.status, await whole(answer)
        except TimeoutError:
            raise UpstreamError(f"{self} did not answer {path} in {seconds:g} s") from None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = ssl.create_default_context() if self._tls else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(self._host, self._port, ssl=tls)
        except (OSError, ssl.SSLError) as error:  # a TimeoutError is an OSError
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise UpstreamError(f"{self} cannot be reached: {reason}") from None

    async def _body(
        self, connection: h11.Connection, reader: asyncio.StreamReader
    ) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                event = await _next(connection, reader)
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return
                else:
                    raise UpstreamError(f"{self} broke off its answer")
        except (OSError, h11.ProtocolError) as error:
            raise self._broke_off(error) from None

    def _broke_off(self, error: Exception) -> UpstreamError:
        return UpstreamError(f"{self} broke off the connection: {getattr(error, 'strerror', None) or error}")


async def whole(answer: Answer, most: int = MOST_DOCUMENT) -> bytes:
    """The whole body. Raises UpstreamError for one of more than `most` bytes."""
    parts, size = [], 0
    async for part in answer.body:
        size += len(part)
        if size > most:
            raise UpstreamError(f"the answer is larger than {most >> 20} MB")
        parts.append(part)
    return b"".join(parts)


async def events(answer: Answer, name: object) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """The JSON objects of a stream of server-sent events, each with when it came (time.perf_counter).
    name: of the server. Raises UpstreamError for an event of more than MOST_EVENT bytes."""
    rest = b""
    async for part in answer.body:
        now = time.perf_counter()
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MOST_EVENT:
            raise UpstreamError(f"{name} sends events of more than {MOST_EVENT >> 20} MB")
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                if line.startswith(b"data: {"):
                    yield now, json.loads(line[6:])


def text_of(event: Mapping[str, Any]) -> str:
    """What an event adds to an answer of OpenAI's API, thoughts too; calls of tools as JSON."""
    try:
        choice = (event.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        names = ("content", "reasoning_content", "reasoning", "tool_calls")
        parts = [choice.get("text"), *(delta.get(name) for name in names)]
    except (LookupError, AttributeError, TypeError):
        return ""
    return "".join(part if isinstance(part, str) else json.dumps(part) for part in parts if part)


def tokens_of(event: Mapping[str, Any]) -> int:
    """The tokens of a completion by the usage that its last event has, or 0."""
    usage = event.get("usage")
    found = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return found if isinstance(found, int) else 0


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    """The next event of the connection."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(_CHUNK))
    return event
