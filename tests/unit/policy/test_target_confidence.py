"""What the target's own confidence predicts of a draft model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.target_confidence import TargetConfidence, TextConfidence
from outrider.policy.tuning import DEFAULT
from tests.support.rates import NamedRates

ROWS, TYPICAL = DEFAULT.target_confidence_rows, DEFAULT.target_confidence_start
shares = st.lists(st.floats(0.0, 1.0), max_size=ROWS)


class Named:
    """A TargetConfidence whose texts go by names."""

    def __init__(self) -> None:
        self.confidence = TargetConfidence()
        self.texts: dict[str, TextConfidence] = {}

    def text(self, name: str) -> TextConfidence:
        return self.texts.setdefault(name, TextConfidence())

    def odds(self, name: str) -> float:
        return self.confidence.prior_odds(self.text(name))

    def verified(self, name: str) -> None:
        self.confidence.observe_verified(self.text(name))

    def observe(self, name: str, shares: Sequence[float]) -> None:
        self.confidence.observe(self.text(name), shares)

    def wanted(self, name: str) -> int:
        return self.confidence.rows_wanted(self.text(name))


def seen(name: str = "a", *each: float) -> Named:
    confidence = Named()
    confidence.observe(name, each)
    return confidence


def test_an_unknown_text_is_taken_as_average() -> None:
    confidence = Named()
    assert confidence.odds("a") == 1.0
    confidence.verified("a")
    assert confidence.odds("a") == 1.0
    assert abs(seen("a", *[TYPICAL] * 9).odds("a") - 1.0) < 1e-9


def test_where_the_target_is_sure_a_draft_model_is_expected_to_be_right() -> None:
    odds = [seen("a", *[share] * 16).odds("a") for share in (0.3, 0.6, 0.85, 0.95, 1.0)]
    assert odds == sorted(odds)
    assert odds[0] < 0.3, "0.3 instead of 0.85"
    assert odds[-1] > 2.0, "1 instead of 0.85"
    assert seen("a", 1.0).odds("a") < odds[-1], "of one token less follows"


def test_it_is_compared_with_the_texts_that_the_draft_model_was_tried_in() -> None:
    confidence = seen("easy", *[0.98] * 16)
    before = confidence.odds("easy")
    for _ in range(300):
        confidence.verified("easy")
    assert abs(confidence.odds("easy") - 1.0) < 0.2 < before - 1.0
    confidence.observe("hard", [0.6] * 16)
    assert confidence.odds("hard") < seen("hard", *[0.6] * 16).odds("hard")


def test_what_certainty_promised_is_not_counted_twice_when_it_comes_true() -> None:
    random = np.random.default_rng(0)
    confidence = seen("a", *[0.97] * 16)
    for current in (True, False):
        promised = confidence.odds("a")  # the broken twin goes on with what was worked out before
        rates = NamedRates(0.8, 8.0, confidence.odds if current else lambda _: promised)  # noqa: B023
        for _ in range(300):
            rates.observe("a", 1, None, bool(random.random() < 0.95))
            confidence.verified("a")
        rates.end("a")  # what is left is what all texts have in common
        assert (abs(rates.probability("a", 1) - 0.95) < 0.03) == current
        confidence = seen("a", *[0.97] * 16)


def test_it_has_seen_enough_some_time_and_forgets() -> None:
    confidence = seen("a", *[0.9] * 5)
    assert confidence.wanted("a") == ROWS - 5
    assert confidence.wanted("b") == ROWS
    confidence.observe("a", [0.9] * ROWS)
    assert confidence.wanted("a") <= 0
    del confidence.texts["a"]
    assert confidence.wanted("a") == ROWS
    assert confidence.odds("a") == 1.0


@given(texts=st.lists(st.tuples(shares, st.integers(0, 40)), max_size=8), last=shares)
def test_odds_are_bounded_and_rise_with_certainty(
    texts: list[tuple[list[float], int]], last: list[float]
) -> None:
    confidence = Named()
    for number, (each, tries) in enumerate(texts):
        confidence.observe(str(number), each)
        for _ in range(tries):
            confidence.verified(str(number))
        assert 1e-4 < confidence.odds(str(number)) < 1e4
    confidence.observe("a", last)
    confidence.observe("b", [min(1.0, share + 0.1) for share in last])
    assert confidence.odds("a") <= confidence.odds("b")
