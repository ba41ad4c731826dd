"""`outrider plan --endpoint`: which server it is, what it tells of its drafts, and what follows."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench import workloads
from outrider.cli.main import main
from outrider.engines.vllm.upstream import Upstream
from outrider.plan import servers
from outrider.plan.endpoint import speed
from outrider.plan.servers import Drafted, Found
from tests.support.fake_vllm.vllm.server import FakeVllm

NGRAM = {"method": "ngram", "num_speculative_tokens": 2}
INTERVAL = (0.5, 2.0)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        workloads, "load", lambda name: [workloads.Item(f"{name}-1", name, f"{name} one two")]
    )
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)


def found(pages: dict[str, Any], metrics: str = "") -> Found:
    with FakeVllm() as fake:
        fake.pages = {path: json.dumps(page).encode() for path, page in pages.items()}
        fake.pages.setdefault("/metrics", metrics.encode())
        return asyncio.run(servers.find(Upstream(fake.url)))


@pytest.mark.parametrize(
    ("pages", "metrics", "said", "settings"),
    [
        ({"/version": {"version": "0.32.0"}}, "vllm:num_requests_running 0\n", "vLLM 0.32.0", {}),
        ({"/v1/outrider/status": {"version": "0.1",
                                  "speculation": {"method": "auto", "config": {"model": None}}}},
         "", "Outrider 0.1", {"method": "auto"}),
        ({"/v1/outrider/status": {"version": "0.1", "engine": {"name": "vllm", "version": "0.32.0"},
                                  "speculation": {"method": "ngram", "config": NGRAM}}},
         "", "Outrider 0.1 with vLLM 0.32.0", NGRAM),
        ({"/get_server_info": {"version": "0.5", "speculative_algorithm": "EAGLE3", "tp_size": 1}},
         "", "SGLang 0.5", {"speculative_algorithm": "EAGLE3"}),
        ({"/props": {"build_info": "b9000-abc"}}, "", "llama.cpp b9000-abc", {}),
        ({"/api/version": {"version": "0.13"}}, "", "Ollama 0.13", {}),
        ({"/api/v0/models": {"data": []}}, "", "LM Studio", {}),
        ({"/metrics": [], "/version": {"version": "1.2"}}, "", "TensorRT-LLM 1.2", {}),
        ({}, "", "OpenAI-compatible", {}),
        ({"/v1/outrider/status": {"speculation": {"config": "x"}}, "/props": [1]}, "", "Outrider", {}),
        ({"/props": ["build_info"], "/version": "7", "/server_info": 3}, "", "OpenAI-compatible", {}),
    ],
)  # fmt: skip
def test_servers_are_told_apart(
    pages: dict[str, Any], metrics: str, said: str, settings: dict[str, Any]
) -> None:
    server = found(pages, metrics)
    assert str(server) == said
    assert server.settings == settings


def test_what_answers_tell() -> None:
    times = {"timings": {"predicted_n": 20, "draft_n": 24, "draft_n_accepted": 14}}
    assert servers.of_answer("llama.cpp", times) == Drafted(6, 24, 14)
    assert servers.of_answer("llama.cpp", {"timings": {"predicted_n": 20}}) == Drafted()
    stats = {"total_draft_tokens_count": 10, "accepted_draft_tokens_count": 7}
    for place in ("stats", "usage"):
        assert servers.of_answer("LM Studio", {place: stats}).acceptance_rate == 0.7
    assert servers.of_answer("vLLM", times | {"stats": stats}) == Drafted()
    odd = {"timings": {"predicted_n": "x", "draft_n": True, "draft_n_accepted": -1}}
    assert servers.of_answer("llama.cpp", odd) == Drafted()


def test_what_metrics_tell() -> None:
    rows = [
        {"specDecodingStats": {"numDraftTokens": 6, "numAcceptedTokens": 3, "numRequestsWithDraftTokens": 2}},
        {"iterLatencyMS": 1.0},
        "no row",
        {"specDecodingStats": {"numDraftTokens": 3, "numAcceptedTokens": 0, "numRequestsWithDraftTokens": 1}},
    ]
    gauge = 'sglang:spec_accept_length{tp_rank="0"} 2.5\nsglang:spec_accept_length{tp_rank="1"} 3.5\nx 1\n'
    with FakeVllm(speculative=NGRAM) as fake:
        server = Upstream(fake.url)
        fake.pages = {"/metrics": json.dumps(rows).encode()}
        assert asyncio.run(servers.drafted(server, "TensorRT-LLM")) == Drafted(3, 9, 3)
        fake.pages = {"/metrics": gauge.encode()}
        assert asyncio.run(servers.drafted(server, "SGLang")).mean_length == 3.0
        assert asyncio.run(servers.drafted(server, "Ollama")) == Drafted()


@given(st.floats(0.05, 1), st.floats(0, 1), st.integers(1, 16), st.floats(1, 6), st.integers(100, 10_000))
def test_break_even_is_where_the_speed_up_is_one(
    share: float, rate: float, k: int, cost: float, steps: int
) -> None:
    """A server with known costs: the arithmetic finds them again."""
    drafts = share * steps
    tokens = steps + drafts * k * rate
    average = 1 + share * (cost - 1)
    counts = Drafted(drafts, drafts * k, drafts * k * rate)
    found = speed(tokens / steps / average, INTERVAL, counts, tokens)
    assert found["step_cost_ratio"] == pytest.approx(cost, rel=1e-6, abs=1e-6)
    needed = (cost - 1) / k
    if needed < 0.999:
        assert found["break_even_acceptance"] == pytest.approx(needed, rel=1e-5, abs=1e-6)
    elif needed > 1.001:
        assert found["break_even_acceptance"] is None
    gains = list(found["speedup_by_acceptance"].values())
    assert gains == sorted(gains)
    assert found["speedup_by_acceptance"]["0.9"] == pytest.approx((1 + share * k * 0.9) / average, rel=1e-6)


def test_without_counts_only_the_speed_up_is_told() -> None:
    assert speed(1.3, INTERVAL, Drafted(), 100)["step_cost_ratio"] is None
    gauge = speed(1.5, INTERVAL, Drafted(length=3.0), 100)
    assert gauge["step_cost_ratio"] == 2.0
    assert gauge["break_even_acceptance"] is None


def test_a_server_against_a_plain_one(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeVllm(speculative=NGRAM, pace=0.001) as fake, FakeVllm(pace=0.002) as plain:
        words = ["plan", "--endpoint", fake.url, "--against", f"{plain.url}/v1", "-n", "24", "--rounds", "1"]
        assert main([*words, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert main(words) == 0
    text = capsys.readouterr().out
    one, other, speeds = document["endpoint"], document["against"], document["speed"]
    assert one["server"] == "vLLM"
    assert (one["prompts"], one["tokens"]) == (3, 72)
    assert (one["acceptance_rate"], one["mean_acceptance_length"]) == (0.5, 2.0)
    assert one["drafts"] == 36  # half a draft for each token, and the warm-up is not counted
    assert other["acceptance_rate"] is None
    assert speeds["speedup"] > 0
    assert speeds["step_cost_ratio"] == pytest.approx(2 / speeds["speedup"])
    assert document["advice"][-1] == "One client was measured; under load drafts are worth less."
    assert "drafts: 50% accepted, 2.00 tokens a step, by its metrics" in text
    assert "speed-up of decoding" in text


def test_a_server_alone_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeVllm(pace=0.001) as fake:
        fake.pages = {"/props": b'{"build_info": "b1"}', "/metrics": b""}
        fake.last_event = {"timings": {"predicted_n": 24, "draft_n": 30, "draft_n_accepted": 14}}
        assert main(["plan", "--endpoint", fake.url, "-n", "24", "--rounds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["endpoint"]["server"] == "llama.cpp b1"
    assert document["endpoint"]["mean_acceptance_length"] == 1 + 14 / 10
    assert math.isfinite(document["endpoint"]["tpot_ms"])
    assert document["speed"] is None
    assert "--against" in document["advice"][0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--endpoint", "nowhere"], "is not the URL of a server"),
        (["--endpoint", "http://127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["--against", "http://127.0.0.1:1"], "give that too"),
        (["--endpoint", "http://127.0.0.1:1", "-md", "x"], "--model-draft has no meaning with --endpoint"),
        (["--endpoint", "http://127.0.0.1:1", "x"], "-m names the model"),
        (["--endpoint", "http://127.0.0.1:1", "--rounds", "0"], "--rounds must be at least 1"),
        (["--endpoint", "http://127.0.0.1:1", "--timeout", "0"], "--timeout must be above 0"),
        (["--endpoint", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH"], "'NO_SUCH' is not set"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_servers_that_do_not_answer_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeVllm(key="secret") as fake:
        assert main(["plan", "--endpoint", fake.url]) == 2
        assert "asks for a key" in capsys.readouterr().err
        assert main(["plan", "--endpoint", fake.url, "-m", "tiny"]) == 2
        assert "answered 401" in capsys.readouterr().err
    with FakeVllm() as fake:
        assert main(["plan", "--endpoint", fake.url, "-n", "3"]) == 2
        assert "fewer than 8 tokens" in capsys.readouterr().err
        fake.pages = {"/v1/models": b'{"data": []}'}
        assert main(["plan", "--endpoint", fake.url]) == 2
        assert "lists no model" in capsys.readouterr().err


def test_counts_since_the_last_answer_are_not_subtracted() -> None:
    before, now = Drafted(1, 4, 2), Drafted(3, 9, 3)
    assert servers.since("vLLM", before, now) == Drafted(2, 5, 1)
    assert servers.since("TensorRT-LLM", before, now) == now
