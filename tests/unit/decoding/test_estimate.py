from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.estimate import CENTRES, EDGES, MOST, Acceptance, stage_of


def teach(
    acceptance: Acceptance, truth: float, count: int, request: str = "r", seed: int = 0, **node: float
) -> None:
    random = np.random.default_rng(seed)
    depth, confidence = int(node.get("depth", 1)), node.get("confidence")
    for _ in range(count):
        acceptance.learn(request, depth, confidence, bool(random.random() < truth))


def test_bins_are_in_order() -> None:
    assert len(CENTRES) == len(EDGES) + 1
    for i, centre in enumerate(CENTRES):
        assert (EDGES[i - 1] if i else 0.0) <= centre < (EDGES[i] if i < len(EDGES) else 1.0)
    assert [stage_of(d) for d in (1, 2, 3, 4, 5, 8, 9, 99)] == [0, 1, 2, 2, 3, 3, 4, 4]


def test_before_anything_is_known() -> None:
    acceptance = Acceptance(0.6)
    assert acceptance.chance("r", 1) == pytest.approx(0.6)
    assert acceptance.chance("r", 3, 0.85) == pytest.approx(0.85, abs=0.08)
    assert acceptance.mean == pytest.approx(0.6)


@pytest.mark.parametrize("truth", [0.05, 0.3, 0.7, 0.95])
def test_confidence_is_calibrated_for_all_requests(truth: float) -> None:
    acceptance = Acceptance()
    for request in range(20):
        teach(acceptance, truth, 40, f"r{request}", request, confidence=0.9)
        acceptance.forget(f"r{request}")
    assert acceptance.chance("new", 1, 0.9) == pytest.approx(truth, abs=0.1)
    assert acceptance.mean == pytest.approx(truth, abs=0.1)


def test_an_unknown_bin_is_taken_at_its_word_while_confidence_is_good_for_something() -> None:
    good, vain = Acceptance(), Acceptance()
    for acceptance, truth in ((good, 0.92), (vain, 0.3)):
        for request in range(10):
            teach(acceptance, truth, 20, f"r{request}", request, confidence=0.92)
            teach(acceptance, 0.3, 20, f"r{request}", request, confidence=0.3)
            acceptance.forget(f"r{request}")
    assert good.chance("new", 1, 0.6) == pytest.approx(0.57, abs=0.03)
    assert vain.chance("new", 1, 0.6) == pytest.approx(0.3, abs=0.06)


def test_depths_differ() -> None:
    acceptance = Acceptance()
    for request in range(20):
        teach(acceptance, 0.9, 20, f"r{request}", request, depth=1)
        teach(acceptance, 0.2, 20, f"r{request}", request, depth=6)
    assert acceptance.chance("new", 1) == pytest.approx(0.9, abs=0.1)
    assert acceptance.chance("new", 7) == pytest.approx(0.2, abs=0.1)


def test_a_request_of_its_own_kind() -> None:
    acceptance = Acceptance()
    for request in range(20):
        teach(acceptance, 0.8, 30, f"r{request}", request, confidence=0.8)
    teach(acceptance, 0.1, 25, "odd", 1, confidence=0.8)
    assert acceptance.chance("odd", 1, 0.8) < 0.45
    assert acceptance.chance("new", 1, 0.8) > acceptance.chance("odd", 1, 0.8) + 0.15
    acceptance.forget("odd")
    assert acceptance.chance("odd", 1, 0.8) == acceptance.chance("new", 1, 0.8)


def test_it_follows_a_change() -> None:
    acceptance = Acceptance()
    teach(acceptance, 1.0, 100)
    assert acceptance.chance("r", 1) > 0.9
    teach(acceptance, 0.0, 16)
    assert acceptance.chance("r", 1) < 0.7, "a few misses after a hundred hits"
    teach(acceptance, 0.0, 60)
    assert acceptance.chance("r", 1) < 0.25


def test_what_was_drafted_and_not_tried_counts_as_supposed() -> None:
    acceptance = Acceptance(0.7)
    for _ in range(30):
        acceptance.suppose("r", 1, 0.05)
    assert acceptance.chance("r", 1) < 0.15
    assert acceptance.chance("r", 1, 0.85) > 0.8, "it says nothing about the calibration"


def test_few_misses_at_the_start_are_enough_to_doubt() -> None:
    acceptance = Acceptance(0.7)
    teach(acceptance, 0.0, 4)
    assert acceptance.chance("r", 1) < 0.35


def test_the_start_may_count_for_more() -> None:
    light, heavy = Acceptance(0.7), Acceptance(0.7, 8.0)
    for acceptance in (light, heavy):
        assert acceptance.chance("r", 1) == pytest.approx(0.7)
        for _ in range(3):
            acceptance.suppose("r", 1, 0.0)
    assert light.mean == pytest.approx(1.4 / 5, abs=0.01)
    assert heavy.mean == pytest.approx(5.6 / 11, abs=0.01)


def test_a_new_text_is_only_partly_held_to_the_ones_before() -> None:
    acceptance = Acceptance(0.7, 8.0)
    teach(acceptance, 0.0, 200, confidence=0.5)
    calibrated, means = acceptance.chance("new", 1, 0.5), [acceptance.mean]
    for _ in range(25):
        acceptance.begin()
        means.append(acceptance.mean)
    assert means == sorted(means)
    assert means[0] < 0.1
    assert 0.35 < means[-1] < 0.7
    assert acceptance.chance("new", 1) > 0.2
    assert acceptance.chance("new", 1, 0.5) == calibrated, "what a confidence means is no matter of the text"


@given(
    st.floats(0.01, 0.99),
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(1, 40),
            st.none() | st.floats(0.0, 1.0),
            st.booleans(),
        ),
        max_size=60,
    ),
)
def test_a_chance_is_a_probability_and_success_never_lowers_it(
    start: float, tries: list[tuple[str, int, float | None, bool]]
) -> None:
    acceptance = Acceptance(start)
    for request, depth, confidence, accepted in tries:
        before = acceptance.chance(request, depth, confidence)
        acceptance.learn(request, depth, confidence, accepted)
        after = acceptance.chance(request, depth, confidence)
        assert 0.0 < after <= MOST
        if accepted:
            assert after >= before * 0.9  # old successes fade while a new one comes
        else:
            assert after <= min(MOST, before * 1.1)
    for request in "ab":
        acceptance.forget(request)
    for requests in (acceptance._by_confidence, acceptance._by_depth):
        assert requests._sums == {} == requests._odds


def test_what_is_expected_otherwise_counts_until_it_shows() -> None:
    acceptance = Acceptance(0.7, prior=lambda request_id: 4.0 if request_id == "r" else 1.0)
    plain = Acceptance(0.7)
    for each in (acceptance, plain):
        teach(each, 0.7, 200, "others", confidence=0.8)
    usual, better = acceptance.chance("s", 1), acceptance.chance("r", 1)
    assert usual == plain.chance("r", 1)
    assert better / (1 - better) == pytest.approx(4 * usual / (1 - usual))
    assert acceptance.chance("r", 1, 0.8) == plain.chance("r", 1, 0.8), "confidence knows of it already"
    teach(acceptance, 0.1, 60, "r")
    assert acceptance.chance("r", 1) < usual
    acceptance.forget("r")
    assert acceptance.chance("r", 1) > acceptance.chance("s", 1)
