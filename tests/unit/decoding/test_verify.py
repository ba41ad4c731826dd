from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.logits import Row
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict
from outrider.decoding.verifiers.base import VERIFIERS, check_draft, check_pair
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.ngram import NgramDrafter
from outrider.errors import ConfigError, ModelError

VOCAB = 8
GREEDY = Sampler(SamplingParams(temperature=0.0), VOCAB)


def scores(*tokens: int) -> TargetScores:
    """A target whose greedy choice in row i is tokens[i]."""
    logits = np.zeros((len(tokens), VOCAB), np.float32)
    logits[np.arange(len(tokens)), tokens] = 1.0
    return TargetScores(logits)


def verify(draft: Draft, rows: TargetScores) -> Verdict:
    return CoupledVerifier().verify(draft, rows, GREEDY, TokenContext([0]))


def tree(*nodes: tuple[int, int]) -> Draft:
    """Nodes as (parent, token)."""
    parents, tokens = zip(*nodes, strict=True)
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, "test")


def test_an_empty_draft_is_plain_decoding() -> None:
    assert verify(Draft.empty(), scores(3)) == Verdict((), 3, "bonus")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3], Verdict((0, 1, 2), 4, "bonus")),
        ([1, 2, 5], Verdict((0, 1), 3, "recovered")),
        ([7, 2, 3], Verdict((), 1, "recovered")),
    ],
)
def test_a_chain_is_kept_as_far_as_the_target_agrees(tokens: list[int], expected: Verdict) -> None:
    assert verify(Draft.chain(tokens, "test"), scores(1, 2, 3, 4)) == expected


def test_a_tree_is_walked_by_its_own_rows() -> None:
    draft = tree((-1, 5), (-1, 1), (0, 2), (1, 3), (1, 2), (4, 6))
    assert verify(draft, scores(1, 0, 2, 0, 0, 6, 4)) == Verdict((1, 4, 5), 4, "bonus")
    assert verify(draft, scores(5, 7, 0, 0, 0, 0, 0)) == Verdict((0,), 7, "recovered")
    assert verify(draft, scores(4, 0, 0, 0, 0, 0, 0)) == Verdict((), 4, "recovered")


def test_of_equal_siblings_the_first_counts() -> None:
    draft = tree((-1, 1), (-1, 1), (1, 2), (0, 3))
    assert verify(draft, scores(1, 3, 2, 0, 6)) == Verdict((0, 3), 6, "bonus")


class Recording(Sampler):
    """Notes at which positions it was asked."""

    def __init__(self) -> None:
        super().__init__(SamplingParams(temperature=0.0), VOCAB)
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def token(self, logits: object, context: TokenContext) -> int:
        self.asked.append((context.position, context.path))
        return super().token(logits, context)  # type: ignore[arg-type]


def test_only_rows_on_the_path_are_sampled_each_in_its_own_context() -> None:
    sampler = Recording()
    draft = tree((-1, 1), (-1, 2), (1, 3), (2, 4))
    CoupledVerifier().verify(draft, scores(2, 0, 3, 7, 0), sampler, TokenContext([9, 9]))
    assert sampler.asked == [(2, ()), (3, (2,)), (4, (2, 3))]


@given(
    st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, VOCAB + 3)), max_size=9),
    st.integers(0, 10),
    st.booleans(),
)
def test_check_draft_keeps_the_longest_sound_prefix(
    nodes: list[tuple[int, int]], budget: int, branches: bool
) -> None:
    draft = tree(*nodes) if nodes else Draft.empty("test")
    probs = tuple(Distribution.point(token) for _, token in nodes)
    draft = Draft(draft.tokens, draft.parents, probs, "test")

    def sound(i: int) -> bool:
        parent, token = nodes[i]
        return 0 <= token < VOCAB and -1 <= parent < i and i < budget and (branches or parent == i - 1)

    size = next((i for i in range(len(nodes)) if not sound(i)), len(nodes))
    checked = check_draft(draft, VOCAB, budget, tree=branches)
    assert checked.tokens.tolist() == [token for _, token in nodes[:size]]
    assert checked.parents.tolist() == [parent for parent, _ in nodes[:size]]
    assert checked.probs is not None
    assert [d and d.ids.tolist() for d in checked.probs] == [[token] for _, token in nodes[:size]]
    assert checked.source == "test"


def test_check_draft_drops_arrays_that_do_not_fit_each_other() -> None:
    odd = Draft(np.zeros(3, np.int32), np.full(2, -1, np.int32), None, "odd")
    flat = Draft(np.zeros((2, 2), np.int32), np.zeros((2, 2), np.int32), None, "odd")
    assert len(check_draft(odd, VOCAB, 9, tree=True)) == 0
    assert len(check_draft(flat, VOCAB, 9, tree=True)) == 0


