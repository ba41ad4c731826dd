"""The benchmark of docs/exactness.md computes the right values, and the document has its tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.types import Draft
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from tests.statistical.test_acceptance import coupled, overlap, pair
from tests.support.benchmarks import script
from tests.support.enumeration import Branches, World, accepted, chain, distribution, enumerate_branches
from tests.support.enumeration import Path as Text
from tests.unit.decoding.test_verify_rules import worlds

ROOT = Path(__file__).resolve().parents[2]


BENCHMARK = script("acceptance")


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.1, 1.0, 3.0]), st.integers(0, 99))
def test_a_first_tokens_chances(seed: int, vocab: int, spread: float, zeros: int) -> None:
    p, q = pair(seed, vocab, spread)
    random = np.random.default_rng(zeros)
    for row in (p, q):
        row[random.random(vocab) < 0.3] = 0.0
        row[random.integers(vocab)] += 0.1
        row[:] = row / row.sum()
    found = BENCHMARK.first_token(distribution(p), distribution(q))
    assert found == pytest.approx((overlap(p, q), coupled(p, q)), abs=1e-12)


@settings(max_examples=10)
@given(worlds())
def test_a_chains_expectations_add_up_to_the_rules_own(world: World) -> None:
    def draw(branches: Branches) -> Draft:
        return chain(3)(world, branches)

    means = {"rejection": 0.0, "block": 0.0}
    for weight, draft in enumerate_branches(draw):
        texts: list[Text] = [tuple(draft.tokens[:i].tolist()) for i in range(4)]
        found = BENCHMARK.expectations(draft, [distribution(world.target[text]) for text in texts])
        for rule in means:
            means[rule] += weight * found[rule]
    assert means["rejection"] == pytest.approx(accepted(world, chain(3), RejectionVerifier), abs=1e-12)
    assert means["block"] == pytest.approx(accepted(world, chain(3), BlockVerifier), abs=1e-12)


def test_the_documents_tables_are_the_measured_ones() -> None:
    document = json.loads(BENCHMARK.RESULT.read_text("utf-8"))
    text = (ROOT / "docs" / "exactness.md").read_text("utf-8")
    assert BENCHMARK.replaced(text, BENCHMARK.rendered(document)).split() == text.split()
