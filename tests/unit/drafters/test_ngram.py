from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.context import TokenContext
from outrider.decoding.request import ProposeJob, Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.sampler import Sampler
from outrider.decoding.types import Draft, Verdict
from outrider.drafters.ngram import NgramDrafter
from outrider.errors import ConfigError
from tests.support.toy_model import UNSCORED

SAMPLER = Sampler(SamplingParams(), 16)


def start(drafter: NgramDrafter, prompt: list[int], name: str = "r") -> TokenContext:
    drafter.begin(Request(name, tuple(prompt), SamplingParams()))
    return TokenContext(prompt)


def propose(drafter: NgramDrafter, context: TokenContext, budget: int, name: str = "r") -> list[int]:
    (draft,) = drafter.propose([ProposeJob(name, context, budget, SAMPLER)])
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    assert (draft.source, draft.probs) == ("ngram", None)
    return [int(token) for token in draft.tokens]


def test_what_followed_last_time() -> None:
    drafter = NgramDrafter(2, 1)
    assert propose(drafter, start(drafter, [1, 2, 3, 4, 1, 2]), 2) == [3, 4]


def test_the_longest_match_wins_then_the_latest() -> None:
    drafter = NgramDrafter(2, 1)
    assert propose(drafter, start(drafter, [1, 2, 5, 9, 2, 6, 1, 2]), 1) == [5]
    drafter = NgramDrafter(1, 1)
    assert propose(drafter, start(drafter, [1, 2, 5, 9, 2, 6, 1, 2]), 1) == [6]


def test_nothing_follows_a_token_that_ends_the_text() -> None:
    drafter = NgramDrafter(2, 1)
    context = start(drafter, [1, 2, 3, 4, 5, 1, 2])
    for stop, wanted in ((4, [3, 4]), (3, [3]), (9, [3, 4, 5, 1])):
        job = ProposeJob("r", context, 4, Sampler(SamplingParams(), 16, eos_ids=[stop]))
        assert drafter.propose([job])[0].tokens.tolist() == wanted


def test_no_match_is_no_draft() -> None:
    drafter = NgramDrafter(3, 2)
    assert propose(drafter, start(drafter, [1, 2, 3, 2]), 4) == []
    assert propose(drafter, start(drafter, [7], "short"), 4, "short") == []


def test_a_loop_is_continued_as_a_loop() -> None:
    drafter = NgramDrafter(2, 2)
    assert propose(drafter, start(drafter, [9, 1, 2, 3, 1, 2]), 7) == [3, 1, 2, 3, 1, 2, 3]
    drafter = NgramDrafter(1, 1)
    assert propose(drafter, start(drafter, [4, 4]), 3) == [4, 4, 4]


def test_the_lengths_default_as_in_vllm() -> None:
    for given_, expected in [
        ((None, None), (5, 5)),
        ((3, None), (3, 3)),
        ((None, 2), (2, 2)),
        ((4, 2), (4, 2)),
    ]:
        drafter = NgramDrafter(*given_)
        assert (drafter.prompt_lookup_max, drafter.prompt_lookup_min) == expected
    for bad in [(2, 3), (0, None), (3, 0), (-1, -1)]:
        with pytest.raises(ConfigError, match="prompt_lookup_min"):
            NgramDrafter(*bad)


def test_a_request_is_forgotten_when_it_ends() -> None:
    drafter = NgramDrafter(1, 1)
    context = start(drafter, [1, 2, 1])
    drafter.observe("r", Draft.empty(), Verdict((), 2, "bonus"), UNSCORED)
    drafter.end("r")
    drafter.end("never begun")
    with pytest.raises(KeyError):
        propose(drafter, context, 1)


def scan(tokens: list[int], shortest: int, longest: int, budget: int) -> list[int]:
    """The same by looking through the whole text."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if size < len(tokens) and tokens[end - size : end] == tokens[-size:]:
                text = list(tokens)
                for i in range(budget):
                    text.append(text[end + i])
                return text[len(tokens) :]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=8),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 6),
)
def test_the_index_finds_what_a_scan_finds(
    prompt: list[int], steps: list[list[int]], shortest: int, more: int, budget: int
) -> None:
    drafter = NgramDrafter(shortest + more, shortest)
    context = start(drafter, prompt)
    for step in [[], *steps]:
        for token in step:
            context.append(token)
        assert propose(drafter, context, budget) == scan(context.tokens, shortest, shortest + more, budget)
