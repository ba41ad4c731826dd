"""Clients that disconnect, that do not read, that are too many; and the server's shutdown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from outrider.errors import ConfigError
from outrider.server.run import bind
from tests.server.http_support import MODEL, Running, SlowToy, connected, raw_request, running, toy_pipeline

LONG = {"prompt": "the fox", "max_tokens": 2000, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def slow(roomy_file: Path) -> Iterator[Running]:
    """Two places, two that wait, and 20 ms a pass."""
    with running(toy_pipeline(roomy_file, slow=True, max_num_seqs=2), max_waiting=2) as made:
        yield made


@pytest.mark.parametrize(
    "body", [{"stream": True}, {}, {"n": 2, "stream": True}], ids=["stream", "whole", "n"]
)
def test_a_client_that_leaves_frees_its_place(slow: Running, body: dict[str, Any]) -> None:
    with connected(slow) as bare:
        bare.sendall(raw_request("/v1/completions", json.dumps({**LONG, **body}).encode()))
        slow.until(lambda: slow.engine.stats.running == body.get("n", 1))
        if body.get("stream"):
            assert b"200 OK" in bare.recv(5000)
    slow.until(slow.idle)  # long before the end of the text
    assert slow.engine.stats.finished["abort"] > 0


def test_a_client_that_leaves_while_it_waits(slow: Running) -> None:
    text = json.dumps(LONG).encode()
    with connected(slow) as one, connected(slow) as two:
        for bare in (one, two):
            bare.sendall(raw_request("/v1/completions", text))
        slow.until(lambda: slow.engine.stats.running == 2)
        with connected(slow) as waiting:
            waiting.sendall(raw_request("/v1/completions", text))
            slow.until(lambda: slow.engine.stats.waiting == 1)
        slow.until(lambda: slow.engine.stats.waiting == 0)
        assert slow.engine.stats.running == 2
    slow.until(slow.idle)


def test_too_many_requests_get_429(slow: Running) -> None:
    with ThreadPoolExecutor(5) as pool:
        body = {**LONG, "max_tokens": 60, "seed": 2}
        four = [pool.submit(slow.post, "/v1/completions", body) for _ in range(4)]
        slow.until(lambda: slow.engine.stats.running + slow.engine.stats.waiting == 4)
        answer = slow.post("/v1/completions", {**body, "stream": True})
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json()["error"]["type"] == "rate_limit_error"
        with slow.client() as client, pytest.raises(openai.RateLimitError):
            client.completions.create(model=MODEL, prompt="a")
        with slow.client(max_retries=8) as client:  # the official client waits, and comes back
            assert client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices
        texts = {f.result().json()["choices"][0]["text"] for f in four}
    assert len(texts) == 1
    answer = slow.post("/v1/completions", {**LONG, "n": 5, "max_tokens": 1})
    assert answer.status_code == 400
    assert "samples" in answer.json()["error"]["message"]


def test_a_client_that_does_not_read_is_cut_off(roomy_file: Path) -> None:
    pipeline = toy_pipeline(roomy_file, max_num_seqs=8)
    with running(pipeline, stall_seconds=0.5, send_buffer=4096) as server, connected(server, 4096) as bare:
        body = {**LONG, "max_tokens": 4000, "n": 8, "logprobs": 5, "stream": True}
        bare.sendall(raw_request("/v1/completions", json.dumps(body).encode()))
        server.until(lambda: server.engine.stats.running == 8)
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200
        server.until(server.idle, 60)
        assert server.engine.stats.finished["abort"] == 8


def test_a_slow_reader_gets_everything(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file), stall_seconds=2) as server, connected(server, 4096) as bare:
        body = {**LONG, "max_tokens": 300, "logprobs": 5, "stream": True, "outrider": True}
        bare.sendall(raw_request("/v1/completions", json.dumps(body).encode(), "Connection: close"))
        server.until(lambda: server.engine.stats.finished["length"] == 1, 30)
        parts = []
        while part := bare.recv(20_000):
            parts.append(part)
            time.sleep(0.005)
        assert b"[DONE]" in b"".join(parts)


def test_a_fault_ends_one_request_and_harms_no_other(slow: Running) -> None:
    answers: dict[str, httpx.Response] = {}
    body = {**LONG, "max_tokens": 30}

    def other() -> None:
        answers["other"] = slow.post("/v1/completions", body)

    thread = threading.Thread(target=other)
    thread.start()
    slow.until(lambda: slow.engine.stats.running == 1)
    # A grammar that runs into a wall: what it permits is not allowed.
    bad = {"prompt": "a", "max_tokens": 9, "regex": "[a-c]{4}", "allowed_token_ids": [5]}
    whole = slow.post("/v1/completions", bad)
    streamed = slow.post("/v1/completions", {**bad, "stream": True})
    thread.join()
    assert whole.status_code == 400, whole.text
    assert streamed.status_code == 200  # it had begun
    events = [e.removeprefix("data: ") for e in streamed.text.split("\n\n") if e]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2]) == whole.json()
    with slow.client() as client, pytest.raises(openai.APIError, match="token"):
        list(client.completions.create(model=MODEL, stream=True, prompt="a", extra_body=bad))
    assert answers["other"].json()["choices"] == slow.post("/v1/completions", body).json()["choices"]


def test_the_end_lets_requests_finish(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file, slow=True), shutdown_seconds=20) as server, server.http() as http:
        http.get("/health")  # a connection that is kept
        with ThreadPoolExecutor(2) as pool:
            body = {**LONG, "max_tokens": 60}
            whole = pool.submit(server.post, "/v1/completions", body)
            streamed = pool.submit(server.post, "/v1/completions", {**body, "stream": True})
            server.until(lambda: server.engine.stats.running == 2)
            server.server.handle_exit(signal.SIGTERM, None)
            assert whole.result().json()["usage"]["completion_tokens"] == 60
            assert streamed.result().text.endswith("data: [DONE]\n\n")
        server.thread.join(5)
        assert not server.thread.is_alive()
        with pytest.raises(httpx.TransportError):
            http.get("/health")


def test_the_end_does_not_wait_for_ever(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file, slow=True), shutdown_seconds=0.3) as server:
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(server.post, "/v1/completions", LONG)
            streamed = pool.submit(server.post, "/v1/completions", {**LONG, "stream": True})
            server.until(lambda: server.engine.stats.running == 2)
            server.server.handle_exit(signal.SIGTERM, None)
            assert whole.result().status_code == 503
            assert whole.result().json()["error"]["code"] == "server_stopping"
            *_, error, done, _ = streamed.result().text.split("\n\n")
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == "server_stopping"
            assert done == "data: [DONE]"
        server.thread.join(5)
        assert not server.thread.is_alive()


SCRIPT = """
import sys, time
from pathlib import Path
from outrider import pipeline
from outrider.cli.main import main
from tests.server.http_support import load_slow
pipeline.load_native = load_slow
sys.exit(main(["serve", "-m", sys.argv[1], "--port", "0", "--spec", "none", *sys.argv[2:]]))
"""


@pytest.fixture
def process(roomy_file: Path) -> Iterator[Any]:
    """Starts `outrider serve` as a process; gives it and its address."""
    made: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> tuple[subprocess.Popen[str], str]:
        root = Path(__file__).resolve().parents[2]
        child = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(roomy_file), *flags],
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        made.append(child)
        assert child.stderr is not None
        for line in child.stderr:
            if "listening on " in line:
                return child, line.split("listening on ")[1].strip()
        raise AssertionError("the server did not start")

    yield start
    for child in made:
        child.kill()
        child.wait()
        if child.stderr is not None:
            child.stderr.close()


def busy(url: str, answers: list[str]) -> list[threading.Thread]:
    """Leave two long requests with a server, one of them streamed, each in a thread that notes its answer."""

    def ask(stream: bool) -> None:
        answers.append(httpx.post(url + "/v1/completions", json={**LONG, "stream": stream}, timeout=60).text)

    threads = [threading.Thread(target=ask, args=(stream,), daemon=True) for stream in (False, True)]
    for thread in threads:
        thread.start()
    while httpx.get(url + "/load").json()["server_load"] < 2:
        time.sleep(0.02)
    return threads


def test_one_signal_ends_in_order(process: Any) -> None:
    child, url = process("--shutdown-timeout", "20")
    answer = httpx.post(url + "/v1/completions", json={**LONG, "max_tokens": 3})
    assert answer.json()["usage"]["completion_tokens"] == 3
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0


def test_a_second_signal_ends_at_once(process: Any) -> None:
    child, url = process("--shutdown-timeout", "60")
    answers: list[str] = []
    waiting = busy(url, answers)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert child.poll() is None, "it waits for the requests"
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0
    for thread in waiting:
        thread.join(5)
    assert [answer.count("server_stopping") for answer in answers] == [1, 1], answers
    assert "Traceback" not in child.stderr.read()


def test_addresses_that_cannot_be_bound(slow: Running) -> None:
    port = int(slow.url.rpartition(":")[2])
    for host, number in (("127.0.0.1", port), ("no.such.host.invalid", 0), ("192.0.2.1", 0)):
        with pytest.raises(ConfigError, match=r"cannot listen on .*--port"):
            bind(host, number)


def test_passes_may_be_slow(slow: Running) -> None:
    """The event loop does not wait for the engine: it answers while a pass cannot end."""
    SlowToy.held.clear()
    SlowToy.gate.clear()
    with ThreadPoolExecutor(1) as pool, slow.http() as http:
        running_one = pool.submit(slow.post, "/v1/completions", {**LONG, "max_tokens": 3})
        try:
            assert SlowToy.held.wait(30)
            for _ in range(5):
                assert http.get("/health").status_code == 200
            assert not running_one.done()
        finally:
            SlowToy.gate.set()
        assert running_one.result().status_code == 200
