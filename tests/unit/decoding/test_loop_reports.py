"""The loop's part in log-probabilities and structured output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outrider.decoding import prefill as prefill_module
from outrider.decoding.context import TokenContext
from outrider.decoding.events import FinishEvent, TokenEvent
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.constraint import Mask
from outrider.decoding.sampling.logprobs import token_logprobs
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.types import Distribution, Draft
from outrider.errors import ConfigError
from tests.unit.decoding.test_loop import Noisy, Watched, ends, make, request, tokens

PROMPT = tuple(range(1, 12))


class Spelled:
    """A constraint that permits one sequence of tokens, of which some are forced."""

    def __init__(self, spelled: Sequence[int], forced: Sequence[bool] | None = None) -> None:
        self._spelled = list(spelled)
        self._forced = [True] * len(spelled) if forced is None else list(forced)

    def _at(self, context: TokenContext) -> int | None:
        output = context.output
        return len(output) if self._spelled[: len(output)] == output else None

    def allowed(self, context: TokenContext) -> Mask | None:
        at = self._at(context)
        if at is None or at == len(self._spelled):
            return None
        mask = np.zeros(32, bool)
        mask[self._spelled[at : at + 1]] = True
        return mask

    def forced(self, context: TokenContext, most: int) -> list[int]:
        at = self._at(context)
        assert at is not None
        until = at
        while until < len(self._spelled) and self._forced[until]:
            until += 1
        return self._spelled[at:until][:most]

    def ended(self, context: TokenContext) -> bool:
        return self._at(context) == len(self._spelled)


def constrained(spelled: Sequence[int], forced: Sequence[bool] | None = None, **arguments: Any) -> Request:
    params = SamplingParams(**{"max_tokens": 30, "choice": ["stands for it"], **arguments})
    return Request("a", (1, 2, 3), params, seed=5, constraint=Spelled(spelled, forced))


@pytest.mark.parametrize(("chunk", "rows"), [(256, 32), (4, 32), (256, 3), (5, 2)])
def test_prompt_logprobs_come_in_chunks_with_the_first_token(
    chunk: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_module, "PROMPT_ROWS", rows)
    model = Watched()
    events = list(make(model, prefill_chunk=chunk).generate([request("a", PROMPT, prompt_logprobs=2)]))
    told = [event for event in events if isinstance(event, TokenEvent)]
    assert all(event.prompt_logprobs is None for event in told[1:])
    entries = told[0].prompt_logprobs
    assert entries is not None
    assert [entry.token for entry in entries] == list(PROMPT[1:])
    ids = np.array(PROMPT, np.int64)
    for at, entry in enumerate(entries, start=1):
        expected = token_logprobs(model._logits(ids[:at], np.arange(at)), PROMPT[at], 2)
        assert (entry.logprob, entry.rank) == (expected.logprob, expected.rank)
        assert entry.top_ids.tolist() == expected.top_ids.tolist()
    assert max(max(sizes) for sizes in model.passes) <= min(chunk, rows)
    plain = list(make(Watched(), prefill_chunk=chunk).generate([request("a", PROMPT)]))
    assert tokens(events, "a") == tokens(plain, "a")


def test_a_prompt_of_one_token_has_nothing_to_report() -> None:
    events = list(make(Watched()).generate([request("a", [7], prompt_logprobs=1)]))
    assert isinstance(events[0], TokenEvent)
    assert events[0].prompt_logprobs == ()


def test_logprobs_that_are_nan_end_their_request() -> None:
    model = Watched()
    model.nan_after = 1
    loop = make(model, prefill_chunk=2)
    events = list(loop.generate([request("a", [1, 2, 3], prompt_logprobs=0), request("b", [4])]))
    assert "nan" in str(ends(events)["a"].error)
    assert ends(events)["b"].finish_reason == "length"


def test_forced_tokens_come_first_and_the_drafter_continues_after_them() -> None:
    class Tree(Noisy):
        def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
            (job,) = jobs
            asked.append((job.context.path, job.budget, job.context.position))
            tokens = np.array([9, 7, 4], np.int32)[: job.budget]
            parents = np.array([-1, -1, 1], np.int32)[: job.budget]
            stated = (None, Distribution.point(7), None)[: job.budget]
            return [Draft(tokens, parents, stated, self.name)]

    asked: list[tuple[tuple[int, ...], int, int]] = []
    spelled = [5, 6, 7, 4, 8, 2]
    plain = list(make(Watched()).generate([constrained(spelled)]))
    model = Watched()
    free = [True, True, False, True, True, True]
    events = list(make(model, Tree(), 5).generate([constrained(spelled, free)]))
    assert tokens(events, "a") == tokens(plain, "a") == spelled
    assert asked == [((5, 6), 3, 5)]
    assert model.passes == [[2], [6], [2]]
    metrics = ends(events)["a"].metrics
    counts = {name: (c.num_draft_tokens, c.num_accepted_tokens) for name, c in metrics.by_drafter.items()}
    assert counts == {"constraint": (3, 3), "noisy": (3, 2)}
    assert (metrics.drafts.num_drafts, metrics.num_passes) == (2, 2)


def test_without_a_drafter_nothing_is_forced_ahead() -> None:
    model = Watched()
    events = list(make(model).generate([constrained([5, 6, 7])]))
    assert tokens(events, "a") == [5, 6, 7]
    assert model.passes == [[2], [1], [1], [1]]


@pytest.mark.parametrize("length", [0, 2, 9])
@pytest.mark.parametrize("most", [3, 4])
def test_the_text_ends_where_its_form_does(length: int, most: int) -> None:
    events = list(make(Watched(), Noisy(), length).generate([constrained([5, 6, 7], max_tokens=most)]))
    assert tokens(events, "a") == [5, 6, 7]
    assert (ends(events)["a"].finish_reason, ends(events)["a"].stop_reason) == ("stop", None)
    events = list(make(Watched(), Noisy(), length).generate([constrained([5, 6, 7], max_tokens=2)]))
    assert ends(events)["a"].finish_reason == "length"


def test_text_that_was_held_back_comes_with_the_end() -> None:
    class Held:
        def push(self, token_id: int) -> str:
            return "x"

        def hidden(self, token_id: int) -> str:
            return ""

        def flush(self) -> str:
            return "!"

    params = SamplingParams(choice=["it"], stop="xxxxxxx", max_tokens=3)
    events = list(
        make(Watched()).generate(
            [Request("a", (1,), params, detokenizer=Held(), constraint=Spelled([5, 6, 7]))]
        )
    )
    text = "".join(e.text if isinstance(e, TokenEvent) else e.text_tail for e in events)
    assert text == "xxx!"


def test_a_constraints_fault_ends_its_request_only() -> None:
    class Bad(Spelled):
        def forced(self, context: TokenContext, most: int) -> list[int]:
            raise ConfigError("structured output cannot go on")

    params = SamplingParams(choice=["it"], max_tokens=6)
    bad = Request("a", (1,), params, constraint=Bad([5, 6]))
    events = list(make(Watched(), Noisy()).generate([bad, request("b")]))
    found = {event.request_id: event for event in events if isinstance(event, FinishEvent)}
    assert isinstance(found["a"].error, ConfigError)
    assert found["b"].finish_reason == "length"


def test_an_error_after_the_end_of_the_text_is_ignored() -> None:
    """A draft runs past the stop token, where a processor would fail."""

    def processor(output: list[int], logits: np.ndarray) -> np.ndarray:
        if 6 in output:
            raise ValueError("no text after its end")
        logits[[4, 5, 6][len(output) % 3]] = 50.0
        return logits

    class Beyond(Noisy):
        def propose(self, jobs: Sequence[ProposeJob]) -> list[Draft]:
            return [Draft.chain([4, 5, 6, 4, 5, 6][: job.budget], self.name) for job in jobs]

    asked = request("a", logits_processors=[processor], stop_token_ids=[6], max_tokens=12)
    for drafter in (None, Beyond()):
        events = list(make(Watched(), drafter, 5).generate([asked]))
        assert tokens(events, "a") == [4, 5, 6]
        assert (ends(events)["a"].finish_reason, ends(events)["a"].stop_reason) == ("stop", 6)


@pytest.mark.parametrize(
    ("arguments", "words"), [({"bad_words": ["a"]}, "bad_words"), ({"regex": "a"}, "structured output")]
)
def test_parameters_that_need_a_tokenizer_are_refused_without_one(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"{words} needs? a tokenizer"):
        request("a", **arguments)
