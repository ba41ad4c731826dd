"""ASGI middleware: API keys, host names, request ids, and limits on the size and time of bodies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.http.errors import ApiError, bad

KEY_HEADER = "x-api-key"  # of Anthropic's and some llama.cpp clients, besides Authorization
ID_HEADER = "x-request-id"
ANONYMOUS = "anonymous"  # the namespace of clients without a key
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LOGGABLE = re.compile("[!-~]{1,200}")
JSON = "application/json"
OPEN = ("/health", "/ping")  # paths that need no key
ErrorForm: TypeAlias = Callable[[ApiError, str], Response]  # an error at a path, in the form of its dialect


class Keys:
    """The server's API keys; only their digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in dict.fromkeys(keys)]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def namespace(self, key: bytes) -> str | None:
        """The cache namespace of a key's holders; None for an unknown key. The time does not depend on how
        much of a key is right."""
        given, found = _digest(key), None
        for digest in self._digests:
            if hmac.compare_digest(digest, given):
                found = hashlib.sha256(b"outrider namespace" + digest).hexdigest()[:24]
        return found


def namespace_of(state: object) -> str:
    """The cache namespace that `Guard` wrote into a request's state."""
    return str(getattr(state, "namespace", ANONYMOUS))


def path_of(scope: Scope) -> str:
    """A request's path, without the prefix under which a proxy publishes the server."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


class WithPrefix:
    """Takes requests of a proxy that leaves the prefix in their paths like those of one that takes it off.
    uvicorn puts the prefix in front of every path."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{self._prefix}{self._prefix}/"):
            scope = {**scope, "path": scope["path"][len(self._prefix) :]}
        await self._app(scope, receive, send)


class HeadAsGet:
    """Answers HEAD as GET; the connection leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class RequestIds:
    """Gives every answer a header X-Request-Id: that of its request, or a new one where the request has none
    that could be a line of a log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(ID_HEADER, "")
        own = given if _LOGGABLE.fullmatch(given) else uuid.uuid4().hex

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[ID_HEADER] = own
            await send(message)

        await self._app(scope, receive, with_id)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Guard:
    """Refuses requests without a valid key or with another host name. Writes the client's cache namespace
    into the request's state, see `namespace_of`.

    hosts:   accepted values of the Host header without port; () accepts all.
    is_open: paths that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        hosts: Sequence[str],
        is_open: frozenset[str],
        *,
        error_form: ErrorForm,
    ) -> None:
        self._app, self._keys, self._hosts, self._open = app, keys, hosts, is_open
        self._error_form = error_form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            scope.setdefault("state", {})["namespace"] = self._namespace(path_of(scope), headers)
        except ApiError as error:
            await self._error_form(error, path_of(scope))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        if not self._hosts:
            return
        host = headers.get("host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in self._hosts:
            raise ApiError(
                403,
                f"requests for the host {name[:100]!r} are not answered; "
                "start the server with --allowed-hosts or with an API key",
                code="host_not_allowed",
            )

    def _namespace(self, path: str, headers: Headers) -> str:
        if not self._keys or path in self._open:
            return ANONYMOUS
        kind, _, key = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" and KEY_HEADER in headers:
            kind, key = "bearer", headers[KEY_HEADER]
        found = self._keys.namespace(key.strip().encode("latin-1")) if kind.lower() == "bearer" else None
        if found is None:
            why = "the API key is not one of this server's" if key else "an API key is needed"
            raise ApiError(
                401,
                f"{why}: send it as `Authorization: Bearer KEY` or `{KEY_HEADER}: KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found


class BodyLimit:
    """Reads the whole body of a request before the application runs. Refuses a body that is too large, late,
    not declared as JSON, compressed, or has text that is not Unicode.

    most:    bytes of a body.
    seconds: until it must have arrived.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float, error_form: ErrorForm) -> None:
        self._app, self._most, self._seconds, self._error_form = app, most, seconds, error_form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            body = await self._read(headers, receive)
            if body and headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
                # Browsers send cross-origin requests of other types without a CORS preflight.
                raise ApiError(415, "send the body with the header Content-Type: application/json")
            if body and (packed := _compression(headers, body)):
                raise ApiError(415, f"the body is compressed ({packed}): send it without Content-Encoding")
            if body is not None and _SURROGATE.search(body):
                _check_unicode(body)
        except ApiError as error:
            await self._error_form(error, path_of(scope))(scope, receive, send)
            return
        if body is None:  # the client disconnected
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most:
            raise self._too_large()
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._most:
                        raise self._too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {self._seconds:g} seconds",
                headers={"Connection": "close"},
            ) from None
        return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._most} bytes, the most that this server takes (--max-body-bytes)",
            code="body_too_large",
            headers={"Connection": "close"},
        )


def _compression(headers: Headers, body: bytes) -> str:
    """How a body is compressed, by its header or its first bytes, or ""."""
    named = headers.get("content-encoding", "").strip().lower()
    if named not in ("", "identity"):
        return ascii(named[:40])[1:-1]
    return "gzip" if body.startswith(b"\x1f\x8b") else ""


def _check_unicode(body: bytes) -> None:
    """Raise ApiError for JSON with an unpaired surrogate. (The escapes of both halves of a pair are fine.)"""
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise bad("the body holds half of a surrogate pair: its text is not Unicode") from None
    except (ValueError, RecursionError):  # not JSON: the application refuses it
        return
