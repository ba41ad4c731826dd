"""The double's server. Its language has 40 tokens, and what follows depends on the last token only.

faults: "wrong" draws evenly above temperature 0 with speculation, "wrong-greedy" at temperature 0 too,
"dies-at-draws" ends the process at such a request, "no-prompt-logprobs" refuses those, "breaks" ends streams
in the middle.
"""

from __future__ import annotations

import functools
import json
import math
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SIZE = 40


@functools.cache
def probabilities(last: int) -> list[float]:
    """Of the token after `last`: a few are likely."""
    weights = [math.exp(2.2 * math.sin((last + 1) * (token + 3) * 1.7)) for token in range(SIZE)]
    total = sum(weights)
    return [weight / total for weight in weights]


def tokens_of(text: str) -> list[int]:
    """A token for each word."""
    return [sum(map(ord, word)) % SIZE for word in text.split()] or [0]


class FakeVllm:
    """A server in threads of this process; a context manager. pace: seconds for each token."""

    def __init__(
        self,
        model: str = "tiny",
        *,
        port: int = 0,
        key: str = "",
        speculative: dict[str, Any] | None = None,
        faults: set[str] | None = None,
        pace: float = 0.0,
    ) -> None:
        self.model, self.key, self.speculative = model, key, speculative or {}
        self.faults, self.pace = faults or set(), pace
        self.died = False
        self.running = 0
        self.drafts = self.drafted = self.accepted = 0
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.cancelled = 0
        self.pages: dict[str, bytes] = {}  # by path, in the place of its own
        self.last_event: dict[str, Any] | None = None  # of streams
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()
        server = self

        class Handler(_Handler):
            fake = server

        self._http = _Server(("127.0.0.1", port), Handler)
        self.port: int = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeVllm:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def write(self, prompt: list[int], fields: dict[str, Any]) -> list[int]:
        """The tokens after a prompt."""
        temperature = fields.get("temperature", 1.0)
        rng = random.Random(fields.get("seed"))
        found: list[int] = []
        last = prompt[-1]
        for _ in range(fields.get("max_tokens") or 16):
            chances = probabilities(last)
            wrong = self.speculative and "wrong" in self.faults and temperature > 0
            if wrong or (self.speculative and "wrong-greedy" in self.faults):
                last = rng.randrange(SIZE)
            elif temperature == 0:
                last = max(range(SIZE), key=chances.__getitem__)
            else:
                top = sorted(range(SIZE), key=lambda t: -chances[t])
                k = fields.get("top_k", -1)
                top = top[:k] if k and k > 0 else top
                weights = [chances[t] ** (1 / temperature) for t in top]
                last = rng.choices(top, weights)[0]
            found.append(last)
        if self.speculative:
            with self.lock:
                self.drafts += len(found) // 2
                self.drafted += 2 * (len(found) // 2)
                self.accepted += len(found) // 2
        return found

    def metrics(self) -> str:
        labels = f'{{engine="0",model_name="{self.model}"}}'
        lines = [
            "# HELP python_gc_objects Not vLLM's.",
            "# TYPE python_gc_objects gauge",
            "python_gc_objects 3",
        ]
        for name, kind, value in (
            ("num_requests_running", "gauge", self.running),
            ("num_requests_waiting", "gauge", 0),
            ("spec_decode_num_drafts_total", "counter", self.drafts),
            ("spec_decode_num_draft_tokens_total", "counter", self.drafted),
            ("spec_decode_num_accepted_tokens_total", "counter", self.accepted),
        ):
            family = name.removesuffix("_total")
            lines += [
                f"# HELP vllm:{name} {family}.",
                f"# TYPE vllm:{name} {kind}",
                f"vllm:{name}{labels} {value}.0",
            ]
        per = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f"# HELP {per} By position.", f"# TYPE {per} counter"]
        lines += [f'{per}{{engine="0",model_name="{self.model}",position="0"}} {self.accepted}.0']
        return "\n".join(lines) + "\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    fake: FakeVllm
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        if self.path in self.fake.pages:
            self._send(200, self.fake.pages[self.path])
        elif self.path == "/health":
            self._send(200, b"")
        elif self.path == "/metrics":
            self._send(200, self.fake.metrics().encode(), "text/plain")
        elif self.path.startswith("/v1/") and not self._knows_key():
            self._json(401, {"error": "Unauthorized"})
        elif self.path.startswith("/v1/models"):
            self._json(200, {"object": "list", "data": [{"id": self.fake.model, "object": "model"}]})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.startswith("/v1/") and not self._knows_key():
            self._json(401, {"error": "Unauthorized"})
            return
        try:
            fields = json.loads(body)
        except ValueError:
            self._json(
                400, {"error": {"message": "JSON decode error", "type": "BadRequestError", "code": 400}}
            )
            return
        with self.fake.lock:
            self.fake.requests.append((self.path, fields, {k.lower(): v for k, v in self.headers.items()}))
        if self.path == "/tokenize":
            self._json(200, {"tokens": tokens_of(fields["prompt"])})
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            with self.fake.lock:
                self.fake.running += 1
            try:
                self._complete(fields, chat=self.path.endswith("chat/completions"))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
                with self.fake.lock:
                    self.fake.cancelled += 1
            finally:
                with self.fake.lock:
                    self.fake.running -= 1
        else:
            self._json(404, {"detail": "Not Found"})

    def _complete(self, fields: dict[str, Any], *, chat: bool) -> None:
        if fields.get("model") not in (None, self.fake.model):
            message = f"The model `{fields['model']}` does not exist."
            self._json(
                404, {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}
            )
            return
        if "dies-at-draws" in self.fake.faults and fields.get("temperature", 1.0) > 0:
            self.fake.died = True
            time.sleep(5)
        if fields.get("prompt_logprobs") and "no-prompt-logprobs" in self.fake.faults:
            self._json(400, {"error": {"message": "prompt_logprobs is not for you", "code": 400}})
            return
        given = fields.get("prompt", [1])
        prompt = tokens_of(given) if isinstance(given, str) else given
        tokens = self.fake.write(prompt, fields)
        if fields.get("stream"):
            self._stream(tokens, fields, chat)
            return
        for _ in tokens:
            self._wait()
        text = "".join(map(_text, tokens))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if fields.get("logprobs"):
            choice["logprobs"] = {"tokens": [f"token_id:{token}" for token in tokens]}
        if fields.get("prompt_logprobs"):
            choice["prompt_logprobs"] = [None, *map(_entry, prompt, prompt[1:])]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        self._json(200, {"id": "x", "model": self.fake.model, "choices": [choice], "usage": usage})

    def _stream(self, tokens: list[int], fields: dict[str, Any], chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at, token in enumerate(tokens):
            self._wait()
            if "breaks" in self.fake.faults and at == 3:
                self.close_connection = True
                self.connection.close()
                return
            piece = _text(token)
            choice: dict[str, Any] = {"index": 0}
            choice |= {"delta": {"content": piece}} if chat else {"text": piece}
            choice["finish_reason"] = "length" if at == len(tokens) - 1 else None
            if fields.get("return_token_ids"):
                choice["token_ids"] = [token]
            self._event({"id": "x", "choices": [choice]})
        if (fields.get("stream_options") or {}).get("include_usage"):
            self._event({"id": "x", "choices": [], "usage": {"completion_tokens": len(tokens)}})
        if self.fake.last_event is not None:
            self._event(self.fake.last_event)
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, document: object) -> None:
        self._chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _wait(self) -> None:
        self.fake.gate.wait(20)
        if self.fake.pace:
            time.sleep(self.fake.pace)

    def _knows_key(self) -> bool:
        return not self.fake.key or self.headers.get("Authorization") == f"Bearer {self.fake.key}"

    def _json(self, status: int, document: object) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _text(token: int) -> str:
    return f" w{token}"


@functools.cache
def _entry(last: int, token: int) -> dict[str, dict[str, Any]]:
    chances = probabilities(last)
    order = sorted(range(SIZE), key=lambda t: -chances[t])
    kept = [*order[:20], *([token] if token not in order[:20] else [])]
    return {str(t): {"logprob": math.log(chances[t]), "rank": order.index(t) + 1} for t in kept}
