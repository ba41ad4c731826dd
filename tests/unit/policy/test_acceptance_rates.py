from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy.acceptance_rates import CENTRES, EDGES, MAX_PROBABILITY, stage_of
from tests.support.rates import NamedRates


def teach(
    rates: NamedRates, truth: float, count: int, request: str = "r", seed: int = 0, **node: float
) -> None:
    random = np.random.default_rng(seed)
    depth, confidence = int(node.get("depth", 1)), node.get("confidence")
    for _ in range(count):
        rates.observe(request, depth, confidence, bool(random.random() < truth))


def test_bins_are_in_order() -> None:
    assert len(CENTRES) == len(EDGES) + 1
    for i, centre in enumerate(CENTRES):
        assert (EDGES[i - 1] if i else 0.0) <= centre < (EDGES[i] if i < len(EDGES) else 1.0)
    assert [stage_of(d) for d in (1, 2, 3, 4, 5, 8, 9, 99)] == [0, 1, 2, 2, 3, 3, 4, 4]


def test_before_anything_is_known() -> None:
    rates = NamedRates(0.6)
    assert rates.probability("r", 1) == pytest.approx(0.6)
    assert rates.probability("r", 3, 0.85) == pytest.approx(0.85, abs=0.08)
    assert rates.mean == pytest.approx(0.6)


@pytest.mark.parametrize("truth", [0.05, 0.3, 0.7, 0.95])
def test_confidence_is_calibrated_for_all_requests(truth: float) -> None:
    rates = NamedRates()
    for request in range(20):
        teach(rates, truth, 40, f"r{request}", request, confidence=0.9)
        rates.end(f"r{request}")
    assert rates.probability("new", 1, 0.9) == pytest.approx(truth, abs=0.1)
    assert rates.mean == pytest.approx(truth, abs=0.1)


def test_an_unknown_bin_is_taken_at_its_word_while_confidence_is_good_for_something() -> None:
    good, vain = NamedRates(), NamedRates()
    for rates, truth in ((good, 0.92), (vain, 0.3)):
        for request in range(10):
            teach(rates, truth, 20, f"r{request}", request, confidence=0.92)
            teach(rates, 0.3, 20, f"r{request}", request, confidence=0.3)
            rates.end(f"r{request}")
    assert good.probability("new", 1, 0.6) == pytest.approx(0.57, abs=0.03)
    assert vain.probability("new", 1, 0.6) == pytest.approx(0.3, abs=0.06)


def test_depths_differ() -> None:
    rates = NamedRates()
    for request in range(20):
        teach(rates, 0.9, 20, f"r{request}", request, depth=1)
        teach(rates, 0.2, 20, f"r{request}", request, depth=6)
    assert rates.probability("new", 1) == pytest.approx(0.9, abs=0.1)
    assert rates.probability("new", 7) == pytest.approx(0.2, abs=0.1)


def test_a_request_of_its_own_kind() -> None:
    rates = NamedRates()
    for request in range(20):
        teach(rates, 0.8, 30, f"r{request}", request, confidence=0.8)
    teach(rates, 0.1, 25, "odd", 1, confidence=0.8)
    assert rates.probability("odd", 1, 0.8) < 0.45
    assert rates.probability("new", 1, 0.8) > rates.probability("odd", 1, 0.8) + 0.15
    rates.end("odd")
    assert rates.probability("odd", 1, 0.8) == rates.probability("new", 1, 0.8)


def test_it_follows_a_change() -> None:
    rates = NamedRates()
    teach(rates, 1.0, 100)
    assert rates.probability("r", 1) > 0.9
    teach(rates, 0.0, 16)
    assert rates.probability("r", 1) < 0.7, "a few misses after a hundred hits"
    teach(rates, 0.0, 60)
    assert rates.probability("r", 1) < 0.25


def test_pruned_nodes_count_by_their_probability() -> None:
    rates = NamedRates(0.7)
    for _ in range(30):
        rates.observe_pruned("r", 1, 0.05)
    assert rates.probability("r", 1) < 0.15
    assert rates.probability("r", 1, 0.85) > 0.8, "it says nothing about the calibration"


def test_few_misses_at_the_start_are_enough_to_doubt() -> None:
    rates = NamedRates(0.7)
    teach(rates, 0.0, 4)
    assert rates.probability("r", 1) < 0.35


def test_the_start_may_count_for_more() -> None:
    light, heavy = NamedRates(0.7), NamedRates(0.7, 8.0)
    for rates in (light, heavy):
        assert rates.probability("r", 1) == pytest.approx(0.7)
        for _ in range(3):
            rates.observe_pruned("r", 1, 0.0)
    assert light.mean == pytest.approx(1.4 / 5, abs=0.01)
    assert heavy.mean == pytest.approx(5.6 / 11, abs=0.01)


def test_a_new_text_is_only_partly_held_to_the_ones_before() -> None:
    rates = NamedRates(0.7, 8.0)
    teach(rates, 0.0, 200, confidence=0.5)
    calibrated, means = rates.probability("new", 1, 0.5), [rates.mean]
    for _ in range(25):
        rates.begin_request()
        means.append(rates.mean)
    assert means == sorted(means)
    assert means[0] < 0.1
    assert 0.35 < means[-1] < 0.7
    assert rates.probability("new", 1) > 0.2
    assert rates.probability("new", 1, 0.5) == calibrated, "what a confidence means is no matter of the text"


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
    rates = NamedRates(start)
    for request, depth, confidence, accepted in tries:
        before = rates.probability(request, depth, confidence)
        rates.observe(request, depth, confidence, accepted)
        after = rates.probability(request, depth, confidence)
        assert 0.0 < after <= MAX_PROBABILITY
        if accepted:
            assert after >= before * 0.9  # old successes fade while a new one comes
        else:
            assert after <= min(MAX_PROBABILITY, before * 1.1)
    for request in "ab":
        rates.end(request)
        for _, depth, confidence, _ in tries:
            chance = rates.probability(request, depth, confidence)
            assert chance == rates.probability("new", depth, confidence), "nothing is left of it"
            assert rates.probability(request, depth) == rates.probability("new", depth)


