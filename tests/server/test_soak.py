"""The soak of benchmarks/serve.py: no answer is lost, mixed up or changed by other requests, and faults are
detected."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.server.http.openai_answer import OpenAIAnswer
from tests.server.http_support import Running, running, toy_pipeline
from tests.support.benchmarks import script

CONTEXT, BODY_BYTES = 4096, 1 << 20
SLACK = 64 << 20  # a run of seconds does not get warm


@pytest.fixture(scope="module")
def soak() -> Any:
    """The module serve_soak."""
    return script("serve_soak")


@pytest.fixture(scope="module")
def toy(roomy_file: Path, soak: Any) -> Iterator[Running]:
    """A server with keys and a drafter, over a toy."""
    lookup = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 4}
    pipeline = toy_pipeline(roomy_file, lookup, max_num_seqs=4)
    with running(
        pipeline, max_waiting=6, api_keys=soak.KEYS, max_body_bytes=BODY_BYTES, served_names=()
    ) as made:
        yield made


@pytest.fixture(scope="module")
def known(roomy_file: Path, soak: Any) -> tuple[list[Any], list[Any]]:
    """Cases, and what plain decoding says to each alone."""
    cases = soak.serve_pool.pool(28)
    with running(toy_pipeline(roomy_file, "none", max_num_seqs=1)) as alone:
        return cases, asyncio.run(soak.expected(alone.url, cases))


def run(soak: Any, server: Running, cases: list[Any], answers: list[Any], requests: int) -> Any:
    limits = {"clients": 8, "context": CONTEXT, "body_bytes": BODY_BYTES}
    made = soak.Soak(server.url, os.getpid(), cases, answers, **limits)
    return asyncio.run(made.run(requests))


def test_no_answer_of_a_toy_is_lost_or_changed(
    soak: Any, toy: Running, known: tuple[list[Any], list[Any]]
) -> None:
    tally = run(soak, toy, *known, 200)
    assert not tally.faults, tally.told
    assert tally.requests == 200
    assert tally.compared > 80
    common = {habit for habit, share in soak.HABITS.items() if share >= 4}
    assert common <= {habit for habit, _ in tally.outcomes}, "rarer ones may not have come up"
    assert len({str(answer.choices) for answer in known[1]}) > 20
    assert "0 lost, 0 mixed up" in tally.verdict()


def test_a_mixed_up_answer_is_noticed(soak: Any, toy: Running, known: tuple[list[Any], list[Any]]) -> None:
    cases, answers = known
    tally = run(soak, toy, cases, answers[1:] + answers[:1], 60)
    assert tally.faults["mixed up"] > 0
    assert tally.faults["lost"] == 0
    assert not tally.passed
    assert tally.verdict().endswith("FAILED")


def test_a_changed_answer_is_noticed(soak: Any, toy: Running, known: tuple[list[Any], list[Any]]) -> None:
    cases, answers = known
    longer = [soak.Said({0: [f"{a.choices[0][0]} and so on", "", "stop"]}, a.tokens) for a in answers]
    tally = run(soak, toy, cases, longer, 60)
    assert tally.faults["changed"] + tally.faults["mixed up"] > 0
    assert not tally.passed


def test_a_lost_answer_is_noticed(
    soak: Any, toy: Running, known: tuple[list[Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OpenAIAnswer.chunks

    def broken(self: OpenAIAnswer, sample: Any, tokens: Any) -> Iterator[bytes]:
        chunks = list(real(self, sample, tokens))
        return iter(chunks if sample.end is None else [])

    monkeypatch.setattr(OpenAIAnswer, "chunks", broken)
    tally = run(soak, toy, *known, 60)
    assert tally.faults["lost"] > 0
    assert not tally.passed


def test_a_request_that_should_be_refused_is_noticed(
    soak: Any, toy: Running, known: tuple[list[Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = soak.Refused("nothing", (400,), content=b'{"prompt": "a", "max_tokens": 1}')
    monkeypatch.setattr(soak.serve_pool, "malformed", lambda: [good])
    monkeypatch.setattr(soak, "HABITS", {"malformed": 1})
    assert run(soak, toy, *known, 10).faults["wrong status"] > 0


def test_memory_that_grows_is_noticed(soak: Any) -> None:
    """A leak of 2 kB a request, on top of a warm-up that is none."""
    tally = soak.Tally(requests=10_000, compared=9000)
    warm = [(n, 400_000_000 + 30_000 * min(n, 2000)) for n in range(0, 10_000, 50)]
    tally.memory = warm
    assert tally.flat
    assert tally.passed
    tally.memory = [(n, size + 2000 * n) for n, size in warm]
    assert not tally.flat
    assert "+2.00 MB per 1000 requests (NOT flat): FAILED" in tally.verdict()


@pytest.mark.model
def test_no_answer_of_the_default_model_is_lost_or_changed(soak: Any, default_model: Path) -> None:
    serve = script("serve")
    tally = serve.soak(
        str(default_model), 60, cases=6, clients=8, threads=2, prefix_cache="8M", kept_outputs=20
    )
    assert not tally.faults, tally.told
    assert tally.requests >= 60
    assert tally.compared > 24
    assert tally.growth()[1] < SLACK
    assert sys.modules["serve_soak"] is soak
