"""The bookkeeping of a draft model: one request's sequence in its cache, and one draft under construction."""

from __future__ import annotations

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
from outrider.engines.base import Cache, roll_back


@dataclass(slots=True, eq=False)
class DraftSlots:
    """One request in the cache of a model that drafts.

    sampler:   draws its tokens.
    confirmed: leading cache slots that hold the request's own tokens.
    drafted:   tokens in the slots after those, a chain, drafted and not compared with the output yet.
    """

    cache: Cache
    sampler: Sampler
    confirmed: int = field(default=0, kw_only=True)
    drafted: list[int] = field(default_factory=list, kw_only=True)

    def keep_drafted(self, count: int) -> None:
        """Keep only the first `count` drafted tokens."""
        if count < len(self.drafted):
            self.cache.truncate(self.confirmed + count)
            del self.drafted[count:]


@dataclass(slots=True, eq=False)
class DraftSequence(DraftSlots):
    """One request in the draft model. The first tokens of `context` are in the `confirmed` slots.

    context:      the tokens that the draft model processes.
    vocab_subset: the part of the vocabulary that is computed; None for all of it.
    namespace:    requests of one namespace share cached prefixes.
    """

    context: DraftContext
    vocab_subset: VocabSubset | None
    namespace: str | None = None

    def roll_back(self) -> None:
        """Keep the drafted tokens that `context` has now, except its last token: a draft starts with the
        logits after that one, so it is processed again."""
        tokens, kept = self.context.tokens, 0
        for token, drafted in zip(tokens[self.confirmed : -1], self.drafted, strict=False):
            if token != drafted:
                break
            kept += 1
        self.confirmed = roll_back(self.cache, min(self.confirmed + kept, len(tokens) - 1))
        self.drafted.clear()
        self.context.drop_copied(self.confirmed)

    def truncate(self, count: int) -> None:
        """Keep at most the first `count` tokens; none where sliding windows have passed what these need. Call
        after `roll_back`."""
        self.confirmed = roll_back(self.cache, min(self.confirmed, count))


@dataclass(slots=True, eq=False)
class GrowingTree:
    """One draft under construction: its nodes, and the input of the next pass.

    vocab_size:   ids from here on are unknown to the draft model.
    contexts:     the context of the draft's start, then that of each node.
    budget:       most nodes.
    input_tokens: tokens of the next pass, a chain after everything in the cache, which ends with `node`.
    randomness:   for drawing independently of the target.
    guide:        decides where the tree grows; None for a chain.
    lookahead:    predicts the tokens that will be drawn; None predicts nothing.
    node:         the node whose children are drawn next; -1 is the draft's start. Siblings of it and of the
                  nodes above it have no children.
    depth:        of `node`; 0 is the draft's start.
    predicted:    predicted tokens, processed as a chain after `node` in the same pass.
    tokens, parents: as in `Draft`.
    draft_probs:  for each node the distribution that it was drawn from, or None for a point mass.
    """

    sequence: DraftSlots
    vocab_size: int
    contexts: list[TokenContext]
    budget: int
    input_tokens: list[int]
    randomness: StepRandomness
    guide: Guide | None
    lookahead: Lookahead | None
    node: int = -1
    depth: int = 0
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

    def next_node(self, ready: int = -1) -> int:
        """The node whose children are drawn next; -1 to end. ready: a node that was processed as a predicted
        token already, so that it needs no pass."""
        if len(self.tokens) >= self.budget:
            return -1
        node = len(self.tokens) - 1 if self.guide is None else self.guide.next_node(ready)
        return -1 if node >= 0 and self.tokens[node] in self.sequence.sampler.stop_ids else node

    def descend(self, node: int) -> None:
        """The children of `node`, a child of the present one, are drawn next."""
        self.node, self.depth = node, self.depth + 1

    def predict(self) -> None:
        """Choose the predicted tokens that the next pass processes as well."""
        self.predicted = []
        room = self.budget - len(self.tokens) - 1  # one node is drawn below `node` itself
        if self.lookahead is None or room <= 0:
            return
        for token in self.lookahead(self.contexts[self.node + 1])[:room]:
            if token >= self.vocab_size:
                return
            self.predicted.append(token)

    def prepare_pass(self, node: int) -> bool:
        """Make the input of the next pass, which gives the logits after `node`. Returns whether there is a
        next pass; -1 ends the draft."""
        if node < 0:
            return False
        self.sequence.keep_drafted(len(self.contexts[0].path) + self.depth)
        self.descend(node)
        self.input_tokens = [self.tokens[node]]
        self.predict()
        return True

    def next_input(self, size: int | None) -> tuple[list[int], int]:
        """(tokens, how many of the last ones' logits are wanted) of the next pass, predicted tokens included;
        with a `size`, of a pass over the first `size` tokens of a longer chain, whose logits nobody wants."""
        if size is not None:
            return self.input_tokens[:size], 0
        cache = self.sequence.cache
        del self.predicted[max(0, cache.capacity - cache.length - len(self.input_tokens)) :]
        return [*self.input_tokens, *self.predicted], 1 + len(self.predicted)


@dataclass(slots=True, eq=False)
class DraftTree(GrowingTree):
    """A draft model's."""

    sequence: DraftSequence
