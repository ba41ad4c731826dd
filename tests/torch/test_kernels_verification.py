"""Verification on the device: the verdicts of the rule `coupled`, for trees of several sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.types import Draft, TargetScores, Verdict
from outrider.decoding.verifiers.coupled import CoupledVerifier
from tests.torch.kernel_support import ints, torch

from outrider.engines.torch.kernels.verification import BONUS, RECOVERED, verify  # isort: skip


class Told:
    """A sampler whose token is written in the row."""

    def token(self, logits: Any, context: TokenContext) -> int:
        return int(logits[0])


def expected(draft: Draft, sampled: Any) -> Verdict:
    scores = TargetScores(np.asarray(sampled, np.float32)[:, None])
    return CoupledVerifier().verify(draft, scores, Told(), TokenContext([1]))  # type: ignore[arg-type]


def random_draft(random: Any, size: int, tokens: int) -> Draft:
    parents = [int(random.integers(-1, i)) for i in range(size)]
    return Draft(random.integers(0, tokens, size).astype(np.int32), np.array(parents, np.int32).reshape(-1))


@pytest.mark.parametrize("width", [1, 5, 16, 33])
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_verdicts_are_those_of_the_rule(width: int, tokens: int) -> None:
    random = np.random.default_rng(width * 10 + tokens)
    sizes = [int(s) for s in random.integers(0, width + 1, 8)]
    drafts = [random_draft(random, size, tokens) for size in sizes]
    sampled = random.integers(0, tokens, sum(sizes) + len(sizes) + 3)
    first = np.cumsum([3, *(size + 1 for size in sizes[:-1])])
    drafted, parents = np.full((2, len(drafts), width), 0, np.int32)
    for i, draft in enumerate(drafts):
        drafted[i, : len(draft)], parents[i, : len(draft)] = draft.tokens, draft.parents
        parents[i, len(draft) :] = len(draft) - 1  # what must not be read as nodes
    verdicts = verify(
        *(ints(sampled), torch.zeros_like(ints(sampled)), ints(first), ints(sizes)),
        *(ints(drafted), ints(parents)),
    )
    assert verdicts.status.tolist() == [0] * len(sizes)
    for i, draft in enumerate(drafts):
        verdict = expected(draft, sampled[first[i] : first[i] + sizes[i] + 1])
        path = [node for node in verdicts.path[i].tolist() if node >= 0]
        kind = {BONUS: "bonus", RECOVERED: "recovered"}[int(verdicts.kind[i])]
        assert Verdict(tuple(path), int(verdicts.next_token[i]), kind) == verdict  # type: ignore[arg-type]
        assert int(verdicts.accepted[i]) == len(path)
        assert verdicts.packed[i, :4].tolist() == [len(path), verdict.next_token, int(verdicts.kind[i]), 0]


def test_a_row_that_is_not_sampled_ends_the_path() -> None:
    chain, parents = ints([[5, 6, 7]] * 4), ints([[-1, 0, 1]] * 4)
    status = ints([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1])
    verdicts = verify(ints([5, 6, 7, 8] * 4), status, ints([0, 4, 8, 12]), ints([3] * 4), chain, parents)
    assert verdicts.accepted.tolist() == [3, 0, 2, 3]
    assert verdicts.status.tolist() == [0, 1, 2, 1]


def test_a_token_accepted_below_another_parent_is_caught() -> None:
    """The check can fail: with the parents ignored, verdicts differ from the rule's."""
    draft = Draft(np.array([1, 2, 1], np.int32), np.array([-1, -1, 1], np.int32))
    rows = [1, 1, 3, 3]
    assert expected(draft, rows).path == (0,)
    flat = verify(
        *(ints(rows), ints([0] * 4), ints([0]), ints([3]), ints([[1, 2, 1]]), ints([[-1, -1, 0]])),
    )
    assert flat.path.tolist() == [[0, 2, -1]]
