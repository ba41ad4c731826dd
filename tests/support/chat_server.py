"""A stand-in for an OpenAI-compatible server on loopback, which can be told to misbehave."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Stand:
    """What the server says, and what it was asked.

    say:   the text for a prompt.
    act:   None, or takes the handler in place of answering a POST (False: answer after all).
    """

    def __init__(self, say: Callable[[str], str]) -> None:
        self.say = say
        self.act: Callable[[Handler], bool] | None = None
        self.url = ""
        self.model = "stand-in"
        self.logprobs = True
        self.refuses_logprobs = False
        self.asked: list[tuple[str, Mapping[str, str], Any]] = []  # (path, headers, body)


class Handler(BaseHTTPRequestHandler):
    stand: Stand

    def do_GET(self) -> None:
        self.stand.asked.append((self.path, dict(self.headers), None))
        self.reply({"object": "list", "data": [{"id": self.stand.model}]})

    def do_POST(self) -> None:
        stand = self.stand
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stand.asked.append((self.path, dict(self.headers), body))
        if stand.act is not None and stand.act(self):
            return
        if stand.refuses_logprobs and "logprobs" in body:
            self.reply({"error": {"message": "logprobs is not supported"}}, 400)
        elif self.path == "/v1/completions":
            text = stand.say(body["prompt"])
            told = {"tokens": list(text)} if stand.logprobs else None
            self.reply({"choices": [{"text": text, "logprobs": told}]})
        elif self.path == "/v1/chat/completions":
            text = stand.say(body["messages"][0]["content"])
            each: Any = {"content": [{"token": c, "logprob": -0.1} for c in text]} if stand.logprobs else None
            self.reply({"choices": [{"message": {"role": "assistant", "content": text}, "logprobs": each}]})
        else:
            self.reply({"error": {"message": "no such path"}}, 404)

    def reply(self, document: Any, status: int = 200) -> None:
        self.raw(json.dumps(document).encode(), status)

    def raw(self, body: bytes, status: int = 200, length: int | None = None, location: str = "") -> None:
        """Send bytes, saying that there are `length` of them."""
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        """End the connection at once, unread data and all."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@contextmanager
def serving(say: Callable[[str], str]) -> Iterator[Stand]:
    """A server for as long as the block runs."""
    stand = Stand(say)
    kind = type("StandHandler", (Handler,), {"stand": stand})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        server.block_on_close = False
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        stand.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield stand
        finally:
            server.shutdown()
            thread.join()
