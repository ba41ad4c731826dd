"""The C++ AcceptanceRates against its specification, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.policy import acceptance_rates as native
from tests.oracles import acceptance_rates as oracle

Call: TypeAlias = tuple[str, str, dict[str, Any]]  # a method's name, a request's, and the other arguments

REQUESTS = ("a", "b")

depths = st.integers(1, 12)
probabilities = st.floats(0.0, 1.0) | st.sampled_from(oracle.EDGES)
odds = st.none() | st.floats(0.1, 10.0)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(0, 10))
    return {
        "tokens": draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)),
        "parents": [draw(st.integers(-1, node - 1)) for node in range(size)],
        "confidence": draw(st.lists(probabilities, min_size=size, max_size=size)),
        "max_nodes": draw(st.integers(-1, 12)),
    }


@st.composite
def one_call(draw: st.DrawFn) -> Call:
    names = ["observe", "observe", "observe", "observe_tree", "observe_pruned", "begin_request"]
    name = draw(st.sampled_from(names))
    arguments: dict[str, Any] = {}
    if name == "observe_tree":
        arguments = draw(trees()) | {"emitted": draw(st.lists(st.integers(0, 3), max_size=5))}
    elif name == "observe":
        stated = draw(st.none() | probabilities)
        arguments = {"depth": draw(depths), "confidence": stated, "accepted": draw(st.booleans())}
    elif name == "observe_pruned":
        arguments = {"depth": draw(depths), "probability": draw(probabilities)}
    if arguments:
        arguments["prior_odds"] = draw(odds)
    return name, draw(st.sampled_from(REQUESTS)), arguments


class Taught:
    """Rates, and what they know of some requests."""

    def __init__(self, module: ModuleType, kind: type[Any], options: dict[str, Any]) -> None:
        self.rates = kind(**options)
        self.requests = {name: module.RequestRates() for name in (*REQUESTS, "new")}

    def call(self, name: str, request: str, arguments: dict[str, Any]) -> None:
        if name == "begin_request":
            self.rates.begin_request()
        else:
            getattr(self.rates, name)(self.requests[request], **arguments)

    def answers(self) -> list[Any]:
        """The mean, the evidence, and probabilities of every kind."""
        found = [
            self.rates.probability(request, depth, stated, prior_odds)
            for request in self.requests.values()
            for depth in (1, 2, 4, 8, 9)
            for stated, prior_odds in ((None, None), (None, 4.0), (0.0, None), (0.3, 4.0), (0.98, None))
        ]
        return [self.rates.mean, self.rates.evidence, found]

    def of_tree(self, tree: dict[str, Any]) -> list[Any]:
        without_tokens = {name: value for name, value in tree.items() if name != "tokens"}
        return [self.rates.tree_probabilities(r, **without_tokens) for r in self.requests.values()]


def outcomes(taught: Taught, sequence: Sequence[Call]) -> list[Any]:
    """The answers after each call."""
    found = [taught.answers()]
    for call in sequence:
        taught.call(*call)
        found.append(taught.answers())
    return found


@given(
    st.fixed_dictionaries(
        {"start": st.floats(0.0, 1.0), "weight": st.floats(0.1, 20.0), "decay": st.floats(0.0, 0.99)}
    ),
    st.lists(one_call(), max_size=25),
    trees(),
)
def test_every_answer_is_that_of_the_specification(
    options: dict[str, Any], sequence: list[Call], tree: dict[str, Any]
) -> None:
    found = Taught(native, native.AcceptanceRates, options)
    wanted = Taught(oracle, oracle.AcceptanceRates, options)
    assert outcomes(found, sequence) == outcomes(wanted, sequence)
    assert found.of_tree(tree) == wanted.of_tree(tree)


def test_constants_and_stages_are_those_of_the_specification() -> None:
    for name in ("EDGES", "CENTRES", "MAX_PROBABILITY", "SHARED_DECAY"):
        assert getattr(native, name) == getattr(oracle, name), name
    assert [native.stage_of(d) for d in range(1, 40)] == [oracle.stage_of(d) for d in range(1, 40)]


@pytest.mark.parametrize("module", [native, oracle])
@pytest.mark.parametrize("parents", [[0], [-2], [-1, 1], [-1, 0, 5]])
def test_the_same_trees_are_refused(module: Any, parents: list[int]) -> None:
    rates, request = module.AcceptanceRates(), module.RequestRates()
    with pytest.raises(ValueError, match="a parent comes before its children"):
        rates.tree_probabilities(request, parents, [0.5] * len(parents), 16)
    with pytest.raises(ValueError, match="each node has a parent and a confidence"):
        rates.tree_probabilities(request, [-1], [], 16)
    with pytest.raises(ValueError, match="a depth is 1 or more"):
        rates.probability(request, 0)


class FirstNodeOnly(oracle.AcceptanceRates):
    """Learns from a tree's first node only."""

    def observe_tree(
        self,
        request: oracle.RequestRates,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float],
        *,
        max_nodes: int,
        emitted: Sequence[int],
        prior_odds: float | None = None,
    ) -> None:
        most = min(max_nodes, 1)
        super().observe_tree(request, tokens, parents, confidence, max_nodes=most, emitted=emitted)


class Trusting(oracle.AcceptanceRates):
    """Trusts confidence, however badly it has predicted."""

    def observe(
        self,
        request: oracle.RequestRates,
        depth: int,
        confidence: float | None,
        accepted: float,
        prior_odds: float | None = None,
    ) -> None:
        super().observe(request, depth, confidence, accepted, prior_odds)
        self.excess_error = 0.0


class OneForAll(oracle.AcceptanceRates):
    """Treats all requests alike."""

    def probability(
        self,
        request: oracle.RequestRates,
        depth: int,
        confidence: float | None = None,
        prior_odds: float | None = None,
    ) -> float:
        return super().probability(oracle.RequestRates(), depth, confidence, prior_odds)


class WithoutDecay(oracle.AcceptanceRates):
    """Expects of a new request all that the requests before it showed."""

    def begin_request(self) -> None:
        pass


class WithoutPrior(oracle.AcceptanceRates):
    """Leaves out what is expected of a request otherwise."""

    def _expected(self, stage: int, prior_odds: float | None) -> float:
        return super()._expected(stage, None)


@pytest.mark.parametrize("twin", [FirstNodeOnly, Trusting, OneForAll, WithoutDecay, WithoutPrior])
def test_a_broken_twin_is_caught(twin: type[oracle.AcceptanceRates]) -> None:
    random = np.random.default_rng(0)
    sequence: list[Call] = []
    for _ in range(40):
        sure = float(random.random())
        node = {"depth": 1, "confidence": sure, "accepted": bool(random.random() < 0.3), "prior_odds": 2.0}
        tree = {"tokens": [1, 2, 3], "parents": [-1, -1, 1], "confidence": [sure, 0.4, 0.6]}
        sequence += [
            ("observe", "a", node),
            ("observe_tree", "b", {**tree, "max_nodes": 3, "emitted": [2, 3]}),
            ("begin_request", "a", {}),
        ]
    found = outcomes(Taught(native, native.AcceptanceRates, {}), sequence)
    assert found == outcomes(Taught(oracle, oracle.AcceptanceRates, {}), sequence)
    assert found != outcomes(Taught(oracle, twin, {}), sequence)
