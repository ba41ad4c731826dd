"""What speculation is worth: the interval, and what follows from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.server.proxy import worth
from outrider.server.proxy.requests import measured_copy, samples
from outrider.server.proxy.worth import SpeedUp, alike, fewer, half_width, recommendation


def accused(ratios: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Whether a stream of pairs is called slower at any time, looked at after each."""
    speedup = SpeedUp()
    for ratio in ratios:
        speedup.add(float(ratio), 1.0)
        if speedup.estimate().state == "slower":
            return True
    return False


def test_what_is_worth_nothing_is_rarely_accused() -> None:
    """In 200 streams of 300 pairs, each looked at 300 times, at most as often as ALPHA allows (one side, with
    three standard deviations of 200 streams)."""
    rng = np.random.default_rng(5)
    found = sum(accused(np.exp(0.2 * rng.standard_normal(300))) for _ in range(200))
    expected = 200 * worth.ALPHA
    assert found <= expected + 3 * math.sqrt(expected)


def test_an_ordinary_interval_would_accuse_it() -> None:
    """The same streams with 1.96 standard errors: this test can fail."""
    rng = np.random.default_rng(5)
    count = np.arange(1, 301)
    found = 0
    for _ in range(200):
        logs = 0.2 * rng.standard_normal(300)
        highs = np.cumsum(logs) / count + 1.96 * 0.2 / np.sqrt(count)
        found += bool((highs[worth.LEAST_PAIRS :] < 0).any())
    expected = 200 * worth.ALPHA
    assert found > expected + 3 * math.sqrt(expected)


def test_what_costs_time_is_found() -> None:
    rng = np.random.default_rng(1)
    assert all(accused(0.8 * np.exp(0.2 * rng.standard_normal(300))) for _ in range(20))


def test_nothing_is_said_of_a_few_pairs() -> None:
    speedup = SpeedUp()
    for _ in range(worth.LEAST_PAIRS - 1):
        speedup.add(0.1, 1.0)
    assert speedup.estimate().state == "too few pairs"
    assert recommendation(speedup.estimate(), 4, 0.5) == (
        "19 of 20 pairs that a statement needs are measured; 50% of draft tokens are accepted"
    )
    speedup.add(0.1, 1.0)
    assert speedup.estimate().state == "slower"


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_the_sums_are_those_of_the_whole_list(ratios: list[float]) -> None:
    speedup = SpeedUp()
    for ratio in ratios:
        speedup.add(ratio, 1.0)
    found = speedup.estimate()
    assert found.pairs == len(ratios)
    if found.speedup is not None and found.high is not None:
        logs = np.log(ratios)
        assert found.speedup == pytest.approx(math.exp(float(np.mean(logs))))
        deviation = max(float(np.std(logs, ddof=1)), 0.02)
        assert math.log(found.high / found.speedup) == pytest.approx(
            half_width(len(ratios), deviation), rel=1e-6, abs=1e-9
        )


@given(st.integers(20, 5000))
def test_the_interval_narrows(pairs: int) -> None:
    assert 0 < half_width(pairs + 1, 0.2) < half_width(pairs, 0.2)


@given(st.sampled_from([0.0, -1.0, math.nan, math.inf]), st.booleans())
def test_times_that_are_none_are_no_pairs(value: float, first: bool) -> None:
    speedup = SpeedUp()
    speedup.add(*((value, 1.0) if first else (1.0, value)))
    assert speedup.pairs == 0


@given(st.one_of(st.none(), st.integers(1, 128)))
def test_fewer_ends_at_none(tokens: int | None) -> None:
    steps = 0
    while tokens != 0:
        less = fewer(tokens)
        assert tokens is None or less < tokens
        tokens, steps = less, steps + 1
    assert steps <= 8


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6))
def test_loads_alike_are_at_most_a_quarter_apart(loads: list[int]) -> None:
    assert alike(loads) == (max(loads) - min(loads) <= max(loads) / 4)


@pytest.mark.parametrize(
    ("fields", "drawn"),
    [
        ({}, True),
        ({"temperature": 0}, False),
        ({"temperature": 0.0}, False),
        ({"temperature": 1e-6}, False),
        ({"temperature": 0.2}, True),
        ({"temperature": None}, True),
        ({"temperature": False}, True),
        ({"temperature": "0"}, True),
    ],
)
def test_what_draws(fields: dict[str, object], drawn: bool) -> None:
    assert samples(fields) is drawn


@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 9}, 9),
        ("/v1/completions", {"prompt": [1, 2]}, 256),
        ("/v1/completions", {"prompt": ["a", "b"]}, None),
        ("/v1/chat/completions", {"max_completion_tokens": 1000}, 256),
        ("/v1/chat/completions", {"n": 2}, None),
        ("/v1/completions", {"best_of": 3}, None),
        ("/v1/completions", {"max_tokens": "9"}, None),
        ("/v1/responses", {"max_tokens": 9}, None),
    ],
)
def test_which_requests_are_measured(path: str, fields: dict[str, object], tokens: int | None) -> None:
    copy = measured_copy(path, fields)
    assert (copy and copy["max_tokens"]) == tokens
    if copy:
        assert copy["stream"] is True
        assert "max_completion_tokens" not in copy
