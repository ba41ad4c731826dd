"""What a draft model knows of a request, and what it draws of one draft: bookkeeping, without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import Guide
from outrider.decoding.request import Lookahead
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Distribution, Draft
from outrider.decoding.verifiers.distributions import StepRandomness
from outrider.drafters.draft_context import DraftContext
from outrider.drafters.vocab_subset import VocabSubset
from outrider.engines.base import Cache
from outrider.policy.tree import refed


@dataclass(slots=True, eq=False)
class DraftSequence:
    """One request in the draft model.

    reading: what it reads of the request's text.
    likely:  the part of the vocabulary that is computed, or None for all.
    checked: leading cache slots known to hold what is to be read.
    guessed: tokens in the slots after those, drafted and not compared with the text yet.
    above:   for each of them the one that it hangs from; -1 for the checked ones.
    """

    cache: Cache
    reading: DraftContext
    sampler: Sampler
    likely: VocabSubset | None
    checked: int = 0
    guessed: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)

    def roll_back(self) -> None:
        """Keep what the text confirms, but not its last token: a draft starts from that one's row."""
        tokens, known = self.reading.tokens, list[int]()
        if self.guessed:
            below = {edge: i for i, edge in enumerate(zip(self.above, self.guessed, strict=True))}
            at = -1
            for token in tokens[self.checked : -1]:
                at = below.get((at, token), -1)
                if at < 0:
                    break
                known.append(at)
        self.hold(known)
        self.checked = min(self.checked + len(known), len(tokens) - 1)
        self.cache.truncate(self.checked)
        self.guessed.clear()
        self.above.clear()
        self.reading.leave_out(self.checked)

    def forget(self, count: int) -> None:
        """Keep the first `count` tokens only, of a stream that was just rolled back."""
        self.checked = min(self.checked, count)
        self.cache.truncate(self.checked)

    def hold(self, path: Sequence[int]) -> None:
        """Of what was guessed keep a path from the top only."""
        count = len(path)
        if count == len(self.guessed):
            return
        if count and path[-1] != count - 1:
            self.cache.keep(self.checked, [self.checked + i for i in path])
        else:
            self.cache.truncate(self.checked + count)
        self.guessed = [self.guessed[i] for i in path]
        self.above = list(range(-1, count - 1))

    def wrote(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """These were fed, none of them the text's own; -1 hangs from all before."""
        before = len(self.guessed)
        self.guessed += tokens
        self.above += [before + parent for parent in parents]


@dataclass(slots=True, eq=False)
class DraftTree:
    """One job of one propose call: what has been drawn (and from what), and what is to be fed next.

    limit:       ids from here on the model does not know.
    contexts:    where the draft starts, then what each node completes.
    feed, above: tokens, and the one of them that each hangs from; -1 for all that the cache holds.
    frontier:    the nodes to draw below next, -1 for where the draft starts; `rows` of `feed` are theirs.
    places:      of nodes in the cache, their index behind the checked tokens.
    foretold:    fed behind the frontier's only node, one after the other.
    """

    stream: DraftSequence
    limit: int
    contexts: list[TokenContext]
    budget: int
    feed: list[int]
    above: list[int]
    chance: StepRandomness
    guide: Guide | None
    foretell: Lookahead | None
    frontier: list[int] = field(default_factory=lambda: [-1])
    rows: list[int] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    foretold: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    drawn_from: list[Distribution | None] = field(default_factory=list)

    def draft(self, source: str) -> Draft:
        stated = any(d is not None for d in self.drawn_from)
        probs = tuple(self.drawn_from) if stated else None
        return Draft(np.array(self.tokens, np.int32), np.array(self.parents, np.int32), probs, source)

    def add(self, parent: int, token: int, drawn_from: Distribution | None) -> None:
        self.contexts.append(self.contexts[parent + 1].then(token))
        self.tokens.append(token)
        self.parents.append(parent)
        self.drawn_from.append(drawn_from)

    def go_on(self, ready: int = -1) -> list[int]:
        """The nodes to draw below next; the one that is `ready` takes no pass if it is the only one."""
        if self.guide is None:
            nodes = [len(self.tokens) - 1]
        else:
            nodes = self.guide.frontier() if ready < 0 else self.guide.frontier((ready,))
        stop_ids = self.stream.sampler.stop_ids
        return [node for node in nodes if self.tokens[node] not in stop_ids][: self.budget - len(self.tokens)]

    def look_ahead(self) -> None:
        """Choose what is fed behind the frontier."""
        self.foretold = []
        left = self.budget - len(self.tokens) - 1  # one is drawn below the frontier itself
        if self.foretell is None or len(self.frontier) > 1 or left <= 0:
            return
        for token in self.foretell(self.contexts[self.frontier[0] + 1])[:left]:
            if token >= self.limit:
                return
            self.foretold.append(token)

    def place_ahead(self, i: int) -> int:
        """Where the cache has the foretold token i, behind the checked tokens."""
        node = self.frontier[0]
        return (self.places[node] if node >= 0 else len(self.contexts[0].path) - 1) + 1 + i

    def prepare(self, frontier: list[int]) -> bool:
        """Make ready what the next pass is to be fed, to draw below these; whether there is anything."""
        self.frontier = frontier
        if not self.frontier:
            return False
        kept, fed = refed(self.parents, self.frontier)
        ahead = len(self.contexts[0].path)
        self.stream.hold([*range(ahead), *[self.places[node] for node in kept]])
        for i, node in enumerate((*kept, *fed)):
            self.places[node] = ahead + i
        first = ahead + len(kept)
        self.feed = [self.tokens[node] for node in fed]
        self.above = [
            -1 if (parent := self.parents[node]) < 0 else max(-1, self.places[parent] - first) for node in fed
        ]
        self.rows = [self.places[node] - first for node in self.frontier]
        self.look_ahead()
        return True

    def next_feed(self, size: int | None) -> tuple[list[int], list[int], list[int]]:
        """(tokens, what each hangs from, rows) of the next pass, or of one over the first `size` tokens of a
        chain that is longer."""
        if size is not None:
            return self.feed[:size], self.above[:size], []
        cache, count = self.stream.cache, len(self.feed)
        del self.foretold[max(0, cache.capacity - cache.length - count) :]
        new = range(count, count + len(self.foretold))
        hung = [*self.rows[:1], *new][: len(new)]
        return [*self.feed, *self.foretold], [*self.above, *hung], [*self.rows, *new]
