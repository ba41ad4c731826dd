"""Two steps in a row, enumerated: why a draft's random numbers belong to the step and not to the token's
position.

`block` looks at the whole draft before it gives its end up. Had the second step's draft been drawn by the
numbers of what was given up, it would know something of that look, and the output's law would be off.
`rejection` never looks at what comes after the token that it rejects.
"""

from __future__ import annotations

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.types import Draft, TargetScores
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from tests.support.enumeration import Branches, Floats, Path, Rows, Rule, World, enumerate_branches, texts

VOCAB, LENGTH = 3, 3
SIZES = (2, 1)  # of the two steps' drafts


def world() -> World:
    """A draft whose probabilities depend on the position only, so that one number always draws one token."""
    random = np.random.default_rng(3)

    def row() -> Floats:
        return np.asarray(random.dirichlet(np.full(VOCAB, 0.7)) * 0.94 + 0.02, np.float64)

    depth = LENGTH + SIZES[1]
    paths, at = texts(VOCAB, depth), [row() for _ in range(depth + 1)]
    return World(VOCAB, depth, {p: row() for p in paths}, {p: at[len(p)] for p in paths})


def two_steps(world: World, rule: Rule, branches: Branches, by_position: bool) -> Path:
    """The text that two steps write; the second is left out when the first wrote LENGTH tokens."""
    noise: dict[int, int] = {}  # the token drawn at each position
    text: Path = ()
    for size in SIZES:
        if len(text) == LENGTH:
            break
        places = range(len(text), len(text) + size)
        stated = tuple(world.drafts((0,) * at) for at in places)
        for node, at in enumerate(places):
            if at not in noise or not by_position:
                noise[at] = branches.draft_token(stated[node], node)
        tokens = [noise[at] for at in places]
        rows = [world.target[(*text, *tokens[:i])] for i in range(size + 1)]
        draft, scores = Draft.chain(tokens, "test", stated), TargetScores(np.stack(rows))
        verifier = rule(randomness=lambda seed, position: branches)
        verdict = verifier.verify(draft, scores, Rows(), TokenContext([0]))  # type: ignore[arg-type]
        text = (*text, *tokens[: len(verdict.path)], verdict.next_token)
    return text


def distance(rule: Rule, by_position: bool) -> float:
    """Total variation between the first LENGTH tokens and the target's."""
    toy = world()
    found = np.zeros((VOCAB,) * LENGTH)
    for weight, text in enumerate_branches(lambda branches: two_steps(toy, rule, branches, by_position)):
        found[text[:LENGTH]] += weight * toy.joint(text, max(0, LENGTH - len(text)))
    return float(np.abs(found - toy.joint((), LENGTH)).sum() / 2)


@pytest.mark.parametrize("rule", [RejectionVerifier, BlockVerifier])
def test_numbers_of_the_step_are_exact(rule: Rule) -> None:
    assert distance(rule, by_position=False) < 1e-12


def test_numbers_of_the_position_are_not_under_block() -> None:
    assert distance(RejectionVerifier, by_position=True) < 1e-12
    assert distance(BlockVerifier, by_position=True) > 1e-3
