"""Acceptance rules: which nodes of a draft the target keeps, and the token that it adds.

A rule is pure: it knows no model, file or clock, and its randomness is a function of the request's seed
and the position. This is NumPy in float64, and the specification of any faster path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft, TargetScores, Verdict
from outrider.decoding.verifiers.block import BlockVerifier
from outrider.decoding.verifiers.rejection import RejectionVerifier
from outrider.errors import ConfigError


class Verifier(Protocol):
    """An acceptance rule.

    needs:       names of EngineCaps fields that the engine must have.
    trees:       judges drafts that branch.
    draft_probs: judges by what the draft was drawn from, so a drafter that draws should do so with
                 randomness of its own and state the distributions. A drafter that states none is
                 judged rightly too, as one of point masses.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def trees(self) -> bool: ...

    @property
    def draft_probs(self) -> bool: ...

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        """Judge one sequence's draft. `context` ends with the anchor; `scores` has row 0 for it.

        Raises what the sampler raises about row 0. Of a later row that is the next step's affair, and may
        be nobody's, since the text may end before: there the verdict ends with the last accepted token.
        """


class CoupledVerifier:
    """Accept a node when it is the very token that the target draws at its position.

    The tokens emitted are the target's own whatever was drafted; a draft only decides how many come
    from one pass. At temperature 0 this is greedy verification; an empty draft is plain decoding.
    """

    name = "coupled"
    needs: frozenset[str] = frozenset()
    trees = True
    draft_probs = False

    def verify(self, draft: Draft, scores: TargetScores, sampler: Sampler, context: TokenContext) -> Verdict:
        children: dict[tuple[int, int], int] = {}  # (parent, token) -> first node, parents that have any
        for node, edge in enumerate(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)):
            children.setdefault(edge, node)
        inner = {parent for parent, _ in children}
        path: list[int] = []
        at = -1
        while True:
            try:
                token = sampler.token(scores.logits[at + 1], context)
            except Exception:
                if not path:
                    raise
                return Verdict.ending(draft, path)
            node = children.get((at, token), -1)
            if node < 0:
                return Verdict(tuple(path), token, "recovered" if at in inner else "bonus")
            path.append(node)
            context = context.then(token)
            at = node


VERIFIERS: Mapping[str, Callable[[], Verifier]] = {
    "coupled": CoupledVerifier,
    "rejection": RejectionVerifier,
    "block": BlockVerifier,
}


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...


def check_pair(verifier: Verifier, drafter: _Named) -> None:
    """Raise ConfigError when the rule cannot judge what the drafter proposes."""
    if "tree_attention" in drafter.needs and not verifier.trees:
        able = ", ".join(name for name, make in VERIFIERS.items() if make().trees)
        raise ConfigError(
            f"verification {verifier.name!r} judges chains, and the drafter {drafter.name!r} proposes trees: "
            f"choose one of {able}"
        )


def check_draft(draft: Draft, vocab_size: int, budget: int, *, tree: bool) -> Draft:
    """The longest prefix of `draft` that an engine can score: at most `budget` nodes, ids inside the
    vocabulary, every parent before its child, no branches unless `tree`.

    A drafter that proposes anything else has a bug, but never one that can reach the output: what
    is cut off only makes the step shorter. A distribution that cannot be the node's (it has ids outside
    the vocabulary, or not the token) is dropped, so that the token counts as a point mass.
    """
    tokens, parents = draft.tokens, draft.parents
    integers = tokens.dtype.kind in "iu" and parents.dtype.kind in "iu"
    if not integers or tokens.ndim != 1 or tokens.shape != parents.shape:
        return Draft.empty(draft.source)
    # (In plain integers: for a draft's few nodes, right after a pass, that is several times as fast.)
    size = 0
    for token, parent in zip(tokens[: max(0, budget)].tolist(), parents.tolist(), strict=False):
        if not (0 <= token < vocab_size and -1 <= parent < size and (tree or parent == size - 1)):
            break
        size += 1
    told = draft.sources is None or len(draft.sources) == size
    if size == len(tokens) and told and draft.probs is None and tokens.dtype == parents.dtype == np.int32:
        return draft
    probs = None
    if draft.probs is not None and len(draft.probs) == len(tokens):
        stated = zip(draft.probs[:size], tokens[:size].tolist(), strict=True)
        probs = tuple(d if d is not None and _may_be(d, token, vocab_size) else None for d, token in stated)
    sources = None if draft.sources is None or len(draft.sources) < size else draft.sources[:size]
    return Draft(
        tokens[:size].astype(np.int32), parents[:size].astype(np.int32), probs, draft.source, sources
    )


def _may_be(drawn_from: Distribution, token: int, vocab_size: int) -> bool:
    ids, probs = drawn_from
    inside = len(ids) == len(probs) > 0 and ids[0] >= 0 and ids[-1] < vocab_size
    return inside and drawn_from.of(token) > 0.0
