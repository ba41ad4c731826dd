"""The loop's own duties: isolation, closing, order. Exactness is the conformance suite's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.loop import StepLoop
from outrider.decoding.prefill import PromptPace
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import Draft, FloatArray, StepRecord, TargetScores, Verdict
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.ngram import NgramDrafter
from outrider.engines.base import Cache, EngineCaps, ForwardItem
from outrider.engines.step import CachedStepEngine
from outrider.errors import ConfigError, PromptError
from outrider.policy.fixed import FixedController
from tests.support.toy_model import ToyModel


class Watched(ToyModel):
    """Remembers its caches, and fails or says NaN on demand."""

    def __init__(self) -> None:
        super().__init__(32, 64)
        self.caches: list[Cache] = []
        self.passes: list[list[int]] = []
        self.broken = False
        self.full = False
        self.nan_after: int | None = None  # a token after which the logits are NaN

    def new_cache(self, capacity: int) -> Cache:
        if self.full:
            raise MemoryError("no memory for a cache")
        self.caches.append(super().new_cache(capacity))
        return self.caches[-1]

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        if self.broken:
            raise RuntimeError("the target broke")
        self.passes.append([len(item.tokens) for item in items])
        rows = super().forward(items)
        for item, logits in zip(items, rows, strict=True):
            if len(item.rows) and item.tokens[0] == self.nan_after:
                logits[:] = np.nan
        return rows

    @property
    def open_caches(self) -> int:
        count = 0
        for cache in self.caches:
            try:
                cache.truncate(cache.length)
                count += 1
            except ValueError:
                pass
        return count


class Noisy:
    """A drafter that records its calls and fails for given requests."""

    name = "noisy"
    needs: frozenset[str] = frozenset()

    def __init__(self, fails: frozenset[str] = frozenset(), where: str = "propose") -> None:
        self.calls: list[tuple[str, str]] = []
        self._fails, self._where = fails, where

    def _call(self, what: str, request_id: str) -> None:
        self.calls.append((what, request_id))
        if what == self._where and request_id in self._fails:
            raise ZeroDivisionError(f"a bug in {what}")

    def begin(self, request: Request) -> None:
        self._call("begin", request.request_id)

    def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
        for job in jobs:
            self._call("propose", job.request_id)
        return [Draft.chain([1] * job.budget, self.name) for job in jobs]

    def observe(self, request_id: str, draft: Draft, verdict: Verdict, scores: TargetScores) -> None:
        self._call("observe", request_id)

    def end(self, request_id: str) -> None:
        self._call("end", request_id)


def make(model: Watched, drafter: Any = None, length: int = 3, **options: Any) -> StepLoop:
    engine = CachedStepEngine(model)
    times = iter(range(10**9))
    return StepLoop(
        engine, drafter, CoupledVerifier(), FixedController(length), clock=lambda: next(times) / 8, **options
    )


def request(name: str, prompt: Sequence[int] = (1, 2, 3), **arguments: Any) -> Request:
    return Request(name, tuple(prompt), SamplingParams(**{"max_tokens": 6, **arguments}), seed=5)


def ends(events: list[Event]) -> dict[str, FinishEvent]:
    return {event.request_id: event for event in events if isinstance(event, FinishEvent)}


def tokens(events: list[Event], name: str) -> list[int]:
    return [e.token_id for e in events if isinstance(e, TokenEvent) and e.request_id == name]


@pytest.mark.parametrize("where", ["begin", "propose", "observe"])
def test_a_drafters_bug_ends_its_request_only(where: str) -> None:
    expected = list(make(Watched()).generate([request("a"), request("b")]))
    model, drafter = Watched(), Noisy(frozenset({"a"}), where)
    events = list(make(model, drafter).generate([request("a"), request("b")]))
    assert ends(events)["a"].finish_reason == "error"
    assert isinstance(ends(events)["a"].error, ZeroDivisionError)
    assert ends(events)["b"].finish_reason == "length"
    assert tokens(events, "b") == tokens(expected, "b")
    assert model.open_caches == 0
    assert [call for call in drafter.calls if call[0] == "end"] == [("end", "a"), ("end", "b")]


def test_a_bug_in_the_only_request_leaves_nothing_to_score() -> None:
    model = Watched()
    events = list(make(model, Noisy(frozenset({"a"}))).generate([request("a")]))
    assert [type(event) for event in events] == [FinishEvent]
    assert model.passes == [[2]]  # the prompt without the anchor


def test_too_few_drafts_for_a_batch_are_asked_for_again_one_by_one() -> None:
    class Lazy(Noisy):
        def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
            return super().propose(jobs)[:1]

    expected = list(make(Watched()).generate([request("a"), request("b")]))
    events = list(make(Watched(), Lazy()).generate([request("a"), request("b")]))
    for name in "ab":
        assert tokens(events, name) == tokens(expected, name)


def test_logits_that_are_nan_end_their_request_only() -> None:
    model = Watched()
    model.nan_after = 3
    events = list(make(model).generate([request("a", [1, 3]), request("b", [4], allowed_token_ids=[5, 6])]))
    assert "nan" in str(ends(events)["a"].error)
    assert ends(events)["b"].finish_reason == "length"
    assert len(tokens(events, "b")) == 6
    assert model.open_caches == 0


def test_no_memory_for_a_cache_ends_its_request() -> None:
    model = Watched()
    loop = make(model)
    loop.add(request("a"))
    loop.step()
    model.full = True
    loop.add(request("b"))
    events = loop.step()
    assert isinstance(ends(events)["b"].error, MemoryError)
    assert tokens(events, "a")
    assert model.open_caches == 1


def test_a_detokenizers_bug_ends_its_request() -> None:
    class Bad:
        def push(self, token_id: int) -> str:
            raise UnicodeError("no such piece")

        def hidden(self, token_id: int) -> str:
            return ""

        def flush(self) -> str:
            return ""

    bad = Request("a", (1,), SamplingParams(), detokenizer=Bad())
    events = list(make(Watched()).generate([bad, request("b")]))
    assert ends(events)["a"].finish_reason == "error"
    assert ends(events)["b"].finish_reason == "length"


def test_an_engines_failure_is_raised_and_closes_all() -> None:
    model, drafter = Watched(), Noisy()
    loop = make(model, drafter)
    loop.add(request("a"))
    loop.add(request("b"))
    loop.step()
    model.broken = True
    with pytest.raises(RuntimeError, match="the target broke"):
        loop.step()
    assert (model.open_caches, loop.unfinished) == (0, False)
    assert drafter.calls[-2:] == [("end", "a"), ("end", "b")]
    model.broken = False
    assert ends(list(loop.generate([request("a")])))["a"].finish_reason == "length"


def test_leaving_the_iterator_closes_all() -> None:
    model = Watched()
    loop = make(model)
    events = loop.generate([request("a"), request("b")])
    next(events)
    assert model.open_caches == 2
    events.close()  # type: ignore[attr-defined]
    assert model.open_caches == 0
    assert not loop.unfinished


def test_abort_ends_a_request_at_once_and_reports_with_the_next_step() -> None:
    class Held:
        def push(self, token_id: int) -> str:
            return "x"

        def hidden(self, token_id: int) -> str:
            return ""

        def flush(self) -> str:
            return "!"

    model, drafter = Watched(), Noisy()
    loop = make(model, drafter, max_num_seqs=1)
    params = SamplingParams(stop="xxxxxxxxx")
    loop.add(Request("a", (1,), params, detokenizer=Held()))
    loop.add(request("waiting"))
    count = len(tokens(loop.step(), "a"))
    loop.abort("a")
    loop.abort("waiting")
    loop.abort("unknown")
    assert model.open_caches == 0
    events = loop.step()
    assert [event.finish_reason for event in ends(events).values()] == ["abort", "abort"]
    assert ends(events)["a"].text_tail == "x" * count + "!"
    assert not loop.unfinished
    assert ("begin", "waiting") not in drafter.calls


def test_requests_wait_their_turn() -> None:
    model = Watched()
    loop = make(model, max_num_seqs=2)
    events = list(loop.generate([request(name, max_tokens=n) for name, n in [("a", 9), ("b", 2), ("c", 3)]]))
    assert list(ends(events)) == ["b", "c", "a"]
    assert max(len(sizes) for sizes in model.passes) == 2


def test_prompts_are_computed_in_chunks_while_others_decode() -> None:
    model = Watched()
    loop = make(model, prefill_chunk=4)
    loop.add(request("short"))
    loop.step()
    model.passes.clear()
    loop.add(request("long", range(11)))
    assert [bool(tokens(loop.step(), "long")) for _ in range(3)] == [False, False, True]
    assert model.passes == [[1, 8], [1, 2], [1, 1]]


def wide() -> Watched:
    model = Watched()
    model.caps = replace(model.caps, whole_prompts=64)
    return model


def test_the_last_pass_over_a_whole_prompt_gives_the_first_token() -> None:
    model, drafter = wide(), Noisy()
    loop = make(model, drafter, prefill_chunk=8)
    given = [request("a", range(11)), request("b", range(3))]
    for each in given:
        loop.add(each)
    steps = [loop.step() for _ in range(2)]
    assert model.passes == [[8], [3], [3]]  # what was left of each prompt with its last token
    assert [(len(tokens(events, "a")), len(tokens(events, "b"))) for events in steps] == [(0, 0), (1, 1)]
    assert ("propose", "a") not in drafter.calls
    events = [*steps[1], *loop.generate([])]
    plain = list(make(Watched()).generate(given))
    for name in "ab":
        assert tokens(events, name) == tokens(plain, name)
    assert model.open_caches == 0


def test_first_tokens_of_whole_prompts_end_requests_and_have_log_probabilities() -> None:
    model = wide()
    given = [request("a", range(9), max_tokens=1, logprobs=2), request("b", range(7), prompt_logprobs=1)]
    events = list(make(model).generate(given))
    plain = list(make(Watched()).generate(given))
    for name in "ab":
        assert tokens(events, name) == tokens(plain, name)
    assert ends(events)["a"].finish_reason == "length"
    first, expected = (
        [e.logprobs for e in found if isinstance(e, TokenEvent) and e.logprobs] for found in (events, plain)
    )
    assert [e.logprob for e in first] == [e.logprob for e in expected]
    assert len(first) == 1
    assert ends(events)["a"].metrics.to_dict()["ttft_ms"] > 0


def test_logits_of_a_whole_prompt_that_are_nan_end_their_request_only() -> None:
    model = wide()
    model.nan_after = 1
    events = list(make(model).generate([request("a", [1, 3]), request("b", [4, 6])]))
    assert "nan" in str(ends(events)["a"].error)
    assert ends(events)["b"].finish_reason == "length"
    assert model.open_caches == 0


def test_the_pace_of_prompts_follows_the_last_wide_pass() -> None:
    pace = PromptPace()
    assert pace.budget(40, 256) == 40  # nothing is known
    pace.observe(8, 1.0)
    assert pace.budget(40, 256) == 40  # too narrow to learn from
    pace.observe(100, 0.5)
    assert pace.budget(40, 256) == 192  # 200, in whole units
    assert pace.budget(40, 128) == 128
    assert pace.budget(200, 128) == 200
    pace.observe(150, 1.5)
    assert pace.budget(40, 256) == 96  # 100, in narrow units
    pace.observe(100, 0.0)
    assert pace.budget(40, 256) == 256
    assert PromptPace(awaited=False).budget(40, 256) == 256
    assert PromptPace(awaited=False).budget(300, 256) == 300


def test_a_budget_of_zero_asks_no_drafter() -> None:
    drafter = Noisy()
    events = list(make(Watched(), drafter, length=0).generate([request("a")]))
    assert ("propose", "a") not in drafter.calls
    metrics = ends(events)["a"].metrics.to_dict()
    assert metrics["speculation"] == "off: num_speculative_tokens is 0"
    assert metrics["draft_ms"] < 6 * 125 + 1  # nothing but the clock's own ticks


def test_the_last_token_is_never_drafted_for() -> None:
    drafter = Noisy()
    list(make(Watched(), drafter).generate([request("a", max_tokens=1)]))
    assert ("propose", "a") not in drafter.calls


def test_times_and_reasons() -> None:
    events = list(make(Watched(), Noisy()).generate([request("a"), request("b")]))
    metrics = ends(events)["a"].metrics.to_dict()
    assert metrics["speculation"] == "on: a fixed draft of up to 3 tokens"
    assert min(metrics[key] for key in ("ttft_ms", "tpot_ms", "draft_ms", "verify_ms", "other_ms")) > 0
    assert list(metrics["drafters"]) == ["noisy"]
    plain = ends(list(make(Watched()).generate([request("a")])))["a"].metrics.to_dict()
    assert plain["speculation"] == "off: there is no drafter"
    assert (plain["draft_ms"], plain["drafters"]) == (0.0, {})


def test_requests_that_cannot_run() -> None:
    loop = make(Watched(), max_context=10, vocab_size=30)
    loop.add(request("a"))
    with pytest.raises(ConfigError, match="already in use"):
        loop.add(request("a"))
    with pytest.raises(PromptError, match="10 tokens; a context of 10 has room for 9"):
        loop.add(request("b", range(10)))
    with pytest.raises(PromptError, match="token id 32; the vocabulary ends at 31"):
        loop.add(request("b", [32]))
    with pytest.raises(ConfigError, match="logit_bias has the id 30"):
        loop.add(request("b", logit_bias={30: 1.0}))
    assert list(ends(list(loop.generate([])))) == ["a"]


def test_padding_is_never_sampled() -> None:
    events = list(make(Watched(), vocab_size=2).generate([request("a", [31])]))
    assert set(tokens(events, "a")) <= {0, 1}


def test_what_the_engine_cannot_do_is_refused_when_built() -> None:
    class Tree(Noisy):
        needs = frozenset({"tree_attention"})

    model = Watched()
    model.caps = EngineCaps(tree_attention=False, exact_bits=True)
    engine = CachedStepEngine(model)
    with pytest.raises(ConfigError, match="noisy needs tree_attention"):
        StepLoop(engine, Tree(), CoupledVerifier(), FixedController(1), clock=lambda: 0.0)
    for name in ("max_num_seqs", "prefill_chunk"):
        with pytest.raises(ConfigError, match=name):
            make(Watched(), **{name: 0})


def test_branches_are_cut_off_for_an_engine_without_trees() -> None:
    class Branching(Noisy):
        def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
            parents = np.array([-1, -1], np.int32)
            return [Draft(np.array([1, 2], np.int32), parents, None, self.name) for _ in jobs]

    model = Watched()
    model.caps = EngineCaps(tree_attention=False, exact_bits=True)
    engine = CachedStepEngine(model)
    loop = StepLoop(engine, Branching(), CoupledVerifier(), FixedController(2), clock=lambda: 0.0)
    list(loop.generate([request("a")]))
    assert max(max(sizes) for sizes in model.passes[1:]) == 2


def test_a_failing_release_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = Watched()
    events = list(make(model, Noisy(frozenset({"a"}), "end")).generate([request("a"), request("b")]))
    assert [event.finish_reason for event in ends(events).values()] == ["length", "length"]
    assert model.open_caches == 0
    assert "request a could not be released fully" in caplog.text


def test_a_request_may_ask_for_plain_decoding_or_for_less() -> None:
    prompt = (3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    drafted = {}
    for limit in (None, 0, 2):
        loop = StepLoop(
            CachedStepEngine(ToyModel()),
            NgramDrafter(2, 1),
            CoupledVerifier(),
            FixedController(5),
            clock=lambda: 0.0,
        )
        events = list(loop.generate([Request("r", prompt, params, draft_limit=limit)]))
        end = events[-1]
        assert isinstance(end, FinishEvent)
        drafts = end.metrics.drafts
        drafted[limit] = drafts.num_draft_tokens / max(1, drafts.num_drafts)
        assert [e.token_id for e in events[:-1] if isinstance(e, TokenEvent)]
        assert ("plain decoding" in end.metrics.speculation) == (limit == 0)
    assert drafted[0] == 0
    assert 0 < drafted[2] <= 2 < drafted[None]


def test_a_controller_that_asks_gets_the_targets_confidence() -> None:
    class WantsConfidence(FixedController):
        left = 4

        def __init__(self) -> None:
            super().__init__(3)
            self.received: list[float] = []

        def confidence_rows_wanted(self, state: None) -> int:
            return self.left - len(self.received)

        def record(self, state: None, step: StepRecord) -> None:
            self.received += step.certain
            super().record(state, step)

    controller, scored = WantsConfidence(), []

    class Notes(CachedStepEngine):
        def score(self, batch: Any, prompts: Any = (), draws: Any = ()) -> list[TargetScores]:
            scores = super().score(batch, prompts)
            scored.extend(scores)
            return scores

    engine = Notes(Watched())
    loop = StepLoop(engine, Noisy(), CoupledVerifier(), controller, clock=lambda: 0.0)
    assert ends(list(loop.generate([request("a")])))["a"].finish_reason == "length"
    assert len(controller.received) == 4, "no more than it asked for"
    first = scored[0].logits[0].astype(float)
    assert controller.received[0] == pytest.approx(1.0 / np.exp(first - first.max()).sum(), rel=1e-3)
