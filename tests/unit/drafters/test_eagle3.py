"""The drafts of a head are those of its forward pass over the whole text, whatever was drafted, rejected,
cached or computed in pieces before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from outrider.decoding.context import TokenContext
from outrider.decoding.controller import Guide
from outrider.decoding.loop import StepLoop
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, FloatArray, TargetScores, Verdict
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters import eagle3
from outrider.drafters.base import HiddenStateDrafter
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.engines.step import CachedStepEngine
from outrider.policy.fixed import FixedController
from tests.support.heads import NumpyHead, ReferenceHead, knowing_head
from tests.support.hidden_drafter import hidden_of
from tests.support.toy_model import ToyModel

TARGET = ToyModel(48, 160, seed=1, sharpness=3.0, memory=0.3)
LAYERS = (2, 0, 2)
HEAD = knowing_head(TARGET, LAYERS, rows=40)
PROMPTS: list[tuple[int, ...]] = [(1, 2, 1, 2, 1), (4,), tuple(i % 48 for i in range(5, 75)), (9, 9, 8)]


class Checked(Eagle3Drafter):
    """Compares each draft with what the reference draws after the whole text. drafts: how many had tokens;
    accepted: their tokens that were kept."""

    def __init__(self, chunk: int = 16, **more: Any) -> None:
        self.head = NumpyHead(HEAD)
        ids = HEAD.ids.astype(np.int32)
        arguments = {"taps": (0, 2), "order": (1, 0, 1), "target_ids": ids, "max_context": 160, **more}
        super().__init__(self.head, chunk=chunk, **arguments)
        self.drafts = self.accepted = self.empty = 0

    def propose(self, jobs: Sequence[ProposeJob], prefill_budget: int | None = None) -> list[Draft]:
        found = super().propose(jobs, prefill_budget)
        for job, draft in zip(jobs, found, strict=True):
            self.drafts += len(draft) > 0
            self.empty += len(draft) == 0
            if len(draft):
                assert draft.tokens.tolist() == self.wanted(job, len(draft))
                assert draft.source == "eagle3"
                assert set(draft.tokens.tolist()) <= set(HEAD.ids.tolist())
        return found

    def wanted(self, job: ProposeJob, count: int) -> list[int]:
        return oracle(job.request_id).likeliest(len(job.context.tokens), job.context.path, count)

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        self.accepted += len(verdict.path)
        super().observe(request_id, draft, verdict, scores)


class Oracle:
    """The reference over a whole text, prompt and plain output, but for some rows."""

    def __init__(self, text: Sequence[int], left_out: Sequence[int] = ()) -> None:
        states = hidden_of(TARGET, text[:-1], (0, 2)).reshape(len(text) - 1, 2, -1)
        self.states = states[:, [1, 0, 1]].reshape(len(text) - 1, -1)
        self.reference = ReferenceHead(HEAD)
        self.keys: list[list[Any]] = [[]]
        self.rows = [
            self.reference.row(token, state, self.keys, fed_back=False)
            for i, (token, state) in enumerate(zip(text[1:], self.states, strict=True))
            if i not in left_out
        ]

    def likeliest(self, length: int, path: Sequence[int], count: int) -> list[int]:
        """The likeliest tokens after the text's first `length` tokens and a path."""
        keys = [self.keys[0][: length - 1]]
        logits, given = self.rows[length - 2]
        for token in path:
            logits, given = self.reference.row(token, given, keys, fed_back=True)
        drawn: list[int] = []
        while len(drawn) < count:
            drawn.append(int(HEAD.ids[logits.argmax()]))
            logits, given = self.reference.row(drawn[-1], given, keys, fed_back=True)
        return drawn


@cache
def oracle(request_id: str) -> Oracle:
    return Oracle([*PROMPTS[int(request_id)], *PLAIN[request_id]])


class Skips(Checked):
    """Reads the first 16 rows and the last ones of a prompt that is longer than `most`."""

    def __init__(self, most: int = 24, last: int = 12, **more: Any) -> None:
        super().__init__(whole_prompt=most, **more)
        self.most, self.last = most, last

    def wanted(self, job: ProposeJob, count: int) -> list[int]:
        size = len(PROMPTS[int(job.request_id)])
        left_out = range(16, size - self.last) if size > self.most else range(0)
        text = [*PROMPTS[int(job.request_id)], *PLAIN[job.request_id]]
        length = len(job.context.tokens) - len(left_out)
        return Oracle(text, left_out).likeliest(length, job.context.path, count)


