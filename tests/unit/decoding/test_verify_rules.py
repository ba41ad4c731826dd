"""`rejection` and `block`, enumerated: the output has the target's distribution, and a broken rule's has
not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict
from outrider.decoding.verifiers import block as verify_block
from outrider.decoding.verifiers import rejection as verify_rejection
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.distributions import positive_excess, ratio, residual, siblings
from outrider.decoding.verifiers.rejection import RejectionVerifier
from tests.support.enumeration import (
    Branches,
    Floats,
    Propose,
    Rule,
    World,
    accepted,
    chain,
    distance,
    error,
    half_stated,
    likeliest,
    texts,
    tree,
    unstated,
    with_replacement,
)

RULES: list[Rule] = [RejectionVerifier, BlockVerifier]
CHAINS: dict[str, Propose] = {
    "nothing": chain(0),
    "one": chain(1),
    "two": chain(2),
    "three": chain(3),
    "point masses": unstated(chain(3)),
    "half stated": half_stated(chain(3)),
}
TREES: dict[str, Propose] = {
    "wide": tree([3]),
    "binary": tree([2, 2]),
    "late": tree([1, 3]),
    "early": tree([2, 1]),
    "with replacement": tree([3, 1], with_replacement),
    "likeliest": tree([2, 2], likeliest),
    "unstated": unstated(tree([2, 2])),
    "half stated": half_stated(tree([2, 1])),
}
WEIGHTS = st.sampled_from([0.0, 1e-9, 0.1, 1.0, 1.0, 2.0, 7.0])


@st.composite
def worlds(draw: st.DrawFn, vocab: int = 3, depth: int = 3) -> World:
    """Random tables with zeros and ties; sometimes a draft that is the target, wholly or in places."""

    def row() -> Floats:
        weights = np.array(draw(st.lists(WEIGHTS, min_size=vocab, max_size=vocab).filter(any)))
        return np.asarray(weights / weights.sum(), np.float64)

    paths = texts(vocab, depth)
    pool = [row() for _ in range(6)]
    target = {path: pool[draw(st.integers(0, 5))] for path in paths}
    same = draw(st.booleans())
    draft = {
        path: target[path] if same and draw(st.booleans()) else pool[draw(st.integers(0, 5))]
        for path in paths
    }
    return World(vocab, depth, target, draft)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=8)
@given(world=worlds())
def test_after_a_chain_the_output_has_the_targets_law(rule: Rule, name: str, world: World) -> None:
    assert error(world, CHAINS[name], rule) < 1e-12


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", TREES)
@settings(max_examples=8)
@given(world=worlds(depth=2))
def test_after_a_tree_too(name: str, world: World) -> None:
    assert error(world, TREES[name], RejectionVerifier) < 1e-12


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=30)
@given(world=worlds(depth=2), data=st.data())
def test_a_draft_that_differs_by_rounding_only_is_no_trouble(
    rule: Rule, world: World, data: st.DataObject
) -> None:
    steps = st.lists(st.integers(-3, 3), min_size=3, max_size=3)
    draft = {path: row * (1.0 + np.array(data.draw(steps)) * 2.0**-53) for path, row in world.target.items()}
    near = World(3, 2, world.target, draft)
    assert error(near, chain(2), rule) < 1e-12
    assert accepted(near, chain(2), rule) == pytest.approx(2.0)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=8)
@given(world=worlds(depth=2))
def test_the_step_ends_where_the_target_has_no_distribution(rule: Rule, world: World) -> None:
    cut = World(world.vocab, world.depth, world.target, world.draft, end_tokens=(1,))
    assert error(cut, chain(2), rule) < 1e-12
    assert error(cut, unstated(chain(2)), rule) < 1e-12
    if rule is RejectionVerifier:
        assert error(cut, tree([2, 1]), rule) < 1e-12


@settings(max_examples=8)
@given(world=worlds(depth=2))
def test_block_judges_the_chain_that_a_tree_begins_with(world: World) -> None:
    assert error(world, tree([2, 2]), BlockVerifier) < 1e-12
    early = tree([1, 1, 2][:2])
    assert accepted(world, early, BlockVerifier) == pytest.approx(accepted(world, chain(2), BlockVerifier))


@settings(max_examples=40)
@given(world=worlds())
def test_block_keeps_at_least_what_rejection_keeps(world: World) -> None:
    for length in (1, 2, 3):
        block = accepted(world, chain(length), BlockVerifier)
        rejection = accepted(world, chain(length), RejectionVerifier)
        assert block >= rejection - 1e-12
        if length == 1:  # where the two are the same rule
            assert block == pytest.approx(rejection, abs=1e-12)
            overlap = np.minimum(world.target[()], world.draft[()]).sum()
            assert rejection == pytest.approx(overlap, abs=1e-12)


@settings(max_examples=20)
@given(world=worlds(depth=1))
def test_more_candidates_are_accepted_more_often(world: World) -> None:
    for kind in (siblings, with_replacement, likeliest):
        kept = [accepted(world, tree([count], kind), RejectionVerifier) for count in (1, 2, 3)]
        assert kept[0] <= kept[1] + 1e-12
        assert kept[1] <= kept[2] + 1e-12
    best = np.argsort(-world.draft[()], kind="stable")[: np.count_nonzero(world.draft[()])][:2]
    two = accepted(world, tree([2], likeliest), RejectionVerifier)
    assert two == pytest.approx(world.target[()][best].sum(), abs=1e-12)


def test_block_can_keep_more() -> None:
    """The paper's example: two tokens, contexts alike; block keeps 11/9 of a draft of two, rejection 10/9."""
    target = dict.fromkeys(texts(2, 2), np.array([1 / 3, 2 / 3]))
    draft = dict.fromkeys(texts(2, 2), np.array([2 / 3, 1 / 3]))
    world = World(2, 2, target, draft)
    assert accepted(world, chain(2), RejectionVerifier) == pytest.approx(10 / 9)
    assert accepted(world, chain(2), BlockVerifier) == pytest.approx(11 / 9)


