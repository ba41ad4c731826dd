"""Mixed batches: how many prompt tokens, and what they may cost the sequences that decode."""

from __future__ import annotations

import pytest

from outrider.decoding.controller import Controller, DraftLimits
from outrider.decoding.types import StepRecord
from outrider.policy.cost_model import CostModel
from outrider.policy.fixed import FixedController
from outrider.policy.mixed_batches import MixedBatchPolicy
from tests.support.controllers import make_auto

CURVE = {1: 0.060, 2: 0.061, 4: 0.067, 8: 0.090, 16: 0.160, 32: 0.320}


def test_a_pass_becomes_longer_but_not_much() -> None:
    costs = CostModel(CURVE)
    batches, seconds = MixedBatchPolicy(costs), costs.at(0).seconds
    for sequences in (1, 4):
        count = batches.prefill_budget(sequences, 0)
        assert count >= 1
        assert seconds(sequences + count) <= 2.0 * seconds(sequences)
        assert seconds(sequences + count + 1) > 1.5 * seconds(sequences), "nor fewer than could be"
    for sequences, more in ((1, 3), (4, 4)):  # the more they will be, the quicker they are let in
        count = batches.prefill_budget(sequences, more)
        assert count > batches.prefill_budget(sequences, 0)
        assert seconds(sequences + count) <= 2.0 * seconds(sequences + more)


def test_prompts_alone_have_wide_passes_within_reason() -> None:
    assert MixedBatchPolicy(CostModel({1: 1.0, 16: 3.0})).prefill_budget(0, 1) == 32
    assert MixedBatchPolicy(CostModel({1: 1e-3, 16: 2e-3})).prefill_budget(0, 1) == 256


def plainly(controller: Controller, count: int) -> None:
    """Passes of two texts without prompt tokens."""
    states = [controller.begin() for _ in range(2)]
    for _ in range(count):
        controller.choose([DraftLimits(state, 100, 100) for state in states])
        for state in states:
            took = CostModel(CURVE).at(0).seconds(2) / 2
            controller.record(state, StepRecord("none", 0, 0, 1, 0.0, took, 0.0, width=2))


def passes(controller: Controller, price_ratio: float, count: int) -> tuple[float, list[int]]:
    """(mean seconds of a pass, prompt tokens of each): two texts decode, prompt tokens take
    `price_ratio` times the time in CURVE."""
    seconds = CostModel(CURVE).at(0).seconds
    alone, total, joined = seconds(2), 0.0, []
    states = [controller.begin() for _ in range(2)]
    for _ in range(count):
        prompt_tokens = controller.prefill_budget(2, 1)
        controller.choose([DraftLimits(state, 100, 100) for state in states], prompt_tokens)
        took = alone + price_ratio * (seconds(2 + prompt_tokens) - alone)
        for state in states:
            done = StepRecord("none", 0, 0, 1, 0.0, took / 2, 0.0, width=2 + prompt_tokens)
            controller.record(state, done)
        total += took
        joined.append(prompt_tokens)
    return total / count, joined


@pytest.mark.parametrize("kind", ["auto", "fixed"])
@pytest.mark.parametrize("price_ratio", [1.0, 3.0, 10.0])
def test_texts_slow_down_to_half_at_most_while_a_long_prompt_is_read(kind: str, price_ratio: float) -> None:
    """Far into a prompt its tokens see more keys, so that a pass takes longer than the curve knows of."""
    controller: Controller = make_auto(CostModel(CURVE)) if kind == "auto" else FixedController(0)
    alone = CostModel(CURVE).at(0).seconds(2)
    plainly(controller, 20)
    usual = controller.prefill_budget(2, 1)
    mean, joined = passes(controller, price_ratio, 400)
    assert 1.7 * alone < mean < 2.0 * alone
    assert set(joined) <= {0, usual}
    assert (0 in joined) == (price_ratio > 1.0)
    passes(controller, 1.0, 30)
    assert set(passes(controller, 1.0, 40)[1]) == {usual}, "later prompts are read as fast as ever"


def test_a_long_prompt_teaches_nothing_about_drafts() -> None:
    controller = make_auto(costs := CostModel(CURVE))
    before = [costs.at(100).seconds(n) for n in range(1, 17)]
    usual = set(passes(controller, 1.0, 40)[1])
    for price_ratio in (3.0, 10.0):
        assert set(passes(controller, price_ratio, 200)[1]) == {0, *usual}
    assert [costs.at(100).seconds(n) for n in range(1, 17)] == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize(("times", "passes_until"), [(1.1, 4), (1.4, 1), (0.9, 4), (0.7, 1)])
def test_passes_are_learned_from_together_but_at_once_where_they_are_news(
    times: float, passes_until: int
) -> None:
    costs = CostModel(CURVE)
    batches, before = MixedBatchPolicy(costs), costs.at(100).seconds(1)
    for done in range(1, 9):
        batches.begin_pass([100])
        took = times * before
        assert batches.record(StepRecord("none", 0, 0, 1, 0.0, took, 0.0, width=1))
        learned = costs.at(100).seconds(1) != before
        assert learned == (done >= passes_until)


def test_what_is_learned_together_is_what_each_pass_teaches() -> None:
    together, one_by_one = CostModel(CURVE), CostModel(CURVE)
    batches = MixedBatchPolicy(together)
    for drafted in (0, 3, 7, 0, 1, 15, 2, 0):
        took = 1.1 * CostModel(CURVE).at(100).seconds(1 + drafted)
        batches.begin_pass([100])
        batches.record(StepRecord("suffix", drafted, 0, 1, 0.0, took, 0.0, width=1 + drafted))
        one_by_one.observe(100, 1 + drafted, took)
    for n in range(1, 33):
        assert together.at(100).seconds(n) == pytest.approx(one_by_one.at(100).seconds(n))
