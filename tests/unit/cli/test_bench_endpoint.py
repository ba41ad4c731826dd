"""`outrider bench --endpoint`: loads, what is told of them, and servers in turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench import endpoint, workloads
from outrider.bench.endpoint import Load, Round, Settings, compared
from outrider.bench.workloads import Item
from outrider.cli.main import main
from outrider.engines.vllm.upstream import Answer as UpstreamAnswer
from outrider.engines.vllm.upstream import Upstream, UpstreamError
from outrider.plan.endpoint import Answer
from outrider.plan.servers import Drafted
from tests.support.fake_vllm.vllm.server import FakeVllm

NGRAM = {"method": "ngram", "num_speculative_tokens": 2}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        workloads, "load", lambda name: [Item(f"{name}-{n}", name, f"{name} one {n}") for n in range(2)]
    )
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)


def test_two_servers_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeVllm(speculative=NGRAM, pace=0.001) as fake, FakeVllm(pace=0.004) as plain:
        words = [
            "bench",
            "--endpoint",
            fake.url,
            "--against",
            f"{plain.url}/v1",
            "-n",
            "16",
            "--clients",
            "1,3",
        ]
        assert main([*words, "--json", "--runs", "2"]) == 0
        document = json.loads(capsys.readouterr().out)
        prompts = [fields["messages"][0]["content"] for _, fields, _ in fake.requests if "messages" in fields]
        assert main([*words, "--workload", "chat", "--limit", "2", "--clients", "2", "--rate", "100"]) == 0
    shown = capsys.readouterr().out
    assert [server["server"] for server in document["servers"]] == ["vLLM", "vLLM"]
    assert [load["clients"] for load in document["loads"]] == [1, 3]
    for load in document["loads"]:
        one, other = load["servers"]
        assert (one["requests"], one["tokens"]) == (12, 192)
        assert (one["acceptance_rate"], one["mean_acceptance_length"]) == (0.5, 2.0)
        assert other["acceptance_rate"] is None
        assert load["speedup_ci"][0] <= load["speedup"] <= load["speedup_ci"][1]
        assert load["speedup"] > 1
        assert (load["identical"], load["pairs"]) == (12, 12), "the double's texts do not depend on drafts"
        assert 0 < one["ttft_ms"]["p50"] <= one["ttft_ms"]["p95"] <= one["ttft_ms"]["p99"]
        assert one["itl_ms"]["p50"] > 0
    assert len(prompts) == 1 + 4 * 6, "a warm-up, and two rounds of two loads"
    assert len(set(prompts)) == len(prompts), "no round's prompts are those of another"
    for words_shown in ("2 clients", "100 requests/s", "50%", "A writes ", "2 of 2 texts equal"):
        assert words_shown in shown


class Counted(Upstream):
    """Counts its own open requests: the double's handlers end a moment after their answer has arrived."""

    running = most = 0

    @asynccontextmanager
    async def ask(self, *words: Any, **options: Any) -> AsyncIterator[UpstreamAnswer]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with super().ask(*words, **options) as given:
                yield given
        finally:
            self.running -= 1


@pytest.mark.parametrize("clients", [1, 3])
def test_as_many_requests_run_as_there_are_clients(clients: int) -> None:
    items = [Item(f"i{n}", "w", f"one two {n}") for n in range(9)]
    with FakeVllm(pace=0.002) as fake:
        place = Counted(fake.url)
        settings = Settings(items, [Load(clients)], None, 12, 1, 30.0)
        document = asyncio.run(endpoint.measure([place], settings))
    assert document["loads"][0]["servers"][0]["requests"] == 9
    assert place.most == clients


def answer(tpot: float, text: str = "x", tokens: int = 11) -> Answer:
    return Answer(0.1, tpot * (tokens - 1), tokens, Drafted(), text)


def of(answers: Sequence[Answer]) -> Round:
    return Round({str(n): each for n, each in enumerate(answers)}, 1.0, Drafted())


@given(
    st.lists(st.tuples(st.floats(1e-3, 1), st.sampled_from("ab")), min_size=1, max_size=6), st.floats(0.2, 5)
)
def test_the_speed_up_is_of_pairs(seconds: list[tuple[float, str]], factor: float) -> None:
    """A server that takes `factor` times as long for every text: known exactly, whatever the texts take."""
    mine = of([answer(s, text) for s, text in seconds])
    its = of([answer(s * factor, "a") for s, _ in seconds])
    found = compared([mine], [its])
    assert found["speedup"] == pytest.approx(factor)
    assert found["speedup_ci"] == pytest.approx([factor, factor])
    assert found["identical"] == sum(text == "a" for _, text in seconds)
    assert found["pairs"] == len(seconds)


def test_answers_too_short_to_time() -> None:
    few = of([answer(0.1, tokens=3)])
    with pytest.raises(UpstreamError, match="no prompt was answered with 8 tokens"):
        compared([few], [few])


URL = ["--endpoint", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--endpoint", "nowhere"], "is not the URL of a server"),
        (URL, "127.0.0.1:1 cannot be reached"),
        (["--against", "http://127.0.0.1:1"], "give --endpoint too"),
        (["--clients", "2", "x"], "give --endpoint too"),
        ([*URL, "-md", "x"], "--model-draft has no meaning with --endpoint"),
        ([*URL, "--threads", "0"], "--threads has no meaning with --endpoint"),
        ([*URL, "--plot", "absent/x.html"], "--plot: 'absent/x.html' cannot be written"),
        ([*URL, "--cost-curve"], "--cost-curve has no meaning with --endpoint"),
        ([*URL, "--temp", "0.7"], "measures at temperature 0"),
        ([*URL, "x"], "-m names the model"),
        ([*URL, "--clients", "0"], "--clients must be numbers above 0"),
        ([*URL, "--clients", "1,x"], "not 'x'"),
        ([*URL, "--rate", "-1"], "--rate must be numbers above 0"),
        ([*URL, "--clients", "7"], "7 clients need as many prompts, and there are 6"),
        ([*URL, "--runs", "0"], "--runs must be at least 1"),
        ([*URL, "--limit", "0"], "--limit must be at least 1"),
        ([*URL, "-n", "0"], "-n must be at least 1"),
        ([*URL, "--timeout", "0"], "--timeout must be above 0"),
        ([*URL, "--api-key-env", "NO_SUCH"], "'NO_SUCH' is not set"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_server_that_fails_in_the_middle_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeVllm(faults={"breaks"}) as fake:
        assert main(["bench", "--endpoint", fake.url, "-n", "16", "--clients", "2"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