# --- Broken twins: each must be far from the target's law on the same worlds -----------------------------


def twisted_world(depth: int) -> World:
    """Target and draft that differ everywhere, and never have a zero."""
    random = np.random.default_rng(5)

    def row() -> Floats:
        weights = random.dirichlet(np.full(3, 1.5)) + 0.05
        return np.asarray(weights / weights.sum(), np.float64)

    paths = texts(3, depth)
    return World(3, depth, {p: row() for p in paths}, {p: row() for p in paths})


FAR = 1e-4  # total-variation distance; rounding's is below 1e-12
CHAIN_WORLD, TREE_WORLD = twisted_world(3), twisted_world(2)
Patch = Callable[[pytest.MonkeyPatch], None]
MODULES: dict[Rule, Any] = {RejectionVerifier: verify_rejection, BlockVerifier: verify_block}


def clamp_free(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    """The residual without max(0): differences of either sign, as they come."""
    left = np.abs([scale * p - draft.of(int(i)) for i, p in zip(*target, strict=True)])
    return Distribution(target.ids, left / left.sum())


def not_normalised(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    left = positive_excess(target, draft, scale)
    return Distribution(target.ids, left) if left.any() else target


def not_scaled(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    return residual(target, draft)


def none_taken(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution:
    return target


def inverted(target: Distribution, draft: Distribution, token: int) -> float:
    return 1.0 / max(1e-9, ratio(target, draft, token))


class Late:
    """Gives each answer one call later: a recursion that is off by one."""

    def __init__(self, function: Callable[..., float], first: float) -> None:
        self._function, self._next = function, first

    def __call__(self, *arguments: Any) -> float:
        now, self._next = self._next, self._function(*arguments)
        return now


def accepts_always(self: Branches, probability: float, node: int) -> bool:
    return True


def test_the_twins_worlds_are_fair() -> None:
    for rule in RULES:
        assert error(CHAIN_WORLD, chain(3), rule) < 1e-12
    for propose in TREES.values():
        assert error(TREE_WORLD, propose, RejectionVerifier) < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("ratio", inverted),
        ("residual", clamp_free),
        ("residual", none_taken),
    ],
    ids=["p / q inverted", "no max(0)", "recovered from the target"],
)
def test_a_broken_chain_is_caught(
    rule: Rule, name: str, twin: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULES[rule], name, twin)
    assert distance(CHAIN_WORLD, chain(3), rule) > FAR


@pytest.mark.parametrize("rule", RULES)
def test_accepting_always_is_caught(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Branches, "accepts", accepts_always)
    assert distance(CHAIN_WORLD, chain(3), rule) > FAR


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("residual", not_normalised),
        ("residual", none_taken),
        ("residual", clamp_free),
        ("ratio", inverted),
    ],
    ids=["not normalised", "left as it was", "no max(0)", "p / q inverted"],
)
def test_a_broken_tree_is_caught(name: str, twin: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_rejection, name, twin)
    assert distance(TREE_WORLD, tree([2, 2]), RejectionVerifier) > FAR


