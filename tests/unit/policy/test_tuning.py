"""Constants of the acceptance probabilities reach the code that uses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.policy.acceptance_rates import AcceptanceRates, RequestRates
from outrider.policy.cost_model import CostModel
from outrider.policy.draft_model import DraftModelSource
from outrider.policy.lookup import LookupSource
from outrider.policy.tuning import DEFAULT, Tuning


def tuned(values: dict[str, Any]) -> Tuning:
    return replace(DEFAULT, **values)


def rates_of(name: str, tuning: Tuning) -> AcceptanceRates:
    if name == "lookup":
        return LookupSource("suffix", tuning).rates
    source = DraftModelSource("draft", CostModel({1: 0.1}), tuning=tuning)
    return {"model": source.first, "sibling": source.sibling, "lookahead": source.lookahead}[name]


def after(rates: AcceptanceRates, *outcomes: bool) -> float:
    """The probability for a request, and for a depth, after these outcomes."""
    request = RequestRates()
    for accepted in outcomes:
        rates.observe(request, 1, None, accepted)
    return rates.probability(request, 1)


@pytest.mark.parametrize("name", ["lookup", "model", "sibling", "lookahead"])
def test_starts_weights_and_the_decay(name: str) -> None:
    outcomes = [False] * 7 + [True] * 4
    found = set()
    for values in ((0.6, 3.0, 0.5), (0.5, 3.0, 0.5), (0.6, 30.0, 0.5), (0.6, 3.0, 0.9)):
        fields = zip((f"{name}_start", f"{name}_start_weight", "acceptance_decay"), values, strict=True)
        probability = after(rates_of(name, tuned(dict(fields))), *outcomes)
        assert probability == after(AcceptanceRates(*values), *outcomes)
        found.add(probability)
    assert len(found) == 4, "each of them has an effect"