def decode(
    drafter: Eagle3Drafter | None,
    *,
    engine: CachedStepEngine | None = None,
    length: int = 4,
    namespace: str | None = None,
    tokens: int = 20,
    **options: Any,
) -> dict[str, list[int]]:
    loop = StepLoop(
        engine or CachedStepEngine(TARGET),
        drafter,
        CoupledVerifier(),
        FixedController(length),
        clock=lambda: 0.0,
        **options,
    )
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    found: dict[str, list[int]] = {str(i): [] for i in range(len(PROMPTS))}
    batch = [Request(str(i), prompt, params, namespace=namespace) for i, prompt in enumerate(PROMPTS)]
    for event in loop.generate(batch):
        assert getattr(event, "error", None) is None
        if hasattr(event, "token_id"):
            found[event.request_id].append(event.token_id)
    return found


PLAIN = decode(None)


def test_it_is_a_drafter_that_reads_hidden_states() -> None:
    assert isinstance(Checked(), HiddenStateDrafter)


@pytest.mark.parametrize(
    ("length", "options"),
    [
        (4, {}),
        (1, {"max_num_seqs": 1}),
        (7, {"max_num_seqs": 3, "prefill_chunk": 5}),
        (3, {"prefill_chunk": 1}),
    ],
)
def test_drafts_are_those_of_the_whole_text(length: int, options: dict[str, Any]) -> None:
    drafter = Checked()
    assert decode(drafter, length=length, **options) == PLAIN
    assert drafter.drafts > 20
    assert 0 < drafter.accepted < drafter.drafts * length, "some drafts are right and some are wrong"
    assert drafter._requests == {}


def test_a_prompts_rows_are_computed_in_pieces_and_from_a_cached_prefix(monkeypatch: Any) -> None:
    monkeypatch.setattr(eagle3, "HELD_BYTES", 0)
    engine = CachedStepEngine(TARGET)
    engine.share_prefixes(10**8)
    drafter = Checked(chunk=7)
    assert decode(drafter, engine=engine, namespace="a", prefill_chunk=16) == PLAIN
    assert max(rows for rows, _ in drafter.head.passes) <= 7 + len(PROMPTS) * 7
    again = Checked(chunk=7)
    assert decode(again, engine=engine, namespace="a", prefill_chunk=16) == PLAIN
    assert again.drafts >= drafter.drafts - len(PROMPTS)
    assert engine.prefixes is not None
    assert engine.prefixes.hit_tokens > 60


@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 5}, {"prefill_chunk": 16}, {"prefill_chunk": 1}])
def test_the_middle_of_a_long_prompt_is_left_out(options: dict[str, Any], monkeypatch: Any) -> None:
    drafter = Skips()
    assert decode(drafter, **options) == PLAIN
    assert drafter.drafts > 20
    monkeypatch.setattr(eagle3, "HELD_BYTES", 0)
    assert decode(Skips(chunk=7), **options) == PLAIN


@pytest.mark.parametrize(("most", "last"), [(1, 1), (2, 1), (40, 20), (69, 34), (70, 0)])
def test_any_length_may_be_the_most_that_is_read_as_a_whole(most: int, last: int) -> None:
    drafter = Skips(most, last)
    assert decode(drafter) == PLAIN
    assert drafter.drafts > 20


def test_a_draft_that_fails_half_way_leaves_the_drafter_usable() -> None:
    drafter = Checked()
    compute, calls = drafter.head.forward_head, 0

    def failing(items: Any, *, fed_back: bool) -> Any:
        nonlocal calls
        calls += 1
        if calls % 5 == 0 and calls < 60:
            raise RuntimeError("the engine failed")
        return compute(items, fed_back=fed_back)

    drafter.head.forward_head = failing  # type: ignore[method-assign]
    propose = drafter.propose

    def retried(jobs: Sequence[ProposeJob], prefill_budget: int | None = None) -> list[Draft]:
        try:
            return propose(jobs, prefill_budget)
        except RuntimeError:
            return [Draft.empty() for _ in jobs]

    drafter.propose = retried  # type: ignore[method-assign]
    assert decode(drafter) == PLAIN
    assert drafter.drafts > 10


def test_without_states_or_room_it_does_not_draft() -> None:
    drafter = Checked(max_context=40)
    assert decode(drafter) == PLAIN, "one prompt is longer than that"
    assert drafter.drafts > 10
    assert drafter.empty >= 20


LONG = "2"  # a request with a long prompt


def job_of(budget: int, path: Sequence[int] = (), guide: Guide | None = None) -> ProposeJob:
    sampler = Sampler(SamplingParams(temperature=0.0), TARGET.vocab_size, seed=3)
    return ProposeJob(LONG, TokenContext(PROMPTS[2]).along(path), budget, sampler, guide=guide)


def begun(drafter: Eagle3Drafter) -> None:
    drafter.begin(Request(LONG, PROMPTS[2], SamplingParams(max_tokens=40)))
    drafter.prefilled(LONG, 0, hidden_of(TARGET, PROMPTS[2][:-1], (0, 2)))


