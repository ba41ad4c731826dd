"""Acceptance rules: which nodes of a draft the target keeps, and the token that it adds.

A rule is pure: it knows no model, file or clock, and gets its randomness from the request's sampler.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.sampler import Sampler
from outrider.decoding.types import Draft, TargetScores, Verdict


class Verifier(Protocol):
    """An acceptance rule.

    needs: names of EngineCaps fields that the engine must have.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        """Judge one sequence's draft. `context` ends with the anchor; `scores` has row 0 for it."""


class CoupledVerifier:
    """Accept a node when it is the very token that the target draws at its position.

    The tokens emitted are the target's own whatever was drafted; a draft only decides how many come
    from one pass. At temperature 0 this is greedy verification; an empty draft is plain decoding.
    """

    name = "coupled"
    needs: frozenset[str] = frozenset()

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        children: dict[tuple[int, int], int] = {}  # (parent, token) -> first node, parents that have any
        for node, edge in enumerate(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)):
            children.setdefault(edge, node)
        inner = {parent for parent, _ in children}
        path: list[int] = []
        at = -1
        while True:
            token = sampler.token(scores.logits[at + 1], context)
            node = children.get((at, token), -1)
            if node < 0:
                return Verdict(tuple(path), token, "recovered" if at in inner else "bonus")
            path.append(node)
            context = context.then(token)
            at = node


def check_draft(draft: Draft, vocab_size: int, budget: int, *, tree: bool) -> Draft:
    """The longest prefix of `draft` that an engine can score: at most `budget` nodes, ids inside the
    vocabulary, every parent before its child, no branches unless `tree`.

    A drafter that proposes anything else has a bug, but never one that can reach the output: what
    is cut off only makes the step shorter.
    """
    tokens, parents = draft.tokens, draft.parents
    integers = np.issubdtype(tokens.dtype, np.integer) and np.issubdtype(parents.dtype, np.integer)
    if not integers or tokens.ndim != 1 or tokens.shape != parents.shape:
        return Draft.empty(draft.source)
    node = np.arange(len(tokens))
    good = (tokens >= 0) & (tokens < vocab_size) & (parents >= -1) & (parents < node) & (node < budget)
    if not tree:
        good &= parents == node - 1
    size = len(tokens) if good.all() else int(good.argmin())
    probs = None if draft.probs is None else draft.probs[:size]
    return Draft(tokens[:size].astype(np.int32), parents[:size].astype(np.int32), probs, draft.source)
