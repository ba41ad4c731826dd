"""A proxy on loopback in a thread, in front of a double of vLLM in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from outrider.engines.vllm.self_check import Outcome, self_check
from outrider.engines.vllm.upstream import Upstream
from outrider.server.proxy.app import create_proxy
from outrider.server.proxy.backend import Backend
from outrider.server.proxy.guarded import About, Guarded
from outrider.server.run import Listening, Server, bind
from outrider.server.settings import Settings
from tests.server.http_support import in_thread
from tests.support.fake_vllm.vllm.server import FakeVllm

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


@dataclass(eq=False)
class ThreadChild:
    """A double as a child server. `dead` is what its death would be; slow_start: seconds."""

    fake: FakeVllm
    dead: threading.Event = field(default_factory=threading.Event)
    broken: bool = False
    pid: int | None = 1
    stops: int = 0

    @property
    def port(self) -> int:
        return self.fake.port

    @property
    def key(self) -> str:
        return self.fake.key

    @property
    def ended(self) -> bool:
        return self.dead.is_set()

    def start(self) -> None:
        self.fake.__enter__()

    def wait_until_ready(self, seconds: float, cancelled: Callable[[], bool] = lambda: False) -> None:
        from outrider.engines.vllm.process import VllmError

        if self.broken:
            raise VllmError("vLLM ended with status 1 before it was ready")

    def death(self, when: str) -> str:
        return f"vLLM ended by signal 9 {when}"

    def stop(self) -> None:
        self.stops += 1
        if self.stops == 1:
            self.fake.gate.set()
            self.fake.__exit__()


@dataclass(frozen=True)
class ThreadLaunch:
    child: ThreadChild
    speculative: Mapping[str, Any]
    line: str = "vllm serve tiny"


@dataclass
class Proxy:
    """A proxy that runs."""

    url: str
    server: Server
    guarded: Guarded
    backend: Backend
    launched: list[ThreadLaunch]
    thread: threading.Thread

    @property
    def fake(self) -> FakeVllm:
        return self.launched[-1].child.fake

    def http(self, **arguments: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, **arguments)

    def post(self, path: str, body: Any, **arguments: Any) -> httpx.Response:
        with self.http() as http:
            return http.post(path, json=body, **arguments)

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        with self.http() as http:
            return http.get(path, **arguments)

    def until(self, condition: Callable[[], bool], seconds: float = 15.0) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, "it did not come"
            time.sleep(0.005)


def checked(fake: FakeVllm) -> Outcome:
    """The self-check of a double that runs."""
    return asyncio.run(self_check(Upstream(fake.url, fake.key), fake.model))


@contextlib.contextmanager
def proxied(
    *,
    speculative: Mapping[str, Any] = NGRAM,
    outcome: Outcome = Outcome("passed"),  # noqa: B008 (it is frozen)
    plain: FakeVllm | None = None,
    share: float = 1.0,
    never_slower: bool = False,
    next_is_broken: bool = False,
    shutdown_seconds: float = 5.0,
    faults: set[str] | None = None,
    **settings: Any,
) -> Iterator[Proxy]:
    """Serve a double. next_is_broken: a child that takes its place does not start."""
    launched: list[ThreadLaunch] = []

    def launch(tokens: int) -> ThreadLaunch:
        keys = {**speculative, "num_speculative_tokens": tokens} if tokens else {}
        fake = FakeVllm("tiny", key="inner", speculative=keys, faults=faults)
        launched.append(ThreadLaunch(ThreadChild(fake, broken=next_is_broken and bool(launched)), keys))
        return launched[-1]

    first = launch(speculative.get("num_speculative_tokens", 0))
    first.child.start()
    backend = Backend(first.child, start_seconds=5, drain_seconds=5)
    guarded = Guarded(
        backend,
        first,
        About(("tiny",), "tiny", "0.32.0", "it cannot be measured"),
        outcome,
        launch=launch,
        plain=None if plain is None else Upstream(plain.url, plain.key),
        share=share,
        never_slower=never_slower,
    )
    made = Settings(**settings)
    at = Listening(
        port=0, log_level="error", access_log=False, set_up_logs=False, shutdown_seconds=shutdown_seconds
    )
    server = Server(create_proxy(guarded, made), backend, made, at)
    backend.on_failure = lambda: setattr(server, "should_exit", True)
    place = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{place.getsockname()[1]}"
    try:
        with in_thread(server, place) as thread:
            found = Proxy(url, server, guarded, backend, launched, thread)
            found.until(lambda: server.started)
            yield found
    finally:
        assert launched[-1].child.stops
