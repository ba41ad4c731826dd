"""A fake OpenAI-compatible server on loopback, which can be made to misbehave."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer:
    """The answers of the server, and the requests that it got.

    generate: the text for a prompt.
    override: None, or called with the handler of a POST request; it returns True when it has answered.
    """

    def __init__(self, generate: Callable[[str], str]) -> None:
        self.generate = generate
        self.override: Callable[[Handler], bool] | None = None
        self.url = ""
        self.model = "stand-in"
        self.logprobs = True
        self.refused: set[str] = set()  # fields
        self.requests: list[tuple[str, Mapping[str, str], Any]] = []  # (path, headers, body)


class Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def do_GET(self) -> None:
        self.fake.requests.append((self.path, dict(self.headers), None))
        self.reply({"object": "list", "data": [{"id": self.fake.model}]})

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.requests.append((self.path, dict(self.headers), body))
        if fake.override is not None and fake.override(self):
            return
        if refused := fake.refused & body.keys():
            self.reply({"error": {"message": f"{min(refused)} is not supported"}}, 400)
        elif self.path == "/v1/completions":
            text = fake.generate(body["prompt"])
            logprobs = {"tokens": list(text)} if fake.logprobs else None
            self.reply({"choices": [{"text": text, "logprobs": logprobs}]})
        elif self.path == "/v1/chat/completions":
            text = fake.generate(body["messages"][0]["content"])
            each: Any = {"content": [{"token": c, "logprob": -0.1} for c in text]} if fake.logprobs else None
            self.reply({"choices": [{"message": {"role": "assistant", "content": text}, "logprobs": each}]})
        else:
            self.reply({"error": {"message": "no such path"}}, 404)

    def reply(self, document: Any, status: int = 200) -> None:
        self.raw(json.dumps(document).encode(), status)

    def raw(self, body: bytes, status: int = 200, length: int | None = None, location: str = "") -> None:
        """Send bytes, with `length` as their Content-Length."""
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        """Reset the connection, without sending pending data."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that come while one is taken up


@contextmanager
def serving(generate: Callable[[str], str]) -> Iterator[FakeServer]:
    """Run the server during the `with` statement."""
    fake = FakeServer(generate)
    kind = type("FakeHandler", (Handler,), {"fake": fake})
    with _Server(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        server.block_on_close = False
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
