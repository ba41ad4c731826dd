"""The self-check at start-up finds a sampler that is wrong, and none that is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.vllm import sampling_test, self_check
from outrider.engines.vllm.sampling_test import Position, deviation, greedy_problem, sampling_problem
from outrider.engines.vllm.upstream import UpstreamError
from tests.server.proxy_support import NGRAM, checked
from tests.support.fake_vllm.vllm.server import FakeVllm


@pytest.fixture
def fewer_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "PROMPTS", self_check.PROMPTS[::3])


def outcome(*faults: str) -> object:
    with FakeVllm(speculative=NGRAM, faults=set(faults)) as fake:
        return checked(fake)


def test_a_right_server_passes() -> None:
    found = outcome()
    assert str(found).startswith("self-check: passed: 672 tokens, ")


def test_draws_of_a_check_are_independent() -> None:
    """Requests of the same seed draw alike, and what one prompt shows by chance the others would show again:
    z of a right server was 3 in the mean."""
    with FakeVllm(speculative=NGRAM) as fake:
        checked(fake)
        seeds = [fields["seed"] for _, fields, _ in fake.requests if "seed" in fields]
    assert len(seeds) == len(set(seeds)) == len(self_check.PROMPTS)


@pytest.mark.usefixtures("fewer_prompts")
def test_sampling_that_is_noise_is_found() -> None:
    found = str(outcome("wrong"))
    assert found.startswith("self-check: sampling is broken: above temperature 0 ")
    assert "of 96 tokens are " in found


@pytest.mark.usefixtures("fewer_prompts")
def test_greedy_text_that_is_not_is_found() -> None:
    assert str(outcome("wrong-greedy")).startswith("self-check: broken: at temperature 0")


@pytest.mark.usefixtures("fewer_prompts")
def test_what_cannot_be_checked_is_said() -> None:
    assert str(outcome("no-prompt-logprobs")) == (
        "self-check: not checked: /v1/completions answered 400: prompt_logprobs is not for you"
    )


@pytest.mark.usefixtures("fewer_prompts")
def test_a_check_without_drafts_shows_nothing() -> None:
    with FakeVllm(speculative={}) as fake:
        assert str(checked(fake)) == "self-check: not checked: no draft was made for the texts of the check"


def test_a_server_that_is_gone_is_an_error() -> None:
    with FakeVllm() as fake:
        pass
    with pytest.raises(UpstreamError, match="cannot be reached"):
        checked(fake)


def drawn(seed: int, sharpness: float, temperature: float, count: int, said: float = 1.0) -> list[Position]:
    """Tokens drawn at a temperature, which are said to be drawn at another."""
    rng = np.random.default_rng(seed)
    logits = -np.sort(-sharpness * rng.standard_normal((count, 30)), axis=1)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tokens = np.argmax(logprobs / temperature + rng.gumbel(size=logprobs.shape), axis=1)
    return [
        Position(float(row[token]), tuple(map(float, row[:10])), bool(token < 10), said)
        for row, token in zip(logprobs, tokens, strict=True)
    ]


@given(st.integers(0, 2**32), st.floats(0.5, 4.0), st.sampled_from([1.0, 0.5]))
def test_a_right_sampler_is_never_accused(seed: int, sharpness: float, temperature: float) -> None:
    assert sampling_problem(drawn(seed, sharpness, temperature, 256, temperature)) is None


@pytest.mark.parametrize(("temperature", "said"), [(0.05, 1.0), (30.0, 1.0), (1.0, 0.5), (0.5, 1.0)])
def test_a_wrong_temperature_is_found(temperature: float, said: float) -> None:
    assert sampling_problem(drawn(1, 2.0, temperature, 256, said)) is not None


def test_a_tenth_of_noise_is_found() -> None:
    """As where only the tokens of drafted steps are wrong."""
    right, noise = drawn(1, 2.0, 1.0, 260), drawn(2, 2.0, 1e6, 28)
    assert sampling_problem(right) is None
    assert sampling_problem([*right, *noise]) is not None


@given(st.lists(st.floats(-8, 0), min_size=30, max_size=30), st.floats(0.3, 1.0))
def test_chances_at_a_lower_temperature_are_those_of_the_whole_vocabulary(
    logits: list[float], temperature: float
) -> None:
    values = np.sort(np.array(logits))[::-1]
    logprobs = values - np.log(np.exp(values).sum())
    powers = np.exp(logprobs / temperature)
    first, inside = Position(0.0, tuple(map(float, logprobs[:10])), True, temperature).chances()
    assert first <= powers[0] / powers.sum() + 1e-12
    assert inside <= powers[:10].sum() / powers.sum() + 1e-12
    whole = Position(0.0, tuple(map(float, logprobs)), True, temperature).chances()
    assert whole == pytest.approx((powers[0] / powers.sum(), 1.0))


def test_z_is_about_standard_normal() -> None:
    """Over many right texts: mean 0, variance 1, within what 400 texts allow."""
    values = []
    for seed in range(400):
        seen = [(p.is_first, math.exp(p.likeliest[0])) for p in drawn(seed, 2.0, 1.0, 100)]
        z = deviation(seen)
        assert z is not None
        values.append(z)
    mean = sum(values) / len(values)
    assert abs(mean) < 0.2
    assert 0.75 < sum(v * v for v in values) / len(values) < 1.3


def test_what_cannot_vary_is_judged_by_the_impossible_only() -> None:
    assert deviation([(True, 1.0)] * 200) is None
    assert deviation([(False, 1.0)] * 200) == -math.inf


def test_near_ties_are_no_fault() -> None:
    near, far = Position(-1.1, (-1.0,), True), Position(-5.0, (-1.0,), True)
    assert greedy_problem([near] * 100 + [far] * sampling_test.MOST_GAPS) is None
    assert greedy_problem([near] * 100 + [far] * (sampling_test.MOST_GAPS + 1)) == (
        "3 of 103 tokens are far from the likeliest (by up to 4.0 nats)"
    )
