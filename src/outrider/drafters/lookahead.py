"""What a draft model is expected to draw, so that it need not take a pass for every token.

Drafting is decoding too, and can be speculated on in the same way (cascades of drafts: Chen et al. 2023,
"Cascade Speculative Drafting"): a lookup foretells what the draft model draws, and the rest of its last draft
does, where the target put another token in its place and the text goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.decoding.context import TokenContext
from outrider.decoding.types import Draft
from outrider.drafters.suffix import SuffixDrafter
from outrider.policy.auto import AutoController
from outrider.policy.tree import DraftQuery

MOST = 7  # tokens that are foretold at a time
OF_A_REST = 0.3  # confidence in the rest of a draft, for a calibration to correct
SURE = 0.3  # chance of a path down to which a lookup is taken to be drafted from
SHIFTS = (0, 1, -1, 2, -2)  # tokens by which the text may have fallen behind a draft, or overtaken it


@dataclass(frozen=True, slots=True, eq=False)
class LastDraft:
    """A draft's likeliest row: its tokens, and the index that the first would have in the text."""

    start: int
    tokens: list[int]

    def after(self, context: TokenContext) -> list[int]:
        """What may follow the context: the row from behind the context's last token on, if that is about
        there in it; behind the text itself, whatever it has in the place of the row's tokens."""
        at = context.position - self.start
        last = context.path[-1] if context.path else context.tokens[-1]
        for shift in SHIFTS:
            if 0 < at + shift <= len(self.tokens) and self.tokens[at + shift - 1] == last:
                at += shift
                break
        else:
            if context.path:
                return []
        return self.tokens[at : at + MOST] if at > 0 else []


class DraftLookahead:
    """What lookups expect the draft model to draw for one request.

    That is what `ask.lookup` has behind the node `after`, and where the draft leaves its tree, a lookup anew;
    where lookups find nothing of use, the rest of the last draft.
    start:   where the draft starts.
    sharers: requests that are drafted for in the same passes.
    """

    def __init__(
        self,
        controller: AutoController,
        drafter: SuffixDrafter,
        ask: DraftQuery,
        start: TokenContext,
        after: int = -1,
        *,
        rest: LastDraft | None,
        sharers: int,
    ) -> None:
        self._controller, self._drafter, self._ask = controller, drafter, ask
        self._rest, self._sharers = rest, sharers
        self._start, self._after = start, after
        tree = ([], []) if ask.lookup is None else (ask.lookup.parents, ask.lookup.tokens)
        self._below, self._first = _children(*tree)
        # What was foretold behind which part of the draft, and how surely.
        self._told: list[tuple[Sequence[int], list[int], list[float]]] = []
        self._looked: list[tuple[list[int], list[int]]] = []  # what lookups anew were sure of, behind what

    def __call__(self, context: TokenContext) -> list[int]:
        drawn = context.path[len(self._start.path) :]
        tokens, chances = self._in_the_tree(drawn)
        if not tokens:
            tokens, chances = self._drafter.likely_path(self._ask.request_id, context, MOST)
            self._looked.append((list(drawn), _sure(tokens, chances)))
        if self._rest is not None and (not tokens or chances[0] < OF_A_REST):
            rest = self._rest.after(context)
            tokens, chances = (rest, [OF_A_REST] * len(rest)) if rest else (tokens, chances)
        count = self._controller.foretell(self._ask.request_id, chances, self._sharers)
        self._told.append((drawn, tokens[:count], chances))
        return tokens[:count]

    def _in_the_tree(self, drawn: Sequence[int]) -> tuple[list[int], list[float]]:
        """The likeliest path of the lookup behind what was drawn."""
        lookup, node = self._ask.lookup, self._after
        tokens: list[int] = []
        chances: list[float] = []
        for token in drawn:
            node = self._below.get((node, token), -2)
        while lookup is not None and len(tokens) < MOST and (node := self._first.get(node, -2)) >= 0:
            tokens.append(lookup.tokens[node])
            chances.append(lookup.confidence[node])
        return tokens, chances

    def learn(self, draft: Draft) -> LastDraft:
        """Tell the controller how often the model drew what was foretold, as far as it drew. Returns the
        draft's likeliest row."""
        drawn = draft.tokens.tolist()
        below, first = _children(draft.parents.tolist(), drawn)
        for path, tokens, chances in self._told:
            at = -1
            for token in path:
                at = below[at, token]
            for rank, (token, chance) in enumerate(zip(tokens, chances, strict=False), start=1):
                at = first.get(at, -1)
                if at < 0:
                    break
                self._controller.foretold(self._ask.request_id, rank, chance, drawn[at] == token)
                if drawn[at] != token:
                    break
        row: list[int] = []
        at = first.get(-1, -1)
        while at >= 0:
            row.append(drawn[at])
            at = first.get(at, -1)
        return LastDraft(self._start.position, row)

    def covered(self, row: list[int]) -> int:
        """How many tokens of a draft's row a lookup would have drafted on its own, had the text come as far
        as to those before them; what `ask.lookup` has from the start is left out."""
        known: set[int] = set()
        for path, tokens in self._looked:
            if path == row[: len(path)]:
                for i, pair in enumerate(zip(row[len(path) :], tokens, strict=False), start=len(path)):
                    if pair[0] != pair[1]:
                        break
                    known.add(i)
        return len(known)


def _sure(tokens: list[int], chances: Sequence[float]) -> list[int]:
    """The first tokens, as far as the chance of all of them is at least SURE."""
    path = 1.0
    for count, chance in enumerate(chances):
        path *= chance
        if path < SURE:
            return tokens[:count]
    return tokens


def _children(
    parents: Sequence[int], tokens: Sequence[int]
) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Of a tree: (the node for each parent and token, the first and so likeliest child of each parent)."""
    below: dict[tuple[int, int], int] = {}
    first: dict[int, int] = {}
    for node, edge in enumerate(zip(parents, tokens, strict=True)):
        below[edge] = node
        first.setdefault(edge[0], node)
    return below, first
