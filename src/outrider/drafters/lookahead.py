"""Lookahead: what a draft model is expected to draw, so that it need not take a pass for every token.

Drafting is decoding too, and can be speculated on in the same way (cascade drafting: Chen et al. 2023,
"Cascade Speculative Drafting"). A lookup predicts what the draft model draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from outrider.decoding.context import TokenContext
from outrider.decoding.types import Draft
from outrider.policy.draft_model import DraftModelSource
from outrider.policy.request_state import RequestState
from outrider.policy.tree import ROOT, OfferedTree
from outrider.policy.tuning import DEFAULT

MAX_TOKENS = DEFAULT.lookahead_tokens

Follow: TypeAlias = Callable[[TokenContext, int], tuple[list[int], list[float]]]
"""(tokens, each one's probability given those before) that a lookup expects after a context."""


class DraftLookahead:
    """Predicts what a draft model draws for one request in one step: what `offered` has, and a new lookup
    where the draft leaves that tree. Called with the context of the node to draw from, it gives the tokens
    worth feeding.

    follow:  looks up what may come after a context.
    start:   where the draft starts.
    sharers: requests that are drafted for in the same passes.
    """

    def __init__(
        self,
        source: DraftModelSource,
        state: RequestState,
        offered: OfferedTree,
        follow: Follow,
        start: TokenContext,
        *,
        sharers: int,
    ) -> None:
        self._source, self._state, self._offered, self._follow = source, state, offered, follow
        self._start, self._sharers = start, sharers
        self._nodes, self._first = _children(offered.parents, offered.tokens)
        # Predictions: after which drawn tokens, the tokens, and the confidence in each.
        self._predicted: list[tuple[Sequence[int], list[int], list[float]]] = []

    def __call__(self, context: TokenContext) -> list[int]:
        drawn = context.path[len(self._start.path) :]
        tokens, confidence = self._in_the_tree(drawn)
        if not tokens:
            tokens, confidence = self._follow(context, MAX_TOKENS)
        state, step = self._state.models[self._source.name], self._state.step
        assert step is not None
        count = self._source.lookahead_length(state, confidence, self._sharers, step)
        self._predicted.append((drawn, tokens[:count], confidence))
        return tokens[:count]

    def _in_the_tree(self, drawn: Sequence[int]) -> tuple[list[int], list[float]]:
        """(tokens, confidence) of the offered tree's likeliest path after what was drawn."""
        offered, node = self._offered, ROOT
        tokens: list[int] = []
        confidence: list[float] = []
        for token in drawn:
            node = self._nodes.get((node, token), -2)
        while len(tokens) < MAX_TOKENS and (node := self._first.get(node, -2)) >= 0:
            tokens.append(offered.tokens[node])
            confidence.append(offered.confidence[node])
        return tokens, confidence

    def learn(self, draft: Draft) -> None:
        """Learn which predictions the draft model confirmed, as far as it drew."""
        drawn = draft.tokens.tolist()
        nodes, first = _children(draft.parents.tolist(), drawn)
        state = self._state.models[self._source.name]
        for path, tokens, confidence in self._predicted:
            at = ROOT
            for token in path:
                at = nodes[at, token]
            for rank, (token, stated) in enumerate(zip(tokens, confidence, strict=False), start=1):
                at = first.get(at, -1)
                if at < 0:
                    break
                self._source.observe_lookahead(state, rank, stated, drawn[at] == token)
                if drawn[at] != token:
                    break


def _children(
    parents: Sequence[int], tokens: Sequence[int]
) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Of a tree: (the node for each parent and token, the first and so likeliest child of each parent)."""
    nodes: dict[tuple[int, int], int] = {}
    first: dict[int, int] = {}
    for node, edge in enumerate(zip(parents, tokens, strict=True)):
        nodes[edge] = node
        first.setdefault(edge[0], node)
    return nodes, first