def test_check_draft_makes_the_types_right() -> None:
    wide = Draft(np.array([1, 2]), np.array([-1, 0]), None, "wide")
    checked = check_draft(wide, VOCAB, 9, tree=False)
    assert [checked.tokens.dtype, checked.parents.dtype] == [np.dtype(np.int32)] * 2
    assert checked.tokens.tolist() == [1, 2]
    real = Draft(np.array([1.0, 2.5]), np.array([-1, 0]), None, "real")
    assert len(check_draft(real, VOCAB, 9, tree=False)) == 0


def test_check_draft_drops_distributions_that_cannot_be_the_nodes() -> None:
    def of(*ids: int) -> Distribution:
        return Distribution(np.array(ids), np.full(len(ids), 1 / max(1, len(ids))))

    lone = Distribution(np.array([1, 2]), np.array([0.0, 1.0]))
    uneven = Distribution(np.array([1, 2]), np.array([1.0]))
    stated = (of(0, 1), None, of(-1, 1), of(1, VOCAB), of(2, 3), of(), lone, uneven)
    checked = check_draft(Draft.chain([1] * 8, "test", stated), VOCAB, 9, tree=False)
    assert checked.probs == (stated[0], *[None] * 7)
    assert checked.distribution(0) is stated[0]
    assert checked.distribution(3) == Distribution.point(1)
    assert check_draft(Draft.chain([1, 1], "test", stated), VOCAB, 9, tree=False).probs is None


class Fails(Sampler):
    """Cannot say anything about what follows a 2, as about what follows the end of a text."""

    def token(self, logits: Row, context: TokenContext) -> int:
        self._look(context)
        return super().token(logits, context)

    def distribution(self, logits: Row, context: TokenContext) -> Distribution:
        self._look(context)
        return super().distribution(logits, context)

    def _look(self, context: TokenContext) -> None:
        if (*context.tokens, *context.path)[-1] == 2:
            raise ModelError("nothing follows 2")


@pytest.mark.parametrize("name", VERIFIERS)
def test_an_error_after_an_accepted_token_is_left_to_the_next_step(name: str) -> None:
    sampler, verifier = Fails(SamplingParams(temperature=0.0), VOCAB), VERIFIERS[name]()

    def found(tokens: list[int], rows: TargetScores, anchor: int = 0) -> Verdict:
        return verifier.verify(Draft.chain(tokens, "test"), rows, sampler, TokenContext([anchor]))

    assert found([1, 2, 3], scores(1, 2, 3, 4)) == Verdict((0,), 2, "recovered")
    assert found([2, 2, 3], scores(2, 2, 3, 4)) == Verdict((), 2, "recovered")
    assert found([1, 4, 2], scores(1, 5, 2, 0)) == Verdict((0,), 5, "recovered")  # it was not looked at
    with pytest.raises(ModelError, match="nothing follows 2"):
        found([1, 2, 3], scores(1, 2, 3, 4), anchor=2)


class Trees:
    name = "trees"
    needs = frozenset({"tree_attention"})


def test_a_rule_for_chains_is_not_paired_with_trees() -> None:
    for name, make in VERIFIERS.items():
        check_pair(make(), NgramDrafter())
        if name == "block":
            with pytest.raises(ConfigError, match=r"'block' judges chains.*'trees'.*coupled, rejection"):
                check_pair(make(), Trees())
        else:
            check_pair(make(), Trees())


@given(
    st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 3)), max_size=8), st.integers(0, 99), st.booleans()
)
def test_at_temperature_0_every_rule_keeps_what_is_greedy(
    nodes: list[tuple[int, int]], seed: int, stated: bool
) -> None:
    draft = (
        tree(*((min(parent, i - 1), token) for i, (parent, token) in enumerate(nodes)))
        if nodes
        else Draft.empty()
    )
    even = Distribution(np.arange(4), np.full(4, 0.25))
    draft = Draft(draft.tokens, draft.parents, (even,) * len(draft) if stated else None, "test")
    line = Draft.chain(draft.tokens, "test", draft.probs)
    rows = scores(*np.random.default_rng(seed).integers(0, 4, len(nodes) + 1).tolist())
    for make in VERIFIERS.values():
        verifier = make()
        for judged in (line, draft) if verifier.trees else (line,):
            expected = verify(judged, rows)
            assert verifier.verify(judged, rows, GREEDY, TokenContext([0])) == expected
