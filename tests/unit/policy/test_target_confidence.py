"""decoding/certainty.py: what the target's own certainty tells of a draft model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.acceptance_rates import Acceptance
from outrider.policy.target_confidence import ROWS, TYPICAL, TargetConfidence

shares = st.lists(st.floats(0.0, 1.0), max_size=ROWS)


def seen(text: str = "a", *each: float, among: TargetConfidence | None = None) -> TargetConfidence:
    certainty = among or TargetConfidence()
    certainty.learn(text, each)
    return certainty


def test_a_text_that_nothing_is_known_of_is_like_any_other() -> None:
    certainty = TargetConfidence()
    assert certainty.odds("a") == 1.0
    certainty.tried("a")
    assert certainty.odds("a") == 1.0
    assert abs(seen("a", *[TYPICAL] * 9).odds("a") - 1.0) < 1e-9


def test_where_the_target_is_sure_a_draft_model_is_expected_to_be_right() -> None:
    odds = [seen("a", *[share] * 16).odds("a") for share in (0.3, 0.6, 0.85, 0.95, 1.0)]
    assert odds == sorted(odds)
    assert odds[0] < 0.3, "0.3 instead of 0.85"
    assert odds[-1] > 2.0, "1 instead of 0.85"
    assert seen("a", 1.0).odds("a") < odds[-1], "of one token less follows"


def test_it_is_compared_with_the_texts_that_the_draft_model_was_tried_in() -> None:
    certainty = seen("easy", *[0.98] * 16)
    before = certainty.odds("easy")
    for _ in range(300):
        certainty.tried("easy")
    assert abs(certainty.odds("easy") - 1.0) < 0.2 < before - 1.0
    certainty.learn("hard", [0.6] * 16)
    assert certainty.odds("hard") < seen("hard", *[0.6] * 16).odds("hard")


def test_what_certainty_promised_is_not_counted_twice_when_it_comes_true() -> None:
    random = np.random.default_rng(0)
    certainty = seen("a", *[0.97] * 16)
    for current in (True, False):
        promised = certainty.odds("a")  # the broken twin goes on with what was worked out before
        acceptance = Acceptance(0.8, 8.0, certainty.odds if current else lambda _: promised)  # noqa: B023
        for _ in range(300):
            acceptance.learn("a", 1, None, bool(random.random() < 0.95))
            certainty.tried("a")
        acceptance.forget("a")  # what is left is what all texts have in common
        assert (abs(acceptance.chance("a", 1) - 0.95) < 0.03) == current
        certainty = seen("a", *[0.97] * 16)


def test_it_has_seen_enough_some_time_and_forgets() -> None:
    certainty = seen("a", *[0.9] * 5)
    assert certainty.wanted("a") == ROWS - 5
    assert certainty.wanted("b") == ROWS
    certainty.learn("a", [0.9] * ROWS)
    assert certainty.wanted("a") <= 0
    certainty.forget("a")
    assert certainty.wanted("a") == ROWS
    assert certainty.odds("a") == 1.0


@given(texts=st.lists(st.tuples(shares, st.integers(0, 40)), max_size=8), last=shares)
def test_odds_are_bounded_and_rise_with_certainty(
    texts: list[tuple[list[float], int]], last: list[float]
) -> None:
    certainty = TargetConfidence()
    for number, (each, tries) in enumerate(texts):
        certainty.learn(str(number), each)
        for _ in range(tries):
            certainty.tried(str(number))
        assert 1e-4 < certainty.odds(str(number)) < 1e4
    certainty.learn("a", last)
    certainty.learn("b", [min(1.0, share + 0.1) for share in last])
    assert certainty.odds("a") <= certainty.odds("b")
