"""What is learned of drafts after whole prompts is kept apart from drafts after truncated ones."""

from __future__ import annotations

from outrider.policy.cost_model import CostModel
from outrider.policy.draft_model import DraftModelSource, DraftModelState
from outrider.policy.tree import Node
from outrider.policy.tuning import DEFAULT

MODEL = "draft_model"


def expected_of_first(source: DraftModelSource, *, truncated: bool) -> float:
    """The acceptance probability of the first token for a new request."""
    return source._rates(begin(source, truncated=truncated)).expected(1)[1]


def begin(source: DraftModelSource, *, truncated: bool) -> DraftModelState:
    state = source.begin()
    if truncated:
        source.truncate(state)
    return state


def verify(source: DraftModelSource, *, truncated: bool, accepted: bool, times: int = 30) -> None:
    """Let a request draft one token many times, always with the same outcome."""
    state = begin(source, truncated=truncated)
    node = Node(7, -1, 0, 0.5, (MODEL,), 1, 0.7)
    for _ in range(times):
        source.observe_verified(state, [node], {-1, 0} if accepted else {-1})


def test_less_is_expected_where_the_middle_of_the_prompt_is_missing() -> None:
    source = DraftModelSource(MODEL, CostModel())
    assert expected_of_first(source, truncated=False) == DEFAULT.model_start
    assert expected_of_first(source, truncated=True) == DEFAULT.model_start_truncated < DEFAULT.model_start


def test_drafts_for_truncated_prompts_say_nothing_of_whole_ones_and_the_reverse() -> None:
    source = DraftModelSource(MODEL, CostModel())
    verify(source, truncated=True, accepted=False)
    assert expected_of_first(source, truncated=False) == DEFAULT.model_start
    assert expected_of_first(source, truncated=True) < 0.5 * DEFAULT.model_start_truncated
    verify(source, truncated=False, accepted=True)
    assert expected_of_first(source, truncated=False) > DEFAULT.model_start
    assert expected_of_first(source, truncated=True) < 0.5 * DEFAULT.model_start_truncated


def test_a_truncated_prompt_whose_drafts_are_accepted_is_drafted_for_as_others_are() -> None:
    source = DraftModelSource(MODEL, CostModel())
    verify(source, truncated=True, accepted=True, times=60)
    assert expected_of_first(source, truncated=True) > DEFAULT.model_start