def test_what_is_expected_otherwise_counts_until_it_shows() -> None:
    rates = NamedRates(0.7, prior_odds=lambda request_id: 4.0 if request_id == "r" else 1.0)
    plain = NamedRates(0.7)
    for each in (rates, plain):
        teach(each, 0.7, 200, "others", confidence=0.8)
    usual, better = rates.probability("s", 1), rates.probability("r", 1)
    assert usual == plain.probability("r", 1)
    assert better / (1 - better) == pytest.approx(4 * usual / (1 - usual))
    assert rates.probability("r", 1, 0.8) == plain.probability("r", 1, 0.8), "confidence knows of it already"
    teach(rates, 0.1, 60, "r")
    assert rates.probability("r", 1) < usual
    rates.end("r")
    assert rates.probability("r", 1) > rates.probability("s", 1)


@given(
    tries=st.lists(st.tuples(st.integers(1, 9), st.floats(0.0, 1.0), st.booleans()), max_size=30),
    tree=st.lists(st.tuples(st.integers(0, 20), st.floats(0.0, 1.0)), max_size=14),
    most=st.integers(0, 16),
)
def test_the_chances_of_a_tree_are_those_of_its_nodes(
    tries: list[tuple[int, float, bool]], tree: list[tuple[int, float]], most: int
) -> None:
    rates = NamedRates(0.3)
    for depth, confidence, accepted in tries:
        rates.observe("r", depth, confidence, accepted)
    parents = [which % (i + 1) - 1 for i, (which, _) in enumerate(tree)]
    chances, paths = rates.tree_probabilities("r", parents, [confidence for _, confidence in tree], most)
    assert len(chances) == len(paths) == min(most, len(tree))
    depths: list[int] = []
    for i, (chance, path) in enumerate(zip(chances, paths, strict=True)):
        parent = parents[i]
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
        assert chance == rates.probability("r", depths[i], tree[i][1])
        assert path == (paths[parent] if parent >= 0 else 1.0) * chance


@given(
    tree=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.floats(0.0, 1.0)), max_size=14),
    emitted=st.lists(st.integers(0, 3), max_size=5),
    most=st.integers(0, 16),
)
def test_every_node_whose_parent_was_emitted_is_observed(
    tree: list[tuple[int, int, float]], emitted: list[int], most: int
) -> None:
    parents = [which % (i + 1) - 1 for i, (which, _, _) in enumerate(tree)]
    tokens, confidence = [token for _, token, _ in tree], [c for _, _, c in tree]
    whole, single = NamedRates(0.3), NamedRates(0.3)
    whole.observe_tree("r", tokens, parents, confidence, max_nodes=most, emitted=emitted)
    paths: list[list[int]] = []
    for parent, token, c in list(zip(parents, tokens, confidence, strict=True))[:most]:
        above = paths[parent] if parent >= 0 else []
        paths.append([*above, token])
        if len(above) < len(emitted) and above == emitted[: len(above)]:
            single.observe("r", len(above) + 1, c, token == emitted[len(above)])
    assert whole.evidence == single.evidence
    for c in CENTRES:
        for depth in (1, 2, 3, 5, 9):
            assert whole.probability("r", depth, c) == single.probability("r", depth, c)


@pytest.mark.parametrize(
    "parents", [[0], [-1, 1], [-1, 0, 5], [-2], [-1, -(2**80)], [-1, 2**80], [-1, 0, 1, 4]]
)
def test_a_parent_must_come_before_its_children(parents: list[int]) -> None:
    rates = NamedRates()
    with pytest.raises(ValueError, match="a parent comes before its children"):
        rates.tree_probabilities("r", parents, [0.5] * len(parents), 16)
    with pytest.raises(ValueError, match="each node has a parent and a confidence"):
        rates.tree_probabilities("r", parents, [], 16)
    with pytest.raises(ValueError, match="a parent comes before its children"):
        rates.observe_tree("r", [1] * len(parents), parents, [0.5] * len(parents), max_nodes=16, emitted=[1])
    with pytest.raises(ValueError, match="each node has a token, a parent and a confidence"):
        rates.observe_tree("r", [], parents, [0.5] * len(parents), max_nodes=16, emitted=[1])
    assert rates.evidence == 0.0
    with pytest.raises(ValueError, match="a depth is 1 or more"):
        rates.probability("r", 0, 0.5)
    assert rates.tree_probabilities("r", parents, [0.5] * len(parents), 0) == ([], [])


def test_requests_are_kept_apart_and_one_may_start_over() -> None:
    rates = NamedRates()
    for name in ("a", "b"):
        before = rates.probability("new", 1, 0.5)
        for _ in range(8):
            rates.observe(name, 1, 0.5, False)
            rates.observe("other", 1, 0.5, True)
        assert rates.probability(name, 1, 0.5) < before
        rates.end(name)
        assert rates.probability(name, 1, 0.5) == rates.probability("new", 1, 0.5)
