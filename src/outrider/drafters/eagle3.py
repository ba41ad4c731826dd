"""Drafts of an EAGLE-3 head (Li et al. 2025): a small model that reads its target's hidden states.

Row t of the head pairs the target's hidden states at position t with the token at t + 1, and gives logits of
the token at t + 2. Further rows of a draft are computed from what the head itself gave for the row before.
Once the target has verified a draft, the rows of what it kept are computed again, from its own states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.decoding.controller import Guide
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.types import Draft, FloatArray, IntArray, TargetScores, Verdict
from outrider.drafters.draft_context import HEAD_TOKENS
from outrider.drafters.draft_sequence import DraftSlots, GrowingTree
from outrider.drafters.drawing import Drawing, Draws
from outrider.drafters.head_states import WaitingStates
from outrider.drafters.recording_guide import RecordingGuide
from outrider.engines.base import Cache
from outrider.engines.heads import TOGETHER, DraftingHead, HeadDraftJob, HeadItem, HeadModel
from outrider.errors import ModelError
from outrider.policy.tree import DraftPass
from outrider.policy.tree_growth import TreeGrowth

# Of a request's states that wait; with more, the head computes its rows at once. (Some 5,000 tokens of a
# target of 135 million parameters, and 700 of one of eight billion.)
HELD_BYTES = 32 << 20
FIRST_ROWS = HEAD_TOKENS  # of a prompt that is longer than what the head was trained on
USUAL_ROWS = 16  # as many as an accepted draft leaves, which no prefill budget limits
_NO_ROWS = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class _Request:
    """The head's state of one request.

    tokens:    prompt and output, the anchor last; of a long prompt not the middle.
    capacity:  most rows.
    left_out:  which rows of the prompt are.
    states:    of the rows that wait for it.
    known:     rows of the prompt that the target has computed.
    computed:  rows in the cache that were computed from the target's states. The last known one never is: it
               is computed again for the next draft.
    full:      there are more rows than the capacity.
    """

    tokens: list[int]
    capacity: int
    left_out: range
    states: WaitingStates
    known: int = 0
    computed: int = 0
    cache: Cache | None = None
    full: bool = False

    @property
    def count(self) -> int:
        """Rows that wait."""
        return len(self.states)

    def has_room(self, rows: int) -> bool:
        """Whether so many more rows fit; where not, no states are wanted any longer."""
        if self.computed + self.count + rows > self.capacity:
            self.full = True
            self.states.clear()
        return not self.full

    def drop(self, count: int) -> None:
        """The first `count` rows that wait are computed."""
        self.computed += count
        self.states.drop(count)


@dataclass(slots=True, eq=False)
class _Start:
    """A draft to be made. budget: most nodes. draft: once it is made."""

    job: ProposeJob
    request: _Request
    budget: int
    draft: Draft | None = None


@dataclass(slots=True, eq=False)
class _HeadTree(GrowingTree):
    """One draft of a head. state: what it gave for the node, float32[hidden_size]."""

    state: FloatArray = field(default_factory=lambda: np.empty(0, np.float32), kw_only=True)


class Eagle3Drafter:
    """Implements HiddenStateDrafter and `ModelDrafter`. Drafts with a head, for all jobs in the same passes:
    chains, or trees where a job's guide asks for siblings.

    taps:        the target's layers whose inputs the head reads, ascending.
    order:       for each state that it reads, which of `taps` it is.
    target_ids:  int32[head.vocab_size], the target's ids of the head's logits; None where they are the same.
                 Every other id has the probability 0.
    max_context: most tokens of a sequence that is drafted for.
    whole_prompt: most tokens of a prompt that it reads as a whole; None for any. Of a longer one it reads the
                 first FIRST_ROWS and as many of the last as are half of this, since heads draft badly at
                 positions that they were not trained at.
    chunk:       most rows of a sequence in one pass.
    draws:       see `Drawing`.
    clock:       seconds, for what its passes take; no draft depends on it.
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
        whole_prompt: int | None = None,
        chunk: int = 512,
        draws: Draws = "coupled",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._head, self.taps = head, taps
        self._columns: IntArray | None = None
        if order != tuple(range(len(taps))):
            by_layer = np.arange(head.state_width, dtype=np.int32).reshape(len(order), -1)
            size = by_layer.shape[1]
            self._columns = np.concatenate([by_layer[0] + size * tap for tap in order])
        self._max_context, self._whole_prompt, self._chunk = max_context, whole_prompt, chunk
        self._drawing = Drawing(draws)
        self._target_ids = target_ids
        self._last_id = -1 if target_ids is None else int(target_ids[-1])
        ascending = target_ids is None or bool((target_ids[1:] > target_ids[:-1]).all())
        self._drafting = head if isinstance(head, DraftingHead) and ascending else None
        self._row = np.full(head.token_count, -np.inf, np.float32)  # of the target's vocabulary
        self._requests: dict[str, _Request] = {}
        self._clock = clock
        self.passes: list[DraftPass] = []  # of the last propose
        self.pass_seconds = 0.0  # what they took

    # --- What the target computes ------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """See `Drafter.begin`."""
        tokens, more = list(request.prompt), request.params.max_tokens
        left_out = self._left_out(len(tokens))
        del tokens[left_out.start + 1 : left_out.stop + 1]  # a row has the next token
        length = self._max_context if more is None else len(tokens) + more
        capacity = min(self._max_context, length)
        states = WaitingStates(self._columns)
        self._requests[request.request_id] = _Request(tokens, capacity, left_out, states)

    def _left_out(self, prompt: int) -> range:
        """The rows of a prompt of so many tokens that the head does not read."""
        if self._whole_prompt is None or prompt <= self._whole_prompt:
            return range(0)
        return range(FIRST_ROWS, max(FIRST_ROWS, prompt - max(1, self._whole_prompt // 2)))

    def prefilled(self, request_id: str, start: int, hidden: FloatArray) -> None:
        """See `HiddenStateDrafter.prefilled`."""
        request = self._requests[request_id]
        assert start == request.known, "in order and without gaps"
        request.known += len(hidden)
        left_out = request.left_out
        first, end = (min(len(hidden), max(0, row - start)) for row in (left_out.start, left_out.stop))
        for part in (hidden[:first], hidden[end:]):
            if len(part) and request.has_room(len(part)):
                request.states.add_prompt(part.copy() if 2 * len(part) < len(hidden) else part)
                self._hold_less(request)

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
        if request.has_room(len(rows)):
            request.states.add(hidden, rows)
            self._hold_less(request)

    def _hold_less(self, request: _Request) -> None:
        if request.states.nbytes > HELD_BYTES and request.count > 1:
            self._compute(request, request.count - 1)

    def _compute(self, request: _Request, count: int) -> None:
        """Compute the first `count` rows that wait, without logits."""
        while count > 0:
            size = request.states.together(min(count, self._chunk))
            self._roll_back(request)
            self._pass([self._item(request, size, _NO_ROWS)], fed_back=False)
            request.drop(size)
            self.passes.append(DraftPass(size, size))
            count -= size

    def _pass(
        self, items: Sequence[HeadItem], *, fed_back: bool
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        began = self._clock()
        found = self._head.forward_head(items, fed_back=fed_back)
        self.pass_seconds += self._clock() - began
        return found

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
        return HeadItem(request.cache, tokens, request.states.take(count), rows)

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
        self.passes, self.pass_seconds = [], 0.0
        found = [self._start(job) for job in jobs]
        starts = [start for start in found if start is not None]
        if prefill_budget is not None:
            starts = self._prefilled(starts, prefill_budget)
        for start in starts:
            if start.request.count > TOGETHER:
                self._compute(start.request, start.request.count - 1)
        at_once = [start for start in starts if self._head_draws(start.job)]
        if at_once:
            self._draft_at_once(at_once)
        if len(at_once) < len(starts):
            self._draft_by_pass([start for start in starts if start.draft is None])
        empty = Draft.empty(self.name)
        return [empty if start is None or start.draft is None else start.draft for start in found]

    def _start(self, job: ProposeJob) -> _Start | None:
        request = self._requests[job.request_id]
        budget = min(job.budget, self._room(request, job))
        if budget <= 0 or len(request.tokens) + len(request.left_out) != len(job.context.tokens):
            return None
        self._roll_back(request)
        return _Start(job, request, budget)

    def _prefilled(self, starts: list[_Start], budget: int) -> list[_Start]:
        """Those that may draw now. Of one with more rows than are left of the budget, as many as are left are
        computed."""
        ready = []
        for start in sorted(starts, key=lambda start: start.request.count):
            count = start.request.count
            if count <= max(USUAL_ROWS, budget):
                ready.append(start)
            else:
                self._compute(start.request, min(budget, count - 1))
            budget -= count
        return ready

    # --- Whole drafts by the head --------------------------------------------------------------------

    def _head_draws(self, job: ProposeJob) -> bool:
        """Whether the head itself draws what `Drawing` would."""
        sampler, guide = job.sampler, _growth(job.guide)
        return (
            self._drafting is not None
            and (guide is None or isinstance(guide, TreeGrowth))
            and self._drawing.coupled(sampler)
            and self._last_id < sampler.vocab_size
            and not sampler.adjusts(job.context)
            and self._drafting.can_draw(sampler)
        )

    def _draft_at_once(self, starts: Sequence[_Start]) -> None:
        assert self._drafting is not None
        asked = []
        for start in starts:
            request, job = start.request, start.job
            assert request.cache is not None
            first, growth = request.computed + 1, _growth(job.guide)
            assert growth is None or isinstance(growth, TreeGrowth)
            asked.append(
                HeadDraftJob(
                    request.cache,
                    request.tokens[first : first + request.count],
                    request.states.take(request.count),
                    list(job.context.path),
                    job.context.position,
                    start.budget,
                    job.sampler,
                    growth,
                    job.guide is not None,
                )
            )
        began = self._clock()
        drawn, passes = self._drafting.draft(asked, self._target_ids)
        self.pass_seconds += self._clock() - began
        self._note_first_pass(starts)
        self.passes += [DraftPass(count, 0) for count in passes]
        for start, (tokens, parents, confidence) in zip(starts, drawn, strict=True):
            if isinstance(guide := start.job.guide, RecordingGuide):
                guide.stated += confidence
            start.draft = Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, self.name)

    def _note_first_pass(self, starts: Sequence[_Start]) -> None:
        """The rows that waited are computed: the last of each from what is known so far."""
        counts = [start.request.count for start in starts]
        for start, count in zip(starts, counts, strict=True):
            start.request.drop(count - 1)
        self.passes.append(DraftPass(sum(counts), sum([max(0, count - 2) for count in counts])))

    # --- Drafts by one pass and one draw after the other ----------------------------------------------

    def _draft_by_pass(self, starts: Sequence[_Start]) -> None:
        trees = [self._tree(start) for start in starts]
        active, logits = trees, self._first_pass(trees, starts)
        while active := [tree for tree, row in zip(active, logits, strict=True) if self._grow(tree, row[0])]:
            logits = self._next_pass(active)
        for start, tree in zip(starts, trees, strict=True):
            start.draft = tree.draft(self.name)

    def _tree(self, start: _Start) -> _HeadTree:
        job, request = start.job, start.request
        assert request.cache is not None
        return _HeadTree(
            sequence=DraftSlots(request.cache, job.sampler, confirmed=len(request.tokens) - 1),
            vocab_size=self._head.token_count,
            contexts=[job.context],
            budget=start.budget,
            input_tokens=list(job.context.path),
            randomness=StepRandomness(job.sampler.seed, len(job.context.tokens)),
            guide=job.guide,
            lookahead=None,
        )

    def _first_pass(self, trees: Sequence[_HeadTree], starts: Sequence[_Start]) -> list[FloatArray]:
        """Compute the rows that wait. Returns the last one's logits: float32[1, head.vocab_size] for each."""
        items = []
        for request in [start.request for start in starts]:
            items.append(self._item(request, request.count, np.array([request.count - 1], np.int32)))
        logits, states = self._pass(items, fed_back=False)
        self._note_first_pass(starts)
        for tree, given in zip(trees, states, strict=True):
            tree.state = given[0]
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
        logits, states = self._pass(items, fed_back=True)
        for tree, given in zip(trees, states, strict=True):
            tree.state = given[0]
        self.passes.append(DraftPass(len(trees), 0))
        return logits

    def _grow(self, tree: _HeadTree, logits: FloatArray) -> bool:
        """Draw below the node. Returns whether the draft needs another pass."""
        if tree.input_tokens:  # of the path that the draft follows
            return True
        first = len(tree.tokens)
        if self._target_ids is not None:
            self._row[self._target_ids] = logits
            logits = self._row
        try:
            self._drawing.below(tree, logits)
        except ModelError:  # logits that are no numbers: it cannot draft here
            return False
        return len(tree.tokens) > first and tree.prepare_pass(tree.next_node())


def _growth(guide: Guide | None) -> Guide | None:
    """What directs a draft's growth, whether or not it is recorded; None for a chain."""
    return guide.guide if isinstance(guide, RecordingGuide) else guide