def keeps_the_sibling(
    q: Distribution, count: int, randomness: StepRandomness, first: int
) -> tuple[list[int], list[Distribution]]:
    """Draws without replacement and states that it was with."""
    tokens, _ = siblings(q, count, randomness, first)
    return tokens, [q] * len(tokens)


def drops_by_token(
    q: Distribution, count: int, randomness: StepRandomness, first: int
) -> tuple[list[int], list[Distribution]]:
    """Leaves a node out by a look at its token, and states the others' distributions all the same."""
    tokens, stated = siblings(q, count, randomness, first)
    kept = [i for i, token in enumerate(tokens) if token != 1]
    return [tokens[i] for i in kept], [stated[i] for i in kept]


@pytest.mark.parametrize("kind", [keeps_the_sibling, drops_by_token])
def test_a_draft_that_states_what_is_not_true_is_caught(kind: Any) -> None:
    assert distance(TREE_WORLD, tree([2, 2], kind), RejectionVerifier) > FAR
    assert (
        error(TREE_WORLD, unstated(tree([2, 2], kind)), RejectionVerifier) < 1e-12
    )  # silence is always true


class DropsTheDraft(RejectionVerifier):
    """Where it fails after an accepted token, starts again without the draft."""

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        verdict = super().verify(draft, scores, sampler, context)
        if verdict.next_kind == "recovered" and draft.tokens[len(verdict.path)] == verdict.next_token:
            randomness = self._randomness(sampler.seed, context.position)
            return Verdict(
                (), randomness.next_token(sampler.distribution(scores.logits[0], context)), "recovered"
            )
        return verdict


class BonusFromTheDraft(RejectionVerifier):
    """Draws the token after a whole draft from the distribution of the last node."""

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        rows = scores.logits.copy()
        last = draft.distribution(len(draft) - 1)
        rows[-1] = 0.0
        rows[-1, last.ids] = last.probs
        return super().verify(draft, TargetScores(rows), sampler, context)


class TakesTheLaterSiblingFirst(RejectionVerifier):
    """Judges siblings in the other order than they were drawn in."""

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        order = np.arange(len(draft)) ^ 1  # twins lie side by side
        probs = tuple(draft.distribution(int(i)) for i in order)
        turned = Draft(draft.tokens[order], draft.parents, probs, draft.source)
        rows = scores.logits[[0, *(order + 1)]]
        return super().verify(turned, TargetScores(rows), sampler, context)


def test_a_bonus_from_the_draft_is_caught() -> None:
    assert distance(CHAIN_WORLD, chain(3), BonusFromTheDraft) > FAR


def test_dropping_a_draft_that_leads_nowhere_is_caught() -> None:
    cut = World(3, 2, TREE_WORLD.target, TREE_WORLD.draft, end_tokens=(1,))
    assert error(cut, chain(2), RejectionVerifier) < 1e-12
    assert distance(cut, chain(2), DropsTheDraft) > FAR


def test_siblings_in_the_wrong_order_are_caught() -> None:
    assert distance(TREE_WORLD, tree([2]), TakesTheLaterSiblingFirst) > FAR


def weight_of_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips the ratios instead of their product."""
    monkeypatch.setattr(verify_block, "ratio", lambda *arguments: min(ratio(*arguments), 1.0))


def weight_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_block, "ratio", Late(ratio, 1.0))


def residual_unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_block, "residual", not_scaled)


def share_unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        verify_block, "positive_excess", lambda target, draft, scale: positive_excess(target, draft)
    )


def one_refusal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused prefix refuses all shorter ones."""
    accepts = Branches.accepts
    refused: set[Branches] = set()

    def once(self: Branches, probability: float, node: int) -> bool:
        if self in refused or not accepts(self, probability, node):
            refused.add(self)
        return self not in refused

    monkeypatch.setattr(Branches, "accepts", once)


@pytest.mark.parametrize(
    "breaks", [weight_of_rejection, weight_late, residual_unscaled, share_unscaled, one_refusal_ends]
)
def test_a_broken_block_is_caught(breaks: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch)
    assert distance(CHAIN_WORLD, chain(3), BlockVerifier) > FAR
