"""A server on loopback in a thread, over toy models, with real connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from outrider.config.engine import parse_engine
from outrider.decoding.types import FloatArray
from outrider.engines.base import ForwardItem, LanguageModel
from outrider.models.source import ModelSource
from outrider.pipeline import Pipeline, build
from outrider.server.engine.async_engine import ServerEngine
from outrider.server.http.app import create_app
from outrider.server.run import Listening, Server, bind
from outrider.server.settings import Settings
from tests.conftest import load_toy, toy_target
from tests.support.toy_model import ToyModel

MODEL = "tiny"


class SlowToy(ToyModel):
    """A toy whose passes take `pace` seconds, and do not end while `gate` is clear; one then sets `held`."""

    pace = 0.02
    gate, held = threading.Event(), threading.Event()
    gate.set()

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        time.sleep(self.pace)
        if not self.gate.is_set():
            self.held.set()
            assert self.gate.wait(60)
        return super().forward(items)


def load_slow(source: ModelSource, threads: int | None) -> LanguageModel:
    return toy_target(source, SlowToy)


def toy_pipeline(model: Path, speculative: Any = "none", *, slow: bool = False, **more: Any) -> Pipeline:
    return build(parse_engine(str(model), speculative, **more), load_slow if slow else load_toy)


@dataclass
class Running:
    """A server that runs. `server.handle_exit` is what a signal would call."""

    url: str
    server: Server
    engine: ServerEngine
    pipeline: Pipeline
    thread: threading.Thread

    def http(self, **arguments: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, **arguments)

    def client(self, **arguments: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.url + "/v1", **{"api_key": "none", "max_retries": 0, "timeout": 30, **arguments}
        )

    def post(self, path: str, body: Any, **arguments: Any) -> httpx.Response:
        with self.http() as http:
            return http.post(path, json=body, **arguments)

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait for a condition. Fails when it does not hold in time."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, "it did not come"
            time.sleep(0.005)

    def idle(self) -> bool:
        stats = self.engine.stats
        return not (stats.running or stats.waiting)


@contextlib.contextmanager
def running(
    pipeline: Pipeline,
    *,
    max_waiting: int = 64,
    shutdown_seconds: float = 5.0,
    ssl_files: tuple[Path, Path] | None = None,
    send_buffer: int | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serve a pipeline on a free port."""
    settings = {"served_names": (MODEL, "other"), **settings}
    engine = ServerEngine(pipeline, max_waiting=max_waiting)
    made = Settings(**settings)
    key, certificate = ssl_files or (None, None)
    at = Listening(
        port=0,
        log_level="error",
        access_log=False,
        set_up_logs=False,
        shutdown_seconds=shutdown_seconds,
        ssl_keyfile=None if key is None else str(key),
        ssl_certfile=None if certificate is None else str(certificate),
    )
    server = Server(create_app(pipeline, engine, made), engine, made, at)
    place = bind("127.0.0.1", 0)
    if send_buffer is not None:  # connections inherit it
        place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port = place.getsockname()[1]
    with in_thread(server, place) as thread:
        found = Running(f"http{'s' if key else ''}://127.0.0.1:{port}", server, engine, pipeline, thread)
        found.until(lambda: server.started)
        yield found


@contextlib.contextmanager
def in_thread(server: Server, place: socket.socket) -> Iterator[threading.Thread]:
    """Run a server on a bound socket, in a thread that must end when it is asked to at the end."""
    thread = threading.Thread(target=server.run, args=([place],), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server did not end"


@contextlib.contextmanager
def connected(server: Running, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A bare connection."""
    host, _, port = server.url.rpartition("//")[2].partition(":")
    with socket.socket() as made:
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(10)
        made.connect((host, int(port)))
        yield made


def raw_request(path: str, body: bytes, *headers: str) -> bytes:
    """An HTTP request in bytes."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def run_async(work: Any) -> Any:
    return asyncio.run(work)
