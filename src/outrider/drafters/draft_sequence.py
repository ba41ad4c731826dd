"""The bookkeeping of a draft model: one request's sequence in its cache, and one draft under construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import Guide
from outrider.decoding.request import Lookahead
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft
from outrider.drafters.draft_context import DraftContext
from outrider.drafters.vocab_subset import VocabSubset
from outrider.engines.base import Cache
from outrider.policy.growth_passes import tokens_to_feed


@dataclass(slots=True, eq=False)
class DraftSequence:
    """One request in the draft model.

    context:         the tokens that the draft model processes.
    vocab_subset:    the part of the vocabulary that is computed; None for all of it.
    confirmed:       leading cache slots that hold the first tokens of `context`.
    drafted:         tokens in the slots after those, drafted and not compared with the output yet.
    drafted_parents: for each of `drafted` the index of its parent in it; -1 follows the confirmed tokens.
    """

    cache: Cache
    context: DraftContext
    sampler: Sampler
    vocab_subset: VocabSubset | None
    confirmed: int = 0
    drafted: list[int] = field(default_factory=list)
    drafted_parents: list[int] = field(default_factory=list)

    def roll_back(self) -> None:
        """Keep the drafted tokens that `context` has now, except its last token: a draft starts with the
        logits after that one, so it is processed again."""
        tokens, path = self.context.tokens, list[int]()
        if self.drafted:
            nodes = {edge: i for i, edge in enumerate(zip(self.drafted_parents, self.drafted, strict=True))}
            at = -1
            for token in tokens[self.confirmed : -1]:
                at = nodes.get((at, token), -1)
                if at < 0:
                    break
                path.append(at)
        self.keep_path(path)
        self.confirmed = min(self.confirmed + len(path), len(tokens) - 1)
        self.cache.truncate(self.confirmed)
        self.drafted.clear()
        self.drafted_parents.clear()
        self.context.drop_copied(self.confirmed)

    def truncate(self, count: int) -> None:
        """Keep at most the first `count` tokens. Call after `roll_back`."""
        self.confirmed = min(self.confirmed, count)
        self.cache.truncate(self.confirmed)

    def keep_path(self, path: Sequence[int]) -> None:
        """Of the drafted tokens keep only `path`, which starts at the confirmed tokens."""
        count = len(path)
        if count == len(self.drafted):
            return
        if count and path[-1] != count - 1:
            self.cache.keep(self.confirmed, [self.confirmed + i for i in path])
        else:
            self.cache.truncate(self.confirmed + count)
        self.drafted = [self.drafted[i] for i in path]
        self.drafted_parents = list(range(-1, count - 1))

    def add_drafted(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Drafted tokens were processed. parents: indices into `tokens`; -1 follows all before them."""
        before = len(self.drafted)
        self.drafted += tokens
        self.drafted_parents += [before + parent for parent in parents]


