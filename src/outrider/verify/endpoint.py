"""A client of an OpenAI-compatible server: one request at a time, nothing of the answer trusted.

Answers are bounded in time and size, redirects are refused (they could carry the key elsewhere), and
whatever goes wrong is an EndpointError of one line.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import urlsplit

from outrider.errors import ConfigError, OutriderError

MAX_BYTES = 16 * 1024 * 1024
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class EndpointError(OutriderError):
    """A server that cannot be reached, refuses the request, or answers something else than asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server wrote. tokens: pieces of the text, or None when the server did not report them. told:
    what the answer says of its making, as it is (`plan.servers.of_answer` reads it)."""

    text: str
    tokens: tuple[str, ...] | None
    told: Mapping[str, Any] = field(default_factory=dict, compare=False)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None  # urllib then raises the 3xx as an HTTPError


class Endpoint:
    """One server.

    url:     `http://host:port`, `…/v1`, or the whole `…/v1/completions` or `…/v1/chat/completions`.
    chat:    ask /chat/completions when the url does not say which.
    model:   the name to send; None asks the server what it has and takes the first.
    key:     sent as a bearer token when not empty.
    timeout: seconds that one answer may take in all.
    Raises ConfigError for a url that is none; nothing is asked yet.
    """

    def __init__(
        self, url: str, *, chat: bool = False, model: str | None = None, key: str = "", timeout: float = 120.0
    ) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable():
            raise ConfigError(f"{url!r} is not the URL of a server: it should be like http://127.0.0.1:8000")
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigError(f"the URL of {host} must have no user name, query or fragment")
        base = url.rstrip("/")
        self.chat = base.endswith("/chat/completions") or (chat and not base.endswith("/completions"))
        for ending in ("/chat/completions", "/completions"):
            base = base.removesuffix(ending)
        self.base = base if parts.path.rstrip("/") else f"{base}/v1"
        self.key, self._model, self._timeout = key, model, timeout
        proxies = [urllib.request.ProxyHandler({})] if host in _LOOPBACK else []
        self._opener = urllib.request.build_opener(_NoRedirect, *proxies)
        self._refused: set[str] = set()

    def __str__(self) -> str:
        return self.base

    @property
    def model(self) -> str:
        """The model's name. Raises EndpointError when it has to be asked for and the server lists none."""
        if self._model is None:
            try:
                name = self._call("/models", None)["data"][0]["id"]
            except (LookupError, TypeError):
                name = None
            if not isinstance(name, str) or not name:
                raise EndpointError(f"{self}: the server lists no model; name one with -m")
            self._model = name
        return self._model

    def complete(self, prompt: str, max_tokens: int) -> Answer:
        """The greedy continuation of a prompt (as one turn of a user, for chat). Raises EndpointError."""
        fields = {"max_tokens": max_tokens, "temperature": 0, "seed": 0}
        return self._ask(prompt, fields, "logprobs", True if self.chat else 1)

    def sample(self, prompt: str, max_tokens: int, temperature: float, seed: int) -> Answer:
        """A continuation that is drawn from the whole distribution. The seed is left out where the server
        refuses one. Raises EndpointError."""
        fields = {"max_tokens": max_tokens, "temperature": temperature, "top_p": 1.0}
        return self._ask(prompt, fields, "seed", seed)

    def _ask(self, prompt: str, fields: Mapping[str, Any], extra: str, value: Any) -> Answer:
        """One answer. extra: the name of a field that a server may refuse; it is then left out for good."""
        body: dict[str, Any] = {"model": self.model, **fields}
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        path = "/chat/completions" if self.chat else "/completions"
        if extra not in self._refused:
            try:
                return self._answer(self._call(path, body | {extra: value}))
            except _RefusedError as error:
                refused = error
            try:
                answer = self._answer(self._call(path, body))
            except _RefusedError:
                raise refused from None  # it was not this field
            self._refused.add(extra)
            return answer
        return self._answer(self._call(path, body))

    def _answer(self, document: Any) -> Answer:
        try:
            choice = document["choices"][0]
            text = choice["message"]["content"] if self.chat else choice["text"]
        except (LookupError, TypeError):
            raise EndpointError(f"{self}: the answer is not a completion: {_short(document)}") from None
        if self.chat and text is None:
            text = ""
        if not isinstance(text, str):
            raise EndpointError(f"{self}: the answer's text is not text: {_short(text)}")
        told = {name: document[name] for name in ("timings", "stats", "usage") if name in document}
        return Answer(text, _tokens(choice.get("logprobs"), text), told)

    def _call(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """POST `body`, or GET without one; the answer's JSON."""
        headers = {"Accept": "application/json", "User-Agent": "outrider-verify"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.base + path, data, headers)
        try:
            raw = self._within_time(lambda: self._send(request))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(path, error) from None
        except TimeoutError:
            raise self._late() from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._late() from None
            raise EndpointError(f"{self}: not reachable: {_plain(error.reason)}") from None
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(f"{self}: the connection broke off: {_plain(error)}") from None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise EndpointError(f"{self}{path}: the answer is not JSON: {_short(raw)}") from None

    def _send(self, request: urllib.request.Request) -> bytes:
        """The body of the answer."""
        with self._opener.open(request, timeout=self._timeout) as response:
            raw: bytes = response.read(MAX_BYTES + 1)
            if len(raw) > MAX_BYTES:
                raise EndpointError(f"{self}: the answer is larger than {MAX_BYTES >> 20} MB")
            if response.length:  # a read with a limit does not complain about what is missing
                raise http.client.IncompleteRead(raw, response.length)
        return raw

    def _within_time(self, work: Callable[[], bytes]) -> bytes:
        """What `work` returns or raises, or TimeoutError. A socket's own timeout is for one read: a server
        that sends a byte now and then would never meet it, so the work is abandoned in its thread."""
        answers: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put(work())
            except BaseException as error:
                answers.put(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            answer = answers.get(timeout=self._timeout)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _late(self) -> EndpointError:
        return EndpointError(f"{self}: no answer within {self._timeout:g} s (--timeout)")

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> EndpointError:
        if 300 <= error.code < 400:
            return EndpointError(f"{self}{path} redirects, which is not followed: give the server's own URL")
        kind = _RefusedError if error.code in (400, 422) else EndpointError
        return kind(f"{self}{path} answered {error.code} {error.reason}: {_short(_body(error))}")


class _RefusedError(EndpointError):
    """The server refused the request's fields (400 or 422)."""


def _body(error: IO[bytes]) -> bytes:
    try:
        return error.read(2000)
    except (OSError, http.client.HTTPException):
        return b""


def _tokens(logprobs: Any, text: str) -> tuple[str, ...] | None:
    """The text's tokens in either form of log-probabilities. None when they are missing or their
    concatenation is not the text: servers write the same tokens in different ways."""
    if not isinstance(logprobs, dict):
        return None
    found = logprobs.get("tokens")
    if found is None and isinstance(logprobs.get("content"), list):
        found = [entry.get("token") if isinstance(entry, dict) else None for entry in logprobs["content"]]
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        return None
    # Some servers report the token that ended the text, which is not part of it.
    for tokens in (found, found[:-1]):
        if "".join(tokens) == text:
            return tuple(tokens)
    return None


def _plain(reason: object) -> str:
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


def _short(value: object, limit: int = 160) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
