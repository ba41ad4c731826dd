"""The C++ Acceptance against its specification, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy import acceptance_rates as estimate
from outrider.policy.acceptance_rates import Acceptance
from tests.oracles import acceptance as oracle

Call: TypeAlias = tuple[str, dict[str, Any]]  # a method's name and its arguments

REQUESTS = ("a", "b")
PRIORS = {"a": 4.0, "b": 0.5}

requests = st.sampled_from(REQUESTS)
depths = st.integers(1, 12)
probabilities = st.floats(0.0, 1.0) | st.sampled_from(oracle.EDGES)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(0, 10))
    return {
        "tokens": draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)),
        "parents": [draw(st.integers(-1, node - 1)) for node in range(size)],
        "confidence": draw(st.lists(probabilities, min_size=size, max_size=size)),
        "most": draw(st.integers(-1, 12)),
    }


@st.composite
def one_call(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from(["learn", "learn", "learn", "learn_tree", "suppose", "begin", "forget"]))
    if name == "begin":
        return name, {}
    arguments: dict[str, Any] = {"request_id": draw(requests)}
    if name == "learn_tree":
        arguments |= draw(trees()) | {"emitted": draw(st.lists(st.integers(0, 3), max_size=5))}
    elif name == "learn":
        stated = draw(st.none() | probabilities)
        arguments |= {"depth": draw(depths), "confidence": stated, "accepted": draw(st.booleans())}
    elif name == "suppose":
        arguments |= {"depth": draw(depths), "chance": draw(probabilities)}
    return name, arguments


def outcomes(kind: type[Any], options: dict[str, Any], sequence: Sequence[Call]) -> list[Any]:
    """Every chance after each call, the mean and the evidence."""
    acceptance = kind(**options)
    found: list[Any] = []
    for name, arguments in [("begin", {}), *sequence]:
        getattr(acceptance, name)(**arguments)
        chances = [
            acceptance.chance(request, depth, stated)
            for request in (*REQUESTS, "new")
            for depth in (1, 2, 4, 8, 9)
            for stated in (None, 0.0, 0.3, 0.98)
        ]
        found += [acceptance.mean, acceptance.evidence, chances]
    return found


@given(
    st.fixed_dictionaries(
        {
            "start": st.floats(0.0, 1.0),
            "weight": st.floats(0.1, 20.0),
            "prior": st.sampled_from([None, lambda request_id: PRIORS.get(request_id, 1.0)]),
            "memory": st.floats(0.0, 0.99),
        }
    ),
    st.lists(one_call(), max_size=25),
    trees(),
)
def test_every_answer_is_that_of_the_specification(
    options: dict[str, Any], sequence: list[Call], tree: dict[str, Any]
) -> None:
    assert outcomes(Acceptance, options, sequence) == outcomes(oracle.Acceptance, options, sequence)
    del tree["tokens"]
    taught = []
    for kind in (Acceptance, oracle.Acceptance):
        acceptance: Any = kind(**options)
        for name, arguments in sequence:
            getattr(acceptance, name)(**arguments)
        taught.append([acceptance.chances(request, **tree) for request in REQUESTS])
    assert taught[0] == taught[1]


def test_constants_and_stages_are_those_of_the_specification() -> None:
    assert (estimate.EDGES, estimate.CENTRES, estimate.MOST, estimate.SHARED_MEMORY) == (
        oracle.EDGES,
        oracle.CENTRES,
        oracle.MAX_CHANCE,
        oracle.SHARED_DECAY,
    )
    assert [estimate.stage_of(d) for d in range(1, 40)] == [oracle.stage_of(d) for d in range(1, 40)]


@pytest.mark.parametrize("parents", [[0], [-2], [-1, 1], [-1, 0, 5]])
def test_the_same_trees_are_refused(parents: list[int]) -> None:
    for kind in (Acceptance, oracle.Acceptance):
        with pytest.raises(ValueError, match="a parent comes before its children"):
            kind().chances("a", parents, [0.5] * len(parents), 16)
        with pytest.raises(ValueError, match="each node has a parent and a confidence"):
            kind().chances("a", [-1], [], 16)
        with pytest.raises(ValueError, match="a depth is 1 or more"):
            kind().chance("a", 0)


class VerifiedOnly(oracle.Acceptance):
    """Learns from a tree only along the text, as verification alone would show it."""

    def learn_tree(
        self,
        request_id: str,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float],
        *,
        most: int,
        emitted: Sequence[int],
    ) -> None:
        super().learn_tree(
            request_id, tokens[:1], parents[:1], confidence[:1], most=min(most, 1), emitted=emitted
        )


class Trusting(oracle.Acceptance):
    """Trusts confidence, however badly it has predicted."""

    def learn(self, request_id: str, depth: int, confidence: float | None, accepted: float) -> None:
        super().learn(request_id, depth, confidence, accepted)
        self.excess_error = 0.0


class OneForAll(oracle.Acceptance):
    """Treats all requests alike."""

    def chance(self, request_id: str, depth: int, confidence: float | None = None) -> float:
        return super().chance("new", depth, confidence)


class Unforgetting(oracle.Acceptance):
    """Holds a new text to what the texts before it showed."""

    def begin(self) -> None:
        pass


@pytest.mark.parametrize("twin", [VerifiedOnly, Trusting, OneForAll, Unforgetting])
def test_a_broken_twin_is_caught(twin: type[oracle.Acceptance]) -> None:
    random = np.random.default_rng(0)
    sequence: list[Call] = []
    for _ in range(40):
        sure = float(random.random())
        node = {"request_id": "a", "depth": 1, "confidence": sure, "accepted": bool(random.random() < 0.3)}
        tree = {"tokens": [1, 2, 3], "parents": [-1, -1, 1], "confidence": [sure, 0.4, 0.6]}
        sequence += [
            ("learn", node),
            ("learn_tree", {"request_id": "b", **tree, "most": 3, "emitted": [2, 3]}),
            ("begin", {}),
        ]
    options: dict[str, Any] = {"start": 0.7, "prior": lambda request_id: PRIORS.get(request_id, 1.0)}
    assert outcomes(Acceptance, options, sequence) == outcomes(oracle.Acceptance, options, sequence)
    assert outcomes(Acceptance, options, sequence) != outcomes(twin, options, sequence)