@dataclass(slots=True, eq=False)
class DraftTree:
    """One draft under construction: its nodes, and the input of the next pass.

    vocab_size:    ids from here on are unknown to the draft model.
    contexts:      the context of the draft's start, then that of each node.
    budget:        most nodes.
    input_tokens:  tokens of the next pass.
    input_parents: for each the index of its parent among them; -1 follows everything in the cache.
    input_rows:    indices of the input tokens whose logits are wanted: those of `frontier`.
    randomness:    for drawing independently of the target.
    guide:         decides where the tree grows; None for a chain.
    lookahead:     predicts the tokens that will be drawn; None predicts nothing.
    frontier:      the nodes whose children are drawn next; -1 is the draft's start.
    slots:         cache slot of a node, counted from the confirmed tokens.
    predicted:     predicted tokens, processed as a chain below the frontier's only node in the same pass.
    tokens, parents: as in `Draft`.
    draft_probs:   for each node the distribution that it was drawn from, or None for a point mass.
    """

    sequence: DraftSequence
    vocab_size: int
    contexts: list[TokenContext]
    budget: int
    input_tokens: list[int]
    input_parents: list[int]
    randomness: StepRandomness
    guide: Guide | None
    lookahead: Lookahead | None
    frontier: list[int] = field(default_factory=lambda: [-1])
    input_rows: list[int] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)
    predicted: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    draft_probs: list[Distribution | None] = field(default_factory=list)

    def draft(self, source: str) -> Draft:
        """The nodes as a draft."""
        stated = any(d is not None for d in self.draft_probs)
        probs = tuple(self.draft_probs) if stated else None
        return Draft(np.array(self.tokens, np.int32), np.array(self.parents, np.int32), probs, source)

    def add(self, parent: int, token: int, drawn_from: Distribution | None) -> None:
        """Add a node below `parent`."""
        self.contexts.append(self.contexts[parent + 1].then(token))
        self.tokens.append(token)
        self.parents.append(parent)
        self.draft_probs.append(drawn_from)

    def next_frontier(self, ready: int = -1) -> list[int]:
        """The nodes whose children are drawn next. ready: a node that was processed as a predicted token
        already, so that it needs no pass if it is the only one."""
        if self.guide is None:
            nodes = [len(self.tokens) - 1]
        else:
            nodes = self.guide.frontier() if ready < 0 else self.guide.frontier((ready,))
        stop_ids = self.sequence.sampler.stop_ids
        return [node for node in nodes if self.tokens[node] not in stop_ids][: self.budget - len(self.tokens)]

    def predict(self) -> None:
        """Choose the predicted tokens that the next pass processes as well."""
        self.predicted = []
        room = self.budget - len(self.tokens) - 1  # one node is drawn below the frontier itself
        if self.lookahead is None or len(self.frontier) > 1 or room <= 0:
            return
        for token in self.lookahead(self.contexts[self.frontier[0] + 1])[:room]:
            if token >= self.vocab_size:
                return
            self.predicted.append(token)

    def predicted_slot(self, i: int) -> int:
        """Cache slot of predicted token i, counted from the confirmed tokens."""
        node = self.frontier[0]
        return (self.slots[node] if node >= 0 else len(self.contexts[0].path) - 1) + 1 + i

    def prepare_pass(self, frontier: list[int]) -> bool:
        """Make the input of the next pass, which gives the logits after each node of `frontier`. Returns
        whether there is a next pass."""
        self.frontier = frontier
        if not self.frontier:
            return False
        kept, processed = tokens_to_feed(self.parents, self.frontier)
        start = len(self.contexts[0].path)
        self.sequence.keep_path([*range(start), *[self.slots[node] for node in kept]])
        for i, node in enumerate((*kept, *processed)):
            self.slots[node] = start + i
        first = start + len(kept)
        self.input_tokens = [self.tokens[node] for node in processed]
        self.input_parents = [
            -1 if (parent := self.parents[node]) < 0 else max(-1, self.slots[parent] - first)
            for node in processed
        ]
        self.input_rows = [self.slots[node] - first for node in self.frontier]
        self.predict()
        return True

    def next_input(self, size: int | None) -> tuple[list[int], list[int], list[int]]:
        """(tokens, parents, rows) of the next pass, predicted tokens included; with a `size`, of a pass over
        the first `size` tokens of a longer chain, without rows."""
        if size is not None:
            return self.input_tokens[:size], self.input_parents[:size], []
        cache, count = self.sequence.cache, len(self.input_tokens)
        del self.predicted[max(0, cache.capacity - cache.length - count) :]
        new = range(count, count + len(self.predicted))
        parents = [*self.input_rows[:1], *new][: len(new)]
        return (
            [*self.input_tokens, *self.predicted],
            [*self.input_parents, *parents],
            [*self.input_rows, *new],
        )

    def drop_input(self, size: int) -> None:
        """The first `size` input tokens, a chain, were processed."""
        self.input_tokens = self.input_tokens[size:]
        self.input_parents = list(range(-1, len(self.input_tokens) - 1))
        self.input_rows = [len(self.input_tokens) - 1]
