"""Drafts of an EAGLE-3 head (Li et al. 2025): a small model that reads its target's hidden states.

Row t of the head pairs the target's hidden states at position t with the token at t + 1, and gives logits of
the token at t + 2. Further rows of a draft are computed from what the head itself gave for the row before.
Once the target has verified a draft, the rows of what it kept are computed again, from its own states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.types import Draft, FloatArray, IntArray, TargetScores, Verdict
from outrider.drafters.draft_sequence import DraftSlots, GrowingTree
from outrider.drafters.drawing import Drawing, Draws
from outrider.engines.base import Cache
from outrider.engines.heads import HeadItem, HeadModel
from outrider.errors import ModelError
from outrider.policy.tree import DraftPass

HELD_ROWS = 512  # rows of a request whose states wait; with more, the head computes them at once
SPARE_ROWS = 64  # for which there is room beyond those that wait
USUAL_ROWS = 16  # as many as an accepted draft leaves, which no prefill budget limits
_NO_ROWS = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class _Request:
    """The head's state of one request.

    tokens:    prompt and output, the anchor last.
    capacity:  most rows.
    columns:   the target's states that the head reads, in their order; None for all as they are.
    computed:  rows in the cache that were computed from the target's states. The last known one never is: it
               is computed again for the next draft.
    count:     rows that wait for it. Their states are in `held`, float32[room, columns], from row `first` on.
    full:      there are more rows than the capacity.
    """

    tokens: list[int]
    capacity: int
    columns: IntArray | None
    computed: int = 0
    count: int = 0
    first: int = 0
    held: FloatArray | None = None
    cache: Cache | None = None
    full: bool = False

    def add(self, hidden: FloatArray, rows: list[int]) -> None:
        """These rows of what a pass gave come next. They are copied into memory that is there already: it is
        done in every step, also where the head drafts nothing."""
        if not rows:
            return
        if self.held is None or self.first + self.count + len(rows) > len(self.held):
            self._move(self.count + len(rows), hidden.shape[1] if self.columns is None else len(self.columns))
        assert self.held is not None
        end = self.first + self.count
        place = self.held[end : end + len(rows)]
        if self.columns is None:
            hidden.take(rows, axis=0, out=place, mode="clip")  # with "raise" it would copy twice
        else:
            place[:] = hidden[rows][:, self.columns]
        self.count += len(rows)

    def take(self, count: int) -> FloatArray:
        """The states of the first `count` rows that wait, of all if there are fewer."""
        assert self.held is not None
        return self.held[self.first : self.first + min(count, self.count)]

    def drop(self, count: int) -> None:
        """The first `count` rows that wait are computed."""
        assert self.held is not None
        self.computed += count
        self.first += count
        self.count -= count
        if len(self.held) > 4 * (self.count + SPARE_ROWS):  # a prompt's
            self._move(self.count, self.held.shape[1])

    def _move(self, rows: int, width: int) -> None:
        """Hold what waits in memory for so many rows and the spare ones."""
        held = np.empty((rows + SPARE_ROWS, width), np.float32)
        if self.held is not None:
            held[: self.count] = self.held[self.first : self.first + self.count]
        self.held, self.first = held, 0

    def clear(self) -> None:
        """No states are wanted any longer."""
        self.full, self.count, self.held = True, 0, None


@dataclass(slots=True, eq=False)
class _HeadTree(GrowingTree):
    """One draft of a head. state: what it gave for the node, float32[hidden_size]."""

    request: _Request = field(kw_only=True)
    state: FloatArray = field(default_factory=lambda: np.empty(0, np.float32), kw_only=True)


class Eagle3Drafter:
    """Implements HiddenStateDrafter and `ModelDrafter`. Drafts with a head, for all jobs in the same passes:
    chains, or trees where a job's guide asks for siblings.

    taps:        the target's layers whose inputs the head reads, ascending.
    order:       for each state that it reads, which of `taps` it is.
    target_ids:  int32[head.vocab_size], the target's ids of the head's logits; None where they are the same.
                 Every other id has the probability 0.
    max_context: most tokens of a sequence that is drafted for.
    chunk:       most rows of a sequence in one pass.
    draws:       see `Drawing`.
    """

    name = "eagle3"
    needs: frozenset[str] = frozenset()
    looks_ahead = False  # its rows need the state of the row before, so that none can be computed ahead

    def __init__(
        self,
        head: HeadModel,
        *,
        taps: tuple[int, ...],
        order: tuple[int, ...],
        target_ids: IntArray | None,
        max_context: int,
        chunk: int = 512,
        draws: Draws = "coupled",
    ) -> None:
        self._head, self.taps = head, taps
        self._columns: IntArray | None = None
        if order != tuple(range(len(taps))):
            by_layer = np.arange(head.state_width, dtype=np.int32).reshape(len(order), -1)
            size = by_layer.shape[1]
            self._columns = np.concatenate([by_layer[0] + size * tap for tap in order])
        self._max_context, self._chunk = max_context, chunk
        self._drawing = Drawing(draws)
        self._target_ids = target_ids
        self._last_id = -1 if target_ids is None else int(target_ids.max())
        self._row = np.full(head.token_count, -np.inf, np.float32)  # of the target's vocabulary
        self._requests: dict[str, _Request] = {}
        self.passes: list[DraftPass] = []  # of the last propose

    # --- What the target computes ------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """See `Drafter.begin`."""
        tokens, more = list(request.prompt), request.params.max_tokens
        length = self._max_context if more is None else len(tokens) + more
        capacity = min(self._max_context, length)
        self._requests[request.request_id] = _Request(tokens, capacity, self._columns)

    def prefilled(self, request_id: str, start: int, hidden: FloatArray) -> None:
        """See `HiddenStateDrafter.prefilled`."""
        request = self._requests[request_id]
        assert request.full or start == request.computed + request.count, "in order and without gaps"
        self._add(request, hidden, list(range(len(hidden))))

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        """See `Drafter.observe`."""
        assert scores.hidden is not None, "the loop gives what `taps` asks for"
        request = self._requests[request_id]
        tokens = draft.tokens.tolist()
        request.tokens += [*[tokens[node] for node in verdict.path], verdict.next_token]
        self._add(request, scores.hidden, [0, *[node + 1 for node in verdict.path]])

    def end(self, request_id: str) -> None:
        """See `Drafter.end`."""
        request = self._requests.pop(request_id, None)
        if request is not None and request.cache is not None:
            request.cache.close()

    def _add(self, request: _Request, hidden: FloatArray, rows: list[int]) -> None:
        """Keep the states of further rows."""
        if request.computed + request.count + len(rows) > request.capacity:
            request.clear()
        if request.full:
            return
        request.add(hidden, rows)
        if request.count > HELD_ROWS:
            self._compute(request, request.count - 1)

    def _compute(self, request: _Request, count: int) -> None:
        """Compute the first `count` rows that wait, without logits."""
        while count > 0:
            size = min(count, self._chunk)
            self._roll_back(request)
            self._head.forward_head([self._item(request, size, _NO_ROWS)], fed_back=False)
            request.drop(size)
            self.passes.append(DraftPass(size, size))
            count -= size

    def _roll_back(self, request: _Request) -> None:
        """Leave the rows in the cache that were computed from the target's states."""
        if request.cache is None:
            request.cache = self._head.new_cache(request.capacity)
        request.cache.truncate(request.computed)

    def _item(self, request: _Request, count: int, rows: IntArray) -> HeadItem:
        """The first `count` rows that wait."""
        assert request.cache is not None
        first = request.computed + 1
        tokens = np.array(request.tokens[first : first + count], np.int32)
        return HeadItem(request.cache, tokens, request.take(count), rows)

    # --- Drafting ----------------------------------------------------------------------------------

    def unprocessed(
        self, job: ProposeJob, copied: int = 0, too_expensive: Callable[[int], bool] | None = None
    ) -> int | None:
        """See `ModelDrafter.unprocessed`: the rows that wait."""
        request = self._requests[job.request_id]
        return request.count + len(job.context.path) if self._room(request, job) > 0 else None

    def _room(self, request: _Request, job: ProposeJob) -> int:
        """Most nodes that a draft can have; 0 where there can be none: no states are known yet, or the
        sequence is too long."""
        rows = len(request.tokens) - 1
        if request.full or request.count == 0:
            return 0
        return max(0, request.capacity - rows - len(job.context.path) + 1)

    def propose(self, jobs: Sequence[ProposeJob], prefill_budget: int | None = None) -> list[Draft]:
        """See `Drafter.propose`. With a `prefill_budget`, at most so many rows are computed before anything
        is drawn: a request with more of them gets an empty draft."""
        self.passes = []
        trees = [self._start(job) for job in jobs]
        active = [tree for tree in trees if tree is not None]
        if prefill_budget is not None:
            active = self._prefilled(active, prefill_budget)
        if active:
            logits = self._first_pass(active)
            while active := [
                tree for tree, row in zip(active, logits, strict=True) if self._grow(tree, row[0])
            ]:
                logits = self._next_pass(active)
        return [Draft.empty(self.name) if tree is None else tree.draft(self.name) for tree in trees]

    def _start(self, job: ProposeJob) -> _HeadTree | None:
        request = self._requests[job.request_id]
        budget = min(job.budget, self._room(request, job))
        if budget <= 0 or len(request.tokens) != len(job.context.tokens):
            return None
        self._roll_back(request)
        assert request.cache is not None
        return _HeadTree(
            sequence=DraftSlots(request.cache, job.sampler, confirmed=len(request.tokens) - 1),
            vocab_size=self._head.token_count,
            contexts=[job.context],
            budget=budget,
            input_tokens=list(job.context.path),
            randomness=StepRandomness(job.sampler.seed, len(job.context.tokens)),
            guide=job.guide,
            lookahead=None,
            request=request,
        )

    def _prefilled(self, trees: list[_HeadTree], budget: int) -> list[_HeadTree]:
        """Those that may draw now. Of one with more rows than are left of the budget, as many as are left are
        computed."""
        ready = []
        for tree in sorted(trees, key=lambda tree: tree.request.count):
            count = tree.request.count
            if count <= max(USUAL_ROWS, budget):
                ready.append(tree)
            else:
                self._compute(tree.request, min(budget, count - 1))
            budget -= count
        return ready

    def _first_pass(self, trees: Sequence[_HeadTree]) -> list[FloatArray]:
        """Compute the rows that wait. Returns the last one's logits: float32[1, head.vocab_size] for each."""
        items, width, prefilled = [], 0, 0
        for tree in trees:
            request = tree.request
            self._compute(request, request.count - self._chunk)
            count = request.count
            items.append(self._item(request, count, np.array([count - 1], np.int32)))
            width, prefilled = width + count, prefilled + max(0, count - 2)
        logits, states = self._head.forward_head(items, fed_back=False)
        for tree, item, given in zip(trees, items, states, strict=True):
            tree.request.drop(len(item.tokens) - 1)
            tree.state = given[0]
        self.passes.append(DraftPass(width, prefilled))
        return logits

    def _next_pass(self, trees: Sequence[_HeadTree]) -> list[FloatArray]:
        """Compute one row more of each, from what the head gave for the one before."""
        items, row = [], np.zeros(1, np.int32)
        for tree in trees:
            token = tree.input_tokens.pop(0)
            tree.sequence.drafted.append(token)
            items.append(
                HeadItem(tree.sequence.cache, np.array([token], np.int32), tree.state[np.newaxis], row)
            )
        logits, states = self._head.forward_head(items, fed_back=True)
        for tree, given in zip(trees, states, strict=True):
            tree.state = given[0]
        self.passes.append(DraftPass(len(trees), 0))
        return logits

    def _grow(self, tree: _HeadTree, logits: FloatArray) -> bool:
        """Draw below the node. Returns whether the draft needs another pass."""
        if tree.input_tokens:  # of the path that the draft follows
            return True
        first, ids = len(tree.tokens), self._target_ids
        try:
            if ids is None or self._by_place(tree):
                self._drawing.below(tree, logits, ids)
            else:
                self._row[ids] = logits
                self._drawing.below(tree, self._row)
        except ModelError:  # logits that are no numbers: it cannot draft here
            return False
        return len(tree.tokens) > first and tree.prepare_pass(tree.next_node())

    def _by_place(self, tree: _HeadTree) -> bool:
        """Whether tokens can be drawn from the head's own ids, without a row of the whole vocabulary."""
        sampler = tree.sequence.sampler
        return (
            sampler.params.temperature == 0.0
            and self._last_id < sampler.vocab_size
            and not sampler.adjusts(tree.contexts[tree.node + 1])
        )
