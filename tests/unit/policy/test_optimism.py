"""What a draft model is thought to be worth in a text that it has not processed."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.optimism import Optimism, TextAcceptance
from outrider.policy.tuning import DEFAULT


def expected(probabilities: list[float]) -> list[float]:
    """Tokens expected of 0, 1, 2, … drawn ones that are accepted with these probabilities."""
    paths = accumulate(probabilities, lambda path, p: path * p)
    return [0.0, *accumulate(paths)]


def after(*texts: tuple[int, int]) -> Optimism:
    """After texts of so many verified and accepted tokens."""
    optimism = Optimism()
    for verified, accepted in texts:
        text = TextAcceptance()
        for token in range(verified):
            text.add(token < accepted)
        optimism.end_request(text)
    return optimism


@given(st.lists(st.floats(0.0, 0.99), max_size=8), st.integers(0, 9))
def test_hope_never_lowers_and_never_passes_what_nothing_known_would_give(
    probabilities: list[float], bad: int
) -> None:
    plain, optimism = expected(probabilities), after(*[(5, 0)] * bad)
    hoped = optimism.hoped(plain)
    assert len(hoped) == len(plain)
    most = expected([max(p, DEFAULT.optimism_max) for p in probabilities])
    for low, mine, high in zip(plain, hoped, most, strict=True):
        assert low - 1e-9 <= mine <= high + 1e-9
    assert all(a <= b + 1e-12 for a, b in pairwise(hoped))


def test_one_token_by_hand() -> None:
    none, one = Optimism().hoped([0.0, 0.4])
    assert none == 0.0
    assert one == pytest.approx(0.8 / 1.4), "odds of 2 : 3 become 4 : 3"
    assert Optimism().hoped([0.0, 0.7])[1] == pytest.approx(DEFAULT.optimism_max)
    assert Optimism().hoped([0.0, 0.9])[1] == pytest.approx(0.9)
    assert Optimism().hoped([0.0, 0.0, 0.0]) == [0.0, 0.0, 0.0]


def test_disappointing_texts_end_it_and_a_modest_one_hardly_does() -> None:
    shares = [after(*[(20, 0)] * texts).share for texts in (0, 1, 2, 4, 8)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[1] < 0.1
    assert shares[-1] < 0.02
    assert after(*[(20, 7)] * 3).share > shares[1], "a third of the tokens were right"
    assert after(*[(20, 8)] * 9).share == 1.0


def test_few_tokens_say_little_and_none_nothing() -> None:
    assert after((0, 0)).share == 1.0
    assert after((1, 0)).share > after((2, 0)).share > after((4, 0)).share == after((40, 0)).share
