"""Enumerated probabilities sum to 1, the rules are exact, and every classic mistake is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.types import Distribution
from outrider.decoding.verifiers import block as verify_block
from outrider.decoding.verifiers import rejection as verify_rejection
from outrider.verify import enumeration
from outrider.verify.enumeration import RULES, Script, ScriptedRandomness, Table, enumerate_outcomes


@pytest.fixture(autouse=True)
def _few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "TABLES", 6)


def silent(_: str) -> None:
    pass


def test_every_way_is_gone_once_with_its_probability() -> None:
    def run(script: Script) -> tuple[int, ...]:
        first = script.choose([0.5, 0.0, 0.5])
        return (first, script.choose([0.25, 0.75])) if first else (first,)

    ways = {result: probability for probability, result in enumerate_outcomes(run)}
    assert ways == {(0,): 0.5, (2, 0): 0.125, (2, 1): 0.375}


@pytest.mark.parametrize("name", RULES)
def test_the_rules_are_exact(name: str) -> None:
    claim = enumeration.check(name, silent)
    assert claim.held, claim.detail
    assert claim.claim == "distribution"
    assert claim.cases > 500
    assert ("tree" in claim.detail) == (name == "rejection")


def test_tables_have_zeros_and_choices() -> None:
    rows = np.array([Table(seed).logits((1,)) for seed in range(40)])
    assert np.isneginf(rows).any()
    assert (np.isfinite(rows).sum(axis=1) >= 1).all()
    assert (np.isfinite(rows).sum(axis=1) > 1).any()
    distribution = Table(3).distribution((2,))
    assert distribution.probs.sum() == pytest.approx(1.0)


def accepts_too_often(target: Distribution, draft: Distribution, token: int) -> float:
    return 1.1 * target.of(token) / draft.of(token)


def accepts_whatever_is_likely(target: Distribution, draft: Distribution, token: int) -> float:
    return 1.0 if target.of(token) > 0.3 else 0.0


def takes_the_target_again(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    return target


def takes_the_difference(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    """|p - q| in the place of max(p - q, 0)."""
    left = np.abs(scale * target.probs - [draft.of(int(i)) for i in target.ids])
    return Distribution(target.ids, left / left.sum()) if left.sum() > 0 else target


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("ratio", accepts_too_often),
        ("ratio", accepts_whatever_is_likely),
        ("residual", takes_the_target_again),
        ("residual", takes_the_difference),
    ],
)
def test_a_broken_rule_is_caught(
    name: str, part: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = verify_rejection if name == "rejection" else verify_block
    monkeypatch.setattr(module, part, broken)
    claim = enumeration.check(name, silent)
    assert not claim.held
    assert "off by" in claim.detail


def test_one_number_for_two_decisions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(self: ScriptedRandomness, probability: float, node: int) -> bool:
        return right(self, probability, 0)

    right = ScriptedRandomness.accepts
    monkeypatch.setattr(ScriptedRandomness, "accepts", same)
    claim = enumeration.check("rejection", silent)
    assert not claim.held
    assert "two decisions" in claim.detail


def test_randomness_past_the_script_is_refused() -> None:
    randomness: StepRandomness = ScriptedRandomness(Script([]))
    with pytest.raises(ValueError, match="no script"):
        randomness.uniform(3, 0)