def test_a_path_is_followed_before_anything_is_drawn() -> None:
    drafter = Checked()
    begun(drafter)
    for path in ((), (5,), (7, 8, 9), ()):
        (draft,) = drafter.propose([job_of(3, path)])
        assert len(draft) == 3
    drafter.end(LONG)


class TwoOfEach:
    """A guide that wants two children of every node, and goes on below the second."""

    def __init__(self) -> None:
        self.count = 0

    def drew(self, parent: int, confidence: float) -> bool:
        assert 0.0 <= confidence <= 1.0
        self.count += 1
        return self.count % 2 == 1

    def next_node(self, ready: int = -1) -> int:
        return self.count - 1


def test_siblings_are_drawn_on_from() -> None:
    drafter = Checked()
    begun(drafter)
    found = oracle(LONG)
    keys = [found.keys[0][: len(PROMPTS[2]) - 1]]
    logits, given = found.rows[len(PROMPTS[2]) - 2]
    tokens: list[int] = []
    for _ in range(3):
        tokens += HEAD.ids[np.argsort(-logits)[:2]].tolist()
        logits, given = found.reference.row(tokens[-1], given, keys, fed_back=True)
    drafter.wanted = lambda job, count: tokens  # type: ignore[method-assign]
    (draft,) = drafter.propose([job_of(6, guide=TwoOfEach())])
    assert draft.parents.tolist() == [-1, -1, 1, 1, 3, 3]
    assert draft.tokens.tolist() == tokens


def test_a_prefill_budget_is_kept() -> None:
    drafter = Checked(chunk=100)
    begun(drafter)
    waiting = len(PROMPTS[2]) - 1
    assert drafter.unprocessed(job_of(4)) == waiting
    for budget in (30, 20):
        (draft,) = drafter.propose([job_of(4)], budget)
        waiting -= budget
        assert len(draft) == 0
        assert drafter.passes == [(budget, budget)]
        assert drafter.unprocessed(job_of(4)) == waiting
    (draft,) = drafter.propose([job_of(4)], waiting)
    assert len(draft) == 4
    assert drafter.passes[:2] == [(waiting - 1, waiting - 1), (1, 0)]
    assert drafter.unprocessed(job_of(4)) == 1, "the last row is computed again"
    drafter.end(LONG)


def test_logits_that_are_no_numbers_draft_nothing() -> None:
    drafter = Checked()
    compute = drafter.head.forward_head

    def broken(items: Any, *, fed_back: bool) -> tuple[list[FloatArray], list[FloatArray]]:
        logits, states = compute(items, fed_back=fed_back)
        return [row * np.nan for row in logits], states

    drafter.head.forward_head = broken  # type: ignore[method-assign]
    begun(drafter)
    (draft,) = drafter.propose([job_of(4)])
    assert len(draft) == 0


# --- Broken twins ---------------------------------------------------------------------------------


class KeepsDraftedRows(Checked):
    """Does not drop the rows of rejected tokens."""

    def _roll_back(self, request: Any) -> None:
        if request.cache is None:
            request.cache = self._head.new_cache(500)


class StatesOfTheNextPosition(Checked):
    def _add(self, request: Any, hidden: FloatArray, rows: list[int]) -> None:
        super()._add(request, np.roll(hidden, -1, axis=0), rows)


class LayersInOrder(Checked):
    """Takes the states as the target gives them."""

    def __init__(self) -> None:
        super().__init__(order=(0, 1, 1))


class KeepsFedBackRows(Checked):
    """Takes what the head gave for accepted tokens in the place of the target's states."""

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        assert scores.hidden is not None
        wrong = np.repeat(scores.hidden[:1], len(scores.hidden), axis=0)
        super().observe(request_id, draft, verdict, TargetScores(scores.logits, wrong))


class LeavesOutOneMore(Skips):
    """The rows behind the gap have the tokens of those before them."""

    def begin(self, request: Request) -> None:
        super().begin(request)
        if (state := self._requests[request.request_id]).left_out:
            del state.tokens[17]
            state.tokens.append(0)


class LeavesOutNothing(Skips):
    def __init__(self) -> None:
        super().__init__()
        self._whole_prompt = None


class OffsetsForIds(Checked):
    """Takes ids for offsets, as a reader of the other dialect would."""

    def __init__(self) -> None:
        super().__init__(target_ids=np.arange(40, dtype=np.int32))


@pytest.mark.parametrize(
    "twin",
    [
        *(KeepsDraftedRows, StatesOfTheNextPosition, LayersInOrder, KeepsFedBackRows, OffsetsForIds),
        *(LeavesOutOneMore, LeavesOutNothing),
    ],
)
def test_broken_twins_are_caught(twin: Callable[[], Checked]) -> None:
    with pytest.raises(AssertionError):
        decode(twin())
